"""The table of all lowerings."""

from collections import Counter

from gyrator.lowering.graph import FAMILIES


def test_no_operator_stands_in_two_families() -> None:
    times = Counter(op for family in FAMILIES for op in family.LOWERINGS)
    assert [op for op, count in times.items() if count > 1] == []
