"""Reductions over windows: pooling, forward and backward, and on a GPU depthwise convolutions.

A window reads ``x`` at ``stride·o − padding + dilation·r``; outside the input a maximum sees the smallest number and
an average sees 0. Backward passes, but that of maxima on a processor, ask the other way round, for each input element
which windows held it, so that nothing is scattered: with kernel ``k`` and stride ``s`` these are ``⌈k/s⌉`` windows at
most, from ``⌊(p + padding)/s⌋`` downwards. Adaptive pooling cuts the input into parts instead, as equal as can be.

A depthwise convolution, where each channel has a filter of its own, adds as little as pooling; libraries take several
times as long as memory does, and what follows a pass of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

from torch._ops import OpOverload

from gyrator.autograd.channels_last import LARGEST_FILTER, MOST_FILTERS
from gyrator.ir.build import between, both, cast, compute_dtype, like, masked, number, op, within
from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Coords, Index, as_index, contiguous_strides, linear, maximum, minimum, product
from gyrator.ir.ops import identity
from gyrator.lowering.builder import Builder, Family, Lowering, Meta, rows
from gyrator.lowering.joins import joined
from gyrator.lowering.reductions import reduction, summed
from gyrator.lowering.refs import TensorRef, view_coords, whole
from gyrator.lowering.scatters import scatter_along
from gyrator.lowering.views import reshape

Sizes = Sequence[int] | int
"""A number per dimension; one number, or a list of one, stands for all."""

Layout: TypeAlias = "Callable[..., Windows | None]"
"""(pooled dimensions of the input, of the output, the operator's options) → its windows, or None for the library."""

NOWHERE = 1 << 62
"""The position of what lies outside the input: among equal values the smallest position wins."""

IN_LIBRARY = range(26, 50)
"""Pixels of filters for which the library has fast kernels in 16 bits (7 x 7 of 64 x 96 x 56 x 56 on an H200: 143 µs,
as loops 188); smaller ones are faster as loops, with what follows."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How windows lie on the pooled dimensions of an input.

    Attributes:
        elements: how many elements a window has along each dimension, at most.
        element: (window, k) → where its element k lies, and the conditions that there is one.
        holders: how many windows hold an element along each dimension, at most.
        holder: (element, k) → window k of those that may hold it, and the conditions that there is one.
        holds: (element, window) → the further conditions that the window holds the element.
        count: window → what its sum is divided by for the average."""

    elements: tuple[Index, ...]
    element: Callable[[Coords, Coords], tuple[Coords, list[Expr]]]
    holders: tuple[Index, ...]
    holder: Callable[[Coords, Coords], tuple[Coords, list[Expr]]]
    holds: Callable[[Coords, Coords], list[Expr]]
    count: Callable[[Coords], Index]


def sliding(
    shape: Coords, outputs: Coords, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, include_pad: bool = True, divisor: int | None = None,
) -> Windows:  # fmt: skip
    """``outputs`` windows on an input of ``shape``, rounded by ``ceil_mode``; their stride is by default the kernel."""
    columns = [_widened(given, len(shape)) for given in (kernel, stride or kernel, padding, dilation)]
    dims = list(zip(*columns, shape, strict=True))

    def element(at: Coords, inner: Coords) -> tuple[Coords, list[Expr]]:
        place = tuple([o * s - p + r * d for o, r, (_, s, p, d, _) in zip(at, inner, dims, strict=True)])
        return place, within(place, shape)

    def holder(at: Coords, back: Coords) -> tuple[Coords, list[Expr]]:
        found = tuple([(i + p) // s - j for i, j, (_, s, p, _, _) in zip(at, back, dims, strict=True)])
        return found, within(found, outputs)

    def holds(at: Coords, found: Coords) -> list[Expr]:
        offsets = [(i + p - o * s, as_index(k)) for i, o, (k, s, p, _, _) in zip(at, found, dims, strict=True)]
        return [c for offset, k in offsets for c in between(offset, ZERO, k)]

    def count(at: Coords) -> Index:
        if divisor is not None:
            return as_index(divisor)
        sides = []
        for o, (k, s, p, _, size) in zip(at, dims, strict=True):
            start = o * s - p
            end = minimum(start + k, size + p)
            sides.append(end - start if include_pad else minimum(end, size) - maximum(start, ZERO))
        return product(sides)

    elements = tuple([as_index(k) for k, *_ in dims])
    holders = tuple([as_index(-(-((k - 1) * d + 1) // s)) for k, s, _, d, _ in dims])
    return Windows(elements, element, holders, holder, holds, count)


def _widened(given: Sizes, rank: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * rank if len(values) == 1 else values


def dividing(shape: Coords, parts: Coords, size: object = None) -> Windows | None:
    """An input of ``shape`` cut into ``parts``, neighbours overlapping where it does not divide. None if empty."""
    if ZERO in (*shape, *parts):
        return None
    sizes = list(zip(parts, shape, strict=True))
    elements = tuple([s // n if s % n is ZERO else s // n + 2 for n, s in sizes])
    holders = tuple([ONE if s % n is ZERO else n // s + 2 for n, s in sizes])

    def count(at: Coords) -> Index:
        return product([end - start for start, end in map(_bounds, at, parts, shape)])

    element, holder = partial(_part_element, parts, shape), partial(_part_element, shape, parts)
    return Windows(elements, element, holders, holder, lambda at, found: [], count)


def _bounds(at: Index, parts: Index, size: Index) -> tuple[Index, Index]:
    """Part ``at`` of ``size`` cut into ``parts``: [start, end)."""
    return (at * size) // parts, ((at + 1) * size + parts - 1) // parts


def _part_element(parts: Coords, shape: Coords, at: Coords, inner: Coords) -> tuple[Coords, list[Expr]]:
    """Where element ``inner`` of part ``at`` lies, and the conditions that there is such an element."""
    spans = [_bounds(o, n, s) for o, n, s in zip(at, parts, shape, strict=True)]
    place = tuple([start + r for (start, _), r in zip(spans, inner, strict=True)])
    return place, [c for p, (start, end) in zip(place, spans, strict=True) for c in between(p, start, end)]


def _max_of(windows: Windows, b: Builder, out: tuple[Meta, Meta], x: TensorRef) -> Any:
    """The largest element of each window, and its position among the pooled dimensions."""
    values, _ = out
    rank, wide = len(windows.elements), values.with_dtype(compute_dtype(values.dtype))

    def bodies(at: Coords, inner: Coords) -> tuple[Expr, ...]:
        place, conditions = windows.element(at[-rank:], inner)
        value = masked(conditions, cast(x.load((*at[:-rank], *place)), wide.dtype), identity("max", wide.dtype))
        position: Expr = IndexValue(linear(place, x.shape[-rank:]))
        if conditions:
            position = op("where", both(conditions), position, like(position, NOWHERE))
        return value, position

    best, where = reduction(b, values, windows.elements, "argmax", bodies, "max")
    return b.narrowed(best, values), where


def _max_backward(windows: Windows, b: Builder, out: Meta, grad: TensorRef, indices: TensorRef) -> Any:
    """Each element's sum of the gradients of the windows that chose it: on a processor by adding each gradient where
    it belongs, up to 25 times as fast (images in rows) as looking for it in the windows of every element."""
    rank, wide = len(windows.elements), compute_dtype(out.dtype)
    if out.device.type == "cpu":
        outer = out.shape[:-rank]
        merge = all(out.strides[k] is out.strides[k + 1] * out.shape[k + 1] for k in range(-rank, -1))
        flat = out.with_shape((*outer, product(out.shape[-rank:])))
        flat = replace(flat, strides=(*out.strides[:-rank], out.strides[-1])) if merge else flat
        where, given = [reshape(x, (*outer, product(x.shape[-rank:]))) for x in (indices, grad)]
        return reshape(scatter_along("add", b, flat, b.full(flat, 0), len(outer), where, given), out.shape)

    def body(at: Coords, back: Coords) -> Expr:
        holder, conditions = windows.holder(at[-rank:], back)
        where = (*at[:-rank], *holder)
        mine = number(linear(at[-rank:], out.shape[-rank:]), indices.dtype)
        given = cast(grad.load(where), wide)
        return masked(conditions, op("where", op("eq", indices.load(where), mine), given, like(given, 0)))

    return summed(b, out, windows.holders, body)


def _mean_of(windows: Windows, b: Builder, out: Meta, x: TensorRef) -> Any:
    rank, wide = len(windows.elements), out.with_dtype(compute_dtype(out.dtype))

    def body(at: Coords, inner: Coords) -> Expr:
        place, conditions = windows.element(at[-rank:], inner)
        return masked(conditions, cast(x.load((*at[:-rank], *place)), wide.dtype))

    total = summed(b, wide, windows.elements, body)
    return b.pointwise(out, lambda at: _quotient(total.load(at), windows.count(at[-rank:])))


def _mean_backward(windows: Windows, b: Builder, out: Meta, grad: TensorRef) -> Any:
    """Each element's sum of the shares of windows. If sizes differ a processor, slow to divide, makes them first."""
    rank, wide = len(windows.elements), compute_dtype(out.dtype)

    def share(at: Coords) -> Expr:
        return _quotient(cast(grad.load(at), wide), windows.count(at[-rank:]))

    inline = windows.count(view_coords(grad.shape)[-rank:]).value is not None or out.device.type != "cpu"
    given = share if inline else b.pointwise(out.with_dtype(wide).with_shape(grad.shape), share, "shares").load

    def body(at: Coords, back: Coords) -> Expr:
        holder, conditions = windows.holder(at[-rank:], back)
        return masked([*conditions, *windows.holds(at[-rank:], holder)], given((*at[:-rank], *holder)))

    return summed(b, out, windows.holders, body)


def _quotient(total: Expr, count: Index) -> Expr:
    """A sum over the number of its terms; integers are truncated, as in eager."""
    return op("div" if total.dtype.is_floating_point else "truncdiv", total, number(count, total.dtype))


def _pool(
    pool: Lowering, layout: Layout, rank: int, backward: bool, b: Builder, out: Any, x: TensorRef, *rest: Any
) -> Any:
    """``rest``: for ``backward`` the forward's input, then the options, then for that of a maximum its indices."""
    shapes = x.shape[-rank:], (out[0] if isinstance(out, tuple) else out).shape[-rank:]
    tensors = [r for r in rest if isinstance(r, TensorRef)]
    options = [r for r in rest if not isinstance(r, TensorRef)]
    windows = layout(*(reversed(shapes) if backward else shapes), *options)
    return NotImplemented if windows is None else pool(windows, b, out, x, *tensors[1:])


_POOLS: tuple[tuple[str, Layout, Lowering, Lowering], ...] = (
    ("max_pool{}d_with_indices", sliding, _max_of, _max_backward),
    ("avg_pool{}d", lambda x, out, k, s=(), p=0, *more: sliding(x, out, k, s, p, 1, *more), _mean_of, _mean_backward),
    ("_adaptive_avg_pool{}d", dividing, _mean_of, _mean_backward),
    ("adaptive_max_pool{}d", dividing, _max_of, _max_backward),
)


def _kernel(x: TensorRef, w: TensorRef, outputs: Index, groups: int | Index) -> tuple[list[int], int]:
    """Sides of filters of which on a GPU each channel has its own, and how many; none of others, or of large ones."""
    kernel, filters = [side.value or LARGEST_FILTER + 1 for side in w.shape[2:]], w.shape[0].value or 0
    depthwise = x.device.type == "cuda" and x.shape[1].value == groups and outputs.value == filters
    several = filters // groups if depthwise and isinstance(groups, int) else 0
    return (kernel, several) if 0 < several <= MOST_FILTERS and prod(kernel) <= LARGEST_FILTER else ([], 0)


def _depthwise(
    b: Builder, out: Meta, x: TensorRef, w: TensorRef, bias: TensorRef | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, _: list[int], groups: int | Index,
) -> Any:  # fmt: skip
    """A convolution of as many groups as channels, y[b, c, o] = Σ_r x[b, ⌊c/m⌋, stride·o − padding + dilation·r]w[c, r]
    with m filters for each. A transposed one, as is the gradient of the input, asks the other way round which filters
    reach an element. Refuses transposed ones of steps and holes, and where the library is faster."""
    (kernel, several), rank = _kernel(x, w, out.shape[1], groups), x.rank - 2
    stride, padding, dilation = [_widened(given, rank) for given in (stride, padding, dilation)]
    if not kernel or bias is not None or not all(isinstance(n, int) for n in (*stride, *dilation)):
        return NotImplemented
    steps, holes = [max(given) > 1 for given in (stride, dilation)]
    plain = not (transposed or holes or several > 1)
    if (plain and out.dtype.itemsize == rank == 2 and prod(kernel) in IN_LIBRARY) or (transposed and steps and holes):
        return NotImplemented
    if out.strides[1] is ONE:
        w = whole(b.materialise(w, (ONE, ONE, *contiguous_strides((*w.shape[2:], w.shape[0]))[:-1])))
    turned = sliding(out.shape[2:], x.shape[2:], kernel, stride, padding) if transposed and steps else None
    if transposed and not turned:
        padding = [d * (k - 1) - p for k, p, d in zip(kernel, padding, dilation, strict=True)]
    windows = turned or sliding(x.shape[2:], out.shape[2:], kernel, stride, padding, dilation)
    wide = compute_dtype(out.dtype)

    def body(at: Coords, inner: Coords) -> Expr:
        place, conditions = (windows.holder if turned else windows.element)(at[-rank:], inner)
        holds = turned.holds(at[-rank:], place) if turned else []
        if turned:
            inner = tuple([i + p - o * s for i, o, s, p in zip(at[-rank:], place, stride, padding, strict=True)])
        elif transposed:
            inner = tuple([k - 1 - r for k, r in zip(kernel, inner, strict=True)])
        image = cast(masked(conditions, x.load((at[0], at[1] // several, *place))), wide)
        return masked(holds, op("mul", image, cast(w.load((at[1], ZERO, *inner)), wide)))

    return summed(b, out, windows.holders if turned else windows.elements, body)


def _filters_gradient(
    b: Builder, out: tuple[None, Meta, None], g: TensorRef, x: TensorRef, w: TensorRef, bias: object, stride: list[int],
    padding: list[int], dilation: list[int], transposed: bool, _: list[int], groups: int | Index, mask: list[bool],
) -> Any:  # fmt: skip
    """Such a convolution's, if it alone is asked for: dw[c, r] = Σ_bo g[b, c, o]·x[b, ⌊c/m⌋, stride·o − padding + …].
    The sums of a row of a filter are siblings, which read together. Refuses filters for which the library is faster,
    one for a channel, in 16 bits up to 7 x 7, else 3 x 3, if channels are neighbours."""
    (kernel, several), rank = _kernel(x, w, g.shape[1], groups), x.rank - 2
    small = several == 1 and prod(kernel) < (IN_LIBRARY.stop if x.dtype.itemsize == 2 else 10)
    if not kernel or (small and x.value.strides[1:2] == (ONE,)) or transposed or list(mask) != [False, True, False]:
        return NotImplemented
    windows, wide = sliding(x.shape[2:], g.shape[2:], kernel, stride, padding, dilation), compute_dtype(x.dtype)

    def body(tap: int, at: Coords, inner: Coords) -> tuple[Expr]:
        image, channel, *outputs = inner[0], at[0], *inner[1:]
        place, conditions = windows.element(tuple(outputs), (*at[1:], as_index(tap)))
        seen = cast(masked(conditions, x.load((image, channel // several, *place))), wide)
        return (op("mul", seen, cast(g.load((image, channel, *outputs)), wide)),)

    shape, of = (w.shape[0], *w.shape[2:-1]), (x.shape[0], *g.shape[2:])
    meta, taps = out[1].with_dtype(wide).with_shape(shape), range(kernel[-1])
    sums = [reduction(b, meta, of, "sum", partial(body, tap), f"tap{tap}")[0] for tap in taps]
    parts = [reshape(part, (shape[0], ONE, *shape[1:], ONE)) for part in sums]
    starts = [as_index(tap) for tap in (*taps, len(taps))]
    return None, b.pointwise(out[1], lambda at: joined(out[1].dtype, parts, starts, rank + 1, at)), None


def _of_rank(rank: int) -> Family:
    found: dict[OpOverload, Lowering] = {}
    for name, layout, forward, backward in _POOLS:
        found |= rows(partial(_pool, forward, layout, rank, False), name.format(rank))
        found |= rows(partial(_pool, backward, layout, rank, True), f"{name.format(rank)}_backward")
    return found


_OF_CONVOLUTIONS = {**rows(_depthwise, "convolution"), **rows(_filters_gradient, "convolution_backward")}
LOWERINGS: Family = {**_of_rank(2), **_of_rank(3), **_OF_CONVOLUTIONS}
