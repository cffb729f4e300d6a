"""Resampling to the nearest element; gradients of resampling and of padding with an image's own elements.

Eager adds each output's gradient to the inputs it came from. Here each input asks which outputs used it, one
dimension after the other, so nothing is scattered. Doubling a row by ``nearest``:

    grad_x[i0] = sum over r0<2 of grad_y[2*i0 + r0]

In general input ``i`` meets ``count`` outputs at most, from ``first(i)`` on; each says by eager's own formula
what it took from ``i``, so a bound that is too wide costs time, never a wrong sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import torch

from gyrator.ir.expr import Checked, Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Axis, Index, IndexLike, Indirect, as_index, is_nonnegative, maximum, minimum
from gyrator.ir.program import Reduce
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.family import Family, rows
from gyrator.lowering.joins import masked
from gyrator.lowering.refs import Coords, TensorRef, axes_of, coords_of, whole
from gyrator.lowering.typed import between, cast, compute_dtype, like, number, op

Share: TypeAlias = Callable[[Index, Index, Expr], Expr]
"""(output, input, gradient of the output) → what of it belongs to the input."""

CUBIC = -0.75
"""The free parameter of the cubic kernel, as eager has it."""


@final
@dataclass(frozen=True, slots=True)
class Line:
    """How the gradient flows along one dimension: input ``i`` asks ``count`` outputs from ``first(i)`` on.

    ``certain``: all of these exist.
    """

    count: Index
    first: Callable[[Index], Index]
    share: Share
    certain: bool = False


# -- the frame ---------------------------------------------------------------------------------------------
def _gathered(b: Builder, out: Meta, grad: TensorRef, lines: Sequence[Line]) -> TensorRef:
    """``grad`` summed along the last dimensions by ``lines``; each sum in the compute dtype."""
    wide = out.with_dtype(compute_dtype(out.dtype))
    for back, line in enumerate(reversed(lines), 1):
        done = back == len(lines)
        shape = (*grad.shape[: grad.rank - back], *out.shape[grad.rank - back :])
        meta = wide if done else wide.with_shape(shape)
        grad = _along(b, meta, grad, grad.rank - back, line, "" if meta.dtype == out.dtype else "wide")
    return b.narrowed(grad, out)


def _along(b: Builder, out: Meta, grad: TensorRef, dim: int, line: Line, suffix: str) -> TensorRef:
    axes, step = axes_of("i", out.shape), Axis("r0", line.count)
    at = coords_of(axes)
    source = line.first(at[dim]) + (ZERO if line.count is ONE else step.index())
    given = cast(grad.load((*at[:dim], source, *at[dim + 1 :])), out.dtype)
    conditions = [] if line.certain else between(source, ZERO, grad.shape[dim])
    value = b.value(out, suffix)
    b.nest((value,), axes, Reduce("sum", (step,), (masked(conditions, line.share(source, at[dim], given)),)))
    return whole(value)


# -- where outputs come from -------------------------------------------------------------------------------
@final
@dataclass(frozen=True, slots=True)
class Resize:
    """A dimension of ``old`` elements resized to ``new``; ``factor`` is the user's, if one was given."""

    old: Index
    new: Index
    factor: float | None
    aligned: bool = False

    def step(self, like_this: Expr) -> Expr:
        """How far apart in the input two neighbouring outputs lie."""
        dtype = like_this.dtype
        if not self.aligned and self.factor:
            return number(1.0 / self.factor, dtype)
        old, new = (self.old - 1, self.new - 1) if self.aligned else (self.old, self.new)
        if new is ZERO:
            return number(0.0, dtype)
        return op("div", number(old, dtype), number(new, dtype))

    def position(self, output: Index, like_this: Expr) -> Expr:
        """Where in the input the centre of ``output`` lies."""
        at = number(output, like_this.dtype)
        if self.aligned:
            return op("mul", at, self.step(at))
        half = like(at, 0.5)
        return op("sub", op("mul", op("add", at, half), self.step(at)), half)

    def window(self, reach: int) -> tuple[Index, Callable[[Index], Index]]:
        """Count and first of the outputs whose centres lie less than ``reach`` from an input.

        One more on both sides makes up for rounding, and for a factor that is not quite ``new / old``.
        """
        if self.aligned:
            if self.old is ONE or self.new is ONE:
                return self.new, lambda i: ZERO
            old, new = self.old - 1, self.new - 1
            return _ratio_up(new * (2 * reach), old) + 3, lambda i: ((i - reach) * new) // old - 1

        def start(i: Index) -> Index:
            return ((i * 2 - (2 * reach - 1)) * self.new - self.old) // (self.old * 2) - 1

        return _ratio_up(self.new * (2 * reach), self.old) + 4, start


