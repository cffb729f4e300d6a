"""Index algebra: integer polynomials in size symbols and loop axes, and what can be proved about them.

An :class:`Index` is a polynomial with integer coefficients over *atoms*:

=============  ==========================================================================================
``Size``       a symbolic size, constant during one call (``lo ≤ size``)
``Axis``       a loop variable, ``0 ≤ axis < extent``; the extent is part of the atom, so bounds need no context
``FloorDiv``   ``⌊num / den⌋`` that no rule could remove (``den > 0``)
``Mod``        ``num - den·⌊num / den⌋``
``Min, Max``   of two indices
``Indirect``   a run-time value (a loaded index) known to lie in ``[0, size)``
=============  ==========================================================================================

``(b*S + s)*C + c`` with symbolic ``S`` divides by ``C`` exactly as with constants. All results are exact: a
rule fires only if it holds for every value of the sizes within their bounds."""

# ruff: noqa: D102  (methods that implement what the base class documents)
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache, reduce
from itertools import accumulate
from math import gcd, prod
from operator import floordiv, is_, mod, mul
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gyrator.ir.intern import interned, remember

if TYPE_CHECKING:
    from gyrator.ir.expr import Expr

Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "tuple[tuple[Monomial, int], ...]"


class Atom:
    """Abstract: a factor of a monomial."""

    __slots__ = ("_key",)
    _key: str | None

    @property
    def key(self) -> str:
        """Orders atoms the same way in every process: by their kind, then by their text."""
        if self._key is None:
            text = f"{self.name} {self.extent}" if isinstance(self, Axis) else repr(self)
            return remember(self, "_key", f"{_KINDS.index(type(self))}{text}")
        return self._key

    def index(self) -> Index:
        return Index((((self,), 1),))

    def __repr__(self) -> str:
        return atom_text(self, str)


@interned
class Size(Atom):
    """A symbolic size with proven bounds: ``lo ≤ size`` and, if ``hi`` is given, ``size ≤ hi``. ``hint`` is its value
    in the call that is compiled for, if that is known: it steers what is fast, never what is right."""

    name: str
    lo: int = 0
    hi: int | None = None
    hint: int | None = None


@interned
class Axis(Atom):
    """A loop variable that runs over ``0 … extent-1``."""

    name: str
    extent: Index


@interned
class FloorDiv(Atom):
    """``⌊num / den⌋``."""

    num: Index
    den: Index


@interned
class Mod(Atom):
    """``num - den·⌊num / den⌋``."""

    num: Index
    den: Index


@interned
class Min(Atom):
    """The smaller of two indices, ordered by their text."""

    a: Index
    b: Index


@interned
class Max(Atom):
    """The larger of two indices, ordered by their text."""

    a: Index
    b: Index


@interned
class Indirect(Atom):
    """A run-time integer: ``value`` is an int64 expression whose result lies in ``[0, size)``."""

    value: Expr
    size: Index


_KINDS: tuple[type[Atom], ...] = (Size, Axis, FloorDiv, Mod, Min, Max, Indirect)


