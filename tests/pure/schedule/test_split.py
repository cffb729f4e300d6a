"""Sums of few columns over many rows are shared by all cores, also where the number of rows is a symbol or odd; where
columns are no whole vectors, several rows fill some together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.ir.tree import LoopKind, walk_loops
from gyrator.ir.volume import at_most
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


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(("rows", "columns"), [(512, 7), (512, 2), (509, 3), (1000, 12), (210, 20)])
def test_rows_fill_vectors_together(rows: int, columns: int, name: str) -> None:
    """Of an odd number of rows, the last vector is masked."""

    def inner(x: Tensor) -> Tensor:
        return SUMS[name](x.transpose(0, 1))

    x = torch.randn(150, rows, columns, generator=torch.Generator().manual_seed(rows))
    made = scheduled(inner, [x], dynamic=False)
    assert max(vector_lengths(made.plan)) >= 2 * columns
    (got,) = run_plan(made.plan, [x], ())
    torch.testing.assert_close(got, inner(x), rtol=1e-4, atol=1e-4)


def vector_lengths(plan: Plan) -> list[int]:
    """How long loops in vectors are at most."""
    loops = (loop for kernel in plan.kernels for loop in walk_loops(kernel.body) if loop.kind is LoopKind.LANES)
    return [at_most(loop.axis.extent) or 0 for loop in loops]


@pytest.mark.parametrize("shape", [(40, 512, 64), (40, 8, 3)])
def test_rows_do_not_where_vectors_are_full_or_rows_are_few(shape: tuple[int, ...]) -> None:
    assert len(scheduled(lambda x: x.sum(1), [torch.randn(shape)], dynamic=False).plan.kernels) == 1


def test_vectors_lie_along_the_largest_tensor() -> None:
    """Not along an axis on which a small operand is contiguous and each lane of the others is in another row."""
    made = scheduled(lambda x, y: x / y, [torch.randn(300, 512, 7), torch.randn(300, 1, 7)], dynamic=False)
    (loop,) = (p for k in made.plan.kernels for p in walk_loops(k.body) if p.kind is LoopKind.LANES)
    assert loop.axis.extent.value == 512


@pytest.mark.parametrize("width", [8, 3, 20])
def test_short_ends_of_rows_fill_vectors_with_those_that_follow_them(width: int) -> None:
    def ends(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * x).sum((0, 2)), (x + y).amax((0, 2))

    x, y = torch.randn(4096, 6, width), torch.randn(width)
    made = scheduled(ends, [x, y], dynamic=False)
    assert max(vector_lengths(made.plan)) == 6 * width
    torch.testing.assert_close(tuple(run_plan(made.plan, [x, y], ())), ends(x, y), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", SUMS)
def test_narrow_columns_fill_vectors_with_those_that_follow_them(name: str) -> None:
    """The result lies in another way, but it is small."""
    x = torch.randn(1000, 40, 12).transpose(1, 2)
    made = scheduled(SUMS[name], [x], dynamic=False)
    assert max(vector_lengths(made.plan)) >= 256
    (got,) = run_plan(made.plan, [x], ())
    torch.testing.assert_close(got, SUMS[name](x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "scratch"), [(8, False), (80, True)])
def test_few_rows_are_summed_in_registers(rows: int, scratch: bool) -> None:
    (kernel,) = scheduled(lambda x: x.exp().sum(1), [torch.randn(100, rows, 256)], dynamic=False).plan.kernels
    assert bool(kernel.scratch) == scratch
