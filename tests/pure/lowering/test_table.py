"""The table of all lowerings."""

from collections import Counter

from gyrator.lowering.table import MODULES


def test_no_operator_stands_in_two_families() -> None:
    times = Counter(op for module in MODULES for op in module.LOWERINGS)
    assert [op for op, count in times.items() if count > 1] == []
