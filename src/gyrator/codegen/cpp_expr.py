"""Expressions as C++: each distinct node once, in the outermost block where everything it needs is known.

Inside the body of a ``LANES`` loop a node is a vector ``gy::Vec<T, 16>`` (if that is the width) only if it depends on
the lanes; all others are ``gy::Vec<T, 1>``, computed as far out as possible and broadcast where they meet a vector.

    y[i, j] = exp(x[i, j] - m[i]) / d[i]      →      const auto m0 = gy::load<1>(m + i);
    with lanes along j                               const auto d0 = gy::load<1>(d + i);
                                                     (for j) const auto x0 = gy::load(lanes, x + i * 768 + j); (for j)
                                                     gy::div(gy::exp(gy::sub(x0, gy::broadcast<16>(m0))), …)"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf

import torch

from gyrator.codegen.cpp_names import legal, literal, type_name
from gyrator.codegen.texts import WIDTH, Blocks, Key, Lines, Printed
from gyrator.errors import InternalCheckError
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Op, Random, Ref, Value, indirect_values
from gyrator.ir.index import ONE, ZERO, Atom, Axis, FloorDiv, Index, Indirect, Max, Min, Mod, is_nonnegative, substitute
from gyrator.ir.ops import OPS
from gyrator.ir.tree import Kernel
from gyrator.ir.volume import fits_32_bits

_LONGEST, _STEM = 32, 24  # of a name, but for its number; of a value's name, for what is loaded from it
_NAMING = len("const auto = ;") + 8  # what a line that names an expression needs besides it
_OURS = frozenset({"threads", "status", "failed", "lanes"})
_OF_VECTORS = {FloorDiv: "floordiv", Mod: "remainder", Min: "minimum", Max: "maximum"}


@dataclass(frozen=True, slots=True)
class Term(Printed):
    """A printed value, and whether it has a lane per iteration. ``literal`` is a constant's C++ literal."""

    vector: bool = False
    literal: str | None = None


