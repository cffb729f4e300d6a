"""Expressions as Triton: each distinct node once, in the outermost block where everything it needs is known.

A node is a tensor whose dimensions are the tiles of the kernel, of size 1 along each that it does not depend
on, so that tensors broadcast where they meet; what depends on no tile is a scalar.

    y[i, j] = exp(x[i, j] - m[i])      →      m_0 = tl.load(m + i, i_ok)                        # [XBLOCK, 1]
    tiles i, j                                tl.exp(tl.load(x + (i * 768 + j), i_ok & j_ok) - m_0)"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from gyrator.codegen.python_text import Names, constant_text, is_small, scalar, tuple_of, type_name, typed_literal
from gyrator.codegen.texts import Blocks, Key, Lines, Printed, checked_place
from gyrator.codegen.triton_foreach import VECTOR
from gyrator.errors import InternalCheckError
from gyrator.ir import tree
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Op, Random, Ref, Value
from gyrator.ir.index import ONE, ZERO, Atom, Axis, FloorDiv, Index, Indirect, Max, Min, Mod, is_nonnegative
from gyrator.ir.ops import OPS, Rule
from gyrator.ir.tree import Kernel, Let, Loop, LoopKind, Stage, Store, Tile, Tiling, Update, walk_loops, walk_stages

Scope = frozenset[Axis]

_COLUMNS = 100
_NARROW = {"erf": "rt.erf_16({0})", "tanh": "rt.tanh_16({0})"}
"""Cheaper templates where all that a kernel writes is rounded to 16 bits."""
_TYPED = frozenset({"floordiv", "truncdiv", "remainder", "fmod", "lshift", "rshift"})
"""Their device functions ask for the types of their operands, which a bare literal has not."""
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
_CALL = re.compile(r"[\w.]+\(\{0\}(, \{\d\})*\)")
_NONE: Scope = frozenset()


@dataclass(frozen=True, slots=True)
class Term(Printed):
    """A printed value, and the tiles along which it varies. ``atom``: the text binds tighter than any operator."""

    axes: Scope = _NONE
    atom: bool = True

    @property
    def operand(self) -> str:
        """The text as an operand."""
        return self.text if self.atom else f"({self.text})"

    def to(self, *types: str) -> "Term":
        """The value converted to each of these types in turn."""
        return made_of(self.operand + "".join(f".to({t})" for t in types), self)


Block = Lines[Term]


@dataclass(frozen=True, slots=True)
class Shifted:
    """A row whose first element lies at ``start``, amid 16 bytes: elements are counted by ``lane`` from where these
    begin, from ``first`` on. ``even`` is the position of an element, as what may be moved with its neighbours."""

    start: Index
    lane: Axis
    first: Index
    even: Index


def made_of(text: str, *terms: Term, atom: bool = True) -> Term:
    """What a text made of terms is: known where all of them are, and different along all their tiles."""
    return Term(text, max([t.depth for t in terms], default=0), _NONE.union(*[t.axes for t in terms]), atom)


class Expressions(Blocks[Term, Block]):
    """Abstract: prints expressions into a stack of blocks."""

    def __init__(self, kernel: Kernel, tiling: Tiling, names: Names) -> None:
        super().__init__(kernel.body, Block(0))
        self.kernel, self.tiling, self.names = kernel, tiling, names
        self.pointers: dict[Value, str] = {}
        self.rows: dict[Value, str] = {}
        self.bounds: dict[Axis, Term] = {}
        self.shifted: dict[Axis, Shifted] = {}
        self.extents: dict[Axis, str] = {}
        self.starts: dict[Axis, str] = {}
        self.aligned, self.widened = True, False
        self.asserts = False
        self.apart = False
        self.tile_of: dict[Axis, Tile] = {t.axis: t for t in tiling.tiles}
        grid = {loop.axis for loop in grid_loops(kernel)}
        self._rows = frozenset(t.axis for t in tiling.tiles if t.axis not in grid)  # their loops lie within a program
        self._grid_tiles = [t.axis for t in tiling.tiles if t.axis not in self._rows]
        stages = list(walk_stages(kernel.body))
        stored = [s.value.dtype for s in stages if isinstance(s, Store)]
        self.narrow = all(map(is_small, stored)) and not any(isinstance(s, Update) for s in stages)
        # Fast division may give the float below 3 for 6 / 2: nobody notices but what rounds down, or compares with 3.
        self._exact = any(map(_needs_exact, self._uses))
        self.loop_number = 0
        self._last = {param.value for param in kernel.params if param.last}
        self.last_loop, self.again = _loops_of_loads(kernel, self.tile_of)

    @property
    def rank(self) -> int:
        """Dimensions of a tile: one for each tiled axis of the grid and one that all rows share."""
        return len(self._grid_tiles) + bool(self._rows)

    def dimension(self, axis: Axis) -> int:
        """The dimension of tiles along which a tiled axis lies."""
        return self._grid_tiles.index(axis) if axis in self._grid_tiles else self.rank - 1

    def spread(self, text: str, axis: Axis) -> str:
        """A vector along ``axis`` as a tensor of full rank: ``v[:, None]``."""
        if self.rank == 1:
            return text
        places = [":" if d == self.dimension(axis) else "None" for d in range(self.rank)]
        return f"{text}[{', '.join(places)}]"

    def shape(self, axes: Scope) -> str:
        """The shape of a tensor that varies along ``axes``: ``[XBLOCK, 1]``."""
        sizes = ["1"] * self.rank
        for axis in axes:
            sizes[self.dimension(axis)] = self.tile_of[axis].block
        return f"[{', '.join(sizes)}]"

    def within(self, axes: Iterable[Axis]) -> list[Term]:
        """The conditions under which a tile's elements along ``axes`` are within the loops."""
        found = [(self.dimension(a), self.bounds[a]) for a in axes if a in self.bounds]
        return [term for _, term in sorted(found, key=lambda pair: pair[0])]

    def shifted_row(self, loop: Loop) -> Shifted | None:
        """How the row of a loop lies if it begins amid 16 bytes, as those of 50,257 words do, noted until it ends. None
        where several are read or written, and for lengths, places and rows of a tile that only a run tells."""
        axis = loop.axis
        reached = [(s.value, s.index) for s in (*tree.loads_in(loop.body), *loop.body) if isinstance(s, Load | Store)]
        places = [(v, place) for v, i in reached if (place := v.position(i)).coefficient(axis) is ONE]
        starts = {place - axis.index() for _, place in places}
        if len(starts) != 1 or axis.extent.value is None or self.tiling.category == "scan":
            return None
        (start,), size = starts, VECTOR // min(v.dtype.itemsize for v, _ in places)
        if start % size is ZERO or start.indirects() or not start.axes().isdisjoint(self.tile_of):
            return None
        lane = Axis("lane", axis.extent + (size - 1))
        return self.shifted.setdefault(axis, Shifted(start, lane, start % size, start // size * size + lane.index()))

    def named(self, term: Term, stem: str, key: Key | None = None) -> Term:
        """Make ``term`` a local of its block, called like ``stem``."""
        if term.name:
            return term
        name = self.names.fresh(stem)
        self.blocks[term.depth].lines.append(f"{name} = {term.text}")
        local = Term(name, term.depth, term.axes, name=True)
        if key is not None:
            self.bind(key, local)
        return local

    def value(self, e: Expr, wish: str | None = None) -> Term:
        """Print ``e``; with a ``wish`` the result is a name like it, unless ``e`` has a name already."""
        if isinstance(e, Const):
            return Term(typed_literal(e.value, e.dtype))
        if (known := self.find(e)) is not None:
            return known
        match e:
            case Load():
                return self.named(self._load(e), wish or self.pointers.get(e.value, e.value.name), e)
            case IndexValue(index):
                term = self._int64(index)
            case Checked():
                return self._checked(e)
            case Random():
                term = self._random(e)
            case Op():
                term = self._op(e)
            case _:
                raise InternalCheckError("print", f"{type(e).__name__} {e} cannot be printed as Triton")
        if wish is not None or self._uses[e] > 1 or len(term.text) > _COLUMNS - 2 * term.depth:
            return self.named(term, wish or "t", e)
        return term

    def _op(self, e: Op) -> Term:
        row = OPS[e.name]
        if e.name in ("cast", "bitcast"):
            return self._cast(e)
        template = _BOOLEAN.get(e.name, row.triton) if all(a.dtype == torch.bool for a in e.args) else row.triton
        if self.narrow and e.dtype != torch.float64:
            template = _NARROW.get(e.name, template)
        if e.name in ("div", "reciprocal") and e.dtype == torch.float32 and self._exact:
            template = "tl.div_rn({0}, {1})" if e.name == "div" else "tl.div_rn(1.0, {0})"
        if row.rule is Rule.COMPARE and all(_is_index(a) for a in e.args):
            args = [self._index_operand(a) for a in e.args]
        else:
            args = [self._argument(e, k, template) for k in range(len(e.args))]
        small = is_small(e.args[-1].dtype) and row.rule in (Rule.SAME, Rule.FLOAT, Rule.COMPARE)
        if small:
            args = [a if isinstance(x, Const) else a.to("tl.float32") for a, x in zip(args, e.args, strict=True)]
        term = self._joined(template, args, e.dtype)
        return term.to(type_name(e.dtype)) if small and e.dtype == e.args[-1].dtype else term

    def _argument(self, e: Op, k: int, template: str) -> Term:
        """Operand ``k``; a literal stays bare where an operator gives it the other operand's type."""
        arg = e.args[k]
        if isinstance(arg, Const):
            bare = not _CALL.fullmatch(template) and any(not isinstance(a, Const) for a in e.args)
            dtype = torch.float32 if is_small(arg.dtype) else arg.dtype
            if e.name in _TYPED or "~" in template:
                return Term(scalar(arg.value, dtype))
            return Term(typed_literal(arg.value, torch.float32 if bare else dtype))
        return self.value(arg)

    def _joined(self, template: str, args: Sequence[Term], dtype: torch.dtype) -> Term:
        """The template filled in; the longest arguments get names while the line is too long."""
        terms = list(args)
        self.shorten(terms, _COLUMNS - len(template), lambda k: self.named(terms[k], "t"), least=12)
        call = _CALL.fullmatch(template) is not None
        texts = [t.text if call else t.operand for t in terms]
        atom = call or template.startswith("(") or template.endswith(")")
        return made_of(template.format(*texts, dtype=type_name(dtype)), *terms, atom=atom)

    def _cast(self, e: Op) -> Term:
        source, target = e.args[0].dtype, e.dtype
        near = isinstance(e.args[0], IndexValue) and e.args[0].index.value is None and target == torch.float32
        arg = self._index_operand(e.args[0]) if near else self.value(e.args[0])  # from 32 bits in one instruction
        if e.name == "bitcast":  # of what may be computed in a wider type
            steps = [type_name(source), f"{type_name(target)}, bitcast=True"][isinstance(e.args[0], Load) :]
            return arg.to(*steps)
        if target == torch.bool:
            return made_of(f"({arg.operand} != 0)", arg)
        if is_small(target) and target.itemsize == 1:
            name = "float8e5" if target == torch.float8_e5m2 else "float8e4"
            return made_of(f"rt.to_{name}({arg.text})", arg)
        steps = [type_name(target)]
        if source.is_floating_point and not target.is_floating_point:
            if target.itemsize < 4 or not target.is_signed:
                steps.insert(0, "tl.int64" if target.itemsize >= 4 else "tl.int32")
            if is_small(source):
                steps.insert(0, "tl.float32")
        elif (is_small(source) and target != torch.float32) or (is_small(target) and source != torch.float32):
            steps.insert(0, "tl.float32")
        return arg.to(*steps)

    def _load(self, e: Load) -> Term:
        if e.value in self.rows:
            return Term(self.rows[e.value], self.block.depth, frozenset(self.tile_of), name=True)
        at = self.address(e.value, e.index)
        conditions = self.within(at.axes)
        mask = None if e.mask is None else self.value(e.mask)
        if mask is not None:
            conditions = [*self.within(at.axes | mask.axes), mask]
            if not at.axes and mask.axes:
                at = replace(at, text=f"tl.broadcast_to({at.text}, {self.shape(mask.axes)})", axes=mask.axes)
        elif self.aligned and e.dtype.is_floating_point:
            conditions = self._widened(e, conditions)
        kind = e.dtype if e.dtype == torch.float64 else torch.float32  # a bare 0.1 is one of 32 bits
        tail = mask_text(conditions) + ("" if mask is None else f", {typed_literal(e.other, kind)}")
        last = self.last_loop.get(e, 0)
        if self.loop_number and last > self.loop_number:  # the next loop over the row finds it in the cache
            tail += ', eviction_policy="evict_last"'
        elif (self.loop_number and last > 1 and e in self.again) or (e.value in self._last and e not in self.again):
            tail += ', eviction_policy="evict_first"'
        loaded = made_of(f"tl.load({at.text}{tail})", at, *conditions)
        small = e.dtype.itemsize < 4 and self.apart and len(at.axes) == 1
        return replace(loaded, text=f"attention.set_apart({loaded.text})") if small else loaded

    def _widened(self, e: Load, conditions: list[Term]) -> list[Term]:
        """The conditions of a load with those 16 bytes as a whole of which not all is within: nothing reads the rest,
        which lies in the same page, if the tensor is aligned. A mask for it would have all loaded one by one."""
        size = VECTOR // e.dtype.itemsize
        if (axis := self.ends_amid(e.value.position(e.index), size)) is None:
            return conditions
        self.widened, (lane, first) = True, self.lanes_of(axis)
        at, end = self.index(lane.index()), self.index((first + axis.extent + (size - 1)) // size * size)
        wide = made_of(f"{at.text} < {end.operand}", at, end, atom=False)
        return [wide if c is self.bounds[axis] else c for c in conditions]

    def ends_amid(self, position: Index, size: int) -> Axis | None:
        """The axis along which ``size`` neighbours move at once, but for the last or first of them."""
        for axis in [a for a in self.bounds if a in self.starts and a not in self.extents]:
            rest, row = position - axis.index(), self.shifted.get(axis)
            uneven = axis.extent % size is not ZERO and axis.extent // size is not ZERO and rest % size is ZERO
            if rest is row.start if row else uneven and position.coefficient(axis) is ONE:
                return axis
        return None

    def lanes_of(self, axis: Axis) -> tuple[Axis, Index]:
        """What counts the elements along an axis from the beginning of 16 bytes on, and what the first one is."""
        row = self.shifted.get(axis)
        return (axis, ZERO) if row is None else (row.lane, row.first)

    def _checked(self, e: Checked) -> Term:
        """Wrap a negative index, and assert that it is in range."""
        self.asserts = True
        size, raw = self.index(e.size), self.named(self.value(e.arg), "at")
        wrapped = f"tl.where({raw.text} < 0, {raw.text} + {size.operand}, {raw.text})"
        at = self.named(made_of(wrapped, raw, size), "at", e)
        masks = [] if e.mask is None else [self.value(e.mask)]
        conditions = self.within(_NONE.union(at.axes, *(m.axes for m in masks))) + masks
        depth = max(term.depth for term in (at, *conditions))
        test = f"({at.text} >= 0) & ({at.text} < {size.text})"
        message = f"index out of range: {checked_place(self.kernel) or 'unknown place'}".replace('"', "'")
        self.blocks[depth].lines.append(f'tl.device_assert({test}, "{message}"{mask_text(conditions)})')
        return at

    def _random(self, e: Random) -> Term:
        terms = [self.value(e.seed), self._int64(e.offset), *(self.value(a) for a in e.args)]
        texts = [*(t.text for t in terms), *([] if e.kind == "randint64" else [type_name(e.dtype)])]
        run = e.dtype not in (torch.int64, torch.float64) and self._is_run(e.offset)
        return made_of(f"rt.{e.kind}{'_of_run' * run}({', '.join(texts)})", *terms)

    def _is_run(self, index: Index) -> bool:
        """Whether along the last dimension of a tile ``index`` counts up from a multiple of four, as tiles begin; but
        not those of a shifted row."""
        last = [axis for axis in self.tile_of if self.dimension(axis) == self.rank - 1 and axis in index.axes()]
        rest = index - last[0].index() if last else index
        return len(last) == 1 and last[0] not in rest.axes() | self.shifted.keys() and rest % 4 is ZERO

    def address(self, value: Value, index: tuple[Index, ...]) -> Term:
        """A pointer to ``value[index]``: what is the same for the whole tile is added first."""
        place = value.position(index)
        place = next((row.even for axis, row in self.shifted.items() if place is row.start + axis.index()), place)
        moves = [(bool(self.index(Index((term,))).axes), term) for term in place.terms]
        halves = [tuple(term for moving, term in moves if moving is half) for half in (False, True)]
        terms = [self.index(Index(half)) for half in halves if half]
        return made_of(" + ".join([self.pointers[value], *(term.operand for term in terms)]), *terms, atom=False)

    def index(self, index: Index) -> Term:
        """An integer expression."""
        text, atoms = self.sum_of(index, self._atom)
        return made_of(text, *atoms, atom=" " not in text and not text.startswith("-"))

    def _int64(self, index: Index) -> Term:
        known = index.value
        return self.index(index).to("tl.int64") if known is None else Term(typed_literal(known, torch.int64))

    def _atom(self, atom: Atom) -> Term:
        if (known := self.find(atom)) is not None:
            return known
        match atom:
            case FloorDiv(num, den) | Mod(num, den):
                a, b = self.index(num), self.index(den)
                sign, name = ("//", "floor_div") if isinstance(atom, FloorDiv) else ("%", "floor_mod")
                text = f"{a.operand} {sign} {b.operand}" if is_nonnegative(num) else f"rt.{name}({a.text}, {b.text})"
            case Min(left, right) | Max(left, right):
                a, b = self.index(left), self.index(right)
                text = f"tl.{'minimum' if isinstance(atom, Min) else 'maximum'}({a.text}, {b.text})"
            case Indirect(value):
                if self.tiling.wide or value.dtype != torch.int64:
                    return self.value(value)
                if (narrow := _in_32_bits(value)) is not None:
                    return self.named(self.value(narrow), "at", atom)
                return self.value(value).to("tl.int32")
            case _:
                raise InternalCheckError("print", f"{type(atom).__name__} {atom} has no value here")
        return self.named(made_of(text, a, b), "k", atom)

    def _index_operand(self, e: Expr) -> Term:
        """An operand of a comparison of indices, in the type that indices have."""
        if isinstance(e, IndexValue):
            return self.index(e.index)
        assert isinstance(e, Const)
        return Term(constant_text(e.value))


def _in_32_bits(e: Expr) -> Expr | None:
    """A coordinate that was a float and is clamped, computed as an int32 from there on; None for others.

    ``minimum(int64(x) + 1, 127)`` → ``minimum(int32(x) + 1, 127)``: faster, and the same, as conversions saturate."""
    match e:
        case Op("minimum" | "maximum" | "add" | "sub" as name, (a, Const(limit))) if abs(limit) < 1 << 30:
            inner = _in_32_bits(a)
            return inner and Op(name, (inner, Const(limit, torch.int32)), torch.int32)
        case Op("cast", (source,), torch.int64) if source.dtype == torch.float32:
            return Op("cast", (source,), torch.int32)
    return None


_BOOLEAN = {
    "add": "({0} | {1})", "mul": "({0} & {1})", "maximum": "({0} | {1})", "minimum": "({0} & {1})",
    "lt": "(~{0} & {1})", "le": "(~{0} | {1})", "gt": "({0} & ~{1})", "ge": "({0} | ~{1})",
    "bitwise_not": "({0} == 0)", "abs": "{0}", "sign": "{0}",
}  # fmt: skip
"""Ops on bool whose text differs: sums are or, products and."""


def _needs_exact(e: Expr) -> bool:
    """Whether numbers that differ by little may become different integers, or compare otherwise: with 0 they do not."""
    match e:
        case Op("cast", (source,), dtype):
            return source.dtype.is_floating_point and not dtype.is_floating_point and dtype != torch.bool
        case Op(name, (a, b)) if OPS[name].rule is Rule.COMPARE:
            coarse = [isinstance(x, Random) or (isinstance(x, Const) and x.value in (0, inf, -inf)) for x in (a, b)]
            return a.dtype.is_floating_point and not any(coarse)
        case Op(name):
            return name in _ROUNDING
    return False


def _is_index(e: Expr) -> bool:
    small = isinstance(e, Const) and isinstance(e.value, int) and abs(e.value) < 1 << 31
    return e.dtype == torch.int64 and (isinstance(e, IndexValue) or small)


def mask_text(conditions: Sequence[Term]) -> str:
    """The argument under which something is loaded or stored, with its comma; nothing where that is always so."""
    return f", {' & '.join(dict.fromkeys(c.operand for c in conditions))}" if conditions else ""


def _loops_of_loads(kernel: Kernel, tiles: Mapping[Axis, Tile]) -> tuple[dict[Load, int], set[Load]]:
    """For each load in loops that run in blocks the number of the last one, and the loads of several."""
    lanes = [loop for loop in walk_loops(kernel.body) if loop.kind is LoopKind.LANES and loop.axis in tiles]
    found = [tree.loads_in(loop.body) for loop in lanes if not tiles[loop.axis].whole]
    times = Counter(load for loads in found for load in loads)
    last = {load: number for number, loads in enumerate(found, start=1) for load in loads}
    return last, {load for load, count in times.items() if count > 1}


def grid_loops(whole: Kernel | Loop) -> tuple[Loop, ...]:
    """The parallel loops around everything inside, outermost first."""
    match whole.body:
        case (Loop(kind=LoopKind.PARALLEL) as loop,):
            return loop, *grid_loops(loop)
    return ()


def reads_of(printer: Expressions, stage: Stage) -> list[str]:
    """The tensors that the functions of a stage read, and the sizes."""
    sizes = sorted({size for e in tree.stage_exprs(stage) for size in e.sizes()}, key=lambda size: size.name)
    values = dict.fromkeys(load.value for load in tree.loads_in((stage,)))
    return [*(printer.pointers[v] for v in values), *(printer.index(size.index()).text for size in sizes)]


def function_lines(
    name: str, arguments: Sequence[str], expr: Expr, outer: Expressions, reads: Sequence[str],
    known: Mapping[Key, Term], element: torch.dtype, *, tiles: Sequence[Tile] = (),
    bounds: Mapping[Axis, Term] | None = None, apart: bool = False,
) -> Iterator[str]:  # fmt: skip
    """A function of ``arguments`` and the tuple ``reads``, by which axes and more is ``known``:

        @triton.jit
        def rights(batch, inner, column, inner_ok, column_ok, reads):
            weights, scales = reads
            return tl.load(weights + (inner * 64 + column)).to(tl.float32) * tl.load(scales + column)

    ``tiles`` are the kernel's own by default, ``bounds`` where it loads along an axis. ``element`` is the type of the
    tensors it works for: functions are cheaper where that is small. ``apart``: from tiles, vectors of small numbers."""
    body: Loop | Let = Let(Ref("result", expr.dtype, expr.axes()), expr)
    for axis in reversed([key for key in known if isinstance(key, Axis)]):
        body = Loop(axis, LoopKind.PARALLEL, (body,))
    names = Names((name, *arguments, *reads, "reads", "tl", "rt", "libdevice"))
    tiling = replace(outer.tiling, tiles=tuple(tiles) or outer.tiling.tiles)
    printer = Expressions(replace(outer.kernel, body=(body,)), tiling, names)
    printer.pointers, printer.narrow, printer.bounds = outer.pointers, is_small(element), {**(bounds or {})}
    printer.apart = apart
    for key, term in (*known.items(), *((size, outer.index(size.index())) for size in expr.sizes())):
        printer.bind(key, replace(term, depth=0))
    result = printer.value(expr).text
    outer.asserts |= printer.asserts
    lines = [*([f"{tuple_of(reads)} = reads"] if reads else []), *printer.block.lines, f"return {result}"]
    yield from ("@triton.jit", f"def {name}({', '.join([*arguments, 'reads'])}):")
    yield from (f"    {line}" for line in lines)
    yield from ("", "")
