"""Additions that crowd on few elements, and searches, on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gyrator
from tests.acceptance import check

# Additions and the elements that they go to: crowded enough for copies, at the limit, and spread out.
SIZES = [(300_000, 16), (100_001, 100), (5000, 7), (300_000, 200_000)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["fp32", "int64"])
def test_crowded_additions_are_eagers(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    many, few = sizes

    def counted(at: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.zeros(few, 3, dtype=x.dtype, device=x.device).index_add(0, at, x)
        return rows, torch.ones(few, dtype=x.dtype, device=x.device).scatter_add(0, at, x[:, 0])

    at = torch.randint(few, (many,), device="cuda")
    x = torch.randint(-9, 9, (many, 3), device="cuda").to(dtype)  # whole numbers: exact in any order
    got, want = torch.compile(counted, backend="gyrator", dynamic=False)(at, x), counted(at, x)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0)


def test_the_gradient_of_a_small_table() -> None:
    """All rows of a batch add to the few rows of a table, as biases of relative positions do."""
    at = torch.randint(32, (300, 300), device="cuda")
    table = torch.randn(32, 8, device="cuda", requires_grad=True)

    def biased(table: Tensor, at: Tensor) -> Tensor:
        return torch.nn.functional.embedding(at, table).permute(2, 0, 1).softmax(-1)

    check(biased, (table, at), backend="gyrator", backward=True, dynamic=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_few_rows_of_a_large_table(dtype: torch.dtype) -> None:
    """Some rows are read again and again; float32 holds sums of those that are, not the table."""
    at = (torch.rand(40, 60, device="cuda").pow(6) * 20_000).long()
    table = torch.randn(20_000, 64, device="cuda").to(dtype).requires_grad_()

    def read(table: Tensor, at: Tensor) -> Tensor:
        return torch.nn.functional.embedding(at, table, padding_idx=7) * 3

    check(read, (table, at), backend="gyrator", backward=True, dynamic=False)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.compile(read, backend="gyrator", dynamic=False)(table, at).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 3 * table.nbytes


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
def test_searches_find_the_places_that_torch_finds(right: bool, dynamic: bool) -> None:
    def found(edges: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bucketize(x, edges[0], right=right), torch.searchsorted(edges, x, right=right, out_int32=True)

    edges = torch.randint(-40, 40, (7, 65), device="cuda").float().sort(-1).values
    x = torch.randint(-50, 50, (7, 1001), device="cuda").float()
    x[:, ::9], x[:, 1::11], x[:, 2::13] = torch.nan, torch.inf, -torch.inf
    gyrator.reset()
    got, want = torch.compile(found, backend="gyrator", dynamic=dynamic)(edges, x), found(edges, x)
    assert dynamic or not gyrator.counters().externs()  # a search takes steps by the number of edges
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0)
