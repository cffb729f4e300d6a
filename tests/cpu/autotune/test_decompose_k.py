"""decompose-K: products with a long K as products over parts of K, inlined so that the sum fuses with what follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.acceptance import check
from tests.cpu.autotune.harness import FORCED, record

LENGTHS = range(4096, 32768 + 1, 4096)
pytestmark = pytest.mark.usefixtures("own_cache")


def random(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [(torch.float16, LENGTHS), (torch.bfloat16, LENGTHS[6:]), (torch.float32, LENGTHS[6:])],
    ids=str,
)
def test_products_of_all_lengths_are_right_and_have_gradients(dtype: torch.dtype, lengths: range) -> None:
    def products(*sides: Tensor) -> list[Tensor]:
        return [torch.mm(left, right) for left, right in zip(sides[::2], sides[1::2], strict=True)]

    sides = [random(*shape, dtype=dtype).requires_grad_() for k in lengths for shape in ((8, k), (k, 32))]
    check(products, sides, backend="gyrator", backward=True, options=FORCED)


@pytest.mark.parametrize("form", ["addmm", "no bias", "bmm", "transposed"])
def test_other_forms_of_products_are_right(form: str) -> None:
    left, right = random(8, 4096, dtype=torch.float32), random(4096, 16, dtype=torch.float32)
    args, function = {
        "addmm": ((torch.randn(16), left, right), lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2)),
        "no bias": ((torch.full((16,), torch.nan), left, right), lambda c, a, b: torch.addmm(c, a, b, beta=0, alpha=2)),
        "bmm": ((torch.randn(3, 8, 4096), torch.randn(3, 4096, 16)), torch.bmm),
        "transposed": ((right, left), lambda a, b: torch.mm(a.t(), b.t())),
    }[form]
    check(function, args, backend="gyrator", options=FORCED)
    assert any(step.name == "aten.bmm.default" for step in record(function, *args).steps)


def test_what_follows_is_fused_with_the_sum_of_partial_products() -> None:
    found = record(lambda a, b, c: torch.relu(a @ b + c), random(8, 4096), random(4096, 32), random(32))
    (last,) = [step for step in found.steps if step.kind == "kernel" and "sum" in step.name]
    assert "relu" in last.name and last is found.steps[-1]
    assert {"sum", "relu"} <= {op for kernel in found.kernels if kernel.name == last.name for op in _ops(kernel.source)}
    (choice,) = found.choices
    assert choice.title == "mm(8x4096, 4096x32)" and choice.trials[0].name == "decompose_k_16"  # parts of 256
    assert all("test_decompose_k.py" in place for step in found.steps for place in step.places)


def _ops(source: str) -> set[str]:
    return {name for name in ("sum", "relu") if f"aten.{name}" in source}


@pytest.mark.parametrize(("m", "k", "n"), [(64, 1024, 64), (8, 4099, 8), (3, 200, 3)])
def test_short_sums_and_lengths_that_no_part_divides_are_left_to_the_library(m: int, k: int, n: int) -> None:
    found = record(torch.mm, random(m, k), random(k, n))
    assert [step.name for step in found.steps] == ["aten.mm.default"] and found.choices == ()


def test_symbolic_sizes_are_left_to_the_library() -> None:
    compiled = torch.compile(lambda a, b: a @ b, backend="gyrator", dynamic=True, options=FORCED)
    a, b = torch.randn(4, 4096), torch.randn(4096, 4)
    torch.testing.assert_close(compiled(a, b), a @ b, rtol=1e-4, atol=1e-3)


def test_a_measured_choice_compares_all_splits_with_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"gemm_backends": "aten,subgraph", "autotune_log": tmp_path / "log", "autotune_timeout": 60.0}
    found = record(torch.mm, random(4, 1024), random(1024, 4), autotune_silent=False, **options)
    (choice,) = found.choices
    assert {t.name: t.backend for t in choice.trials} == {
        "mm": "aten", "decompose_k_4": "subgraph", "decompose_k_8": "subgraph", "decompose_k_2": "subgraph"
    }  # fmt: skip
    assert [t.milliseconds for t in choice.trials] == sorted(t.milliseconds or -1.0 for t in choice.trials)
    assert "AUTOTUNE mm(4x1024, 1024x4)\n" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    about = next(row["parameters"] for row in rows if row["name"] == "decompose_k_4")
    assert about == {"backend": "subgraph", "kernel_name": "decompose_k_4", "heuristic": "subgraph_decompose_k_4"}
