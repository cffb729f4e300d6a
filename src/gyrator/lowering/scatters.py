"""Writes at run-time indices, and updates of a part of a tensor. Each makes a new version of the tensor it writes into:
``index_add(x, 0, idx, src)`` is ``scatter add into x at (<checked(idx[i0], N)>, i1) of src[i0, i1]``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from gyrator.ir.build import axes_of, cast, compute_dtype, constant, coords_of, like, nested_order, op
from gyrator.ir.expr import Expr, Op, Value
from gyrator.ir.index import ONE, ZERO, Coords, Index, IndexLike, as_index, product
from gyrator.ir.ops import STEP_OF, identity
from gyrator.ir.program import Nest, Scatter
from gyrator.lowering import pointwise, views
from gyrator.lowering.builder import Builder, Family, Lowering, Meta, rows, same_strides, strided
from gyrator.lowering.gathers import Indices, advanced, along, indexed_coords, is_plain
from gyrator.lowering.refs import Operand, TensorRef, element, whole

aten = torch.ops.aten

COMBINES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
"""The ways to combine by the names that ATen has for them."""


@dataclass(frozen=True, slots=True)
class Points:
    """A set of writes: for each point of ``shape``, which element of the target it goes to."""

    shape: tuple[Index, ...]
    place: Callable[[Coords], Coords]


def scatter(b: Builder, out: Meta, into: TensorRef, points: Points, source: Operand, combine: str = "set") -> Any:
    """``into`` with ``source`` combined into its element at each of ``points``.

    A view of all of a value in another order, as ``x.t()`` is, gives the same view of a new value. Sums in half
    precision are kept in float32 and rounded once. NotImplemented where torch's deterministic mode is on and the result
    on a GPU would depend on which write to an element comes first: the library's call sorts them or raises."""
    if ZERO in points.shape:
        return b.copy(into, out)
    axes = axes_of("i", points.shape)
    at = coords_of(axes)
    place = points.place(at)
    one = not isinstance(source, TensorRef) or all(extent is ONE for extent in source.shape)
    ordered = (combine == "add" and out.dtype.is_floating_point) or (combine == "set" and not one)
    ordered &= any(i.indirects() for i in place)
    if b.deterministic and ordered and out.device.type == "cuda":
        return NotImplemented
    dtype = out.dtype if combine == "set" else compute_dtype(out.dtype)
    wide = out.with_dtype(dtype)
    if combine in ("max", "min") and dtype.is_floating_point and out.device.type == "cuda":
        return _extremes(b, out, into, points, source, combine)
    if dtype == out.dtype == into.dtype and _is_all(into, out):
        old, place = into.value, into.at(place)
        value = b.value(Meta(old.shape, dtype, old.strides, old.device))
        b.add(Nest((value,), axes, Scatter(old, place, element(source, at, dtype), combine)))
        return replace(into, value=value)
    target = b.materialise(into, out.strides) if into.dtype == dtype else b.copy(into, wide, "into").value
    value = b.value(wide, "wide" if dtype != out.dtype else "")
    b.add(Nest((value,), axes, Scatter(target, place, element(source, at, dtype), combine)))
    return b.narrowed(whole(value), out)


def _is_all(x: TensorRef, out: Meta) -> bool:
    """Whether a view is of each element of its value once, and lies in memory as ``out`` is to."""
    window = strided(x)
    if window is None or x.dtype != x.value.dtype or product(x.shape) is not product(x.value.shape):
        return False
    return same_strides(x.shape, window[0], out.strides) and nested_order(x.shape, window[0]) is not None


