"""Long reductions with few results are split over programs, also where sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_expr import grid_loops
from gyrator.ir.index import ONE
from gyrator.ir.tree import loads_in
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.interp_tree import run_kernel
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

BF16, F32 = torch.bfloat16, torch.float32
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


def test_variances_are_split_though_the_number_of_rows_is_a_symbol(interpreter: Worker) -> None:
    """As sums, of which the second is of squared differences to the mean: 8 programs took 7.7 ms of 0.1 on an H200."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return torch.var_mean(x, 0, correction=0)

    plan = plan_of(fn, matrix())
    assert len(plan.kernels) == 4
    for rows in (2, 37):
        for got, wanted in zip(
            run_plan(plan, [matrix(rows)], launch=runner(interpreter)), fn(matrix(rows)), strict=True
        ):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_few_rows_that_something_crosses_are_split_once_what_crosses_is_written() -> None:
    """25 programs would have 8 rows each: 0.41 ms for 0.09 (665 x 197 x 256 bfloat16 on an H200)."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * y.mT
        return z, z.amax((0, 2))

    args = torch.empty(665, 197, 256, device="meta"), torch.empty(665, 256, 197, device="meta")
    first, *others = gpu_plan(on_gpu(lowered(fn, *args).program), Gpu()).kernels
    assert first.tiling is not None and first.tiling.category == "pointwise" and others


def test_columns_are_columns_from_right_to_left_too() -> None:
    x = torch.empty(1 << 16, 256, device="meta")
    first, _ = gpu_plan(on_gpu(lowered(lambda x: x.flip(1).sum(0), x).program), Gpu()).kernels
    assert first.tiling is not None and "XBLOCK" in [tile.block for tile in first.tiling.tiles]


def test_neighbouring_columns_are_read_together_though_rows_are_split_unevenly() -> None:
    (first, _) = plan_of(lambda x: (x * x.amax(1, keepdim=True)).sum(0), matrix()).kernels[-2:]
    assert first.tiling is not None
    assert "XBLOCK" in [tile.block for tile in first.tiling.tiles]


def test_weights_that_are_summed_too_do_not_split_what_occupies_the_gpu() -> None:
    """Sums both ways join where they read one large tensor: a mean by weights reads a small one."""

    def mean(x: Tensor, weights: Tensor) -> Tensor:
        return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)

    program = on_gpu(lowered(mean, torch.ones(16, 4096, 96), torch.ones(16, 4096)).program)
    assert len(gpu_plan(program, Gpu(processors=4)).kernels) == 2


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


@pytest.mark.parametrize("row", [1 << 17, (1 << 17) - 5])
def test_a_softmax_of_few_rows_too_long_to_share_is_split(row: int, interpreter: Worker) -> None:
    """A part of -inf alone, as of masked tokens, has no share."""
    x = torch.randn(2, row, generator=torch.Generator().manual_seed(row))
    x[1, : row // 2] = -torch.inf
    plan = gpu_plan(on_gpu(lowered(lambda x: x.softmax(-1), x).program), Gpu(processors=4))
    assert len(plan.kernels) == 3
    (got,) = run_plan(plan, [x], launch=runner(interpreter))
    torch.testing.assert_close(got, x.softmax(-1), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("row", [70, 1 << 17])
def test_exponentials_of_a_row_of_minus_infinity_add_up_to_nan(row: int, interpreter: Worker) -> None:
    """Whether a program runs through the row, of unknown length, or parts of it are summed apart."""

    def total(x: Tensor) -> Tensor:
        return (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)

    x = torch.zeros(3, row)
    x[1] = -torch.inf
    x[2, : row - 1] = -torch.inf
    plan = gpu_plan(on_gpu(lowered(total, x, dynamic=row == 70).program), Gpu(processors=4))
    assert [len(kernel.params) for kernel in plan.kernels] == ([2] if row == 70 else [3, 3])
    (got,) = run_plan(plan, [x], launch=runner(interpreter) if row == 70 else run_kernel)
    torch.testing.assert_close(got[:, 0], torch.tensor([row, torch.nan, 1.0]), equal_nan=True)


def test_a_loss_is_summed_where_its_rows_are_at_hand(interpreter: Worker) -> None:
    """The rows of both tensors are read once."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")

    x, y = torch.randn(2, 600, 160, generator=torch.Generator().manual_seed(0))
    plan = gpu_plan(on_gpu(lowered(loss, x, y).program))
    first, _ = plan.kernels
    assert print_triton(first).source.count("tl.load(") == 2
    (got,) = run_plan(plan, [x, y], launch=runner(interpreter))
    torch.testing.assert_close(got, loss(x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "dtype", "programs"),
    [(384, BF16, 16), (384, F32, 8), (1024, BF16, 8), (4096, BF16, 2), (8192, BF16, 1), (8192, F32, 1), (64, F32, 64)],
)
def test_programs_that_sum_rows_and_columns_load_as_much_as_memory_needs(
    columns: int, dtype: torch.dtype, programs: int
) -> None:
    """So many for each multiprocessor, whatever else is read once for a row; the last step sums both in one kernel."""

    def backward(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = (x.float() - mean) * scale
        return (g.float() - h * (g * h).mean(-1, keepdim=True)).to(g.dtype), (g * h).sum(0), g.float().sum(0)

    x, number = torch.empty(576_000, columns, dtype=dtype, device="meta"), torch.empty(576_000, 1, device="meta")
    plan = gpu_plan(on_gpu(lowered(backward, x, x, number, number).program), Gpu())
    first, _ = plan.kernels
    assert print_triton(first).grid[0].extent.value == programs * Gpu().processors


def test_parts_of_all_elements_are_contiguous() -> None:
    """Not few columns of each of a number of rows that is a symbol."""

    def total(x: Tensor) -> Tensor:
        assert x.shape[1] == COLUMNS
        return x.sum()

    first, _ = plan_of(total, matrix(40_000)).kernels
    (load,) = loads_in(first.body)
    row = load.index[0].axes() - {loop.axis for loop in grid_loops(first)}
    assert [load.index[0].coefficient(axis) for axis in row] == [ONE]


def test_parts_of_what_lies_across_are_contiguous_too() -> None:
    first, _ = gpu_plan(on_gpu(lowered(lambda x: x.t().float().sum((0, 1)), matrix(40_000).to(BF16)).program)).kernels
    (load,) = loads_in(first.body)
    row = load.index[0].axes() - {loop.axis for loop in grid_loops(first)}
    assert [load.index[0].coefficient(axis) for axis in row] == [ONE]


def of_results(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.log_softmax(x, -1)
    return y, y.sum(0)


def of_what_rows_are_computed_of(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sigmoid()
    return y - (x * y).sum(-1, keepdim=True), x.sum(0)


@pytest.mark.parametrize("fn", [of_results, of_what_rows_are_computed_of])
@pytest.mark.parametrize("columns", [40, 256])
def test_columns_beside_what_is_computed_along_rows_are_summed_by_many_programs(
    fn: Callable[[Tensor], tuple[Tensor, Tensor]], columns: int, interpreter: Worker
) -> None:
    """They join the rows, for which as many as other columns have are too few: 0.27 ms for 0.11 (65536 x 256 float32
    on an H200)."""
    program = lowered(fn, torch.empty(1 << 23, columns, device="meta")).program
    first, _ = gpu_plan(on_gpu(program), Gpu()).kernels
    (grid,) = print_triton(first).grid
    assert first.tiling is not None and grid.extent.value is not None
    assert grid.extent.value // dict(first.tiling.configs[0].blocks).get("XBLOCK", 1) >= 4 * Gpu().processors
    x = matrix(3_000).repeat(1, 3)[:, :columns].contiguous()
    plan = gpu_plan(on_gpu(lowered(fn, x).program), Gpu(processors=4))
    for got, wanted in zip(run_plan(plan, [x.clone()], launch=runner(interpreter)), fn(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def test_rows_shorter_than_a_warp_and_columns_are_read_apart() -> None:
    """A program of 16 rows of 12 at a time waits more than it reads: 0.30 ms for 0.18 (1398 x 1000 x 12 on an H200)."""
    program = lowered(of_what_rows_are_computed_of, torch.empty(1 << 20, 12, device="meta")).program
    rows, columns, *_ = gpu_plan(on_gpu(program), Gpu()).kernels
    assert not rows.scratch and not columns.scratch


def test_many_parts_of_narrow_columns_are_combined_in_parts() -> None:
    """One program had 270,336 parts to add up: 0.084 ms of 0.177 (5592405 x 3 bfloat16 on an H200)."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x - x.mean()) * 2
        return y, y.sum(0)

    x = matrix(600).repeat(1_000, 1)[:, :3].contiguous()
    program = lowered(fn, x).program
    plan = gpu_plan(on_gpu(program), Gpu())
    assert any("parts" in kernel.name for kernel in plan.kernels)
    for got, wanted in zip(run_plan(plan, [x.clone()]), fn(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-2)


def test_rows_that_are_computed_of_one_number_each_are_not_split_as_columns() -> None:
    """Four programs had a row, and the sum of their four sums a tile of another layout: 0.282 ms for 0.051."""
    at = torch.arange(8192) % 2048
    plan = gpu_plan(on_gpu(lowered(lambda at: (torch.arange(2048) == at[:, None]).float().sum(1), at).program), Gpu())
    assert len(plan.kernels) == 1


def test_sums_of_parts_beside_rows_have_blocks_of_one_size() -> None:
    """Triton keeps what it computes of a tile's sums in that tile's layout, all of a row in each warp's every thread:
    1,059 instead of 37 stores into shared memory (1.12 ms, Inductor's 0.10, for 32 x 16 x 16 x 4096 on an H200)."""

    def fn(parts: Tensor, x: Tensor) -> Tensor:
        return x * torch.rsqrt(parts.sum(1, keepdim=True) + 1)

    parts, x = matrix(40)[:, :4].contiguous(), matrix(40)[:, 4:36].contiguous()
    (kernel,) = gpu_plan(on_gpu(lowered(fn, parts.square(), x).program)).kernels
    assert kernel.tiling is not None
    for config in kernel.tiling.configs:
        sizes = {name: size for name, size in config.blocks if name.startswith("R")}
        assert len(sizes) == 2 and len({*sizes.values()}) == 1


def test_few_programs_do_not_run_through_long_rows_for_the_columns_too() -> None:
    """32 of them, with 32 rows of 16384 each: 1.43 ms for 0.29 (32 x 64 x 256 x 32 float32 on an H200)."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x / x.norm(dim=2, keepdim=True)
        return y, y.sum(1)

    kernels = gpu_plan(on_gpu(lowered(both, torch.empty(8, 32, 1 << 14, device="meta")).program), Gpu()).kernels
    assert not any(kernel.scratch for kernel in kernels)


@pytest.mark.parametrize("columns", [96, 40])
@pytest.mark.parametrize("batch", [(), (5,)])
def test_uneven_rows_are_summed_both_ways_in_one_kernel(
    columns: int, batch: tuple[int, ...], interpreter: Worker
) -> None:
    """The last blocks end early: of a tile of several blocks (40 columns) some do before others."""

    def both(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert x.shape[1:] == (*batch, columns)  # the number of rows alone is a symbol
        y = x * (x * x).sum(-1, keepdim=True)
        outer = tuple(range(x.dim() - 1))
        return y, x.sum(outer), (x * x).amax(outer)

    def rows(n: int) -> Tensor:
        return torch.randn(n, *batch, columns, generator=torch.Generator().manual_seed(n))

    plan = plan_of(both, rows(20_011))
    first, *_ = plan.kernels
    assert len(plan.kernels) == 2 and print_triton(first).source.count("tl.load(") == 1
    for n in (1, 37, 150):
        for launch in (run_kernel, runner(interpreter)):
            found = run_plan(plan, [rows(n)], launch=launch)
            for got, wanted in zip(found, both(rows(n)), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [2, 3])
def test_uneven_rows_of_which_some_are_kept_are_summed_apart(kept: int, interpreter: Worker) -> None:
    """How many rows a program has depends on its part alone, which a place in a grid of parts and rows hides."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * (x * x).sum(-1, keepdim=True)
        return y, x.abs().amax(0)

    x = torch.randn(9001, kept, 8, generator=torch.Generator().manual_seed(0))
    plan = gpu_plan(on_gpu(lowered(both, x).program), Gpu(processors=4))
    assert len(plan.kernels) == 3
    for launch in (run_kernel, runner(interpreter)):
        for got, wanted in zip(run_plan(plan, [x.clone()], launch=launch), both(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