@interned
class Index:
    """An integer polynomial. Build with :func:`const`, atoms' ``index()`` and the operators; terms stay canonical."""

    terms: Terms
    _axes: frozenset[Axis] | None = field(init=False)
    _lower: Index | Literal[False] | None = field(init=False)  # False: none is known
    _upper: Index | Literal[False] | None = field(init=False)
    _merged: Index | Literal[False] | None = field(init=False)  # False: nothing to recombine
    _nonnegative: bool | None = field(init=False)
    _indirects: tuple[Indirect, ...] | None = field(init=False)

    def __add__(self, other: IndexLike) -> Index:
        other = as_index(other)
        if not self.terms:
            return other
        return _sum((*self.terms, *other.terms)) if other.terms else self

    __radd__ = __add__

    def __neg__(self) -> Index:
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: IndexLike) -> Index:
        return self + -as_index(other)

    def __rsub__(self, other: IndexLike) -> Index:
        return as_index(other) - self

    def __mul__(self, other: IndexLike) -> Index:
        other = as_index(other)
        if other is ONE:
            return self
        if self is ONE:
            return other
        return _sum([(_times(m1, m2), c1 * c2) for m1, c1 in self.terms for m2, c2 in other.terms])

    __rmul__ = __mul__

    def __floordiv__(self, den: IndexLike) -> Index:
        return div_mod(self, as_index(den))[0]

    def __mod__(self, den: IndexLike) -> Index:
        return div_mod(self, as_index(den))[1]

    @property
    def value(self) -> int | None:
        """The constant this index is, or None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def atom(self) -> Atom | None:
        """The atom this index is, or None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """Every atom, also those within other atoms (with repeats)."""
        for monomial, _ in self.terms:
            for atom in monomial:
                yield atom
                match atom:
                    case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
                        yield from a.atoms()
                        yield from b.atoms()

    def axes(self) -> frozenset[Axis]:
        """The loop axes this index depends on (through indirect values too)."""
        if self._axes is None:
            found = frozenset([a for a in self.atoms() if isinstance(a, Axis)])
            return remember(self, "_axes", found.union(*[i.value.axes() for i in self.indirects()]))
        return self._axes

    def sizes(self) -> frozenset[Size]:
        """The size symbols this index depends on, those in the extents of its axes not counted."""
        found = frozenset([a for a in self.atoms() if isinstance(a, Size)])
        return found.union(*[i.value.sizes() for i in self.indirects()])

    def indirects(self) -> tuple[Indirect, ...]:
        """The run-time values in this index."""
        if self._indirects is None:
            return remember(self, "_indirects", tuple([a for a in self.atoms() if type(a) is Indirect]))
        return self._indirects

    def coefficient(self, axis: Axis) -> Index | None:
        """``c`` if this index is ``c·axis + rest`` with ``axis`` in neither ``c`` nor ``rest``; None otherwise."""
        terms: list[tuple[Monomial, int]] = []
        for monomial, c in self.terms:
            count = monomial.count(axis)
            rest = tuple(a for a in monomial if a is not axis) if count else monomial
            if count > 1 or any(axis in a.index().axes() for a in rest if not isinstance(a, Size | Axis)):
                return None
            if count:
                terms.append((rest, c))
        return _sum(terms)

    def __repr__(self) -> str:  # a Python expression over the names of sizes, too
        return self.text(repr)

    def text(self, atom: Callable[[Atom], str]) -> str:
        """The sum of products, with each atom printed by ``atom``."""
        text = ""
        for monomial, c in self.terms:
            factors = [str(abs(c))] if abs(c) != 1 or not monomial else []
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + "*".join([*factors, *map(atom, monomial)])
        return text or "0"


def atom_text(atom: Atom, show: Callable[[Index], str]) -> str:
    """An atom with the indices in it printed by ``show``."""
    match atom:
        case Size(name) | Axis(name):
            return name
        case FloorDiv(num, den) | Mod(num, den):
            return f"({_group(num, show)} {'%' if type(atom) is Mod else '//'} {_group(den, show)})"
        case Min(a, b) | Max(a, b):
            return f"{'min' if type(atom) is Min else 'max'}({show(a)}, {show(b)})"
        case Indirect(value):
            return f"<{value!r}>"
    raise TypeError(type(atom).__name__)


def _group(index: Index, show: Callable[[Index], str]) -> str:
    return f"({show(index)})" if index.value is None and index.atom is None else show(index)


@lru_cache(maxsize=1 << 15)
def _key(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), tuple([a.key for a in monomial]))


@lru_cache(maxsize=1 << 15)
def _times(m1: Monomial, m2: Monomial) -> Monomial:
    return tuple(sorted(m1 + m2, key=lambda a: a.key))


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Index:
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    items = [t for t in total.items() if t[1]]
    if len(items) > 1:
        items.sort(key=lambda term: _key(term[0]))
    index = Index(tuple(items))
    if index._merged is None and len(items) > 1:
        remember(index, "_merged", _recombine(items) or False)
    return index._merged or index


