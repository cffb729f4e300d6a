"""How many elements cost models take things to have."""

from __future__ import annotations

from gyrator.ir.index import ZERO, Axis, Size, const, maximum, minimum
from gyrator.ir.volume import bounds_in_sizes, count_of, fits_32_bits, volume


def test_a_product_of_unknown_sizes_has_as_many_elements_as_both() -> None:
    rows, columns = Size("s0").index(), Size("s1").index()
    assert volume((rows * columns,)) == volume((rows, columns)) == 64 * 64
    assert volume((rows * 3, const(5))) == volume((rows, const(15)))
    assert volume((rows - 1,)) == volume((rows // 2,)) == 64


def test_a_size_counts_as_its_hint_rounded_up() -> None:
    rows, few = Size("s0", hint=1000).index(), Size("s1", hint=5).index()
    assert volume((rows, const(3))) == volume((rows * 3,)) == 3072
    assert volume((few,)) == volume((few + 0,)) == 8
    assert volume((Size("s3", hint=2).index(),)) == 8  # what changes will hardly stay smaller
    assert volume((rows * Size("s2").index(),)) == 1024 * 64
    assert count_of(rows * few) == 5000


def test_a_block_counts_as_long_as_the_first_one() -> None:
    rows = Size("s0", hint=1000).index()
    block = Axis("b", (rows + 255) // 256)
    assert volume((minimum(const(256), rows - block.index() * 256),)) == 256


def test_what_is_computed_from_more_than_32_bits_needs_them() -> None:
    far, near = (Axis("i", const(1 << n)).index() for n in (33, 30))
    for i, fits in ((far, False), (near, True)):
        places = (i // 8 % 4, minimum(i, const(7)), maximum(ZERO, i - 5) // 16, minimum(maximum(i - 3, ZERO), const(7)))
        assert [fits_32_bits(place) for place in places] == [fits] * len(places)


def test_a_place_needs_32_bits_while_bounds_that_sizes_decide_do() -> None:
    rows, columns = Size("s0", 2).index(), Size("s1", 2).index()
    i, j = Axis("i", rows).index(), Axis("j", columns).index()
    assert bounds_in_sizes(i * columns + j) == {rows * columns - 1}
    assert bounds_in_sizes((i * 4 + 3) // columns) == {4 * rows - 1, columns, (4 * rows - 1) // columns}
    assert bounds_in_sizes(Axis("k", const(64)).index()) == frozenset()
    assert bounds_in_sizes(i + Axis("k", const(1 << 32)).index() // 4) is None
