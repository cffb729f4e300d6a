"""Ops that put tensors side by side or around others: cat, constant_pad_nd, repeat, flip."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from gyrator.ir.build import between, both, cast, masked, number, op, within
from gyrator.ir.expr import Const, Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Coords, Index, IndexLike, as_index, contiguous_strides
from gyrator.ir.program import Extern, Nest
from gyrator.ir.volume import volume
from gyrator.lowering.builder import Builder, Family, Meta, rows
from gyrator.lowering.refs import Operand, TensorRef, element, whole
from gyrator.lowering.views import dimension, expanded, reshape

RUN, LARGE = 64, 1 << 18
"""Elements of a row of a part, and of all, from which on parts are made apart where no loop reads the result."""
MANY, MANY_ON_GPU = 8, 32
"""With more inputs, cat stays a call: each would be a branch in the body, or a load that most threads skip."""


def _cat(b: Builder, out: Meta, tensors: Sequence[TensorRef], dim: int = 0) -> Any:
    d = dimension(dim, len(out.shape))
    parts = [t for t in tensors if t.rank == len(out.shape) and ZERO not in t.shape]
    if not parts:
        return b.full(out, 0)
    nested = {value for node in b.nodes if isinstance(node, Nest) for value in node.out}
    laid = out.strides == contiguous_strides(out.shape)  # parts that loops make are made where they end
    most = MANY if out.device.type != "cuda" else MANY_ON_GPU
    if len(parts) > most or (len(parts) > MANY and laid and 2 * sum(t.value in nested for t in parts) >= len(parts)):
        return NotImplemented
    large = volume(out.shape) >= LARGE and min(volume(part.shape[d:]) for part in parts) >= RUN
    if b.last and laid and large and most == MANY:  # loops of their own, which do not ask where an element is
        copies = tuple([b.as_view(b.copy(part, out.with_shape(part.shape), "part")) for part in parts])
        b.add(Extern((made := b.value(out),), "aten.cat.default", (copies, d)))
        return whole(made)
    starts = [*accumulate((part.shape[d] for part in parts), initial=ZERO)]
    return b.pointwise(out, lambda at: joined(out.dtype, parts, starts, d, at))


def joined(dtype: torch.dtype, parts: Sequence[TensorRef], starts: Sequence[Index], dim: int, at: Coords) -> Expr:
    """The element at ``at`` of parts that follow one another from ``starts[0]``: a balanced tree of selections."""
    if len(parts) == 1:
        inner = (*at[:dim], at[dim] - starts[0], *at[dim + 1 :])
        return masked(between(at[dim], starts[0], starts[1]), cast(parts[0].load(inner), dtype))
    middle = len(parts) // 2
    low = joined(dtype, parts[:middle], starts[: middle + 1], dim, at)
    high = joined(dtype, parts[middle:], starts[middle:], dim, at)
    return op("where", op("lt", IndexValue(at[dim]), number(starts[middle], torch.int64)), low, high)


def _pad(b: Builder, out: Meta, x: TensorRef, pad: Sequence[IndexLike], value: Operand = 0) -> TensorRef:
    """Pairs of (before, after) from the last dimension on; negative ones cut off."""
    before = [*[ZERO] * (x.rank - len(pad) // 2), *map(as_index, reversed(pad[::2]))]

    def body(at: Coords) -> Expr:
        inner = tuple([i - s for i, s in zip(at, before, strict=True)])
        inside, other = within(inner, x.shape), element(value, at, out.dtype)
        if isinstance(other, Const):
            return masked(inside, x.load(inner), other.value)
        return op("where", both(inside), masked(inside, x.load(inner)), other)

    return b.pointwise(out, body)


def _repeat(b: Builder, out: Meta, x: TensorRef, repeats: Sequence[IndexLike]) -> TensorRef:
    """``x.repeat(2, 3)`` of ``x[M, N]`` is ``x`` expanded to ``[2, M, 3, N]``, under another shape."""
    ones = (ONE,) * (len(repeats) - x.rank)
    shape = [n for times, size in zip(repeats, (*ones, *x.shape), strict=True) for n in (as_index(times), size)]
    return b.copy(reshape(expanded(x, tuple(shape), range(2 * len(ones) + 1, len(shape), 2)), out.shape), out)


def _flip(b: Builder, out: Meta, x: TensorRef, dims: Sequence[int]) -> TensorRef:
    over = {dimension(d, x.rank) for d in dims}
    return b.pointwise(out, lambda at: x.load(tuple(x.shape[k] - 1 - i if k in over else i for k, i in enumerate(at))))


LOWERINGS: Family = {
    **rows(_cat, "cat"),
    **rows(_pad, "constant_pad_nd"),
    **rows(_repeat, "repeat"),
    **rows(_flip, "flip"),
}
