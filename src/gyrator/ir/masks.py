"""What a mask of attention says of the places of scores: what is said of ``j - i`` bounds the keys that are walked."""

from collections.abc import Sequence

import torch

from gyrator.ir.build import op
from gyrator.ir.expr import Const, Expr, IndexValue, Op
from gyrator.ir.index import Axis, Index, Max
from gyrator.ir.simplify import index_of

_COMPARED, FAR = ("le", "lt", "ge", "gt"), 1 << 30
"""How places are compared, and how far from its row a key is that no bound leaves out."""


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


def causal(places: Sequence[Index]) -> Expr:
    """Whether a score is kept of which the column is not after the row."""
    *_, row, column = places
    return op("ge", IndexValue(row), IndexValue(column))
