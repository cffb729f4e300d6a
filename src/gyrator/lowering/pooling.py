"""Pooling: reductions over windows, forward and backward.

A window reads ``x`` at ``stride·o − padding + dilation·r``; outside the input a maximum sees the smallest number and
an average sees 0. Backward passes ask the other way round, for each input element which windows held it, so that
nothing is scattered: with kernel ``k`` and stride ``s`` these are ``⌈k/s⌉`` windows at most, from ``⌊(p +
padding)/s⌋`` downwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch._ops import OpOverload

from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Index, as_index, contiguous_strides, dot, maximum, minimum, product
from gyrator.ir.ops import identity
from gyrator.ir.program import Reduce
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.joins import masked
from gyrator.lowering.refs import Coords, TensorRef, axes_of, coords_of, whole
from gyrator.lowering.typed import between, both, cast, compute_dtype, like, number, op

aten = torch.ops.aten

NOWHERE = 1 << 62
"""The position of what lies outside the input: among equal values the smallest position wins."""


@final
@dataclass(frozen=True, slots=True)
class Window:
    """How windows lie along each pooled dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def positions(self, at: Sequence[Index], inner: Sequence[Index]) -> Coords:
        """The input positions of element ``inner`` of window ``at``."""
        rows = zip(at, inner, self.stride, self.padding, self.dilation, strict=True)
        return tuple([o * s - p + r * d for o, r, s, p, d in rows])

    def holders(self) -> tuple[Index, ...]:
        """How many windows can hold one element, along each dimension."""
        rows = zip(self.kernel, self.stride, self.dilation, strict=True)
        return tuple([as_index(-(-((k - 1) * d + 1) // s)) for k, s, d in rows])

    def holder(self, position: Sequence[Index], back: Sequence[Index]) -> Coords:
        """The ``back``-th last window that may hold the input element at ``position``."""
        rows = zip(position, back, self.stride, self.padding, strict=True)
        return tuple([(i + p) // s - j for i, j, s, p in rows])


def window(
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Window:
    """A window of ``rank`` dimensions from ATen's arguments, where one number stands for all and no stride
    for the kernel.
    """
    steps = stride if stride else kernel
    return Window(*[_widened(v, rank) for v in (kernel, steps, padding, dilation)])


def _widened(given: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    values = [given] if isinstance(given, int) else list(given)
    return tuple(values * rank if len(values) == 1 else values)


def _reduce(
    b: Builder,
    out: Meta,
    inner: Sequence[Index],
    kind: str,
    bodies: Callable[[Coords, Coords], tuple[Expr, ...]],
    results: Sequence[Meta],
    suffix: str,
) -> list[TensorRef]:
    """A reduction at each element of ``out`` over axes of extents ``inner``; bodies get both places."""
    axes, reduced = axes_of("i", out.shape), axes_of("r", tuple(inner))
    body = bodies(coords_of(axes), coords_of(reduced))
    values = [b.value(m, suffix) for m in results]
    b.nest(values, axes, Reduce(kind, reduced, body))
    return [whole(v) for v in values]


def _sum(
    b: Builder, out: Meta, inner: Sequence[Index], body: Callable[[Coords, Coords], Expr], suffix: str
) -> TensorRef:
    """A sum in the compute dtype, cast to ``out``; no reduction at all where only one element is summed."""
    wide = out.with_dtype(compute_dtype(out.dtype))
    if all(extent is ONE for extent in inner):
        return b.pointwise(out, lambda at: body(at, (ZERO,) * len(inner)))
    same = wide.dtype == out.dtype
    (total,) = _reduce(b, out, inner, "sum", lambda at, r: (body(at, r),), (wide,), "" if same else suffix)
    return total if same else b.copy(total, out)


def _inside(position: Sequence[Index], shape: Sequence[Index]) -> list[Expr]:
    return [c for p, size in zip(position, shape, strict=True) for c in between(p, ZERO, size)]


# -- maximum -----------------------------------------------------------------------------------------------
def _max_pool(rank: int) -> Callable[..., Any]:
    def lowering(
        b: Builder, out: tuple[Meta, Meta], x: TensorRef, kernel: Sequence[int], stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0, dilation: Sequence[int] | int = 1, ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        win = window(rank, kernel, stride, padding, dilation)
        values, indices = out
        wide = values.with_dtype(compute_dtype(values.dtype))
        shape = x.shape[-rank:]

        def bodies(at: Coords, inner: Coords) -> tuple[Expr, ...]:
            place = win.positions(at[-rank:], inner)
            return _candidate(x, (*at[:-rank], *place), _inside(place, shape), rank, wide.dtype)

        extents = [as_index(k) for k in win.kernel]
        best, where = _reduce(b, values, extents, "argmax", bodies, (wide, indices), "max")
        return best if wide.dtype == values.dtype else b.copy(best, values), where

    return lowering


def _max_pool_backward(rank: int) -> Callable[..., Any]:
    def lowering(
        b: Builder, out: Meta, grad: TensorRef, x: TensorRef, kernel: Sequence[int], stride: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: TensorRef,
    ) -> Any:  # fmt: skip
        win = window(rank, kernel, stride, padding, dilation)
        wide = compute_dtype(out.dtype)
        shape = x.shape[-rank:]

        def body(at: Coords, back: Coords) -> Expr:
            holder = (*at[:-rank], *win.holder(at[-rank:], back))
            chosen = _if_chosen(grad, indices, holder, at[-rank:], shape, wide)
            return masked(_inside(holder[-rank:], grad.shape[-rank:]), chosen)

        return _sum(b, out, win.holders(), body, "wide")

    return lowering


def _candidate(
    x: TensorRef, at: Coords, conditions: Sequence[Expr], rank: int, dtype: torch.dtype
) -> tuple[Expr, Expr]:
    """The element at ``at`` and its position among the pooled dimensions; the least value and nowhere unless
    the conditions hold.
    """
    value = masked(conditions, cast(x.load(at), dtype), identity("max", dtype))
    position: Expr = IndexValue(dot(at[-rank:], contiguous_strides(x.shape[-rank:])))
    if conditions:
        position = op("where", both(conditions), position, number(NOWHERE, torch.int64))
    return value, position


def _if_chosen(
    grad: TensorRef, indices: TensorRef, holder: Coords, at: Coords, shape: Sequence[Index],
    dtype: torch.dtype,
) -> Expr:  # fmt: skip
    """The gradient of window ``holder`` if it chose the element ``at``, else 0."""
    mine = number(dot(at, contiguous_strides(tuple(shape))), torch.int64)
    given = cast(grad.load(holder), dtype)
    return op("where", op("eq", indices.load(holder), mine), given, like(given, 0))


# -- average -----------------------------------------------------------------------------------------------
def _quotient(total: Expr, count: Index) -> Expr:
    """A sum over the number of its terms; integers are truncated, as in eager."""
    division = "div" if total.dtype.is_floating_point else "truncdiv"
    return op(division, total, number(count, total.dtype))


def _avg_pool(rank: int) -> Callable[..., Any]:
    def lowering(
        b: Builder, out: Meta, x: TensorRef, kernel: Sequence[int], stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        win = window(rank, kernel, stride, padding)
        shape = x.shape[-rank:]
        wide = out.with_dtype(compute_dtype(out.dtype))

        def body(at: Coords, inner: Coords) -> Expr:
            place = win.positions(at[-rank:], inner)
            return masked(_inside(place, shape), cast(x.load((*at[:-rank], *place)), wide.dtype))

        total = _sum(b, wide, [as_index(k) for k in win.kernel], body, "sum")

        def mean(at: Coords) -> Expr:
            count = _divisor(win, at[-rank:], shape, count_include_pad, divisor_override)
            return _quotient(total.load(at), count)

        return b.pointwise(out, mean)

    return lowering


def _divisor(
    win: Window, at: Sequence[Index], shape: Sequence[Index], include_pad: bool, override: int | None
) -> Index:
    """What the sum of window ``at`` is divided by."""
    if override is not None:
        return as_index(override)
    sides = []
    for o, k, s, p, size in zip(at, win.kernel, win.stride, win.padding, shape, strict=True):
        start = o * s - p
        end = minimum(start + k, size + p)
        sides.append(end - start if include_pad else minimum(end, size) - maximum(start, ZERO))
    return product(sides)


def _avg_pool_backward(rank: int) -> Callable[..., Any]:
    def lowering(
        b: Builder, out: Meta, grad: TensorRef, x: TensorRef, kernel: Sequence[int], stride: Sequence[int],
        padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Any:  # fmt: skip
        win = window(rank, kernel, stride, padding)
        wide = compute_dtype(out.dtype)
        shape = x.shape[-rank:]

        def body(at: Coords, back: Coords) -> Expr:
            here = at[-rank:]
            holder = win.holder(here, back)
            rows = zip(here, holder, win.kernel, win.stride, win.padding, strict=True)
            held = [c for i, o, k, s, p in rows for c in between(i + p - o * s, ZERO, as_index(k))]
            given = cast(grad.load((*at[:-rank], *holder)), wide)
            count = _divisor(win, holder, shape, count_include_pad, divisor_override)
            return masked([*_inside(holder, grad.shape[-rank:]), *held], _quotient(given, count))

        return _sum(b, out, win.holders(), body, "wide")

    return lowering


# -- windows that divide the input evenly
# ----------------------------------------------------------------------
def _bounds(at: Index, parts: Index, size: Index) -> tuple[Index, Index]:
    """Part ``at`` of ``size`` cut into ``parts``, neighbours overlapping where it does not divide: [start, end)."""
    return (at * size) // parts, -((-(at + 1) * size) // parts)


def _longest(parts: Index, size: Index) -> Index:
    whole_parts = size % parts is ZERO
    return size // parts if whole_parts else size // parts + 2


def _adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    def lowering(b: Builder, out: Meta, x: TensorRef, size: object) -> Any:
        if ZERO in out.shape or ZERO in x.shape:
            return NotImplemented
        parts, shape = out.shape[-rank:], x.shape[-rank:]
        wide = out.with_dtype(compute_dtype(out.dtype))

        def body(at: Coords, inner: Coords) -> Expr:
            place, conditions = _part_element(at[-rank:], inner, parts, shape)
            return masked(conditions, cast(x.load((*at[:-rank], *place)), wide.dtype))

        total = _sum(b, wide, [_longest(n, s) for n, s in zip(parts, shape, strict=True)], body, "sum")

        def mean(at: Coords) -> Expr:
            count = product([e - s for s, e in map(_bounds, at[-rank:], parts, shape)])
            return _quotient(total.load(at), count)

        return b.pointwise(out, mean)

    return lowering


def _part_element(
    at: Sequence[Index], inner: Sequence[Index], parts: Sequence[Index], shape: Sequence[Index]
) -> tuple[Coords, list[Expr]]:
    """Where element ``inner`` of part ``at`` lies, and the conditions that there is such an element."""
    spans = [_bounds(o, n, s) for o, n, s in zip(at, parts, shape, strict=True)]
    place = tuple([start + r for (start, _), r in zip(spans, inner, strict=True)])
    return place, [c for p, (start, end) in zip(place, spans, strict=True) for c in between(p, start, end)]


def _adaptive_avg_pool_backward(rank: int) -> Callable[..., Any]:
    def lowering(b: Builder, out: Meta, grad: TensorRef, x: TensorRef) -> Any:
        if ZERO in grad.shape or ZERO in x.shape:
            return NotImplemented
        parts, shape = grad.shape[-rank:], x.shape[-rank:]
        wide = compute_dtype(out.dtype)

        def body(at: Coords, back: Coords) -> Expr:
            holder, held = _part_element(at[-rank:], back, shape, parts)
            count = product([e - s for s, e in map(_bounds, holder, parts, shape)])
            given = cast(grad.load((*at[:-rank], *holder)), wide)
            return masked(held, _quotient(given, count))

        return _sum(b, out, [_holding(n, s) for n, s in zip(parts, shape, strict=True)], body, "wide")

    return lowering


def _holding(parts: Index, size: Index) -> Index:
    """How many parts can hold one element."""
    return ONE if size % parts is ZERO else parts // size + 2


def _adaptive_max_pool(rank: int) -> Callable[..., Any]:
    def lowering(b: Builder, out: tuple[Meta, Meta], x: TensorRef, size: object) -> Any:
        values, indices = out
        if ZERO in values.shape or ZERO in x.shape:
            return NotImplemented
        parts, shape = values.shape[-rank:], x.shape[-rank:]
        wide = values.with_dtype(compute_dtype(values.dtype))

        def bodies(at: Coords, inner: Coords) -> tuple[Expr, ...]:
            place, conditions = _part_element(at[-rank:], inner, parts, shape)
            return _candidate(x, (*at[:-rank], *place), conditions, rank, wide.dtype)

        extents = [_longest(n, s) for n, s in zip(parts, shape, strict=True)]
        best, where = _reduce(b, values, extents, "argmax", bodies, (wide, indices), "max")
        return best if wide.dtype == values.dtype else b.copy(best, values), where

    return lowering


def _adaptive_max_pool_backward(rank: int) -> Callable[..., Any]:
    def lowering(b: Builder, out: Meta, grad: TensorRef, x: TensorRef, indices: TensorRef) -> Any:
        if ZERO in grad.shape or ZERO in x.shape:
            return NotImplemented
        parts, shape = grad.shape[-rank:], x.shape[-rank:]
        wide = compute_dtype(out.dtype)

        def body(at: Coords, back: Coords) -> Expr:
            holder, held = _part_element(at[-rank:], back, shape, parts)
            where = (*at[:-rank], *holder)
            return masked(held, _if_chosen(grad, indices, where, at[-rank:], shape, wide))

        return _sum(b, out, [_holding(n, s) for n, s in zip(parts, shape, strict=True)], body, "wide")

    return lowering


LOWERINGS: Mapping[OpOverload, Callable[..., Any]] = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool3d_with_indices.default: _max_pool(3),
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward(2),
    aten.max_pool3d_with_indices_backward.default: _max_pool_backward(3),
    aten.avg_pool2d.default: _avg_pool(2),
    aten.avg_pool3d.default: _avg_pool(3),
    aten.avg_pool2d_backward.default: _avg_pool_backward(2),
    aten.avg_pool3d_backward.default: _avg_pool_backward(3),
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool(2),
    aten._adaptive_avg_pool3d.default: _adaptive_avg_pool(3),
    aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_avg_pool_backward(3),
    aten.adaptive_max_pool2d.default: _adaptive_max_pool(2),
    aten.adaptive_max_pool3d.default: _adaptive_max_pool(3),
    aten.adaptive_max_pool2d_backward.default: _adaptive_max_pool_backward(2),
    aten.adaptive_max_pool3d_backward.default: _adaptive_max_pool_backward(3),
}
