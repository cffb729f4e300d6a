"""What attention reads is computed where that costs less than reading it; masks tell which keys are near a row."""

from __future__ import annotations

import pytest
import torch

from gyrator.ir.build import op
from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Value
from gyrator.ir.index import Axis, Index, const, contiguous_strides, maximum
from gyrator.ir.masks import FAR, band
from gyrator.ir.program import Nest, Pointwise
from gyrator.ir.simplify import simplifier
from gyrator.schedule.plan import full_view
from gyrator.schedule.prologue import element_of

BATCH, ROW, COLUMN = Axis("batch", const(2)), Axis("row", const(40)), Axis("column", const(40))
HERE, THERE = ROW.index(), COLUMN.index()
BOOL, FLOAT = torch.bool, torch.float32


def compared(name: str, a: Index, b: Index) -> Expr:
    return Op(name, (IndexValue(a), IndexValue(b)), BOOL)


def both(a: Expr, b: Expr) -> Expr:
    return Op("bitwise_and", (a, b), BOOL)


def value(name: str, *shape: int, dtype: torch.dtype = BOOL) -> Value:
    sides = tuple(map(const, shape))
    return Value(name, sides, dtype, contiguous_strides(sides), torch.device("cuda"))


HIDDEN = Load(value("hidden", 2, 40), (BATCH.index(), THERE))
DIAGONAL = compared("le", THERE, HERE)


@pytest.mark.parametrize(
    ("keep", "bounds"),
    [
        (DIAGONAL, (-FAR, 0)),
        (compared("gt", HERE, THERE), (-FAR, -1)),
        (compared("ge", THERE, HERE + 3), (3, FAR)),
        (compared("lt", HERE - THERE, const(7)), (-6, FAR)),
        (both(DIAGONAL, both(HIDDEN, compared("gt", THERE, HERE - 5))), (-4, 0)),
        (compared("le", maximum(HERE - THERE, THERE - HERE), const(8)), (-8, 8)),
        (Op("le", (Const(5, torch.int64), IndexValue(THERE)), BOOL), (-FAR, FAR)),
        (compared("le", THERE, HERE * 2), (-FAR, FAR)),
        (Op("bitwise_or", (DIAGONAL, HIDDEN), BOOL), (-FAR, FAR)),
        (Op("logical_not", (DIAGONAL,), BOOL), (-FAR, FAR)),
        (HIDDEN, (-FAR, FAR)),
    ],
)
def test_how_far_from_its_row_a_kept_key_is(keep: Expr, bounds: tuple[int, int]) -> None:
    assert band(keep, ROW, COLUMN) == bounds


def asked(body: Expr) -> Expr:
    """What an element of a mask with that body is."""
    mask = value("mask", 2, 40, 40, dtype=body.dtype)
    nest = Nest((mask,), (BATCH, ROW, COLUMN), Pointwise(body), ())
    at = tuple(Axis(name, const(n)).index() for name, n in (("b", 2), ("i", 40), ("j", 40)))
    return element_of(full_view(mask), at, {mask: nest}, simplifier(exact_rounding=False))


def test_a_mask_of_fewer_numbers_is_computed() -> None:
    found = asked(both(DIAGONAL, HIDDEN))
    b, i, j = (Axis(name, const(n)).index() for name, n in (("b", 2), ("i", 40), ("j", 40)))
    assert found == both(compared("le", j, i), Load(HIDDEN.value, (b * 40 + j,)))


def test_a_mask_of_a_mask_is_computed_of_what_that_is_made_of() -> None:
    first, second = value("first", 2, 40, 40), value("second", 2, 40, 40)
    axes, at = (BATCH, ROW, COLUMN), (BATCH.index(), HERE, THERE)
    near = compared("gt", THERE, HERE - 5)
    made = {
        first: Nest((first,), axes, Pointwise(both(DIAGONAL, HIDDEN)), ()),
        second: Nest((second,), axes, Pointwise(both(near, Load(first, at))), ()),
    }
    found = element_of(full_view(second), at, {**made}, simplifier(exact_rounding=False))
    assert {load.value for load in found.loads()} == {HIDDEN.value} and band(found, ROW, COLUMN) == (-4, 0)


@pytest.mark.parametrize(
    "body",
    [
        Load(value("pairs", 40, 40), (HERE, THERE)),
        op(
            "lt",
            op("exp", Load(value("x", 2, 40, dtype=torch.float32), (BATCH.index(), THERE))),
            Const(2.0, torch.float32),
        ),
        Load(value("hidden", 2, 40), (BATCH.index(), THERE), DIAGONAL, False),
    ],
    ids=["as many numbers", "dear", "loads under a mask"],
)
def test_other_masks_are_read(body: Expr) -> None:
    found = asked(body)
    assert isinstance(found, Load) and found.value.name == "mask"