@dataclass(slots=True)
class Block(Lines[Term]):
    """A block being printed: ``lines`` between ``head`` and ``tail``.

    ``skippable``: it may run zero times: what could fault must not be moved out of it; nor must loads of what it
    ``writes``, the values stored anywhere in it. ``extents``: how often each of its loops runs. ``by_team``: each
    thread of a team runs it. ``names``, and the next ``numbers`` by stems, are free again when it ends."""

    head: str = "{"
    tail: str = "}"
    writes: frozenset[Value] = frozenset()
    skippable: bool = False
    extents: tuple[Index, ...] = ()
    by_team: bool = False
    names: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a load or store goes: a pointer, and how the lanes lie from there.

    ``stride`` is the C++ text of the distance between lanes (``"0"``: all lanes hit one element), or None
    where ``offsets`` holds a vector of element offsets, or where there is a ``way`` to load lanes in another pattern.
    ``ends``: the first and the last offset, where lanes lie beside each other if these are as far apart as they."""

    pointer: str
    depth: int
    stride: str | None
    offsets: str | None = None
    way: str = ""
    ends: str = ""


class Expressions(Blocks[Term, Block]):
    """Abstract: prints expressions into a stack of blocks. Vectors of ``width`` lie along axis ``lanes``, if any."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.body, Block(0, names={*_OURS}))
        self.lanes: Axis | None = None
        self.width = 1
        self.pointers: dict[Value, Term] = {}
        self.checks: list[Checked] = []
        self._padded = frozenset(value for value in kernel.scratch if len(value.shape) == 1)
        self._loaded = frozenset(e.value for e in self._uses if isinstance(e, Load))

    def forget(self, values: Iterable[Value]) -> None:
        """``values`` are about to change: what was computed from their elements no longer holds."""
        if not (changed := self._loaded.intersection(values)):
            return
        for block in self.blocks:
            block.terms = {k: t for k, t in block.terms.items() if isinstance(k, Ref) or changed.isdisjoint(_reads(k))}

    def fresh(self, wish: str, depth: int = -1) -> str:
        """A name in the block at ``depth``: ``wish`` or the first of ``wish_2``, ``wish_3``, … that no open one has."""
        name = legal(wish[:_LONGEST])
        if self._is_taken(name):
            return self._numbered(f"{name}_", depth, 2)
        self.blocks[depth].names.add(name)
        return name

    def _numbered(self, stem: str, depth: int, start: int = 0) -> str:
        """The first of ``stem0``, ``stem1``, … that no open block has."""
        number = max([start, *(block.numbers.get(stem, start) for block in self.blocks)])
        while self._is_taken(f"{stem}{number}"):
            number += 1
        self.blocks[depth].names.add(f"{stem}{number}")
        self.blocks[depth].numbers[stem] = number + 1
        return f"{stem}{number}"

    def _is_taken(self, name: str) -> bool:
        return any(name in block.names for block in self.blocks)

    def value(self, e: Expr, wish: str | None = None) -> Term:
        """Print ``e``: a ``gy::Vec`` with one lane, or with ``width`` lanes if it depends on the lanes.
        With a ``wish`` the result is a name like it, unless ``e`` has a name already."""
        if isinstance(e, Const):
            text = literal(e.value, e.dtype)
            return Term(f"gy::broadcast<1>({text})", 0, name=True, literal=text)
        if (known := self.find(e)) is not None:
            return known
        match e:
            case Load():
                return self._named(e, self._load(e), legal(f"{e.value.name[:_STEM]}_"), wish)
            case IndexValue(index):
                term = self.vector_index(index) if self.varies(index) else self._spread(self.index(index), 1)
            case Checked():
                return self._named(e, self._checked(e), "at", wish)
            case Random():
                term = self._random(e)
            case Op():
                term = self._first_lanes(e) or self._op(e)
            case _:
                raise InternalCheckError("print", f"{type(e).__name__} {e} cannot be printed as C++")
        return self._named(e, term, "t", wish) if wish is not None or self._uses[e] > 1 else term

    def _op(self, e: Op) -> Term:
        terms = self.together(e.args, len(e.name) + len("gy::(, )") + len(type_name(e.dtype)))
        text = OPS[e.name].cpp.format(*(t.text for t in terms), dtype=type_name(e.dtype))
        return Term(text, max((t.depth for t in terms), default=0), any(t.vector for t in terms))

    def _first_lanes(self, e: Op) -> Term | None:
        """Numbers that grow by one from lane to lane, compared with one number: it holds for so many lanes."""
        match e:
            case Op("lt" | "ge", (IndexValue(index), Const(int(end)) | IndexValue(end))) if self.varies(index):
                slope, rest = self._by_lanes(index)
                count = end - index
                if slope is not ONE or rest.terms or self.varies(count + index):
                    return None
                term = self.index(count)
                text = f"gy::first_lanes<{self.width}>({term.text})"
                return Term(text if e.name == "lt" else f"gy::logical_not({text})", term.depth, vector=True)
        return None

    def room(self, depth: int) -> int:
        """Columns for an expression that is named in the block at ``depth``."""
        return WIDTH - _NAMING - 2 * (depth + 1)

    def together(self, exprs: Sequence[Expr], around: int) -> list[Term]:
        """Print expressions that one statement combines: all vectors if one is.

        Those known further out get names there; so do the longest while the line, by ``around`` wider, is too long."""
        terms = [self.value(e) for e in exprs]
        depth = max((t.depth for t in terms), default=0)
        wide = any(t.vector for t in terms)
        around += sum(len("gy::broadcast<16>()") for t in terms if wide and not t.vector)
        self.shorten(terms, self.room(depth) - around, lambda k: self._named(exprs[k], terms[k], "t"))
        return [self._fit(e, t, depth, wide) for e, t in zip(exprs, terms, strict=True)]

    def fitted(self, e: Expr, term: Term, room: int) -> Term:
        """``e``, printed as ``term``, for the innermost block: broadcast if there are lanes, named without ``room``."""
        if len(term.text) > room and not term.name:
            term = self._named(e, term, "t")
        return self._fit(e, term, self.block.depth, self.lanes is not None)

    def _fit(self, e: Expr, term: Term, depth: int, vector: bool) -> Term:
        if not term.name and term.depth < depth:
            term = self._named(e, term, "t")
        if not vector or term.vector:
            return term
        return replace(term, text=f"gy::broadcast<{self.width}>({term.literal or term.text})", vector=True)

    def _named(self, e: Expr | Index, term: Term, stem: str, wish: str | None = None) -> Term:
        """Make ``term`` a local of its block, called like ``wish`` or else ``stem`` with a number."""
        name = self._numbered(stem, term.depth) if wish is None else self.fresh(wish, term.depth)
        self.blocks[term.depth].lines.append(f"const auto {name} = {term.text};")
        local = Term(name, term.depth, term.vector, name=True)
        self.bind(e, local)
        return local

    def _load(self, e: Load) -> Term:
        at = self._periodic(e) or self.address(e.value, e.index, loading=True)
        mask = None if e.mask is None else self.value(e.mask)
        vector = at.stride != "0" or (mask is not None and mask.vector)
        stays = [b.depth for b in self.blocks if e.value in b.writes or (b.skippable and mask is None)]
        depth = max(at.depth, 0 if mask is None else mask.depth, *stays)
        tail = ""
        if mask is not None and e.mask is not None:
            tail = f", {self._fit(e.mask, mask, depth, mask.vector).text}, {literal(e.other, e.dtype)}"
        return Term(self.access("load", at, tail, vector=vector), depth, vector)

    def access(self, verb: str, at: Address, tail: str, *, vector: bool) -> str:
        """``verb`` is ``load`` or ``store``; ``tail`` is the text of the further arguments, commas included."""
        if not vector:
            return f"gy::{verb}{'<1>' if verb == 'load' else ''}({at.pointer}{tail})"
        if at.way:
            return f"gy::{verb}{at.way}(lanes, {at.pointer}{tail})"
        if at.ends:
            return f"gy::{verb}_near(lanes, {at.pointer}, {at.ends}, {at.offsets}{tail})"
        if at.stride == "1":
            return f"gy::{verb}(lanes, {at.pointer}{tail})"
        if at.stride is not None:
            return f"gy::{verb}_strided(lanes, {at.pointer}, {at.stride}{tail})"
        return f"gy::{'gather' if verb == 'load' else 'scatter'}(lanes, {at.pointer}, {at.offsets}{tail})"

    def _checked(self, e: Checked) -> Term:
        if e not in self.checks:
            self.checks.append(e)
        site = self.checks.index(e) + 1
        size = self.index(e.size)
        terms = self.together([e.arg] if e.mask is None else [e.mask, e.arg], 50)
        text, vector = terms[-1].text, any(t.vector for t in terms)
        if e.mask is not None:  # an element that nobody reads passes as index 0 of at least one
            zero = f"gy::broadcast<{self.width if vector else 1}>({literal(0, e.dtype)})"
            text = f"gy::where({terms[0].text}, {text}, {zero})"
            size = self._positive(e.size)
        depth = max(size.depth, *(t.depth for t in terms), *(b.depth for b in self.blocks if b.skippable))
        if e.mask is None and not is_nonnegative(e.size - 1):
            self._refuse_empty(size, site)
        return Term(f"gy::check_index({'lanes, ' * vector}{text}, {size.text}, status, {site})", depth, vector)

    def _refuse_empty(self, size: Term, site: int) -> None:
        """No index into an empty dimension is in range: return before anything is read from there."""
        extents = [n for block in self.blocks for n in block.extents if not n.axes()]
        maybe_empty = [self.index(n).text for n in extents if not is_nonnegative(n - 1)]
        condition = " && ".join([f"{size.text} < 1", *(f"{n} > 0" for n in dict.fromkeys(maybe_empty))])
        self.blocks[size.depth].lines.append(f"if ({condition}) return {site};")

    def _random(self, e: Random) -> Term:
        offset = self.value(IndexValue(e.offset))
        terms = self.together((e.seed, *e.args), 60)
        if any(t.vector for t in terms):
            problem = f"{e}: the seed and the bounds of random numbers are the same for all lanes"
            raise InternalCheckError("print", problem)
        tail = "".join(f", {t.text}" for t in terms[1:])
        text = f"gy::{e.kind}<{type_name(e.dtype)}>({terms[0].text}, {offset.text}{tail})"
        return Term(text, max(offset.depth, *(t.depth for t in terms)), offset.vector)

    def address(self, value: Value, index: tuple[Index, ...], *, loading: bool = False) -> Address:
        """The address of ``value[index]``, for the first lane, and how the other lanes follow."""
        pointer = self.pointers[value]
        flat = value.position(index)
        slope, rest = self._by_lanes(flat)
        if not rest.terms:
            at, stride = self.index(flat), self.index(slope)
            way = "_whole" if value in self._padded and self.lanes and flat is self.lanes.index() else ""
            return Address(plus(pointer.text, at), max(pointer.depth, at.depth, stride.depth), stride.text, way=way)
        fixed = Index(tuple(t for t in flat.terms if all(self._step(a) is ZERO for a in t[0])))
        at, moving = self.index(fixed), flat - fixed
        ends = self._first_and_last(moving) if loading else ""
        offsets = self.vector_index(moving, self._integer_for(moving))
        if ends:  # computed only where lanes do not lie beside each other
            offsets = replace(offsets, text=f"[=]() GY_INLINE {{ return {offsets.text}; }}")
        else:
            offsets = self.find(moving) or self._named(moving, offsets, "offset")
        depth = max(pointer.depth, at.depth, offsets.depth)
        return Address(plus(pointer.text, at), depth, None, offsets.text, ends=ends)

    def _periodic(self, e: Load) -> Address | None:
        """The address of a load of one element by a few lanes at a time, as in ``x[j // 2]``, of a few elements in
        turns, as in ``x[j % 2]``, or of runs of a few, as in ``x[j // 8 * 32 + j % 8]``."""
        flat = e.value.position(e.index)
        slope, rest = self._by_lanes(flat)
        parts = {(type(a), a.num, a.den): c for (a, *_), c in rest.terms if isinstance(a, FloorDiv | Mod)}
        if slope.terms or len(parts) < len(rest.terms) or len({key[1:] for key in parts}) != 1 or e.dtype == torch.bool:
            return None
        (num, den), steps = next(iter(parts))[1:], {kind: c for (kind, *_), c in parts.items()}
        way = "repeated" if Mod not in steps else "cycled" if FloorDiv not in steps else "runs"
        if self._steps(num, den) != 1 or (den.value or 0) > self.width or any(len(m) > 1 for m, _ in rest.terms):
            return None
        if (way == "runs" and steps[Mod] != 1) or (e.mask is not None and way == "cycled"):
            return None
        pointer, at = self.pointers[e.value], self.index(flat)
        step = steps.get(FloorDiv) or steps[Mod]
        return Address(plus(pointer.text, at), max(pointer.depth, at.depth), None, way=f"_{way}<{den.value}, {step}>")

    def _first_and_last(self, index: Index) -> str:
        """The first and the last lane's index, if lanes lie beside each other where these are as far apart as they, as
        positions that are clamped, mirrored, or begin anew at the end do; else nothing."""
        near = self._steepness(index) == 1
        match self._by_lanes(index):
            case (Index(terms=()), Index(terms=(((Mod(num, den),), 1),))):
                near = self._by_lanes(num) == (ONE, ZERO) and is_nonnegative(den - self.width)
        if not near or self.lanes is None:
            return ""
        last = substitute(index, {self.lanes: self.lanes.index() + (self.width - 1)})
        return f"{self.index(index).text}, {self.index(last).text}"

    def _steepness(self, index: Index) -> float:
        """The most that ``index`` changes from lane to lane; infinity if that is not known."""
        slope, rest = self._by_lanes(index)
        total = inf if slope.value is None else abs(slope.value)
        for monomial, c in rest.terms:
            match monomial:
                case (Min(a, b) | Max(a, b),):
                    total += abs(c) * max(self._steepness(a), self._steepness(b))
                case _:
                    return inf
        return total

    def _by_lanes(self, index: Index) -> tuple[Index, Index]:
        """``(slope, rest)``: from lane to lane all of ``index`` but ``rest`` grows by ``slope``."""
        slope = rest = ZERO
        for monomial, c in index.terms:
            steps = [self._step(a) for a in monomial]
            moving = [k for k, step in enumerate(steps) if step is not ZERO]
            if len(moving) > 1 or any(step is None for step in steps):
                rest = rest + Index(((monomial, c),))
            elif moving:
                others = tuple(a for k, a in enumerate(monomial) if k != moving[0])
                slope = slope + Index(((others, c),)) * (steps[moving[0]] or ZERO)
        return slope, rest

    def varies(self, index: Index) -> bool:
        """Whether lanes see different values of ``index``."""
        return self.lanes is not None and any(self._step(a) is not ZERO for m, _ in index.terms for a in m)

    def _step(self, atom: Atom) -> Index | None:
        """What ``atom`` grows by from lane to lane within a vector; None where that is not constant."""
        if self.lanes is None:
            return ZERO
        match atom:
            case Axis():
                return ONE if atom is self.lanes else ZERO
            case FloorDiv(num, den) | Mod(num, den):
                if not self.varies(num) and not self.varies(den):
                    return ZERO
                stride = self._stride_in_blocks(num, den)
                return stride if stride is None or isinstance(atom, Mod) else ZERO
            case Min(a, b) | Max(a, b):
                return None if self.varies(a) or self.varies(b) else ZERO
            case Indirect(value):
                return None if self.value(value).vector else ZERO
        return ZERO

    def _along(self, num: Index) -> tuple[int, Index] | None:
        """``(s, start)`` where ``num = s·lanes + start`` with a number ``s > 0``; None for anything else."""
        slope, rest = self._by_lanes(num)
        s = slope.value
        if self.lanes is None or rest.terms or s is None or s <= 0 or num.coefficient(self.lanes) is not slope:
            return None
        return s, num - slope * self.lanes.index()

    def _steps(self, num: Index, den: Index) -> int | None:
        """``s`` where ``num = s·lanes + rest`` is a multiple of ``den`` for the first lane of each vector, so that
        ``num // den`` is that lane's plus ``s·lane // den``; None where it may be no multiple."""
        s, start = self._along(num) or (0, ZERO)
        return s if s and den.value and s * self.width % den.value == 0 and start % den is ZERO else None

    def _stride_in_blocks(self, num: Index, den: Index) -> Index | None:
        """``s`` where ``num = s·lanes + rest`` and no vector crosses a multiple of ``den``; None if one may.

        Vectors start at multiples of their width: with width 16 ``(j + 64·i) // 32`` is one number in each."""
        s, start = self._along(num) or (0, ZERO)
        span = s * self.width
        return ONE * s if span and den.value and den.value % span == 0 and start % span is ZERO else None

    def index(self, index: Index) -> Term:
        """An ``int64_t`` expression; where the index depends on the lanes, its value for the first one."""
        text, atoms = self.sum_of(index, self._atom)
        return Term(text, max([a.depth for a in atoms], default=0), name=len(index.terms) <= 1 and " " not in text)

    def _atom(self, atom: Atom) -> Term:
        if (known := self.find(atom)) is not None:
            return known
        match atom:
            case FloorDiv(num, den) | Mod(num, den):
                a, b = self.index(num), self._positive(den)
                sign, name = ("/", "floor_div") if isinstance(atom, FloorDiv) else ("%", "floor_mod")
                text = f"{a.operand} {sign} {b.operand}" if is_nonnegative(num) else f"gy::{name}({a.text}, {b.text})"
            case Min(left, right) | Max(left, right):
                a, b = self.index(left), self.index(right)
                text = f"gy::{'min' if isinstance(atom, Min) else 'max'}_index({a.text}, {b.text})"
            case Indirect(value):
                term = self.value(value)
                return Term(f"gy::scalar({term.text})", term.depth, name=True)
            case _:
                raise InternalCheckError("print", f"{type(atom).__name__} {atom} has no value here")
        term = self.integer(text, max(a.depth, b.depth), "k")
        self.bind(atom, term)
        return term

    def _positive(self, size: Index) -> Term:
        """A size, 1 for one that may be 0: nobody reads what lies along it then, but the place is computed."""
        return self.index(size if is_nonnegative(size - 1) else Max(size, ONE).index())

    def integer(self, text: str, depth: int, stem: str) -> Term:
        """Name an ``int64_t`` in the block at ``depth``."""
        name = self._numbered(stem, depth)
        self.blocks[depth].lines.append(f"const int64_t {name} = {text};")
        return Term(name, depth, name=True)

    def vector_index(self, index: Index, integer: str = "int64_t") -> Term:
        """A ``Vec<int64_t, L>`` expression with the value of ``index`` for each lane, or one of another ``integer``."""
        slope, rest = self._by_lanes(index)
        first, step = self.index(index - rest), self.index(slope)
        parts: list[Term] = []
        if slope.terms:
            text = f"gy::iota<{self.width}{', int32_t' * (integer == 'int32_t')}>({first.text}, {step.text})"
            parts.append(Term(text, max(first.depth, step.depth), vector=True))
        elif first.text != "0" or not rest.terms:
            parts.append(self._spread(first, self.width, integer))
        parts += [self._vector_monomial(monomial, c, integer) for monomial, c in rest.terms]
        return _combined("add", parts)

    def _vector_monomial(self, monomial: tuple[Atom, ...], c: int, integer: str) -> Term:
        fixed = tuple(a for a in monomial if self._step(a) is ZERO)
        factors = [self._vector_atom(a, integer) for a in monomial if a not in fixed]
        factor = self.index(Index(((fixed, c),)))
        return _combined("mul", factors + [self._spread(factor, self.width, integer)] * (factor.text != "1"))

    def _spread(self, index: Term, lanes: int, integer: str = "int64_t") -> Term:
        return Term(f"gy::broadcast<{lanes}>({integer}({index.text}))", index.depth, vector=lanes > 1)

    def _integer_for(self, index: Index) -> str:
        """``int32_t`` where all that varies but in steps is places of 32 bits, and no sum of them needs more."""
        varying = [a for m, _ in self._by_lanes(index)[1].terms for a in m if self._step(a) is not ZERO]
        fits = fits_32_bits(index) and all(c > 0 for _, c in index.terms)
        places = [a.value for a in varying if isinstance(a, Indirect) and isinstance(a.value, Op)]
        checked = [p for p in places if p.name == "cast" and isinstance(p.args[0], Checked)]  # in 32 bits
        return "int32_t" if varying and fits and len(checked) == len(varying) else "int64_t"

    def _vector_atom(self, atom: Atom, integer: str) -> Term:
        match atom:
            case Indirect(Op("cast", (Checked() as place,))) if integer == "int32_t":
                return replace(self.value(place), name=False)
            case FloorDiv(num, den) if (s := self._steps(num, den)) is not None:
                first = self.index(atom.index())
                return Term(f"gy::iota_div<{self.width}, {s}, {den.value}>({first.text})", first.depth, vector=True)
            case Mod(num, den) if (s := self._steps(num, den)) is not None:
                return Term(f"gy::iota_mod<{self.width}, {s}, {den.value}>()", self.index(num).depth, vector=True)
            case FloorDiv(num, den) | Mod(num, den) if is_nonnegative(num) and not self.varies(den):
                a, d, name = self.vector_index(num), self._positive(den), "div" if isinstance(atom, FloorDiv) else "mod"
                return Term(f"gy::{name}_index({a.text}, {d.text})", max(a.depth, d.depth), vector=True)
            case FloorDiv(left, right) | Mod(left, right) | Min(left, right) | Max(left, right):
                return _combined(_OF_VECTORS[type(atom)], [self.vector_index(left), self.vector_index(right)])
            case Indirect(value):
                return replace(self.value(value), name=False)
        return self.vector_index(atom.index())


def plus(pointer: str, offset: Term) -> str:
    """``pointer + offset`` without a needless sum."""
    if offset.text == "0":
        return pointer
    return f"{pointer} - {offset.text[1:]}" if offset.text.startswith("-") else f"{pointer} + {offset.text}"


def _combined(op: str, terms: Sequence[Term]) -> Term:
    return reduce(lambda a, b: Term(f"gy::{op}({a.text}, {b.text})", max(a.depth, b.depth), vector=True), terms)


def _reads(key: Key) -> frozenset[Value]:
    exprs = (key,) if isinstance(key, Expr) else indirect_values([key if isinstance(key, Index) else key.index()])
    return frozenset(n.value for e in exprs for n in e.walk() if isinstance(n, Load))
