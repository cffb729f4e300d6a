"""Reads at run-time indices: gather, index_select, embedding, index with tensors, searches in sorted rows.

An index tensor's element becomes an atom of the index algebra, checked against the dimension it addresses:
``x[idx]`` → ``load x[<checked(idx[i0], N)>, i1]``. Out-of-range indices raise. As in eager, negative ones
wrap between Python's brackets, and raise in the named operators (gather, index_select, embedding, scatter)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from gyrator.ir.build import cast, like, number, op
from gyrator.ir.expr import Checked, Expr
from gyrator.ir.index import ZERO, Coords, Index, Indirect
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.refs import Operand, TensorRef, element, promoting_like
from gyrator.lowering.views import dimension

Indices = Sequence[TensorRef | None]
"""What is between the brackets of ``x[…]``: a tensor or, for all of a dimension, None."""


def indirect(index: TensorRef, at: Sequence[Index], size: Index, *, wraps: bool = False, sure: bool = False) -> Index:
    """The element of ``index`` at ``at`` as a coordinate of a dimension of ``size`` elements.

    Unless it ``wraps``, a negative one is moved to ``size``, which is out of range: -1 → checked(size, size). One that
    is ``sure`` to be in range, unless rounding put it beside, is clamped on a GPU, where checks take longer."""
    place = element(index, tuple(at), torch.int64)
    if sure and index.device.type == "cuda":
        place = op("maximum", op("minimum", place, number(size - 1, torch.int64)), like(place, 0))
        return Indirect(place, size).index()
    if not wraps and index.dtype != torch.uint8:
        place = op("where", op("lt", place, like(place, 0)), number(size, torch.int64), place)
    return Indirect(Checked(place, size), size).index()


def advanced(indices: Indices) -> tuple[int, int]:
    """Of ``x[indices]``: where the joint dimensions of the tensors begin, and how many they are.

    They take the place of the indexed dimensions where those are neighbours, else they come first."""
    dims = [k for k, index in enumerate(indices) if index is not None]
    width = max(index.rank for index in indices if index is not None)
    return dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0, width


def indexed_coords(indices: Indices, shape: Sequence[Index], at: Sequence[Index], *, sure: bool = False) -> Coords:
    """The coordinates in a tensor of ``shape`` that the element ``at`` of ``x[indices]`` reads."""
    start, width = advanced(indices)
    joint, others = at[start : start + width], iter((*at[:start], *at[start + width :]))
    given = zip([*indices, *[None] * (len(shape) - len(indices))], shape, strict=True)
    return tuple([next(others) if i is None else indirect(i, joint, size, wraps=True, sure=sure) for i, size in given])


def is_plain(indices: Indices) -> bool:
    """Whether all index tensors hold integers; masks have results of unknown size and stay with the library."""
    found = [i for i in indices if i is not None]
    return bool(found) and all(i.dtype not in (torch.bool, torch.uint8) for i in found)


def _index(sure: bool, b: Builder, out: Meta, x: TensorRef, indices: Indices) -> Any:
    if not is_plain(indices):
        return NotImplemented
    return b.pointwise(out, lambda at: x.load(indexed_coords(indices, x.shape, at, sure=sure)))


def along(x: TensorRef, dim: int, index: TensorRef, at: Coords, *, slices: bool = False) -> Coords:
    """``at`` with its coordinate along ``dim`` of ``x`` replaced by the element of ``index`` there.

    With ``slices`` the index tensor has that one dimension alone."""
    d = dimension(dim, x.rank)
    place = (at[d : d + 1] if slices else at) if index.rank else ()
    return (*at[:d], indirect(index, place, x.shape[d]), *at[d + 1 :])


def _gather(slices: bool, b: Builder, out: Meta, x: TensorRef, dim: int, index: TensorRef, **_: Any) -> TensorRef:
    """gather, and with ``slices`` index_select."""
    if x.rank == 0:
        return b.copy(x, out)
    return b.pointwise(out, lambda at: x.load(along(x, dim, index, at or (ZERO,), slices=slices)))


def _embedding(b: Builder, out: Meta, weight: TensorRef, indices: TensorRef, *_: Any, **__: Any) -> TensorRef:
    return b.pointwise(out, lambda at: weight.load((indirect(indices, at[:-1], weight.shape[0]), at[-1])))


def _searched(
    b: Builder, out: Meta, sequence: TensorRef, x: Operand, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: TensorRef | None = None,
) -> Any:  # fmt: skip
    """How many elements of a sorted row come before ``x``, with ``right`` also those equal to it; all for a NaN, and
    before no number a NaN, as rows are sorted. They are compared in the type that both promote to.

    A search in steps that halve, all written out: the first leaves as many places as the others can reach (Knuth, The
    Art of Computer Programming 3, 6.2.1, algorithm C)."""
    length = sequence.shape[-1].value if sequence.rank else None
    if not length or sorter is not None:
        return NotImplemented
    steps = [1 << k for k in reversed(range(length.bit_length()))]
    precedes = "le" if right or side == "right" else "lt"
    dtype = torch.result_type(promoting_like(sequence), promoting_like(x))

    def body(at: Coords) -> Expr:
        sought, row = element(x, at, dtype), at[:-1] if sequence.rank > 1 else ()
        place = number(ZERO, torch.int64)
        for step in steps:
            probe = Indirect(op("add", place, like(place, step - 1)), sequence.shape[-1]).index()
            passed = op(precedes, element(sequence, (*row, probe), dtype), sought)
            further = like(place, length + 1 - step) if step == steps[0] else op("add", place, like(place, step))
            place = op("where", passed, further, place)
        if dtype.is_floating_point:
            place = op("where", op("isnan", sought), like(place, length), place)
        return cast(place, out.dtype)

    return b.pointwise(out, body)


LOWERINGS: Family = {
    **rows(partial(_index, False), "index", "Tensor"),
    **rows(partial(_index, True), "_unsafe_index", "Tensor"),
    **rows(partial(_gather, False), "gather"),
    **rows(partial(_gather, True), "index_select"),
    **rows(_embedding, "embedding"),
    **rows(_searched, "searchsorted", "Tensor Scalar"),
    **rows(lambda b, out, x, boundaries, **how: _searched(b, out, boundaries, x, **how), "bucketize", "Tensor Scalar"),
}
