"""Unifying iteration spaces."""

from __future__ import annotations

from gyrator.ir.index import Axis, Index, Size, const
from gyrator.schedule.align import splits_for_divisions, unify

S, B = Size("s", 2).index(), Size("b", 1).index()


def axis(name: str, extent: Index | int) -> Index:
    return Axis(name, const(extent) if isinstance(extent, int) else extent).index()


m, n = axis("m", B * S), axis("n", 768)
b, s, h, d = axis("b0", B), axis("s0", S), axis("h", 12), axis("d", 64)


def atom(index: Index) -> Axis:
    (((found,), _),) = index.terms
    assert isinstance(found, Axis)
    return found


def test_a_flat_producer_splits_as_its_reader_reads_it() -> None:
    same = unify([m, n], [b * S + s, h * 64 + d], [B * S, const(768)])
    assert same is not None
    assert same.left[atom(m)] is b * S + s
    assert same.left[atom(n)] is h * 64 + d
    assert not same.right


def test_a_reader_that_divides_is_split_instead() -> None:
    same = unify([b, s, h, d], [m // S, m % S, n // 64, n % 64], [B, S, const(12), const(64)])
    assert same is not None
    assert set(same.right) >= {atom(m), atom(n)}


def test_a_transposed_read_is_a_renaming() -> None:
    i, j = axis("i", 5), axis("j", 7)
    p, q = axis("p", 7), axis("q", 5)
    same = unify([i, j], [q, p], [const(5), const(7)])
    assert same is not None
    assert (same.left[atom(i)], same.left[atom(j)]) == (q, p)


def test_a_shifted_or_partial_read_is_refused() -> None:
    i, j = axis("i", 5), axis("j", 4)
    assert unify([i], [j + 1], [const(5)]) is None
    assert unify([i], [j], [const(5)]) is None


def test_two_readers_in_the_same_way_share_their_loops() -> None:
    """Whatever the coordinates are: rows of parts of which the last end early, or a window."""
    i, j, p, q = axis("i", 100), axis("j", 21), axis("p", 100), axis("q", 21)
    for read in (lambda a, b: [(b * 100 + a) // S, (b * 100 + a) % S], lambda a, b: [a + b]):
        same = unify(read(i, j), read(p, q), [B, S])
        assert same is not None and (same.left[atom(i)], same.left[atom(j)]) == (p, q)
    assert unify([i + j], [p + axis("r", 20)], [const(120)]) is None


def test_extents_that_do_not_divide_are_refused() -> None:
    assert unify([axis("i", 6) * 4 + axis("k", 4)], [axis("j", 4) * 6 + axis("l", 6)], [const(24)]) is None


def test_nested_divisions_split_an_axis_twice() -> None:
    x = axis("x", 72)
    found = splits_for_divisions([x // 36, (x // 6) % 6])
    assert sorted(a.extent.value for a in found[atom(x)].axes()) == [2, 6, 6]


def test_extents_may_be_quotients_of_sizes() -> None:
    half = S // const(2)
    flat, row, column = axis("m", half * half), axis("r", half), axis("c", half)
    same = unify([flat], [row * half + column], [half * half])
    assert same is not None and same.left[atom(flat)] is row * half + column
