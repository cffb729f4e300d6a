"""Additions that crowd on few elements are reductions on a GPU; others stay atomic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.schedule import scatter
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def places(*shape: int, low: int = 0, high: int = 5) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def position_biases(grad: Tensor, buckets: Tensor) -> Tensor:
    """The gradient of a table, as that of T5: [buckets, heads] from [batch, heads, queries, keys]."""
    table = torch.zeros(5, grad.shape[1])
    return table.index_put((buckets,), grad.sum(0).permute(1, 2, 0), accumulate=True)


def onto_values(table: Tensor, where: Tensor, x: Tensor) -> Tensor:
    return table.index_add(1, where, x.sin() * 2) + 1


def into_part(table: Tensor, where: Tensor, x: Tensor) -> Tensor:
    """What is computed is stored once, not for each element of the table again."""
    return torch.index_put(table, (where,), (x.exp() - x * x).sigmoid() * 3 - x.tanh(), accumulate=True)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "position biases": (position_biases, (random(2, 3, 7, 9), places(7, 9))),
    "negative places": (position_biases, (random(2, 3, 7, 9), places(7, 9, low=-5))),
    "another dimension": (onto_values, (random(4, 5), places(30), random(4, 30))),
    "integers": (lambda t, i, x: t.index_add(0, i, x), (places(5, 2), places(40), places(40, 2, high=100))),
    "computed values": (into_part, (random(5), places(50), random(50))),
    "a column of one": (lambda t, i, x: t.scatter_add(0, i, x), (random(5, 1), places(60, 1), random(60, 1))),
}


@pytest.mark.parametrize("case", CASES)
def test_crowded_sums_are_right_and_not_atomic(case: str, interpreter: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "LEAST_CROWD", 4)
    fn, args = CASES[case]
    low = lowered(fn, *args)
    plan = gpu_plan(on_gpu(low.program))
    assert all("atomic" not in print_triton(kernel).source for kernel in plan.kernels)
    (got,) = run_plan(plan, [a.clone() for a in args], low.constants, runner(interpreter))
    torch.testing.assert_close(got, fn(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_long_sums_are_added_to_copies_in_turns(
    case: str, interpreter: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LEAST_CROWD": 4, "CROWD": 2, "BYTES_IN_AN_ADDITION": 0, "BYTES_IN_LAUNCHES": 0}.items():
        monkeypatch.setattr(scatter, name, value)
    fn, args = CASES[case]
    low = lowered(fn, *args)
    plan = gpu_plan(on_gpu(low.program))
    adding = [kernel for kernel in plan.kernels if "atomic" in print_triton(kernel).source]
    assert [p.value.name.endswith("parts") for kernel in adding for p in kernel.params if p.written] == [True]
    (got,) = run_plan(plan, [a.clone() for a in args], low.constants, runner(interpreter))
    torch.testing.assert_close(got, fn(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("cells", "points", "width", "way"),
    [
        (2, 1 << 14, 768, "choices"),
        (8, 1 << 24, 1, "choices"),
        (32, 1 << 18, 12, "copies"),
        (256, 1 << 24, 1, "copies"),
        (4096, 1 << 24, 1, "copies"),
        (64, 1 << 15, 4096, "atomic"),  # reading takes longer
        (32, 1 << 13, 3, "atomic"),  # few meet
        (1 << 20, 1 << 30, 1, "atomic"),  # copies would be large
    ],
)
def test_additions_are_shared_out_by_what_takes_least(cells: int, points: int, width: int, way: str) -> None:
    def added(x: Tensor, where: Tensor) -> Any:
        return torch.zeros(cells, width).index_add(0, where, x)

    x, where = torch.ones(1, 1).expand(points, width), torch.zeros(1, dtype=torch.int64).expand(points)
    plan = gpu_plan(on_gpu(lowered(added, x, where).program))
    adding = [kernel for kernel in plan.kernels if "atomic" in print_triton(kernel).source]
    to_copies = any(p.value.name.endswith("parts") for kernel in adding for p in kernel.params)
    assert ("copies" if to_copies else "atomic" if adding else "choices") == way
