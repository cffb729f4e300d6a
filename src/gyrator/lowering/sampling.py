"""Resampling to the nearest element, and the gradients of nearest, linear and cubic resampling.

Eager adds each output's gradient to the inputs it came from. Here each input asks which outputs used it, one
dimension after the other, so nothing is scattered. Doubling a row by ``nearest``, and by ``linear``:

    grad_x[i0] = sum over r0<2 of grad_y[2*i0 + r0]
    grad_x[i0] = sum over r0<4 of weight(2*i0 + r0 - 1, i0) * grad_y[2*i0 + r0 - 1]

In general input ``i`` meets ``count`` outputs at most, from ``first`` on; each says by eager's own formula
what it took from ``i``, so a bound that is too wide costs time, never a wrong sum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gyrator.ir.expr import Checked, Expr
from gyrator.ir.index import ONE, ZERO, Index, Indirect, as_index, maximum
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.joins import masked
from gyrator.lowering.reductions import summed
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import between, cast, compute_dtype, like, number, op


@dataclass(frozen=True, slots=True)
class Resize:
    """A dimension of ``old`` elements resized to ``new``; ``factor`` is the user's, if one was given. If ``aligned``,
    the first and the last elements lie upon each other, else the borders."""

    old: Index
    new: Index
    factor: float | None
    aligned: bool = False


Weight = Callable[[Resize, Expr, Expr], Expr]
"""(dimension, place, input) → what an output at that place among the inputs takes of this one."""

Part = Callable[[Resize, Index, Index, Expr], Expr]
"""(dimension, input, output, the output's gradient) → what of it is the input's."""


def _summed(b: Builder, out: Meta, grad: TensorRef, dim: int, size: Resize, taps: int, part: Part) -> TensorRef:
    """``grad`` summed along a dimension, in the compute dtype; an output took from ``taps`` inputs around its place."""
    times, apart = _even(size), int(size.aligned)
    new, old = size.new - apart, size.old - apart
    count = 4 - (-taps * new) // old if times is None else as_index(taps * times)

    def body(at: Coords, inner: Coords) -> Expr:
        i = at[dim]
        before = (
            (2 * i + 1 - taps - apart) * new // (2 * old) - 2 if times is None else i * times - (taps - 1) * times // 2
        )
        output = before + inner[0]
        given = cast(grad.load((*at[:dim], output, *at[dim + 1 :])), compute_dtype(out.dtype))
        return masked(between(output, ZERO, grad.shape[dim]), part(size, i, output, given))

    return summed(b, out, (count,), body)


def _nearest_part(exact: bool, size: Resize, i: Index, output: Index, given: Expr) -> Expr:
    if _even(size) is not None:
        return given
    source = _nearest_source(size, exact, output)
    return op("where", op("eq", source, number(i, source.dtype)), given, like(given, 0))


def _weighted(weight: Weight, size: Resize, i: Index, output: Index, given: Expr) -> Expr:
    at, step = number(output, given.dtype), _step(size, given.dtype)
    if size.aligned:
        place = op("mul", at, step)
    else:
        place = op("sub", op("mul", op("add", at, like(at, 0.5)), step), like(at, 0.5))
    share = weight(size, place, number(i, at.dtype))
    return op("where", op("eq", share, like(share, 0)), like(given, 0), op("mul", given, share))


def _linear(size: Resize, place: Expr, i: Expr) -> Expr:
    """1 at ``place``, 0 from the next elements on; places outside are the first or the last element's."""
    inside = op("minimum", op("maximum", place, like(place, 0)), number(size.old - 1, place.dtype))
    return op("maximum", op("sub", like(place, 1), op("abs", op("sub", inside, i))), like(place, 0))


def _cubic(size: Resize, place: Expr, i: Expr) -> Expr:
    """Keys' weights (1981, a = -3/4); the first and the last element are also what lies beyond them."""

    def weight(away: int) -> Expr:
        d = op("abs", op("sub", op("sub", place, i), like(place, away)))
        one, a, b = (like(d, n) for n in (1, 1.25, 2.25))
        near = op("add", op("mul", op("sub", op("mul", a, d), b), op("mul", d, d)), one)
        beyond = op("minimum", op("sub", d, like(d, 2)), like(d, 0))  # -3/4 (d - 1) (d - 2)^2
        far = op("mul", op("mul", op("sub", d, one), op("mul", beyond, beyond)), like(d, -0.75))
        return op("where", op("le", d, one), near, far)

    found = weight(0)
    for edge, beyond in ((ZERO, (-1, -2)), (size.old - 1, (1, 2))):
        more = op("add", *map(weight, beyond))
        found = op("add", found, op("where", op("eq", i, number(edge, i.dtype)), more, like(more, 0)))
    return found


def _even(size: Resize) -> int | None:
    """How many outputs each input has, where that is a power of two and so divides without rounding."""
    times = (size.new // size.old).value
    if size.aligned or not times or times & (times - 1) or size.old * times is not size.new:
        return None
    return times if size.factor in (None, times) else None


def _nearest_source(size: Resize, exact: bool, output: Index) -> Expr:
    """The input ``⌊o·old/new⌋``, or ``⌊(o + ½)·old/new⌋`` if ``exact``, computed in float32 as in eager."""
    at = number(output, torch.float32)
    centre = op("add", at, like(at, 0.5)) if exact else at
    last = number(size.old - 1, torch.float32)
    return op("minimum", op("floor", op("mul", centre, _step(size, torch.float32))), last)


def _step(size: Resize, dtype: torch.dtype) -> Expr:
    """How many inputs lie from output to output."""
    if size.aligned:
        old, new = number(size.old - 1, dtype), number(maximum(size.new - 1, ONE), dtype)
        return op("div", old, new)
    if size.factor:
        return number(1.0 / size.factor, dtype)
    return op("div", number(size.old, dtype), number(size.new, dtype))


def _resized(
    old: Coords, new: Coords, factors: Sequence[float | None], *, doubled: bool = False, aligned: bool = False
) -> list[Resize]:
    """Where ``doubled``, a size that stays or doubles does so whatever its factor, as in eager's CPU kernels."""
    given = [*factors, *[None] * (len(old) - 2 - len(factors))]
    sizes = [Resize(*row, aligned and row[0] is not ONE) for row in zip(old[2:], new[2:], given, strict=True)]
    return [replace(s, factor=None) if doubled and s.new in (s.old, s.old * 2) else s for s in sizes]


def _nearest_forward(exact: bool, b: Builder, out: Meta, x: TensorRef, size: object, *factors: float | None) -> Any:
    if ZERO in out.shape or ZERO in x.shape:
        return NotImplemented
    doubled = out.device.type == "cpu" and not exact and x.rank == 4
    sizes = _resized(x.shape, out.shape, factors, doubled=doubled)

    def body(at: Coords) -> Expr:
        inner = [_nearest_index(s, exact, o, out.device) for s, o in zip(sizes, at[2:], strict=True)]
        return x.load((*at[:2], *inner))

    return b.pointwise(out, body)


def _nearest_index(size: Resize, exact: bool, output: Index, device: torch.device) -> Index:
    """Of which rounding makes at most the element beside: a GPU, where checks take long, clamps it."""
    times = _even(size)
    if times is not None:
        return output // times
    source = cast(_nearest_source(size, exact, output), torch.int64)
    on_gpu = device.type == "cuda"
    return Indirect(op("maximum", source, like(source, 0)) if on_gpu else Checked(source, size.old), size.old).index()


def _nearest_backward(
    exact: bool, b: Builder, out: Meta, grad: TensorRef, output_size: object, input_size: object,
    *factors: float | None,
) -> Any:  # fmt: skip
    sizes = _resized(out.shape, grad.shape, factors, doubled=out.device.type == "cpu" and not exact)
    return _backward(b, out, grad, sizes, 1, partial(_nearest_part, exact))


def _weighted_backward(
    taps: int, weight: Weight, b: Builder, out: Meta, grad: TensorRef, output_size: object, input_size: object,
    aligned: bool, *factors: float | None,
) -> Any:  # fmt: skip
    sizes = _resized(out.shape, grad.shape, factors, aligned=aligned)
    return _backward(b, out, grad, sizes, taps, partial(_weighted, weight))


def _backward(b: Builder, out: Meta, grad: TensorRef, sizes: Sequence[Resize], taps: int, part: Part) -> Any:
    if ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    wide = out.with_dtype(compute_dtype(out.dtype))
    for dim in range(grad.rank - 1, 1, -1):  # the last sum is that of dimension 2
        made = out if dim == 2 else wide.with_shape((*grad.shape[:dim], *out.shape[dim:]))
        grad = _summed(b, made, grad, dim, sizes[dim - 2], taps, part)
    return grad


_NEAREST = "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
_LINEAR = "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"
_EXACT = "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"

LOWERINGS: Family = {
    **rows(partial(_nearest_forward, False), _NEAREST),
    **rows(partial(_nearest_forward, True), _EXACT),
    **rows(partial(_nearest_backward, False), " ".join(f"{name}_backward" for name in _NEAREST.split())),
    **rows(partial(_nearest_backward, True), " ".join(f"{name}_backward" for name in _EXACT.split())),
    **rows(partial(_weighted_backward, 2, _linear), _LINEAR),
    **rows(partial(_weighted_backward, 4, _cubic), "upsample_bicubic2d_backward"),
}