def _extremes(b: Builder, out: Meta, into: TensorRef, points: Points, source: Operand, combine: str) -> TensorRef:
    """Those of floats on a GPU, whose atomics leave NaN out: as those of integers in the same order, with NaN last."""
    wide = compute_dtype(out.dtype)
    keys = out.with_dtype(torch.int64 if wide == torch.float64 else torch.int32)
    least, most = torch.iinfo(keys.dtype).min, torch.iinfo(keys.dtype).max
    nan = constant(most if combine == "max" else least, keys.dtype)

    def turned(bits: Expr) -> Expr:
        return op("where", op("lt", bits, like(bits, 0)), op("bitwise_xor", bits, like(bits, most)), bits)

    def key(x: Expr) -> Expr:
        return op("where", op("isnan", x), nan, turned(Op("bitcast", (x,), keys.dtype)))

    assert isinstance(source, TensorRef)
    start = b.pointwise(keys, lambda at: key(element(into, at, wide)), "keys")
    given = b.pointwise(keys.with_shape(source.shape), lambda at: key(element(source, at, wide)), "keys")
    found = scatter(b, keys, start, points, given, combine)
    return b.pointwise(out, lambda at: cast(Op("bitcast", (turned(found.load(at)),), wide), out.dtype))


def _index_put(
    b: Builder, out: Meta, x: TensorRef, indices: Indices, values: TensorRef, accumulate: bool = False
) -> Any:
    if not is_plain(indices):
        return NotImplemented if accumulate else _masked_put(b, out, x, indices, values)
    return scatter(b, out, x, _indexed(x, indices), values, "add" if accumulate else "set")


def _index_fill(b: Builder, out: Meta, x: TensorRef, dim: int, index: TensorRef, value: Operand) -> Any:
    """Here negative indices wrap, unlike in index_copy."""
    if x.rank == 0:
        return NotImplemented
    return scatter(b, out, x, _indexed(x, [*[None] * views.dimension(dim, x.rank), index]), value)


def _masked_put(b: Builder, out: Meta, x: TensorRef, indices: Indices, values: TensorRef) -> Any:
    """``x[mask] = number`` → ``where(mask, number, x)``; other masked writes stay with the library."""
    mask = indices[0] if indices and all(i is None for i in indices[1:]) else None
    if mask is None or mask.dtype != torch.bool or any(s is not ONE for s in values.shape):
        return NotImplemented

    def body(at: Coords) -> Expr:
        chosen = element(mask, at[: mask.rank], torch.bool)
        return op("where", chosen, element(values, (ZERO,) * values.rank, out.dtype), x.load(at))

    return b.pointwise(out, body)


def _indexed(x: TensorRef, indices: Indices) -> Points:
    """The elements of ``x[indices]``."""
    joint = broadcast_shapes([i.shape for i in indices if i is not None])
    start, _ = advanced(indices)
    others = [s for k, s in enumerate(x.shape) if k >= len(indices) or indices[k] is None]
    return Points((*others[:start], *joint, *others[start:]), lambda at: indexed_coords(indices, x.shape, at))


def broadcast_shapes(shapes: Sequence[Sequence[Index]]) -> tuple[Index, ...]:
    """The shape that all of ``shapes`` broadcast to; they must fit."""
    columns = zip_longest(*map(reversed, shapes), fillvalue=ONE)
    return tuple(next((extent for extent in column if extent is not ONE), ONE) for column in columns)[::-1]


def _points(x: TensorRef, dim: int, index: TensorRef, slices_of: TensorRef | None = None) -> Points:
    """Where each element of ``index`` says, along ``dim``: for the element of a source at the same place (``scatter``),
    or for a whole slice of the source ``slices_of`` (``index_add``)."""
    shape = index.shape if slices_of is None else slices_of.shape
    return Points(shape or (ONE,), lambda at: along(x, dim, index, at, slices=slices_of is not None))


def scatter_along(
    combine: str, b: Builder, out: Meta, x: TensorRef, dim: int, index: TensorRef, given: Any, *,
    slices: bool = False, alpha: Operand = 1,
) -> Any:  # fmt: skip
    """scatter and scatter_add: each element of what is ``given``, times ``alpha``, goes to where ``index`` says along
    ``dim``; with ``slices`` index_copy and index_add, each slice of it."""
    if x.rank == 0 or (out.dtype == torch.bool and combine != "set"):
        return NotImplemented
    if alpha != 1:
        scaled = out.with_dtype(given.dtype).with_shape(given.shape)
        given = b.elementwise(scaled, (given, alpha), lambda s, a: op("mul", s, a), suffix="scaled")
    return scatter(b, out, x, _points(x, dim, index, given if slices else None), given, combine)


