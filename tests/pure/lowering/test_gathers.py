"""Reads and writes at run-time indices against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.errors import IndexOutOfRange
from gyrator.ir.program import Extern
from tests.pure.lowering.harness import check, lowered, run, tensor

WRAPPING = torch.tensor([[0, 3, -1], [4, 3, 3]])
DISTINCT = torch.tensor([[0, 3, 1], [4, 3, 2]])
ALONG_ROWS = torch.tensor([[0, 4, 1, 2, 3, 0, 1], [4, 4, 2, 0, 1, 1, 2]])
aten = torch.ops.aten

READS: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda t: t[WRAPPING],
    "columns": lambda t: t[:, WRAPPING],
    "pairs": lambda t: t[WRAPPING, WRAPPING + 1],
    "separated": lambda t: t[WRAPPING[0], None, WRAPPING[1]],
    "broadcast": lambda t: t[WRAPPING[0, :, None], WRAPPING[1]],
    "gather": lambda t: t.gather(0, ALONG_ROWS),
    "take_along_dim": lambda t: t.take_along_dim(ALONG_ROWS, 0),
    "index_select": lambda t: t.index_select(1, DISTINCT[0]),
    "int32 indices": lambda t: t[DISTINCT.int()],
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "index_put": lambda t: t.index_put((DISTINCT[0],), t[DISTINCT[1]]),
    "index_put, accumulating": lambda t: t.index_put((WRAPPING[0],), t[WRAPPING[1]], accumulate=True),
    "index_put of one number": lambda t: t.index_put((WRAPPING[0],), torch.ones((), dtype=t.dtype)),
    "index_put by a mask": lambda t: t.index_put((t > 0,), torch.ones((), dtype=t.dtype)),
    "index_fill": lambda t: t.index_fill(0, WRAPPING[0], 2),
    "index_copy": lambda t: t.index_copy(0, DISTINCT[0], t[:3]),
    "index_add": lambda t: t.index_add(0, WRAPPING[1], t[:3], alpha=2),
    "scatter of a number": lambda t: t.scatter(0, ALONG_ROWS, 1),
    "scatter_add": lambda t: t.scatter_add(0, ALONG_ROWS, t[:2]),
    "scatter_reduce amax": lambda t: t.scatter_reduce(0, ALONG_ROWS, t[:2], "amax"),
    "scatter_reduce prod": lambda t: t.scatter_reduce(0, ALONG_ROWS, t[:2], "prod"),
    "scatter_reduce mean": lambda t: t.scatter_reduce(0, ALONG_ROWS, t[:2], "mean"),
    "scatter_reduce amin of new values": lambda t: t.scatter_reduce(0, ALONG_ROWS, t[:2], "amin", include_self=False),
    "index_reduce mean of new values": lambda t: t.index_reduce(1, DISTINCT[0], t[:, :3], "mean", include_self=False),
    "index_reduce prod": lambda t: t.index_reduce(0, WRAPPING[1], t[:3], "prod"),
    "masked_scatter": lambda t: t.masked_scatter(t[0] > 0, t.flip(0)),
    "select_scatter": lambda t: t.select_scatter(t[0], 0, -1),
    "slice_scatter with a step": lambda t: t.slice_scatter(t[:2], 0, 1, 5, 2),
    "slice_scatter from the end": lambda t: t.slice_scatter(t[:, :2], 1, -2),
    "as_strided_scatter": lambda t: t.as_strided_scatter(t[:2, :3], (2, 3), (14, 2), 1),
    "as_strided_scatter of a column": lambda t: t.as_strided_scatter(t[:, :1], (5, 1), (7, 1), 3),
    "diagonal_scatter": lambda t: t.diagonal_scatter(t[:5, 0]),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("how", ["amax", "prod", "sum", "mean"])
def test_more_writes_to_an_element_than_its_type_counts(how: str, dtype: torch.dtype) -> None:
    at = torch.zeros(200 if dtype == torch.int8 else 256, dtype=torch.int64)
    ones = torch.ones_like(at, dtype=dtype)
    check(lambda t, s: t.scatter_reduce(0, at, s, how, include_self=False), torch.tensor([100, 7], dtype=dtype), ones)


@pytest.mark.parametrize("write", ["index_add", "index_copy", "scatter", "index_put"])
def test_writes_of_no_elements_of_a_flattened_source(write: str) -> None:
    def written(t: Tensor, none: Tensor, at: Tensor) -> Tensor:
        source, index = none.flatten(0, 1), at.flatten()
        if write == "index_put":
            return t.index_put((index,), source)
        dim_index = index[:, None].expand(0, 7) if write == "scatter" else index
        return getattr(t, write)(0, dim_index, source) * 2

    check(written, tensor(5, 7), tensor(0, 3, 7), torch.zeros(0, 3, dtype=torch.int64))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("case", [*READS, *WRITES])
def test_indexing(case: str, dtype: torch.dtype, dynamic: bool) -> None:
    check({**READS, **WRITES}[case], tensor(5, 7, dtype=dtype), dynamic=dynamic)


def test_embedding_and_its_backward() -> None:
    where = torch.tensor([[0, 3, 1], [4, 3, 3]])
    check(lambda w, i: F.embedding(i, w), tensor(5, 7), where)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, False), tensor(2, 3, 4), where)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 5, 3, True), tensor(2, 3, 4), where)


def test_cross_entropy_with_ignored_targets() -> None:
    check(lambda x, t: F.cross_entropy(x, t), tensor(5, 7), torch.tensor([1, 2, -100, 4, 0]))
    check(lambda x, t: F.nll_loss(x, t, weight=torch.arange(7.0)), tensor(5, 7), torch.tensor([1, 2, 3, 4, 0]))


def test_sums_in_half_precision_round_once() -> None:
    ones = torch.ones(600, 1, dtype=torch.bfloat16)
    low = lowered(
        lambda x, i: torch.zeros(1, 1, dtype=x.dtype).index_add(0, i, x), ones, torch.zeros(600, dtype=torch.int64)
    )
    assert run(low, [ones, torch.zeros(600, dtype=torch.int64)]).outputs[0].item() == 600


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 100])
def test_searches_in_sorted_rows(length: int, right: bool, dtype: torch.dtype) -> None:
    edges = tensor(2, length, dtype=dtype).sort(-1)[0]
    sought = torch.cat([edges, tensor(2, 9, dtype=dtype), edges[:, :1] - 1, edges[:, -1:] + 1], 1)
    if dtype.is_floating_point:
        sought[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    check(lambda e, x: torch.searchsorted(e, x, right=right), edges, sought)
    check(lambda e, x: torch.bucketize(x, e, right=right, out_int32=True), edges[0], sought)


def test_searched_rows_end_in_nans_as_sort_puts_them() -> None:
    edges = torch.tensor([-torch.inf, 0.0, 1.0, torch.nan])
    check(lambda e: (torch.searchsorted(e, -1.0), torch.searchsorted(e, -torch.inf), torch.searchsorted(e, e)), edges)


def test_searches_name_their_side_and_seek_numbers() -> None:
    edges = torch.tensor([1.0, 2.0, 2.0, 3.0])
    check(lambda e: (torch.searchsorted(e, 2.0, side="right"), torch.searchsorted(e, e, side="left")), edges)
    check(lambda e: torch.bucketize(2.5, e), edges)


@pytest.mark.parametrize("sought", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16])
def test_searches_compare_in_the_type_that_both_promote_to(dtype: torch.dtype, sought: torch.dtype) -> None:
    edges = torch.tensor([0, 1, 1, 3, 200]).to(dtype)
    x = torch.tensor([0.5, 1.0, 2.5, 300.0, -1.0]).to(sought)
    if sought.is_floating_point:
        x[1] = torch.nan
    check(
        lambda e, x: (torch.searchsorted(e, x), torch.bucketize(x, e, right=True), torch.searchsorted(e, x[2])),
        edges,
        x,
    )
    check(lambda e: (torch.searchsorted(e, 1.5), torch.searchsorted(e, 2)), edges)


def test_out_of_range_raises() -> None:
    low = lowered(lambda x, i: x[i], tensor(5), torch.tensor([0, 5]))
    with pytest.raises(IndexOutOfRange, match="5"):
        run(low, [tensor(5), torch.tensor([0, 5])])


NAMED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda t, i: t.gather(0, i),
    "index_select": lambda t, i: t.index_select(0, i),
    "embedding": lambda t, i: F.embedding(i, t[:, None]),
    "scatter": lambda t, i: t.scatter(0, i, 1),
    "index_add": lambda t, i: t.index_add(0, i, t[:1]),
    "index_copy": lambda t, i: t.index_copy(0, i, t[:1]),
}


@pytest.mark.parametrize("case", NAMED)
def test_named_operators_refuse_negative_indices(case: str) -> None:
    below = torch.tensor([-1])
    with pytest.raises((IndexError, RuntimeError)):
        NAMED[case](tensor(5), below)
    low = lowered(NAMED[case], tensor(5), torch.tensor([4]))
    with pytest.raises(IndexOutOfRange):
        run(low, [tensor(5), below])


def test_masked_scatter_refuses_a_source_that_is_too_short() -> None:
    fn = lambda t, s: t.masked_scatter(t == t, s)  # noqa: E731
    low = lowered(fn, tensor(5), tensor(4))
    with pytest.raises(IndexOutOfRange):
        run(low, [tensor(5), tensor(4)])


def test_indexing_by_a_mask_is_a_call_of_unknown_size() -> None:
    low = check(lambda x: x.gt(0).nonzero() + 1, tensor(5, 7), dynamic=True, externs=["aten.nonzero.default"])
    call = next(n for n in low.program.nodes if hasattr(n, "op"))
    assert [str(s) for s in call.scalars] == [str(call.out[0].shape[0])]


def test_a_window_is_not_replaced_where_elements_lie_upon_each_other() -> None:
    """Which of two elements in one place is written last is the operator's to say."""
    low = lowered(lambda t: (lambda w: w.select_scatter(w[:, 0] + 1, 1, 1))(t.unfold(0, 2, 1)), tensor(8))
    assert [node.op for node in low.program.nodes if isinstance(node, Extern)] == ["aten.select_scatter.default"]
