"""Views: ops that give another window on the same elements. They add no node, only an index map.

x: [B, S, H*D]   view(x, [B, S, H, D])      coordinates (d0, d1, D*d2 + d3)
                 … .transpose(1, 2)         coordinates (d0, d2, D*d1 + d3)
                 … [:, :, 1:]               coordinates (d0, d2 + 1, D*d1 + d3)"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from gyrator.ir.build import nested_order, split_position
from gyrator.ir.index import ONE, ZERO, Coords, Index, IndexLike, as_index, clamp, dot, is_nonnegative, linear, product
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.refs import TensorRef, view_coords

prims = torch.ops.prims


def reshape(ref: TensorRef, shape: tuple[Index, ...]) -> TensorRef:
    """The elements of ``ref`` in row-major order under another shape of equally many elements."""
    return ref if shape == ref.shape else ref.view(shape, reshaped_coords(shape, view_coords(shape), ref.shape))


@lru_cache(maxsize=1024)
def reshaped_coords(shape: tuple[Index, ...], at: Coords, old: tuple[Index, ...]) -> Coords:
    """Where the element ``at`` of ``shape`` lies in the shape ``old``, both in row-major order. Dimensions are matched
    in groups of equal size first, so that ``[B, S, H*D] → [B*S, H, D]`` divides only in its first part."""
    if ZERO in shape:
        return (ZERO,) * len(old)
    coords: list[Index] = []
    for new_part, old_part in _groups(shape, old):
        coords += split_position(linear(at[new_part], shape[new_part]), old[old_part])
    return tuple([ZERO if extent is ONE else c for c, extent in zip(coords, old, strict=True)])


def _groups(new: Sequence[Index], old: Sequence[Index]) -> list[tuple[slice, slice]]:
    """Runs of dimensions with one product: ``[6, 4] ↔ [2, 3, 4]`` → ``(0:1, 0:2), (1:2, 2:3)``."""
    groups: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(new) or j < len(old):
        start_i, start_j = i, j
        a = b = ONE
        while a is not b or (i, j) == (start_i, start_j):
            if i < len(new) and (j >= len(old) or is_nonnegative(b - a)):
                a, i = a * new[i], i + 1
            elif j < len(old):
                b, j = b * old[j], j + 1
            else:
                break
        groups.append((slice(start_i, i), slice(start_j, j)))
    return groups


def expanded(x: TensorRef, shape: tuple[Index, ...], dims: Sequence[int] | None = None) -> TensorRef:
    """``x`` broadcast to ``shape``; its own dimensions become ``dims``, by default the last ones."""
    at = view_coords(shape)
    places = at[len(shape) - x.rank :] if dims is None else [at[d] for d in dims]
    return x.view(shape, tuple([ZERO if extent is ONE else i for extent, i in zip(x.shape, places, strict=True)]))


def slice_start(b: Builder, start: IndexLike | None, size: Index) -> Index:
    """Python's normalised start of a slice: negatives count from the end; within ``[0, size]``.
    That it lies there before it is cut off is guarded where it can be: tracing has asked, too."""
    index = ZERO if start is None else as_index(start)
    index = index + size * clamp(-index, ZERO, ONE)  # one more size if it is negative
    return index if all(map(b.symbols.nonnegative, (index, size - index))) else clamp(index, ZERO, size)


def wrap(index: Index, size: Index) -> Index:
    """An index in ``[-size, size)`` counted from the start."""
    if is_nonnegative(index):
        return index
    return index + size if is_nonnegative(-index - 1) else index % size


def dimension(dim: int, rank: int) -> int:
    """A dimension counted from the start; a 0-d tensor counts as one of rank 1."""
    return dim + max(rank, 1) if dim < 0 else dim


def _view(b: Builder, out: Meta, x: TensorRef, *_: Any, **__: Any) -> TensorRef:
    return reshape(x, out.shape)


def _permute(b: Builder, out: Meta, x: TensorRef, dims: Sequence[int]) -> TensorRef:
    order = [dimension(d, x.rank) for d in dims]
    return expanded(x, out.shape, [order.index(k) for k in range(x.rank)])


def _slice(
    b: Builder, out: Meta, x: TensorRef, dim: int = 0, start: IndexLike | None = None, end: object = None,
    step: IndexLike = 1,
) -> TensorRef:  # fmt: skip
    d = dimension(dim, x.rank)
    return narrowed(x, out.shape, d, slice_start(b, start, x.shape[d]), as_index(step))


def narrowed(x: TensorRef, shape: tuple[Index, ...], dim: int, start: Index, step: Index = ONE) -> TensorRef:
    """``x[…, start + step*k, …]`` along ``dim``."""
    at = list(view_coords(shape))
    at[dim] = start + step * at[dim]
    return x.view(shape, tuple(at))


def _select(b: Builder, out: Meta, x: TensorRef, dim: int, index: IndexLike) -> TensorRef:
    d = dimension(dim, x.rank)
    at = list(view_coords(out.shape))
    at.insert(d, wrap(as_index(index), x.shape[d]))
    return x.view(out.shape, tuple(at))


def _unfold(b: Builder, out: Meta, x: TensorRef, dim: int, size: IndexLike, step: IndexLike) -> TensorRef:
    *at, inner = view_coords(out.shape)
    if x.rank == 0:
        return x.view(out.shape, ())
    d = dimension(dim, x.rank)
    at[d] = at[d] * step + inner
    return x.view(out.shape, tuple(at))


def _diagonal(b: Builder, out: Meta, x: TensorRef, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorRef:
    first, second = dimension(dim1, x.rank), dimension(dim2, x.rank)
    *others, inner = view_coords(out.shape)
    rest = iter(others)
    special = {first: inner + max(-offset, 0), second: inner + max(offset, 0)}
    return x.view(out.shape, tuple([special[k] if k in special else next(rest) for k in range(x.rank)]))


def _as_strided(
    b: Builder, out: Meta, x: TensorRef, size: object, stride: Sequence[IndexLike], offset: IndexLike | None = None
) -> Any:
    """A window on the memory of the value that ``x`` views. It is an index map where that value fills its memory."""
    value = x.value
    if x.dtype != value.dtype:
        return NotImplemented
    begin = value.position(x.at((ZERO,) * x.rank))
    start = begin if offset is None else as_index(offset) - b.storage_offsets.get(value, ZERO)
    order = nested_order(value.shape, value.strides)
    last = value.position(tuple([extent - 1 for extent in value.shape]))
    if order is None or last + 1 is not product(value.shape):  # it has gaps
        return NotImplemented
    position = dot(view_coords(out.shape), tuple([as_index(s) for s in stride])) + start
    coords = dict(zip(order, split_position(position, [value.shape[k] for k in order]), strict=True))
    return TensorRef(value, out.shape, tuple([coords.get(k, ZERO) for k in range(len(value.shape))]), x.dtype)


def _bits(b: Builder, out: Meta, x: TensorRef, dtype: torch.dtype) -> Any:
    """``x.view(dtype)``: an index map where the width stays."""
    if x.dtype == dtype:
        return x
    plain = {x.dtype, dtype} <= b.computed and torch.bool not in (x.value.dtype, dtype)
    if not plain or x.value.dtype not in b.computed or x.dtype.itemsize != dtype.itemsize:
        return NotImplemented
    return TensorRef(x.value, x.shape, x.coords, dtype)


LOWERINGS: Family = {
    **rows(_view, "view reshape unsqueeze squeeze", "default dim dims"),
    **rows(lambda b, out, x, *_: x, "alias detach lift lift_fresh"),
    **rows(lambda b, out, x, *_, **__: expanded(x, out.shape), "expand"),
    **rows(_permute, "permute"),
    **rows(_slice, "slice", "Tensor"),
    **rows(_select, "select", "int"),
    **rows(_unfold, "unfold"),
    **rows(_diagonal, "diagonal"),
    **rows(_as_strided, "as_strided"),
    **rows(_bits, "view", "dtype"),
    **dict.fromkeys((prims.split_dim.default, prims.collapse_view.default, prims.squeeze.default), _view),
    prims.view_of.default: lambda b, out, x: x,
    prims.transpose.default: _permute,
    prims.broadcast_in_dim.default: lambda b, out, x, shape, dims: expanded(x, out.shape, dims),
}