def _recombine(items: list[tuple[Monomial, int]]) -> Index | None:
    """``k·d·(x // d) + k·(x % d)`` → ``k·x``; None where there is no such pair."""
    for i, atom in [(i, a) for i, (m, _) in enumerate(items) for a in m if type(a) is Mod]:
        monomial, c = items[i]
        rest = Index(((_divide_monomial(monomial, (atom,)) or (), c),))
        wanted = dict((rest * atom.den * div_mod(atom.num, atom.den)[0]).terms)
        have = dict(items)
        if all(have.get(m) == v for m, v in wanted.items()):
            return _sum([(m, v) for m, v in items if m not in wanted and m != monomial]) + rest * atom.num
    return None


def const(value: int) -> Index:
    """The constant index ``value``."""
    return Index((((), value),)) if value else ZERO


IndexLike = Index | int
Coords = tuple[Index, ...]
"""An element's place in a tensor: one index per dimension."""


def as_index(value: IndexLike) -> Index:
    """``value`` itself, or the constant index of an int."""
    return value if isinstance(value, Index) else const(int(value))


ZERO = Index(())
ONE = Index((((), 1),))
UNBOUNDED = -(1 << 62)
"""The lower bound of what has none."""
_LOWEST = const(UNBOUNDED)


def product(factors: tuple[Index, ...] | list[Index]) -> Index:
    """The product of ``factors`` (1 if there are none)."""
    return reduce(mul, factors, ONE)


def exact_quotient(num: Index, den: Index) -> Index | None:
    """``q`` with ``num = q·den`` for all values, or None."""
    quotient, rest = _long_division(num, den)
    return quotient if rest is ZERO else None


def _long_division(num: Index, den: Index) -> tuple[Index, Index]:
    """Multivariate division by the leading term of ``den``: ``num = q·den + r``."""
    if den is ONE:
        return num, ZERO
    lead, lead_c = den.terms[0]
    quotient, rest = ZERO, num
    for _ in range(16):
        step: list[tuple[Monomial, int]] = []
        for monomial, c in rest.terms:
            if (left := _divide_monomial(monomial, lead)) is None:
                continue
            q = c // lead_c if not monomial else (abs(c) // abs(lead_c)) * (1 if (c > 0) == (lead_c > 0) else -1)
            if q:
                step.append((left, q))
        if not step:
            break
        part = _sum(step)
        quotient, rest = quotient + part, rest - part * den
    return quotient, rest


def _divide_monomial(num: Monomial, den: Monomial) -> Monomial | None:
    left = list(num)
    for atom in den:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


