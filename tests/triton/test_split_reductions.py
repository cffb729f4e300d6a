"""Long reductions with few results are split over programs, also where sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

ROWS, COLUMNS = 2051, 96
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns": lambda x: x.sum(0),
    "largest": lambda x: x.amax(0),
    "all": lambda x: x.sum(),
}


def matrix(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows))


def plan_of(fn: Callable[[Tensor], Any], x: Tensor) -> Plan:
    return gpu_plan(on_gpu(lowered(fn, x, dynamic=True).program), Gpu(processors=4))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_are_split_though_their_number_is_a_symbol(name: str, interpreter: Worker) -> None:
    plan = plan_of(REDUCTIONS[name], matrix())
    assert len(plan.kernels) == 2
    for rows in (2, 37):  # the last parts end early, or are empty
        (got,) = run_plan(plan, [matrix(rows)], launch=runner(interpreter))
        torch.testing.assert_close(got, REDUCTIONS[name](matrix(rows)), rtol=1e-4, atol=1e-4)


def test_neighbouring_columns_are_read_together_though_rows_are_split_unevenly() -> None:
    (first, _) = plan_of(lambda x: (x * x.amax(1, keepdim=True)).sum(0), matrix()).kernels[-2:]
    assert first.tiling is not None
    assert "XBLOCK" in [tile.block for tile in first.tiling.tiles]


def test_a_position_is_found_in_uneven_parts() -> None:
    """The tree alone, interpreted: Triton's interpreter takes minutes for a reduction of pairs."""
    plan = plan_of(torch.argmax, matrix())
    assert len(plan.kernels) == 2
    for rows in (2, 37):
        (got,) = run_plan(plan, [matrix(rows)])
        assert torch.equal(got, matrix(rows).argmax())


def test_sums_of_equal_uneven_parts_are_one_kernel(interpreter: Worker) -> None:
    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0), (x * x).sum(0)

    plan = plan_of(sums, matrix())
    assert len(plan.kernels) == 2
    for rows in (2, 37):
        found = run_plan(plan, [matrix(rows)], launch=runner(interpreter))
        for got, wanted in zip(found, sums(matrix(rows)), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
