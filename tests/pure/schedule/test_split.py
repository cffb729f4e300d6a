"""Sums of few columns over many rows are shared by all cores, also where the number of rows is a symbol or odd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.ir.tree import LoopKind
from gyrator.schedule.plan import Plan
from tests.pure.schedule.harness import scheduled
from tests.run_plan import run_plan

ROWS, COLUMNS = 1031, 96
SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "largest": lambda x: x.amax(0),
    "product": lambda x: (1 + x / 1000).prod(0),
}


def matrix(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows))


def is_shared(plan: Plan) -> bool:
    """Whether a first kernel makes parts in parallel, which a second one joins."""
    loops = [kernel.body[0] for kernel in plan.kernels]
    return len(loops) == 2 and loops[0].kind is LoopKind.PARALLEL


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_many_rows_are_added_up_in_parts(name: str, dynamic: bool) -> None:
    made = scheduled(SUMS[name], [matrix()], dynamic=dynamic)
    assert is_shared(made.plan)
    if dynamic:
        for rows in (2, 15, 16, 17, 700):  # with fewer rows than parts some parts are empty
            (got,) = run_plan(made.plan, [matrix(rows)], ())
            torch.testing.assert_close(got, SUMS[name](matrix(rows)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_variance_is_split_only_where_parts_are_even(dynamic: bool) -> None:
    def variance(x: Tensor) -> Tensor:
        return torch.var(x.flatten(0, 1), 0)

    assert is_shared(scheduled(variance, [matrix(1024).view(8, 128, COLUMNS)], dynamic=False).plan)
    assert not is_shared(scheduled(variance, [matrix().view(1, ROWS, COLUMNS)], dynamic=dynamic).plan)


def test_few_rows_are_not_split_though_their_number_is_a_symbol() -> None:
    assert not is_shared(scheduled(SUMS["sum"], [matrix(70)], dynamic=True).plan)