@lru_cache(maxsize=1 << 14)
def div_mod(num: Index, den: Index) -> tuple[Index, Index]:
    """``(⌊num/den⌋, num - den·⌊num/den⌋)`` with every provable simplification; ``den`` must be positive.

    ``(b*S + s)*768 + 64*h + d`` by 768 gives ``(b*S + s, 64*h + d)`` since ``0 ≤ 64*h + d < 768``.

    Raises: ZeroDivisionError if ``den`` is the constant 0."""
    if den is ZERO:
        raise ZeroDivisionError(f"{num} // 0")
    n, d = num.value, den.value
    if n is not None and d is not None:
        return const(n // d), const(n % d)
    quotient, rest = _long_division(num, den)
    if rest is ZERO or (is_nonnegative(rest) and is_nonnegative(den - rest - 1)):
        return quotient, rest
    if rest.value == -1 or (is_nonnegative(-rest - 1) and is_nonnegative(den + rest)):  # -den ≤ rest < 0
        return quotient - 1, rest + den
    if (split := _split_by_factor(rest, den)) is not None:
        return quotient + split[0], split[1]
    floor = _nested_division(rest, den) or FloorDiv(rest, den).index()
    return quotient + floor, rest if floor is ZERO else _mod_atom(rest, den)


def _mod_atom(num: Index, den: Index) -> Index:
    """``(x % (k·d)) % d`` → ``x % d``; else the atom."""
    atom = num.atom
    if isinstance(atom, Mod) and exact_quotient(atom.den, den) is not None:
        return div_mod(atom.num, den)[1]
    return Mod(num, den).index()


def _split_by_factor(num: Index, den: Index) -> tuple[Index, Index] | None:
    """``(g·a + r) // (g·b)`` → ``(a + r // g) // b``, remainder ``g·((a + r // g) % b) + r % g``, for a constant g > 1
    that divides ``den`` and a term: the largest of which ``r // g`` is known, else the largest but ``den``.

    So all quotients of one flat index share their parts: with ``f = 2048·b + t``, both ``f // 4224`` and ``f // 128 %
    33`` are of ``16·b + t // 128``, and ``4224·(f // 4224) + 128·(f // 128 % 33) + f % 128`` is ``f`` again."""
    found, d = None, den.value or 1
    for g in sorted({gcd(c, d) for m, c in num.terms if m} - {1}, reverse=True):
        whole = _sum((m, c // g) for m, c in num.terms if c % g == 0)
        low, inner = div_mod(_sum(term for term in num.terms if term[1] % g), const(g))
        if low.value is not None or (found is None and g != d):
            q, r = div_mod(whole + low, const(d // g))
            found = q, r * g + inner
        if low.value is not None:
            break
    return found


def _nested_division(num: Index, den: Index) -> Index | None:
    """``(x // a) // b`` → ``x // (a·b)`` and ``(x % (a·b)) // a`` → ``(x // a) % b``."""
    match num.atom:
        case FloorDiv(x, a):
            return div_mod(x, a * den)[0]
        case Mod(x, a):
            parts = exact_quotient(a, den)
            if parts is not None and is_nonnegative(parts - 1):
                return div_mod(div_mod(x, den)[0], parts)[1]
    return None


def _atom_bounds(atom: Atom) -> tuple[Index, Index | None]:
    """Inclusive bounds of an atom as polynomials in sizes; the upper one may be unknown."""
    match atom:
        case Size(_, lo, hi, _):
            return const(lo), None if hi is None else const(hi)
        case Axis(_, extent):
            return ZERO, upper(extent - 1)
        case Indirect(_, size):
            return ZERO, upper(size - 1)
        case Mod(_, den):
            return ZERO, upper(den - 1)
        case FloorDiv(num, den):
            low, high = lower(num), upper(num)
            if not den.axes():
                return (_LOWEST if low is None else low // den), (None if high is None else high // den)
            least = ZERO if low is not None and is_nonnegative(low) else _LOWEST
            return least, high if high is not None and is_nonnegative(high) else None
        case Min(a, b):
            return _pick(lower(a), lower(b), smallest=True) or _LOWEST, upper(a) or upper(b)
        case Max(a, b):
            low = _pick(lower(a), lower(b), smallest=False) or lower(a) or _LOWEST
            both = (a + b).value  # of -x and x one is not below 0
            low = low if both is None else _pick(low, const(-(-both // 2)), smallest=False) or low
            return low, _pick(upper(a), upper(b), smallest=False)
    raise TypeError(atom)


def _pick(a: Index | None, b: Index | None, *, smallest: bool) -> Index | None:
    """The smaller or larger of two known bounds; None where neither is proved to be."""
    if a is None or b is None:
        return None
    if is_nonnegative(b - a):
        return a if smallest else b
    return (b if smallest else a) if is_nonnegative(a - b) else None


def lower(index: Index) -> Index | None:
    """A lower bound as a polynomial in size symbols alone, or None if none is known."""
    if index._lower is None:
        remember(index, "_lower", _bound(index, low=True) or False)
    return index._lower or None


def upper(index: Index) -> Index | None:
    """An upper bound as a polynomial in size symbols alone, or None if none is known."""
    if index._upper is None:
        remember(index, "_upper", _bound(index, low=False) or False)
    return index._upper or None


def _bound(index: Index, *, low: bool) -> Index | None:
    ragged = next((a for m, _ in index.terms for a in m if isinstance(a, Axis) and a.extent.axes()), None)
    if ragged is not None and (factor := index.coefficient(ragged)) is not None:
        return _bound_ragged(index - factor * ragged.index(), ragged, factor, low=low)
    return _bound_terms(index, low=low)


def _bound_ragged(rest: Index, axis: Axis, factor: Index, *, low: bool) -> Index | None:
    """Bounds of ``factor·axis + rest`` where the axis's extent depends on other axes, as in ``t < min(T, n - T·b)``.

    Put in ``n - T·b - 1`` for t and the b's of ``T·b + t`` cancel; both arms of the min bound t, the better one counts.
    So do they in ``T·t + b`` for ``t < (n - b)//T + 1``, since ``T·((n - b)//T)`` is at most ``n - b``."""
    if is_nonnegative(factor if low else -factor):
        return _bound(rest, low=low)
    if not is_nonnegative(-factor if low else factor):
        return None
    extent = axis.extent.atom
    arms = (extent.a, extent.b) if isinstance(extent, Min) else (axis.extent,)
    known = [e for e in [_bound(rest + _most_of(arm, factor) - factor, low=low) for arm in arms] if e is not None]
    if len(known) == 2:
        return _pick(*known, smallest=not low) or known[0]
    return known[0] if known else None


def _most_of(extent: Index, factor: Index) -> Index:
    """The end of ``factor·extent`` away from zero, without divisions that the factor makes up for."""
    most = extent * factor
    for monomial, c in extent.terms:
        match monomial:
            case (FloorDiv(num, den) as atom,) if c > 0:
                times = exact_quotient(factor * c, den)
                most = most if times is None else most - factor * c * atom.index() + times * num
    return most


def _bound_terms(index: Index, *, low: bool) -> Index | None:
    """Terms of the same atoms, sizes apart, are bound together: each atom at the end that the sign of their factor
    picks; several atoms only if they are non-negative."""
    total = ZERO
    groups: dict[Monomial, list[tuple[Monomial, int]]] = {}
    for monomial, c in index.terms:
        atoms = tuple([a for a in monomial if type(a) is not Size])
        sizes = tuple([a for a in monomial if type(a) is Size]) if atoms else monomial
        groups.setdefault(atoms, []).append((sizes, c))
    for atoms, terms in groups.items():
        part = _sum(terms)
        positive = is_nonnegative(part)
        if atoms and not positive and not is_nonnegative(-part):
            return None
        for atom in atoms:
            lo, hi = _atom_bounds(atom)
            end = lo if low == positive else hi
            if end is None or (len(atoms) > 1 and not is_nonnegative(lo)):
                return None
            part = part * end
        total = total + part
    return total


def is_nonnegative(index: Index) -> bool:
    """True only if ``index ≥ 0`` is proved for all axes in range and all sizes within their bounds."""
    value = index.value
    if value is not None:
        return value >= 0
    if index._nonnegative is not None:
        return index._nonnegative
    if all(c > 0 and all(map(_is_nonnegative_atom, atoms)) for atoms, c in index.terms):
        return remember(index, "_nonnegative", True)
    if all(isinstance(a, Size) for m, _ in index.terms for a in m):
        return remember(index, "_nonnegative", _sizes_nonnegative(index))
    bound = lower(index)
    return remember(index, "_nonnegative", bound is not None and bound is not index and is_nonnegative(bound))


def _is_nonnegative_atom(atom: Atom) -> bool:
    match atom:
        case Size(_, lo, _, _):
            return lo >= 0
        case FloorDiv(a, _):
            return is_nonnegative(a)
        case Min(a, b):
            return is_nonnegative(a) and is_nonnegative(b)
        case Max(a, b):
            both = (a + b).value
            return is_nonnegative(a) or is_nonnegative(b) or (both is not None and both >= 0)
    return True


def _sizes_nonnegative(index: Index) -> bool:
    """Shift each size by its lower bound (``s = lo + s'``) and require every coefficient to be non-negative."""
    sizes = {a for m, _ in index.terms for a in m if isinstance(a, Size)}
    if all(c >= 0 for _, c in substitute(index, {a: a.index() + a.lo for a in sizes if a.lo}).terms):
        return True
    ends: dict[Atom, Index] = {a: const(a.hi) for a in sizes if a.hi is not None}
    falls = all(not m or (c < 0 and (len(m) == 1 or all(map(_is_nonnegative_atom, m)))) for m, c in index.terms)
    return falls and len(index.terms) <= 2 and bool(ends) and is_nonnegative(substitute(index, ends))


def is_less(a: IndexLike, b: IndexLike) -> bool:
    """True only if ``a < b`` is proved."""
    return is_nonnegative(as_index(b) - a - 1)


def substitute(index: Index, mapping: Mapping[Atom, Index]) -> Index:
    """Replace atoms by indices everywhere, simplifying again: ``{i: 4*a + b}`` in ``i // 4`` gives ``a``.
    Extents within axes are left as they are; an indirect value is rewritten with the same mapping."""
    if not mapping or not index.terms:
        return index
    total: list[tuple[Monomial, int]] = []
    changed = False
    for monomial, c in index.terms:
        new = [mapping.get(a) or (a if type(a) in _LEAVES else _substitute_atom(a, mapping)) for a in monomial]
        if all(map(is_, new, monomial)):
            total.append((monomial, c))
            continue
        changed = True
        part: Terms = (((), c),)
        for n in new:
            terms = n.terms if isinstance(n, Index) else (((n,), 1),)
            part = tuple([(_times(m1, m2), c1 * c2) for m1, c1 in part for m2, c2 in terms])
        total += part
    return _sum(total) if changed else index


_LEAVES = (Size, Axis)


def _substitute_atom(atom: Atom, mapping: Mapping[Atom, Index]) -> Atom | Index:
    match atom:
        case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
            x, y = substitute(a, mapping), substitute(b, mapping)
            return atom if x is a and y is b else _OF_INDICES[type(atom)](x, y)
        case Indirect(value, size):
            v, s = value.substitute(mapping), substitute(size, mapping)
            return atom if v is value and s is size else Indirect(v, s)
    return atom


def minimum(a: Index, b: Index) -> Index:
    """The smaller index; an atom where that is not proved."""
    return _pick(a, b, smallest=True) or Min(*sorted((a, b), key=repr)).index()


def maximum(a: Index, b: Index) -> Index:
    """The larger index; an atom where that is not proved."""
    return _pick(a, b, smallest=False) or Max(*sorted((a, b), key=repr)).index()


def clamp(index: Index, low: Index, high: Index) -> Index:
    """The index, or the end of ``[low, high]`` that it lies beyond."""
    return minimum(maximum(index, low), high)


_OF_NUMBERS: Mapping[type[Atom], Callable[..., Any]] = {FloorDiv: floordiv, Mod: mod, Min: min, Max: max}
_OF_INDICES: Mapping[type[Atom], Callable[..., Any]] = {**_OF_NUMBERS, Min: minimum, Max: maximum}
"""What an atom makes of its two operands."""


def evaluate(index: Index, env: Mapping[Any, Any]) -> int:
    """The value under ``env`` (sizes, axes and indirect atoms to ints). Raises KeyError for an atom without a value."""
    return sum(prod((_evaluate_atom(a, env) for a in monomial), start=c) for monomial, c in index.terms)


def _evaluate_atom(atom: Atom, env: Mapping[Any, Any]) -> int:
    if atom in env:
        return env[atom]
    match atom:
        case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
            return _OF_NUMBERS[type(atom)](evaluate(a, env), evaluate(b, env))
    raise KeyError(atom)


def contiguous_strides(shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Row-major strides in elements: ``(a, b, c)`` → ``(b*c, c, 1)``; as in torch a size of 0 counts as 1."""
    counts = [ONE if extent is ZERO else extent for extent in reversed(shape[1:])]
    return tuple([*accumulate(counts, mul, initial=ONE)][: len(shape)])[::-1]


@lru_cache(maxsize=1 << 14)
def dot(coords: tuple[Index, ...], strides: tuple[Index, ...]) -> Index:
    """``Σ coords[k]·strides[k]``: the linear position of a coordinate."""
    return sum((c * s for c, s in zip(coords, strides, strict=True)), ZERO)


def linear(coords: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    """The row-major position of a coordinate in ``shape``."""
    return dot(coords, contiguous_strides(shape))