def _reduce(
    slices: bool, b: Builder, out: Meta, x: TensorRef, dim: int, index: TensorRef, source: TensorRef, reduce: str, *,
    include_self: bool = True,
) -> Any:  # fmt: skip
    """scatter_reduce, and with ``slices`` index_reduce; a mean divides by how many there were.

    Without ``include_self`` elements that are written to begin at the neutral one. Integer means are rounded down."""
    points = _points(x, dim, index, source if slices else None)
    mean = reduce == "mean"
    if out.dtype == torch.bool or x.rank == 0:
        return NotImplemented
    combine = "add" if mean else COMBINES[reduce]
    wide = out.with_dtype(compute_dtype(out.dtype))
    counts = _counts(b, wide, points, start=int(include_self)) if mean or not include_self else None
    if counts is not None and not include_self:
        neutral = constant(identity(STEP_OF[combine], wide.dtype), wide.dtype)
        x = pointwise.LOWERINGS[aten.where.self](b, wide, counts, neutral, x)
    total = scatter(b, wide if mean else out, x, points, source, combine)
    if counts is None or not mean or total is NotImplemented:
        return total
    division = "div" if out.dtype.is_floating_point else "floordiv"
    return b.elementwise(
        out, (total, counts), lambda t, n: op(division, t, op("where", op("eq", n, like(n, 0)), like(n, 1), n)), "mean"
    )


def _counts(b: Builder, out: Meta, points: Points, start: int) -> TensorRef:
    """How often each element is written to, ``start`` included."""
    numbers = out.with_dtype(torch.int32)
    return scatter(b, numbers, b.full(numbers, start, "none"), points, constant(1, torch.int32), "add")


def _into_view(view: Lowering, b: Builder, out: Meta, x: TensorRef, source: TensorRef, *args: Any) -> Any:
    """``x`` with the elements that a view of it shows replaced: select_scatter, slice_scatter, diagonal_scatter.
    Refused where elements of the result may lie upon each other: the operator says which is written last."""
    if nested_order(out.shape, out.strides) is None:
        return NotImplemented
    shown = view(b, out.with_shape(source.shape), whole(Value("x", x.shape, x.dtype, out.strides)), *args)
    return scatter(b, out, x, Points(source.shape, shown.at), source)


def _as_strided_scatter(
    b: Builder, out: Meta, x: TensorRef, source: TensorRef, size: object, stride: Sequence[IndexLike],
    offset: IndexLike | None = None,
) -> Any:  # fmt: skip
    """``x`` with a window on its memory replaced. Refuses views, gaps, and windows whose elements could overlap."""
    plain = x.is_whole() and same_strides(x.shape, x.value.strides, out.strides)
    if not plain or nested_order(source.shape, [as_index(s) for s in stride]) is None:
        return NotImplemented
    shown = views.LOWERINGS[aten.as_strided.default](b, out.with_shape(source.shape), x, size, stride, offset)
    return shown if shown is NotImplemented else scatter(b, out, x, Points(source.shape, shown.at), source)


LOWERINGS: Family = {
    **rows(_index_put, "index_put _unsafe_index_put"),
    **rows(partial(scatter_along, "set"), "scatter", "src value"),
    **rows(partial(scatter_along, "add"), "scatter_add"),
    **rows(lambda *args, reduce: scatter_along(COMBINES[reduce], *args), "scatter", "reduce value_reduce"),
    **rows(partial(_reduce, False), "scatter_reduce", "two"),
    **rows(_index_fill, "index_fill", "int_Scalar int_Tensor"),
    **rows(partial(scatter_along, "add", slices=True), "index_add"),
    **rows(partial(scatter_along, "set", slices=True), "index_copy"),
    **rows(partial(_reduce, True), "index_reduce"),
    **rows(partial(_into_view, views.LOWERINGS[aten.select.int]), "select_scatter"),
    **rows(partial(_into_view, views.LOWERINGS[aten.slice.Tensor]), "slice_scatter"),
    **rows(partial(_into_view, views.LOWERINGS[aten.diagonal.default]), "diagonal_scatter"),
    **rows(_as_strided_scatter, "as_strided_scatter"),
}
