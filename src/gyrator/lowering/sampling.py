"""Resampling to the nearest element, and its gradient.

Eager adds each output's gradient to the inputs it came from. Here each input asks which outputs used it, one
dimension after the other, so nothing is scattered. Doubling a row by ``nearest``:

    grad_x[i0] = sum over r0<2 of grad_y[2*i0 + r0]

In general input ``i`` meets ``count`` outputs at most, from ``first`` on; each says by eager's own formula
what it took from ``i``, so a bound that is too wide costs time, never a wrong sum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gyrator.ir.expr import Checked, Expr
from gyrator.ir.index import ZERO, Index, Indirect, as_index
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.joins import masked
from gyrator.lowering.reductions import summed
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import between, cast, compute_dtype, like, number, op


@dataclass(frozen=True, slots=True)
class Resize:
    """A dimension of ``old`` elements resized to ``new``; ``factor`` is the user's, if one was given."""

    old: Index
    new: Index
    factor: float | None


def _summed(b: Builder, out: Meta, grad: TensorRef, dim: int, size: Resize, exact: bool) -> TensorRef:
    """``grad`` summed along a dimension, in the compute dtype: each output's is its source's."""
    times = _even(size)
    count = 4 - (-size.new) // size.old if times is None else as_index(times)

    def body(at: Coords, inner: Coords) -> Expr:
        i = at[dim]
        first = (i * size.new) // size.old - 2 if times is None else i * times
        output = first + inner[0]
        given = cast(grad.load((*at[:dim], output, *at[dim + 1 :])), compute_dtype(out.dtype))
        if times is None:
            source = _nearest_source(size, exact, output)
            given = op("where", op("eq", source, number(i, source.dtype)), given, like(given, 0))
        return masked(between(output, ZERO, grad.shape[dim]), given)

    return summed(b, out, (count,), body)


def _even(size: Resize) -> int | None:
    """How many outputs each input has, where that is a power of two and so divides without rounding."""
    times = (size.new // size.old).value
    if not times or times & (times - 1) or size.old * times is not size.new:
        return None
    return times if size.factor in (None, times) else None


def _nearest_source(size: Resize, exact: bool, output: Index) -> Expr:
    """The input ``⌊o·old/new⌋``, or ``⌊(o + ½)·old/new⌋`` if ``exact``, computed in float32 as in eager."""
    at = number(output, torch.float32)
    centre = op("add", at, like(at, 0.5)) if exact else at
    old, new = (number(n, torch.float32) for n in (size.old, size.new))
    step = number(1.0 / size.factor, torch.float32) if size.factor else op("div", old, new)  # from output to output
    return op("minimum", op("floor", op("mul", centre, step)), number(size.old - 1, torch.float32))


def _resized(
    old: Sequence[Index], new: Sequence[Index], factors: Sequence[float | None], *, doubled: bool
) -> list[Resize]:
    """Where ``doubled``, a size that stays or doubles does so whatever its factor, as in eager's CPU kernels."""
    given = [*factors, *[None] * (len(old) - 2 - len(factors))]
    sizes = [Resize(*row) for row in zip(old[2:], new[2:], given, strict=True)]
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
    if ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    sizes = _resized(out.shape, grad.shape, factors, doubled=out.device.type == "cpu" and not exact)
    wide = out.with_dtype(compute_dtype(out.dtype))
    for dim in range(grad.rank - 1, 1, -1):  # the last sum is that of dimension 2
        made = out if dim == 2 else wide.with_shape((*grad.shape[:dim], *out.shape[dim:]))
        grad = _summed(b, made, grad, dim, sizes[dim - 2], exact)
    return grad


_NEAREST = "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
_EXACT = "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"

LOWERINGS: Family = {
    **rows(partial(_nearest_forward, False), _NEAREST),
    **rows(partial(_nearest_forward, True), _EXACT),
    **rows(partial(_nearest_backward, False), " ".join(f"{name}_backward" for name in _NEAREST.split())),
    **rows(partial(_nearest_backward, True), " ".join(f"{name}_backward" for name in _EXACT.split())),
}
