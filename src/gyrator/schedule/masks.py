"""What attention reads of each score, computed where it is read instead of stored.

    mask[b, 0, i, j] = j <= i & pad[b, j] != 0                               stored, and read by every head
    keep(b, h, i, j) = mask[b, 0, i, j]    →    keep(b, h, i, j) = j <= i & pad[b, j] != 0

What is said of ``j - i`` bounds the keys that are walked."""

from collections.abc import Mapping

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Value
from gyrator.ir.index import ONE, Axis, Index, Max, dot
from gyrator.ir.program import Nest, Pointwise, View
from gyrator.ir.simplify import Rule, index_of
from gyrator.schedule.plan import full_view
from gyrator.schedule.prologue import coordinates, is_cheap, may_compute

_COMPARED, FAR = ("le", "lt", "ge", "gt"), 1 << 30
"""How places are compared, and how far from its row a key is that no bound leaves out."""


def element_of(view: View, at: tuple[Index, ...], made: Mapping[Value | None, Nest], rule: Rule) -> Expr:
    """The element of a view at its place in memory, or as a nest computes it."""
    if (nest := _maker(view, made)) is None:
        return Load(view.value, (dot(at, view.strides) + view.offset,))

    def inner(e: Expr) -> Expr | None:
        return element_of(full_view(e.value), e.index, made, rule) if isinstance(e, Load) else rule(e)

    return nest.element(coordinates(view, at), inner)


def _maker(view: View, made: Mapping[Value | None, Nest]) -> Nest | None:
    """The nest that makes a view's value from less than an element for each row and column, or from what such make."""
    nest = made.get(view.value)
    if nest is None or not isinstance(nest.root, Pointwise) or not may_compute(view, nest):
        return None
    body, sides = nest.root.body, {axis for axis in nest.axes[-2:] if axis.extent is not ONE}
    whole = [load.value for load in body.loads() if sides <= load.axes()]
    plain = all(load.mask is None for load in body.loads())
    return nest if is_cheap(nest) and plain and all(_maker(full_view(value), made) for value in whole) else None


def band(keep: Expr, row: Axis, column: Axis) -> tuple[int, int]:
    """Bounds, included, of ``column - row`` of the scores that ``keep`` keeps: (-FAR, FAR) where nothing is said."""
    low, high, distance = -FAR, FAR, column.index() - row.index()
    match keep:
        case Op("logical_and" | "bitwise_and", (a, b)) if keep.dtype == torch.bool:
            (low, high), (floor, top) = (band(e, row, column) for e in (a, b))
            return max(low, floor), min(high, top)
        case Op(name, (IndexValue() | Const(int()) as a, IndexValue() | Const(int()) as b)) if name in _COMPARED:
            less, more = map(index_of, (a, b) if name[0] == "l" else (b, a))
            sides: tuple[Index, ...] = (less,)
            match less.terms:
                case (((Max() as larger,), 1),):  # as |j - i| is
                    sides = larger.a, larger.b
            for ahead in (side - more + (name[1] == "t") for side in sides):  # at most 0
                if (rest := (ahead - distance).value) is not None:
                    high = min(high, -rest)
                if (rest := (ahead + distance).value) is not None:
                    low = max(low, rest)
    return low, high
