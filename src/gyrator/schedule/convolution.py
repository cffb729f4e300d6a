"""Convolutions as matrix products whose left operand, the patches of the images, is computed where it is loaded.

    out[n, c, y, x] = Σ_k patches[(n, y, x), k] · filters[k, c]        k counts (row, column of the kernel, channel)

With kernels of one element that step over nothing, the patches are the pixels of the images as they lie."""

from dataclasses import dataclass

from gyrator.ir.expr import Load, Value
from gyrator.ir.index import ONE, ZERO, Index, contiguous_strides, dot, product
from gyrator.ir.program import Extern, ListArg, View
from gyrator.lowering.typed import both, within
from gyrator.lowering.views import split_position
from gyrator.schedule.plan import is_full


@dataclass(frozen=True, slots=True)
class Window:
    """What slides over ``images`` of (batch, channels, *sides). ``sides`` are the result's, ``taps`` the kernel's."""

    images: Value
    sides: tuple[Index, ...]
    taps: tuple[Index, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def is_pixel(self) -> bool:
        """Whether patches are the pixels one after the other."""
        return {*self.taps} == {ONE} and {*self.stride} == {1} and {*self.padding} == {0}

    def patch(self, row: Index, inner: Index) -> Load:
        """Element ``inner`` of patch ``row``; 0 outside of the images."""
        batch, channels, *sides = self.images.shape
        number, *place = split_position(row, (batch, *self.sides))
        *taps, channel = split_position(inner, (*self.taps, channels))
        steps = zip(place, taps, self.stride, self.padding, self.dilation, strict=True)
        at = tuple(p * stride - padding + tap * dilation for p, tap, stride, padding, dilation in steps)
        inside = within(at, tuple(sides))
        return Load(self.images, (number, channel, *at), both(inside) if inside else None, 0.0)

    def cell(self, at: tuple[Index, ...]) -> tuple[Index, Index]:
        """Which row and column of the product is the element ``at`` of the result."""
        number, column, *place = at
        return dot((number, *place), contiguous_strides((number, *self.sides))), column


def window_of(call: Extern) -> tuple[Window, View, View] | None:
    """What a convolution slides over, its patches as a matrix, and its filters as one.

    Refuses (None) transposed and grouped ones, steps that are not given for each side as numbers, and images or
    filters whose channels do not lie together."""
    images, filters, _, stride, padding, dilation, transposed, _, groups = call.args
    if not isinstance(images, View) or not isinstance(filters, View) or transposed is not False or groups != 1:
        return None
    out = call.out[0]
    if out is None or not (_has_channels_last(images) and _has_channels_last(filters)):
        return None
    (batch, channels, *_), (columns, _, *taps) = images.shape, filters.shape
    given = [arg.items for arg in (stride, padding, dilation) if isinstance(arg, ListArg)]
    sides, steps = out.shape[2:], [tuple(n for n in items if isinstance(n, int)) for items in given]
    if any(len(numbers) != len(sides) for numbers in steps):
        return None
    window = Window(images.value, sides, tuple(taps), *steps)
    rows, inner = product((batch, *sides)), product((*taps, channels))
    left = View(images.value, (rows, inner), (inner, ONE), ZERO)
    return window, left, View(filters.value, (inner, columns), (ONE, inner), ZERO)


def _has_channels_last(view: View) -> bool:
    """Whether a whole value of (batch, channels, *sides) lies in the order (batch, *sides, channels)."""
    (batch, channels, *sides), (outer, inner, *steps) = view.shape, view.strides
    order = (batch, *sides, channels)
    lies = zip(order, (outer, *steps, inner), contiguous_strides(order), strict=True)
    return is_full(view) and all(step is wanted or n is ONE for n, step, wanted in lies)
