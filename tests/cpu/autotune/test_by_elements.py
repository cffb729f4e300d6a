"""Small products as products and sums of elements, inlined so that they fuse with their neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.acceptance import check
from tests.cpu.autotune.harness import FORCED, record

pytestmark = pytest.mark.usefixtures("own_cache")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def addmm(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(c, a, b, beta=0.5, alpha=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_they_are_right_and_have_gradients(dtype: torch.dtype) -> None:
    def products(a: Tensor, b: Tensor, c: Tensor, d: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return a @ b, addmm(bias, a, b.t()), torch.bmm(c, d.transpose(1, 2))

    shapes = (5000, 7), (7, 7), (300, 3, 5), (300, 2, 5), (7,)
    args = [random(*shape, dtype=dtype).requires_grad_() for shape in shapes]
    check(products, args, backend="gyrator", backward=True, options=FORCED)


def test_they_are_one_kernel_with_what_follows() -> None:
    found = record(lambda a, b, c: torch.relu(torch.addmm(c, a, b)) * 2, random(4096, 8), random(8, 16), random(16))
    (step,) = found.steps
    assert step.kind == "kernel" and "sum" in step.name


@pytest.mark.parametrize(
    ("left", "right"),
    [((16, 8), (8, 4096)), ((4095, 8), (8, 8)), ((4096, 65), (65, 2)), ((4096, 64), (64, 65)), ((8, 4, 5), (8, 5, 4))],
    ids=str,
)
def test_few_rows_and_larger_sides_are_left_to_the_library(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    found = record(torch.matmul, random(*left), random(*right))
    assert [step.kind for step in found.steps] == ["extern"] and found.choices == ()


def test_they_are_taken_where_they_are_faster() -> None:
    found = record(torch.bmm, random(2048, 3, 5), random(2048, 5, 3), gemm_backends="aten,subgraph")
    (choice,) = found.choices
    assert {trial.name for trial in choice.trials} == {"bmm", "by_elements"}
    best = choice.trials[0].name
    assert [step.kind for step in found.steps] == ["kernel" if best == "by_elements" else "extern"]
