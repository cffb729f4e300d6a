"""Places computed from floats or short integers: they have 32 bits, and are right or refused as eager's of 64 are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.acceptance import check
from tests.cpu.runtime.headers import VECTORS_HERE


def at_floats(x: Tensor, at: Tensor) -> Tensor:
    return x[at.floor().long()] * 2


def of_both(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Elements of one row or the other, whole ones and under a mask."""
    row, column = (at > 3).long(), at.long()
    return x.view(2, -1)[row, column], torch.where(at > 2, x.view(2, -1)[column.clamp(max=1), column], 0.5)


@pytest.mark.parametrize("isa", VECTORS_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_elements_at_floats_are_eagers(dtype: torch.dtype, isa: str, backend: str) -> None:
    for n in (16, 1000, 1025):
        x = (torch.randn(60) * 9).to(dtype)
        check(at_floats, (x, torch.rand(n) * 59), backend=backend, options={"cpu_isa": isa})
        check(of_both, (x, torch.rand(n) * 29), backend=backend, options={"cpu_isa": isa})


@pytest.mark.parametrize("isa", VECTORS_HERE)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8])
def test_short_integers_count_from_both_ends(dtype: torch.dtype, isa: str, backend: str) -> None:
    def read(x: Tensor, at: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return x[at.long()], x.view(6, 10)[steps.long() % 6, at.long() % 10]

    at = torch.randint(-60, 60, (1003,)).to(dtype)
    check(read, (torch.randn(60), at, at.flip(0)), backend=backend, options={"cpu_isa": isa})


@pytest.mark.parametrize("wrong", [-61.0, 60.0, 2.0**31, 2.0**32, -(2.0**32), 1e30, -1e30, float("inf"), float("nan")])
def test_a_float_that_is_out_of_range_is_refused(wrong: float, backend: str) -> None:
    compiled = torch.compile(at_floats, backend=backend, fullgraph=True)
    for where in (0, 500, 1002):
        at = torch.rand(1003) * 59
        at[where] = wrong
        with pytest.raises(IndexError):
            compiled(torch.randn(60), at)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("shape", [(1, 3, 9, 40), (2, 1, 33, 20), (1, 17, 5, 6)], ids=str)
def test_grids_over_few_and_many_channels(shape: tuple[int, ...], mode: str, backend: str) -> None:
    """What is the same for all channels is computed once, from three of them on."""

    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode=mode, align_corners=False)

    grid = torch.rand(shape[0], 7, 37, 2) * 2.4 - 1.2
    check(sampled, (torch.randn(shape), grid), backend=backend)


def test_elements_are_added_and_stored_at_floats(backend: str) -> None:
    def written(x: Tensor, at: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        place = at.long()
        return x.index_put((place,), new), x.index_put((place,), new, accumulate=True)

    at = torch.randperm(60)[:37].float() + 0.25
    check(written, (torch.randn(60), at, torch.randn(37)), backend=backend)


@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
@pytest.mark.parametrize(
    "write",
    [
        lambda x, at, new: x.scatter(0, at, new),
        lambda x, at, new: x.scatter_add(0, at, new),
        lambda x, at, new: x.scatter_reduce(0, at, new, "mean", include_self=False),
        lambda x, at, new: x.index_copy(0, at[:1], new[:1]) if new.dim() else x.index_copy(0, at, new),
    ],
    ids=["scatter", "scatter_add", "scatter_reduce", "index_copy"],
)
def test_rows_are_written_to_a_tensor_of_no_dimension(
    write: Callable[..., Tensor], shape: tuple[int, ...], backend: str
) -> None:
    check(write, (torch.tensor(0.5), torch.zeros(shape, dtype=torch.int64), torch.full(shape, 2.0)), backend=backend)


def test_a_tensor_of_no_dimension_that_is_gathered_from_gets_its_gradient(backend: str) -> None:
    given = torch.tensor(0.5, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    check(lambda x, at: x.gather(0, at), given, backend=backend)
