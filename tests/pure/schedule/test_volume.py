"""How many elements cost models take things to have."""

from __future__ import annotations

from gyrator.ir.index import Size, const
from gyrator.schedule.volume import volume


def test_a_product_of_unknown_sizes_has_as_many_elements_as_both() -> None:
    rows, columns = Size("s0").index(), Size("s1").index()
    assert volume((rows * columns,)) == volume((rows, columns)) == 64 * 64
    assert volume((rows * 3, const(5))) == volume((rows, const(15)))
    assert volume((rows - 1,)) == volume((rows // 2,)) == 64