def _ratio_up(a: Index, b: Index) -> Index:
    return -((-a) // b)


# -- kernels -----------------------------------------------------------------------------------------------
def _nearest(size: Resize, exact: bool) -> Line:
    """Each output is its source's."""
    times = _even(size)
    if times is not None:
        return Line(as_index(times), lambda i: i * times, lambda o, i, g: g, certain=True)

    def share(output: Index, i: Index, given: Expr) -> Expr:
        source = _nearest_source(size, exact, output)
        return op("where", op("eq", source, number(i, source.dtype)), given, like(given, 0))

    start: Callable[[Index], Index] = lambda i: (i * size.new) // size.old - 2  # noqa: E731
    return Line(_ratio_up(size.new, size.old) + 4, start, share)


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
    source = op("floor", op("mul", centre, size.step(at)))
    return op("minimum", source, number(size.old - 1, torch.float32))


def _linear(size: Resize) -> Line:
    """The two inputs around a position share by nearness; positions before the first count as there."""

    def share(output: Index, i: Index, given: Expr) -> Expr:
        position = size.position(output, given)
        if not size.aligned:
            position = op("maximum", position, like(position, 0))
        last, here = number(size.old - 1, given.dtype), number(i, given.dtype)
        low = op("minimum", op("floor", position), last)
        high = op("minimum", op("add", low, like(low, 1)), last)
        far = op("minimum", op("maximum", op("sub", position, low), like(low, 0)), like(low, 1))
        near = op("sub", like(far, 1), far)
        return op("add", _if_equal(low, here, near, given), _if_equal(high, here, far, given))

    return Line(*size.window(1), share)


def _cubic(size: Resize) -> Line:
    """The four inputs around a position by the cubic kernel; those beyond an end count as the end."""

    def share(output: Index, i: Index, given: Expr) -> Expr:
        position = size.position(output, given)
        last, here = number(size.old - 1, given.dtype), number(i, given.dtype)
        low = op("floor", position)
        far = op("sub", position, low)
        terms: list[Expr] = []
        for tap, weight in enumerate(_cubic_weights(far), -1):
            source = op("minimum", op("maximum", op("add", low, like(low, tap)), like(low, 0)), last)
            terms.append(_if_equal(source, here, weight, given))
        return op("add", op("add", terms[0], terms[1]), op("add", terms[2], terms[3]))

    return Line(*size.window(2), share)


def _cubic_weights(far: Expr) -> list[Expr]:
    """The weights of the inputs at −1, 0, 1 and 2 from the one before a position ``far`` behind it."""

    def inner(x: Expr) -> Expr:
        first = op("sub", op("mul", like(x, CUBIC + 2), x), like(x, CUBIC + 3))
        return op("add", op("mul", op("mul", first, x), x), like(x, 1))

    def outer(x: Expr) -> Expr:
        first = op("sub", op("mul", like(x, CUBIC), x), like(x, 5 * CUBIC))
        second = op("add", op("mul", first, x), like(x, 8 * CUBIC))
        return op("sub", op("mul", second, x), like(x, 4 * CUBIC))

    one = like(far, 1)
    near = op("sub", one, far)
    return [outer(op("add", far, one)), inner(far), inner(near), outer(op("add", near, one))]


def _if_equal(source: Expr, here: Expr, weight: Expr, given: Expr) -> Expr:
    return op("where", op("eq", source, here), op("mul", weight, given), like(given, 0))


# -- operators -----------------------------------------------------------------------------------------------
def _resized(
    old: Sequence[Index], new: Sequence[Index], factors: Sequence[float | None], aligned: bool = False
) -> list[Resize]:
    given = [*factors, *[None] * (len(old) - 2 - len(factors))]
    return [Resize(*row, aligned) for row in zip(old[2:], new[2:], given, strict=True)]


def _doubled(sizes: Sequence[Resize]) -> list[Resize]:
    """Eager's CPU kernels take a doubled size for doubled, whatever factor the user gave."""
    return [replace(s, factor=None) if s.new is s.old * 2 else s for s in sizes]


def _nearest_forward(exact: bool, b: Builder, out: Meta, x: TensorRef, size: object, *factors: float | None) -> Any:
    if ZERO in out.shape or ZERO in x.shape:
        return NotImplemented
    sizes = _resized(x.shape, out.shape, factors)
    if out.device.type == "cpu" and not exact and x.rank == 4:
        sizes = _doubled(sizes)

    def body(at: Coords) -> Expr:
        inner = [_nearest_index(s, exact, o) for s, o in zip(sizes, at[2:], strict=True)]
        return x.load((*at[:2], *inner))

    return b.pointwise(out, body)


def _nearest_index(size: Resize, exact: bool, output: Index) -> Index:
    times = _even(size)
    if times is not None:
        return output // times
    source = cast(_nearest_source(size, exact, output), torch.int64)
    return Indirect(Checked(source, size.old), size.old).index()


def _nearest_backward(
    exact: bool, b: Builder, out: Meta, grad: TensorRef, output_size: object, input_size: object,
    *factors: float | None,
) -> Any:  # fmt: skip
    if ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    sizes = _resized(out.shape, grad.shape, factors)
    if out.device.type == "cpu" and not exact:
        sizes = _doubled(sizes)
    return _gathered(b, out, grad, [_nearest(s, exact) for s in sizes])


def _weighted_backward(
    line: Callable[[Resize], Line], b: Builder, out: Meta, grad: TensorRef, output_size: object, input_size: object,
    align_corners: bool, *factors: float | None,
) -> Any:  # fmt: skip
    sizes = _resized(out.shape, grad.shape, factors, align_corners)
    unknown = align_corners and any(n.value is None for s in sizes for n in (s.old, s.new))
    if unknown or ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    return _gathered(b, out, grad, [line(s) for s in sizes])


def _padded(before: int, after: int, size: Index) -> Line:
    """Output ``o`` is a copy of input ``o - before``, or of the nearest one that there is."""
    left, right = max(before, 0), max(after, 0)
    span = max(left, right) if is_nonnegative(size - 2) else left + right
    if before == after == 0:
        return Line(ONE, lambda i: i, lambda o, i, g: g, certain=True)

    def share(output: Index, i: Index, given: Expr) -> Expr:
        source = minimum(maximum(output - before, ZERO), size - 1)
        return op("where", op("eq", IndexValue(source), IndexValue(i)), given, like(given, 0))

    start: Callable[[Index], Index] = lambda i: i + minimum(i, ONE) * left + (before - left)  # noqa: E731
    return Line(as_index(1 + span), start, share)


def _replication_pad_backward(
    b: Builder, out: Meta, grad: TensorRef, x: TensorRef, padding: Sequence[IndexLike]
) -> Any:
    sides = [p for p in padding if isinstance(p, int)]
    if len(sides) != len(padding) or ZERO in out.shape or ZERO in grad.shape:
        return NotImplemented
    pairs = list(zip(sides[::2], sides[1::2], strict=True))[::-1]
    sizes = out.shape[len(out.shape) - len(pairs) :]
    lines = [_padded(before, after, n) for (before, after), n in zip(pairs, sizes, strict=True)]
    return _gathered(b, out, grad, lines)


_NEAREST = "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
_EXACT = "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
_LINEAR = "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"
_REPLICATED = "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"

LOWERINGS: Family = {
    **rows(partial(_nearest_forward, False), _NEAREST),
    **rows(partial(_nearest_forward, True), _EXACT),
    **rows(partial(_nearest_backward, False), " ".join(f"{name}_backward" for name in _NEAREST.split())),
    **rows(partial(_nearest_backward, True), " ".join(f"{name}_backward" for name in _EXACT.split())),
    **rows(partial(_weighted_backward, _linear), _LINEAR),
    **rows(partial(_weighted_backward, _cubic), "upsample_bicubic2d_backward"),
    **rows(_replication_pad_backward, _REPLICATED),
}
