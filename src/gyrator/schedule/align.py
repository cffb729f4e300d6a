"""Unifying two iteration spaces: the one mechanism behind every fusion.

A consumer reads a producer's result at coordinates ``f`` (indices over the consumer's axes); the producer writes it
at coordinates ``p`` over its own axes. If both address the result one to one, the two spaces are the same up to a
renaming, once axes are split far enough:

    p = (m, n)          over m < B*S, n < 768
    f = (b*S + s, 64*h + d)   over b < B, s < S, h < 12, d < 64
    →  m splits into (b, s), n into (h, d); views, transposes and flattening need no case of their own"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gyrator.ir.build import between, split_position
from gyrator.ir.index import ONE, ZERO, Atom, Axis, FloorDiv, Index, Mod, exact_quotient, is_less, linear, substitute


@dataclass(frozen=True, slots=True)
class Unification:
    """How to rewrite both spaces: ``left`` takes left axes to right axes, ``right`` splits right axes."""

    left: Mapping[Atom, Index]
    right: Mapping[Atom, Index]


def linear_terms(index: Index) -> dict[Axis, Index] | None:
    """``{axis: coefficient}`` if ``index`` is a sum of coefficient·axis with coefficients in sizes; None otherwise."""
    found: dict[Axis, Index] = {}
    for monomial, c in index.terms:
        axes = [a for a in monomial if isinstance(a, Axis)]
        others = [a.index() for a in monomial if not isinstance(a, Axis)]  # sizes, ``s // 2`` of one, or they vary
        if len(axes) != 1 or any(other.axes() or other.indirects() for other in others):
            return None
        rest = tuple(a for a in monomial if a is not axes[0])
        found[axes[0]] = found.get(axes[0], ZERO) + Index(((rest, c),))
    return found


def radix(index: Index, extent: Index | None = None) -> list[Axis] | None:
    """The axes of a mixed-radix number that counts ``0 … extent-1`` once each, innermost first; None if it is none.
    Without ``extent`` it may count any number.

    ``768*i + 64*h + d`` with ``h < 12``, ``d < 64`` and extent ``768*N`` gives ``[d, h, i]``."""
    if (terms := linear_terms(index)) is None:
        return None
    step, axes = ONE, []
    while terms:
        if (axis := next((a for a, c in terms.items() if c is step), None)) is None:
            return None
        axes.append(axis)
        del terms[axis]
        step = step * axis.extent
    return axes if extent is None or step is extent else None


def compose(axes: Sequence[Axis]) -> Index:
    """The mixed-radix number whose digits are ``axes``, outermost first: ``[a, b]`` → ``a*extent(b) + b``."""
    return linear(tuple(axis.index() for axis in axes), tuple(axis.extent for axis in axes))


def digits_of(number: Index, axes: Sequence[Axis]) -> dict[Atom, Index]:
    """``axes``, outermost first, as the digits of a mixed-radix number: what :func:`compose` makes of them."""
    return dict(zip(axes, split_position(number, [axis.extent for axis in axes]), strict=True))


def split(axis: Axis, inner: Index) -> tuple[Axis, Axis, Index]:
    """``axis`` → ``hi*inner + lo``; ``inner`` must divide the extent. Returns (hi, lo, that index)."""
    outer = exact_quotient(axis.extent, inner)
    assert outer is not None, (axis, inner)
    hi, lo = Axis(axis.name + "h", outer), Axis(axis.name + "l", inner)
    return hi, lo, hi.index() * inner + lo.index()


def close(mapping: Mapping[Atom, Index]) -> dict[Atom, Index]:
    """Apply the mapping to its own results until nothing changes (a split axis may have been split again)."""
    closed = dict(mapping)
    for _ in range(8):
        again = {a: substitute(i, closed) for a, i in closed.items()}
        if all(again[a] is closed[a] for a in closed):
            break
        closed = again
    return closed


def splits_for_divisions(indices: Sequence[Index]) -> dict[Atom, Index]:
    """Splits of axes after which ``x // d`` and ``x % d`` in ``indices`` disappear, as far as there are any."""
    mapping: dict[Atom, Index] = {}
    current = list(indices)
    while len(mapping) < 16 and (found := next(filter(None, map(_split_within, current)), None)):
        axis, inner = found
        mapping[axis] = split(axis, inner)[2]
        current = [substitute(i, mapping) for i in current]
    return close(mapping)


def _split_within(index: Index) -> tuple[Axis, Index] | None:
    for atom in [atom for atom in index.atoms() if isinstance(atom, FloorDiv | Mod)]:
        terms = linear_terms(atom.num) or {}
        for axis, c in terms.items():
            inner = exact_quotient(atom.den, c)
            if inner is None or inner is ONE or inner is axis.extent:
                continue
            below = sum((a.index() * k for a, k in terms.items() if is_less(k, c)), ZERO)
            if exact_quotient(axis.extent, inner) is not None and not between(below, ZERO, c):
                return axis, inner
    return None


def unify(left: Sequence[Index], right: Sequence[Index], extents: Sequence[Index]) -> Unification | None:
    """Rewrite both spaces so that ``left[k] = right[k]`` for every k. ``extents[k]`` is how far coordinate k counts.

    Refuses (None) if a coordinate does not count its extent once, unless both count as far, or extents don't divide."""
    if (renaming := _renaming(left, right)) is not None:
        return Unification(renaming, {})
    lsub: dict[Atom, Index] = {}
    rsub: dict[Atom, Index] = splits_for_divisions(right)
    pairs: dict[Atom, Index] = {}
    for a, b, extent in zip(left, right, extents, strict=True):
        b = substitute(b, rsub)
        digits_l, digits_r = radix(a, extent), radix(b, extent)
        if digits_l is None and digits_r is None:  # a part of it, or uneven parts of which the last ends early
            digits_l, digits_r = radix(a), radix(b)
        if digits_l is None or digits_r is None:
            return None
        while digits_l and digits_r:
            common = _divisor(digits_l[0].extent, digits_r[0].extent)
            if common is None or digits_l[0] in pairs:
                return None
            low = _lowest(digits_l, common, lsub)
            pairs[low] = _lowest(digits_r, common, rsub).index()
        if digits_l or digits_r:
            return None
    alone = len(set(pairs.values())) == len(pairs)
    return Unification(close({**lsub, **pairs}), close(rsub)) if alone else None


def _renaming(left: Sequence[Index], right: Sequence[Index]) -> dict[Atom, Index] | None:
    """The axes of ``right`` in place of those of ``left``, where that alone makes them equal."""
    ours, others = (dict.fromkeys(a for i in x for a in i.atoms() if isinstance(a, Axis)) for x in (left, right))
    found: dict[Atom, Index] = {a: b.index() for a, b in zip(ours, others, strict=False) if a.extent is b.extent}
    whole = len(ours) == len(found) == len(others)
    return found if whole and all(substitute(a, found) is b for a, b in zip(left, right, strict=True)) else None


def _divisor(a: Index, b: Index) -> Index | None:
    if a is b or exact_quotient(a, b) is not None:
        return b
    return a if exact_quotient(b, a) is not None else None


def _lowest(digits: list[Axis], extent: Index, splits: dict[Atom, Index]) -> Axis:
    """Take a digit of that extent off the low end of a number; ``splits`` notes how the axis there was split."""
    axis = digits.pop(0)
    if axis.extent is extent:
        return axis
    high, low, splits[axis] = split(axis, extent)
    digits.insert(0, high)
    return low


def axes_of(index: Index) -> list[Axis]:
    """The axes of a mixed-radix index, outermost first."""
    digits = radix(index)
    assert digits is not None, index
    return digits[::-1]
