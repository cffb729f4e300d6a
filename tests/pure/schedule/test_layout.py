"""What lies beside each other in memory along an axis."""

from __future__ import annotations

import pytest

from gyrator.ir.index import Axis, Index, const
from gyrator.schedule.layout import contiguous

along, other = Axis("i", const(960)), Axis("j", const(40))
i, j = along.index(), other.index()


@pytest.mark.parametrize(
    "position",
    [
        i,
        40 * j + i,
        i % 12 + 12 * j,
        i // 12 * 480 + i % 12,
        i // 2,
        i // 8 % 12 * 8 + i % 8 + 96 * j,
        960 * (j % 3) + i,
    ],
)
def test_neighbours_are_contiguous_where_most_are(position: Index) -> None:
    assert contiguous(position, along)


@pytest.mark.parametrize("position", [j, 2 * i, 40 * i + j, i // 64, i // 3 * 480 + i % 3])
def test_neighbours_are_not_contiguous_where_few_are(position: Index) -> None:
    assert not contiguous(position, along)
