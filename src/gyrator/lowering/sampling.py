"""Resampling to the nearest element, and the gradients of nearest, linear and cubic resampling.

Eager adds each output's gradient to the inputs it came from. Here each input asks which outputs used it, one
dimension after the other, so nothing is scattered. Doubling a row by ``nearest``, and by ``linear``:

    grad_x[i0] = sum over r0<2 of grad_y[2*i0 + r0]
    grad_x[i0] = sum over r0<4 of weight(2*i0 + r0 - 1, i0) * grad_y[2*i0 + r0 - 1]

In general input ``i`` meets ``count`` outputs at most, from ``first`` on; each says by eager's own formula
what it took from ``i``, so a bound that is too wide costs time, never a wrong sum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import torch

from gyrator.ir.build import between, cast, compute_dtype, like, masked, number, op
from gyrator.ir.expr import Checked, Expr
from gyrator.ir.index import ONE, ZERO, Coords, Index, Indirect, as_index, maximum
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.reductions import summed
from gyrator.lowering.refs import TensorRef


@dataclass(frozen=True, slots=True)
class Resize:
    """A dimension of ``old`` elements resized to ``new``; ``factor`` is the user's, if one was given. If ``aligned``,
    the first and the last elements lie upon each other, else the borders."""

    old: Index
    new: Index
    factor: float | None
    aligned: bool = False


Kernel = Callable[[Expr], Expr]
"""Distance between an output's place and an input → what the output takes of it."""

Part = Callable[[Resize, Index, Index, Expr], Expr]
"""(dimension, input, output, the output's gradient) → what of it is the input's."""


def _summed(b: Builder, out: Meta, grad: TensorRef, dim: int, size: Resize, taps: int, part: Part) -> TensorRef:
    """``grad`` summed along a dimension, in the compute dtype; an output took from ``taps`` inputs around its place."""
    times, apart = _even(size), int(size.aligned)
    new, old = size.new - apart, size.old - apart
    count = 4 - (-taps * new) // old if times is None else as_index(taps * times)

    def body(at: Coords, inner: Coords) -> Expr:
        i = at[dim]
        start = (2 * i + 1 - taps - apart) * new // (2 * old) - 2
        first = start if times is None else i * times - (taps - 1) * times // 2
        output = first + inner[0]
        given = cast(grad.load((*at[:dim], output, *at[dim + 1 :])), compute_dtype(out.dtype))
        return masked(between(output, ZERO, grad.shape[dim]), part(size, i, output, given))

    return summed(b, out, (count,), body)


def _nearest_part(exact: bool, size: Resize, i: Index, output: Index, given: Expr) -> Expr:
    if _even(size) is not None:
        return given
    source = _nearest_source(size, exact, output)
    return op("where", op("eq", source, number(i, source.dtype)), given, like(given, 0))


def _weighted(taps: int, kernel: Kernel, size: Resize, i: Index, output: Index, given: Expr) -> Expr:
    """What lies beyond the first and the last input counts as these."""
    at, step, element = number(output, given.dtype), _step(size, given.dtype), number(i, given.dtype)
    if size.aligned:
        place = op("mul", at, step)
    else:
        place = op("sub", op("mul", op("add", at, like(at, 0.5)), step), like(at, 0.5))
    distance = op("sub", place, element)
    share = kernel(op("abs", distance))
    for edge, side in ((ZERO, 1), (size.old - 1, -1)):
        beyond = [kernel(op("abs", op("add", distance, like(at, side * n)))) for n in range(1, taps // 2 + 1)]
        at_edge = op("eq", element, number(edge, at.dtype))
        share = op("add", share, op("where", at_edge, reduce(partial(op, "add"), beyond), like(at, 0)))
    return op("where", op("eq", share, like(share, 0)), like(given, 0), op("mul", given, share))


def _linear(d: Expr) -> Expr:
    return op("maximum", op("sub", like(d, 1), d), like(d, 0))


def _cubic(d: Expr) -> Expr:
    """Keys' kernel (1981) with a = -3/4: ``(1.25 d - 2.25) d² + 1`` up to 1, ``-0.75 (d - 1) (d - 2)²`` up to 2."""
    near = op("add", op("mul", op("sub", op("mul", like(d, 1.25), d), like(d, 2.25)), op("mul", d, d)), like(d, 1))
    rest = op("minimum", op("sub", d, like(d, 2)), like(d, 0))
    far = op("mul", op("mul", op("sub", d, like(d, 1)), op("mul", rest, rest)), like(d, -0.75))
    return op("where", op("le", d, like(d, 1)), near, far)


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
    old, new = (size.old - 1, maximum(size.new - 1, ONE)) if size.aligned else (size.old, size.new)
    if size.factor and not size.aligned:
        return number(1.0 / size.factor, dtype)
    return op("div", number(old, dtype), number(new, dtype))


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
    if (times := _even(size)) is not None:
        return output // times
    source = cast(_nearest_source(size, exact, output), torch.int64)
    on_gpu = device.type == "cuda"
    return Indirect(op("maximum", source, like(source, 0)) if on_gpu else Checked(source, size.old), size.old).index()


def _backward(
    taps: int, part: Part, doubled: bool, b: Builder, out: Meta, grad: TensorRef, output_size: object,
    input_size: object, *options: Any,
) -> Any:  # fmt: skip
    if ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    aligned, factors = (False, options) if taps == 1 else (options[0], options[1:])
    sizes = _resized(out.shape, grad.shape, factors, doubled=doubled and out.device.type == "cpu", aligned=aligned)
    wide = out.with_dtype(compute_dtype(out.dtype))
    for dim in range(2, grad.rank):  # rows of memory are walked last, when fewer elements are left
        made = out if dim == grad.rank - 1 else wide.with_shape((*out.shape[: dim + 1], *grad.shape[dim + 1 :]))
        grad = _summed(b, made, grad, dim, sizes[dim - 2], taps, part)
    return grad


_NEAREST = "upsample_nearest1d{0} upsample_nearest2d{0} upsample_nearest3d{0}"
_EXACT = "_upsample_nearest_exact1d{0} _upsample_nearest_exact2d{0} _upsample_nearest_exact3d{0}"
_LINEAR = "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"

LOWERINGS: Family = {
    **rows(partial(_nearest_forward, False), _NEAREST.format("")),
    **rows(partial(_nearest_forward, True), _EXACT.format("")),
    **rows(partial(_backward, 1, partial(_nearest_part, False), True), _NEAREST.format("_backward")),
    **rows(partial(_backward, 1, partial(_nearest_part, True), False), _EXACT.format("_backward")),
    **rows(partial(_backward, 2, partial(_weighted, 2, _linear), False), _LINEAR),
    **rows(partial(_backward, 4, partial(_weighted, 4, _cubic), False), "upsample_bicubic2d_backward"),
}
