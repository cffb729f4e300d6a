"""Kernels as C++: ``print_kernel`` turns a loop tree into one function with C linkage.

The text needs the header ``kernel.h`` of ``gyrator/runtime/include``, which the builder puts before it.

    // softmax: model.py:12 in forward: aten._softmax.default
    extern "C" int32_t softmax(const float* __restrict__ x, float* __restrict__ y, int64_t s0, int32_t threads) {
      …
      return 0;
    }

A ``LANES`` loop becomes a generic lambda, called with ``gy::lanes<L>`` for full steps and once with
``gy::some_lanes<L>`` for the rest; without a rest it is a plain loop. A nest of ``PARALLEL`` loops becomes one flat
range that each thread takes a fixed share of, so that runs with equal thread counts give equal bits."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd, inf

import torch

from gyrator.codegen.cpp_expr import Address, Block, Expressions, Term, plus
from gyrator.codegen.cpp_names import legal, literal, type_name
from gyrator.codegen.texts import WIDTH, broken, origin_comments
from gyrator.errors import InternalCheckError
from gyrator.ir import tree
from gyrator.ir.expr import Checked, Const, Expr, Load, Op, Ref, Value, rewrite
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, Size, as_index, dot, is_nonnegative, product, substitute
from gyrator.ir.masks import FAR, band, causal
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.program import View
from gyrator.ir.tree import Attend, Carry, Contract, Kernel, Let, Loop, LoopKind, Stage, Store, Update
from gyrator.schedule.products import ZEROED

_STACK_BYTES = 1 << 14  # larger scratch rows come from the heap
_MOST_LANES = 64
_COMPUTED_LANES = 32  # of what is computed for a product
_LANES = re.compile(r"\blanes\b")
_THREAD_WORK = 30_000  # cheap instructions that a thread must have to be worth starting, as in gy::team_size
_HEADERS = {Contract: "gemm.h", Attend: "attention.h"}
_COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True, slots=True)
class CppKernel:
    """A printed kernel.

    It takes a pointer for each of ``Kernel.params``, an ``int64_t`` for each of ``Kernel.sizes`` and the number of
    threads it may use, in this order. It returns 0, or the number of an index out of range: ``checks[number - 1]``."""

    name: str
    text: str
    checks: tuple[Checked, ...]


def print_kernel(kernel: Kernel) -> CppKernel:
    """Print ``kernel``.

    Raises: UnsupportedInput for an element type that C++ kernels lack; InternalCheckError if ``check_kernel`` does."""
    function = legal(kernel.name)
    printer = Loops(kernel)
    arguments = []
    for param in kernel.params:
        name = printer.fresh(param.value.name)
        printer.pointers[param.value] = Term(name, 0, name=True)
        const, restrict = "" if param.written else "const ", "" if param.alias is not None else " __restrict__"
        arguments.append(f"{const}{type_name(param.value.dtype)}*{restrict} {name}")
    for size in kernel.sizes:
        name = printer.fresh(size.name)
        printer.bind(size, Term(name, 0, name=True))
        arguments.append(f"int64_t {name}")
    printer.body(kernel.body)
    head = f'extern "C" int32_t {function}({", ".join([*arguments, "int32_t threads"])}) {{'
    kinds = {type(stage) for stage in tree.walk_stages(kernel.body)}
    lines = [f'#include "{_HEADERS[kind]}"' for kind in kinds & _HEADERS.keys()]
    lines += [*origin_comments(kernel.origins, "//"), *broken(head, WIDTH)]
    if printer.checks:
        lines += ["  int32_t failed = 0;", "  int32_t* const status = &failed;"]
    lines += [f"  {line}" for line in printer.block.lines]
    lines += [f"  return {'failed' if printer.checks else '0'};", "}"]
    return CppKernel(function, "\n".join(lines) + "\n", tuple(printer.checks))


@dataclass(frozen=True, slots=True)
class Reducer:
    """The C++ object of a carry. ``across``: it reduces over the lanes as well."""

    name: str
    carry: Carry
    across: bool


class Loops(Expressions):
    """Prints the loops and stages of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._kernel = kernel
        self._reducers: dict[str, Reducer] = {}
        self._tile: tuple[Contract, str] | None = None  # of the product at hand, with the name of its sums
        self._ends: dict[Axis, tuple[str, str]] = {}

    def body(self, items: Sequence[Loop | Stage]) -> None:
        """Print loops and stages into the innermost block."""
        for item in items:
            match item:
                case Loop():
                    self._loop(item)
                case Let(name, expr):
                    if self.is_used(name):
                        self.bind(name, self.value(expr, name.name))
                case Store():
                    self._store(item)
                case Update():
                    self._update(item)
                case Contract(name):
                    self._sums(name)
                case Attend():
                    self._attend(item)

    @contextmanager
    def _nested(self, *loops: Loop, head: str = "{") -> Iterator[Block]:
        """A block one level further in, the body of ``loops``; what is hoisted out lands before its ``head``."""
        inner = Block(len(self.blocks), head=head, extents=tuple([loop.axis.extent for loop in loops]))
        if loops:
            inner.writes = tree.written(loops[-1].body)
            inner.skippable = not all(is_nonnegative(extent - 1) for extent in inner.extents)
            self.forget(inner.writes)
        self.blocks.append(inner)
        yield inner
        self.blocks.pop()
        self.pointers = {v: p for v, p in self.pointers.items() if p.depth < inner.depth}
        self.block.lines += inner.head.splitlines()
        self.block.lines.extend(f"  {line}" for line in inner.lines)
        self.emit(inner.tail)

    def _loop(self, loop: Loop) -> None:
        contract = next((s for s in tree.walk_stages((loop,)) if isinstance(s, Contract)), None)
        if contract is not None and self._tile is None:
            self._product(loop, contract)
            return
        threads = loop.kind is LoopKind.PARALLEL and not any(block.by_team for block in self.blocks)
        if threads and self.lanes is None and not _is_small(loop):
            self._region(loop)
            return
        if len(self.blocks) == 1:
            self._scratch(loop)
        if self.lanes is None and self._transposed_copy(loop):
            return
        carried = [self._declare(c, loop) for c in loop.carries]
        run = self._vectors if loop.lanes > 1 and self.lanes is None else self._serial
        run(loop, *self._ends.get(loop.axis, ("0", self.index(loop.axis.extent).text)))
        for reducer in carried:
            self._bind_results(reducer.carry, reducer.carry.results, reducer.name)

    def _serial(self, loop: Loop, begin: str, end: str) -> None:
        with self._nested(loop) as block:
            name = self._variable(loop)
            block.head = f"for (int64_t {name} = {begin}; {name} < {end}; ++{name}) {{"
            self.body(loop.body)

    def _variable(self, loop: Loop) -> str:
        name = self.fresh(loop.axis.name)
        self.bind(loop.axis, Term(name, self.block.depth, name=True))
        return name

    def _vectors(self, loop: Loop, begin: str, end: str) -> None:
        extent = loop.axis.extent.value
        with self._nested(loop) as block:
            name = self._variable(loop)
            whole = extent is not None and extent % loop.lanes == 0
            if whole:
                block.head = f"for (int64_t {name} = {begin}; {name} < {end}; {name} += {loop.lanes}) {{"
            else:
                updated = dict.fromkeys(s.carry for s in tree.walk_stages(loop.body) if isinstance(s, Update))
                captured = "".join(f", &{self._reducers[c].name}" for c in updated if c in self._reducers)
                function = f"[={captured}](auto lanes, int64_t {name}) GY_INLINE {{"
                block.head, block.tail = f"gy::for_lanes<{loop.lanes}>({begin}, {end}, {function}", "});"
            self.lanes, self.width = loop.axis, loop.lanes
            self.body(loop.body)
            self.lanes, self.width = None, 1
            if whole and any(_LANES.search(line) for line in block.lines):
                block.lines.insert(0, f"constexpr gy::lanes<{loop.lanes}> lanes;")

    def _transposed_copy(self, outer: Loop) -> bool:
        """One call for a nest that only copies, and reads along one axis what it writes along the other.

        ``for p: for q: to[q, p] = from[p, q]`` → ``gy::transpose_block(from, …, to, …, rows, columns)``.
        Refuses masks, conversions, and extents that depend on the nest."""
        p = outer.axis
        match outer.body:
            case (Loop(q, body=(Store(expr=Load(mask=None) as load, combine="set") as store,), carries=()),):
                if outer.carries or outer.kind is LoopKind.LANES or load.value is store.value or p in q.extent.axes():
                    return False
            case _:
                return False
        target, source = store.value.position(store.index), load.value.position(load.index)
        if source.coefficient(q) is not ONE:
            p, q = q, p
        steps = [i.coefficient(a) for i in (target, source) for a in (p, q)]
        if None in steps or steps[0] is not ONE or steps[3] is not ONE:
            return False
        start: dict[Atom, Index] = {p: ZERO, q: ZERO}
        ends = []
        for value, flat, step in ((load.value, source, steps[2]), (store.value, target, steps[1])):
            ends.append(plus(self.pointers[value].text, self.index(substitute(flat, start))))
            ends.append(self.index(step or ZERO).text)
        self.emit(f"gy::transpose_block({', '.join(ends + [self.index(axis.extent).text for axis in (p, q)])});")
        self.forget([store.value])
        return True

    def _product(self, outer: Loop, contract: Contract) -> None:
        """The tiles of a product, shared among threads; in each, the template's sums and then the loops over them."""
        blocks = dict(contract.blocks)
        names = ("tiles", "team", "mine", "product", "tile", "step", "sums")
        tiles, team, mine, product, tile, step, sums = (self.fresh(n) for n in names)
        extents = [self.index(a.extent).text for a in (contract.row, contract.column)]
        batch = self.index(contract.batch[0].extent).text if contract.batch else "1"
        sizes = ", ".join(str(blocks[b]) for b in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
        grain = outer.grain * blocks["BLOCK_M"] * blocks["BLOCK_N"]
        groups: tuple[Axis, ...] = ()
        if (ends := contract.ends) is None:
            self.emit(f"const gy::Tiles {tiles}({batch}, {', '.join(extents)}, {{{sizes}}});")
        else:
            first = self._first(ends, ())
            zeroed = str(contract.left.value.dtype in ZEROED).lower()
            lie = ", ".join([*(self.index(n).text for n in (*ends.strides, *ends.shape)), extents[0], zeroed])
            self.emit(f"const gy::TilesOfGroups {tiles}({{{first}, {lie}}}, {extents[1]}, {{{sizes}}});")
            groups = (Axis("group", ends.shape[0]),)
        self.emit(f"const int {team} = gy::team_size(threads, {tiles}.count, {grain});")
        with self._nested(head=f"#pragma omp parallel num_threads({team})\n{{") as region:
            region.writes, region.by_team = tree.written((outer,)), True
            kind = ", ".join([type_name(contract.left.value.dtype), *(str(blocks[b]) for b in ("MR", "V", "TAIL"))])
            packed = "true" if blocks.get("PACKED") else "false"
            depth = self.index(contract.left.shape[-1]).text
            self.emit(f"const gy::Range {mine} = gy::share({tiles}.count);")
            self.emit(f"gy::Product<{kind}, {packed}> {product}({tiles}, {depth});")
            with self._nested(*([outer] if contract.batch else [])) as block:
                block.head = f"for (int64_t {step} = {mine}.begin; {step} < {mine}.end; ++{step}) {{"
                self.emit(f"const gy::Tile {tile} = {tiles}.at({step});")
                for axis in contract.batch or groups:
                    self.bind(axis, Term(f"{tile}.batch", block.depth, name=True))
                of_batch = ((contract.left, contract.batch), (contract.right, contract.batch or groups))
                operands = [self._side(contract, view, axes) for view, axes in of_batch]
                self.emit(f"const auto {sums} = {product}.sum({tile}, {', '.join(operands)});")
                self._tile = contract, sums
                for axis, side in ((contract.row, "row"), (contract.column, "column")):
                    self._ends[axis] = (f"{tile}.{side}", f"{tile}.{side}_end")
                self.body(outer.body if contract.batch else (outer,))
                self._tile = None
                self._ends.clear()

    def _side(self, contract: Contract, view: View, batch: Sequence[Axis]) -> str:
        """An operand: its first element and the distances of rows (right: columns) and along k; or what computes it."""
        expr = contract.elements[view is contract.right] if contract.elements else None
        if expr is not None and not (isinstance(expr, Load) and expr.value is view.value):
            return self._computed(view, contract, expr)
        pointer = self._first(view, [axis.index() for axis in batch])
        steps = view.strides[-2:] if view is contract.left else view.strides[:-3:-1]
        texts = ", ".join([pointer, *(self.index(stride).text for stride in steps)])
        return f"gy::Lying<{type_name(view.value.dtype)}>{{{texts}}}"

    def _computed(self, view: View, contract: Contract, expr: Expr) -> str:
        """What fills blocks of an operand with ``expr``, in vectors along the axis along which that lies in memory."""
        blocks, inner, is_right = dict(contract.blocks), contract.inner, view is contract.right
        outer, count = (contract.column, blocks["NR"]) if is_right else (contract.row, blocks["MR"])
        lies = [load.index[0].coefficient(outer) for load in expr.loads() if {outer, inner} <= load.index[0].axes()]
        along_k, depth, element = ONE not in lies, blocks["BLOCK_K"], type_name(view.value.dtype)
        count = blocks["BLOCK_N"] if is_right and not along_k else count
        operand, steps = self.fresh("right" if is_right else "left"), (as_index(depth), ONE)
        to = Value("to", (outer.extent, inner.extent), view.value.dtype, steps if along_k else (ONE, as_index(count)))
        function = self._function("fill", to, (outer, inner), gcd(depth if along_k else count, _COMPUTED_LANES), expr)
        kind = f"{element}, {'true' if along_k else 'false'}, {count}, {depth}, decltype({function})"
        self.emit(f"const gy::Computed<{kind}> {operand}({function});")
        return operand

    def _function(self, wish: str, to: Value, axes: tuple[Axis, Axis], lanes: int, expr: Expr, most: int = 0) -> str:
        """The name of a function ``(to, i, i_end, j, j_end)`` that puts ``expr`` for these ranges of two axes into a
        block like ``to``, with vectors along the one that lies together there. A local in ``expr`` is what it holds.
        With ``most`` elements of a block, numbers that lie together along the other axis are turned first."""
        function = self.fresh(wish)
        with self._nested() as block:
            name, *ends = (self.fresh(n) for n in (to.name, "i", "i_end", "j", "j_end"))
            self._ends = {axes[0]: (ends[0], ends[1]), axes[1]: (ends[2], ends[3])}
            arguments = ", ".join(f"int64_t {end}" for end in ends)
            block.head = f"const auto {function} = [=]({type_name(to.dtype)}* {name}, {arguments}) {{"
            block.tail = "};"
            first = [Size(end) for end in (ends[0], ends[2])]
            for size in first:
                self.bind(size, Term(size.name, block.depth, name=True))
            to = replace(to, name=name)
            self.pointers[to] = Term(name, block.depth, name=True)
            at = (axes[0].index() - first[0].index(), axes[1].index() - first[1].index())
            fast, slow = axes if to.strides[0] is ONE else axes[::-1]
            start: dict[Atom, Index] = {axis: size.index() for axis, size in zip(axes, first, strict=True)}

            def held(e: Expr) -> Expr | None:
                if most and isinstance(e, Load) and (apart := _apart(e, fast, slow)) is not None:
                    turned = replace(to, name=self.fresh("turned"))
                    self._heap(turned, turned.name, str(most))
                    place = plus(self.pointers[e.value].text, self.index(substitute(e.index[0], start)))
                    lying = f"gy::Lying<{type_name(e.dtype)}>{{{place}, {self.index(apart).text}, 1}}"
                    counts = f"{ends[1]} - {ends[0]}, {ends[3]} - {ends[2]}"
                    self.emit(f"gy::pack_panel({turned.name}, {to.strides[1]}, {lying}, {counts});")
                    return Load(turned, at)
                return Load(to, at) if isinstance(e, Ref) else None

            body = Store(to, at, rewrite(expr, held))
            self._loop(Loop(slow, LoopKind.SERIAL, (Loop(fast, LoopKind.LANES, (body,), lanes=lanes),)))
            self._ends.clear()
        return function

    def _sums(self, name: Ref) -> None:
        """The template's local is what lies in the tile at the loops' row and columns."""
        assert self._tile is not None
        contract, sums = self._tile
        row, column = (self.index(axis.index()).text for axis in (contract.row, contract.column))
        local = self.fresh(name.name)
        self.emit(f"const auto {local} = gy::load(lanes, {sums}.row({row}) + {column});")
        self.bind(name, Term(local, self.block.depth, vector=True, name=True))

    def _attend(self, stage: Attend) -> None:
        """Tiles of rows, shared among threads (for gradients by keys); for each a walk over the keys that it sees."""
        blocks, (query, key, value, *_) = dict(stage.blocks), stage.operands
        backward, group = stage.template == "backward", stage.axes[1].extent // key.shape[1]
        names = ("tiles", "team", "mine", "attention", "tile", "step")
        tiles, team, mine, attention, tile, step = (self.fresh(n) for n in names)
        *extents, keys = (self.index(axis.extent).text for axis in stage.axes)
        sizes = ", ".join([*extents, str(blocks["ROWS"]), self.index(group).text])
        widths = ", ".join([keys, *(self.index(view.shape[3]).text for view in (query, value))])
        self.emit(f"const gy::RowTiles {tiles}({sizes});")
        self.emit(f"const int {team} = gy::team_size(threads, {tiles}.count, {keys} * {blocks['ROWS']});")
        with self._nested(head=f"#pragma omp parallel num_threads({team})\n{{") as region:
            region.by_team = True
            kind = ", ".join([type_name(query.value.dtype), *map(str, blocks.values())])
            self.emit(f"const gy::Range {mine} = {tiles}.share_{'keys' if backward else 'tiles'}();")
            self.emit(f"gy::Attention{'Gradient' * backward}<{kind}> {attention}({widths});")
            with self._nested(head=f"for (int64_t {step} = {mine}.begin; {step} < {mine}.end; ++{step}) {{") as block:
                self.emit(f"const gy::RowTile {tile} = {tiles}.at({step});")
                for axis in stage.axes[:2]:
                    self.bind(axis, Term(f"{tile}.{axis.name}", block.depth, name=True))
                at = [axis.index() for axis in stage.axes[:2]]
                of_keys = [at[0], at[1] // group]
                given = [self._rows("Lying", v, of_keys if v in (key, value) else at) for v in stage.operands]
                self.emit(f"{attention}.begin({', '.join([tile, literal(stage.scale, torch.float32), *given])});")
                self._walk(stage, attention, tile)
                places = [at, of_keys, of_keys] if backward else [at] * 3
                results = [self._rows("Rows", v, p) for v, p in zip(stage.results, places, strict=False)]
                results = results if backward else ["true" if stage.natural else "false", *results]
                self.emit(f"{attention}.finish({', '.join(results)});")

    def _rows(self, kind: str, view: View | None, at: Sequence[Index]) -> str:
        """The name of the rows of a view at its first coordinates; of a view without columns, its elements."""
        if view is None:
            return "{}"
        name, steps = self.fresh(f"{view.value.name}_rows"), [*view.strides[2:], ZERO][:2]
        text = ", ".join([self._first(view, at), *(self.index(step).text for step in steps)])
        self.emit(f"const gy::{kind}<{type_name(view.value.dtype)}> {name}{{{text}}};")
        return name

    def _first(self, view: View, at: Sequence[Index]) -> str:
        """The address of a view's first element at these first coordinates."""
        steps = [ZERO if n is ONE else step for n, step in zip(view.shape, view.strides, strict=True)]
        return plus(self.pointers[view.value].text, self.index(view.offset + dot(tuple(at), tuple(steps[: len(at)]))))

    def _walk(self, stage: Attend, attention: str, tile: str) -> None:
        """Which keys a tile of rows meets, and what becomes of its scores."""
        score, keep = stage.functions[:2]
        every, below = keep == Const(True, torch.bool), keep == causal([a.index() for a in stage.axes])
        bounds = band(keep, *stage.axes[2:])
        plain = isinstance(score, Ref) or not (stage.lists or every or below)
        whole = "gy::unchanged" if plain else self._change(stage, "whole", score)
        kept = Op("where", (keep, score, Const(-inf, torch.float32)), torch.float32)
        some = whole if every else self._change(stage, "kept", kept)
        if not stage.lists:
            near = f"walk({some})" if bounds == (-FAR, FAR) else f"walk_near({bounds[0]}, {bounds[1]}, {some})"
            self.emit(f"{attention}.{f'walk_causal({some}, {whole})' if below else near};")
            return
        first = Size("first")
        self.bind(first, Term(f"{tile}.row", self.block.depth, name=True))
        at = [*(axis.index() for axis in stage.axes[:2]), first.index() // stage.sides[0]]
        for k, change in zip(range(0, len(stage.lists), 2), (some, whole), strict=False):
            counts, listed = (self._first(view, at) for view in stage.lists[k : k + 2])
            step = self.index(stage.lists[k + 1].strides[3]).text
            self.emit(f"{attention}.walk_listed(*({counts}), {listed}, {step}, {stage.sides[1]}, {change});")

    def _change(self, stage: Attend, wish: str, expr: Expr) -> str:
        """What puts ``expr`` in the place of scores: a function on those of some rows and keys, in vectors of rows."""
        *_, row, column = stage.axes
        rows, keys = (dict(stage.blocks)[name] for name in ("ROWS", "KEYS"))
        scores = Value("scores", (row.extent, column.extent), torch.float32, (ONE, as_index(rows)))
        return self._function(wish, scores, (row, column), gcd(rows, 16), expr, (rows + 1) * keys)

    def _region(self, outer: Loop) -> None:
        """Threads over the flat range of ``outer`` and the parallel loops right inside it."""
        nest = _perfect_nest(outer)
        inner, total = nest[-1], product([loop.axis.extent for loop in nest])
        steps, team, mine = (self.fresh(n) for n in ("steps", "team", "mine"))
        self.emit(f"const int64_t {steps} = {self.index(total).text};")
        self.emit(f"const int {team} = gy::team_size(threads, {steps}, {inner.grain});")
        shared = [self._declare(c, outer, per_thread=team) for c in outer.carries]
        guard = "" if is_nonnegative(total - 1) else f"if ({steps} > 0)\n"
        with self._nested(head=f"{guard}#pragma omp parallel num_threads({team})\n{{") as region:
            region.writes, region.by_team = tree.written(outer.body), True
            self._scratch(outer)
            self.emit(f"const gy::Range {mine} = gy::share({steps});")
            local = [self._declare(c, outer) for c in outer.carries]
            if len(nest) == 1:
                self._serial(outer, f"{mine}.begin", f"{mine}.end")
            else:
                self._flat(nest, mine)
            for own, parts in zip(local, shared, strict=True):
                self.emit(f"{parts.name}.mine() = {own.name};")
        for parts in shared:
            self._bind_results(parts.carry, parts.carry.results, f"{parts.name}.merged()")

    def _flat(self, nest: tuple[Loop, ...], mine: str) -> None:
        """``for step``: the axes start where this thread's share begins and count on like digits."""
        names = [self.fresh(loop.axis.name) for loop in nest]
        sizes = [self.index(loop.axis.extent) for loop in nest]
        extents = [size.text if size.name else self.integer(size.text, size.depth, "n").text for size in sizes]
        for k, name in enumerate(names):
            below = "".join(f" / {extent}" for extent in reversed(extents[k + 1 :]))
            self.emit(f"int64_t {name} = {mine}.begin{below}{f' % {extents[k]}' if k else ''};")
        step = self.fresh("step")
        with self._nested(*nest) as block:
            block.head = f"for (int64_t {step} = {mine}.begin; {step} < {mine}.end; ++{step}) {{"
            for loop, name in zip(nest, names, strict=True):
                self.bind(loop.axis, Term(name, block.depth, name=True))
            self.body(nest[-1].body)
            carry = f"++{names[0]};"
            for name, extent in zip(names[1:], extents[1:], strict=True):
                carry = f"if (++{name} == {extent}) {{ {name} = 0; {carry} }}"
            self.emit(carry)

    def _scratch(self, loop: Loop) -> None:
        """Memory for the scratch rows that ``loop`` uses and that have none yet, in the innermost block."""
        used = tree.touched(loop.body)
        for value in [value for value in self._kernel.scratch if value in used and value not in self.pointers]:
            name, element, count = self.fresh(value.name), type_name(value.dtype), value.span
            if count.value is not None and count.value * value.dtype.itemsize <= _STACK_BYTES:
                whole = -(-max(count.value, 1) // _MOST_LANES) * _MOST_LANES  # masked steps stay within it
                self.emit(f"alignas(64) {element} {name}_memory[{whole}];")
                self.emit(f"{element}* const {name} = {name}_memory;")
                self.pointers[value] = Term(name, self.block.depth, name=True)
            else:
                self._heap(value, name, self.index(count).text)

    def _heap(self, value: Value, name: str, count: str) -> None:
        """Memory for so many elements from the heap, called ``name``, in the innermost block."""
        element = type_name(value.dtype)
        self.emit(f"const gy::Scratch<{element}> {name}_memory({count});")
        self.emit(f"{element}* const {name} = {name}_memory.at;")
        self.pointers[value] = Term(name, self.block.depth, name=True)

    def _declare(self, carry: Carry, loop: Loop, *, per_thread: str = "") -> Reducer:
        """Declare the object of a carry of ``loop``; with ``per_thread``, one for each of that team."""
        if (update := _update_of(carry, loop)) is None:
            raise InternalCheckError("print", f"nothing updates carry {carry.name!r}")
        per_lane = "V" if self.lanes is not None else ""
        width = self.width if self.lanes is not None else self._width(carry, loop)
        element = type_name(update.args[0].dtype)
        kind = f"gy::{per_lane}{'Running' if update.running else ''}{REDUCTIONS[carry.kind].cpp}<{element}, {width}>"
        taken = any(r is not None and r.name == carry.name for r in carry.results)
        name = self.fresh(f"{carry.name}{f'_{carry.kind}' if taken else ''}{'_parts' if per_thread else ''}")
        self.emit(f"gy::PerThread<{kind}> {name}({per_thread});" if per_thread else f"{kind} {name};")
        reducer = Reducer(name, carry, across=self.lanes is None)
        self._reducers[carry.name] = reducer
        return reducer

    def _width(self, carry: Carry, loop: Loop) -> int:
        """Lanes of the vectors with which ``carry`` is updated somewhere in ``loop``."""
        if loop.lanes > 1:
            return loop.lanes if _update_of(carry, loop) else 1
        inner = [self._width(carry, i) for i in loop.body if isinstance(i, Loop) and _update_of(carry, i)]
        return max(inner, default=1)

    def _bind_results(self, carry: Carry, refs: Sequence[Ref | None], text: str) -> None:
        """``text`` is a reducer; name those of its results that somebody reads."""
        wanted = [(k, r) for k, r in enumerate(refs) if r is not None and self.is_used(r)]
        if not wanted:
            return
        vector, depth, fields = self.lanes is not None, self.block.depth, REDUCTIONS[carry.kind].fields
        name = self.fresh(carry.name if fields else wanted[0][1].name)
        self.emit(f"const auto {name} = {text}.result();")
        for k, ref in wanted:
            field = f"{name}.{fields[k]}" if fields else name
            if fields and fields[k] == "count":
                field = f"gy::broadcast<{self.width}>({type_name(ref.dtype)}({field}))"
            self.bind(ref, Term(field, depth, vector, name=True))

    def _update(self, stage: Update) -> None:
        reducer = self._reducers[stage.carry]
        terms = [self.value(a) for a in stage.args]
        room = (self.room(self.block.depth) - len(reducer.name)) // len(terms)
        text = ", ".join(self.fitted(a, t, room).text for a, t in zip(stage.args, terms, strict=True))
        if reducer.across and self.lanes is not None:
            self.emit(f"gy::update(lanes, {reducer.name}, {text});")
        else:
            self.emit(f"{reducer.name}.update({text});")
        self._bind_results(reducer.carry, stage.running, reducer.name)

    def _store(self, stage: Store) -> None:
        value = self.value(stage.expr)
        at = self.address(stage.value, stage.index)
        value = self.fitted(stage.expr, value, self.room(self.block.depth) - len(at.pointer))
        if stage.combine != "set":
            self._combine(stage, at, value.text)
        else:
            self._write(at, value.text)
        self.forget([stage.value])

    def _write(self, at: Address, text: str) -> None:
        vector = self.lanes is not None
        if vector and at.stride == "0":  # all lanes hit one element: the last one stays
            at = Address(at.pointer, at.depth, None, f"gy::broadcast<{self.width}>(int64_t(0))")
        self.emit(self.access("store", at, f", {text}", vector=vector) + ";")

    def _combine(self, stage: Store, at: Address, text: str) -> None:
        """``value[index] combine= expr``; where lanes may hit the same element, one after the other."""
        vector, op = self.lanes is not None, _COMBINE[stage.combine]
        if stage.atomic or (vector and at.stride in (None, "0")):
            how = "atomic" if stage.atomic else "plain"
            offsets = f"gy::iota<{self.width}>(0, {at.stride})" if vector else "gy::broadcast<1>(int64_t(0))"
            lanes = "lanes" if vector else "gy::lanes<1>()"
            self.emit(f"gy::combine<gy::by_{op}, gy::{how}>({lanes}, {at.pointer}, {at.offsets or offsets}, {text});")
            return
        target = self.fresh("to")
        self.emit(f"{type_name(stage.value.dtype)}* const {target} = {at.pointer};")
        at = replace(at, pointer=target)
        old = self.access("load", at, "", vector=vector)
        self._write(at, f"gy::combined<gy::by_{op}>({old}, {text})")


def _apart(load: Load, fast: Axis, slow: Axis) -> Index | None:
    """How far numbers are apart along the ``fast`` of two axes that lie together along the ``slow`` one."""
    (flat,) = load.index
    apart = flat.coefficient(fast)
    numbers = load.mask is None and load.dtype.is_floating_point and load.dtype.itemsize <= 4
    return apart if numbers and apart not in (ZERO, ONE) and flat.coefficient(slow) is ONE else None


def _is_small(loop: Loop) -> bool:
    """Whether it is known already that threads do not pay (see ``gy::team_size``)."""
    nest = _perfect_nest(loop)
    work = product([n.axis.extent for n in nest]) * max(nest[-1].grain, 1)
    return work.value is not None and work.value < 2 * _THREAD_WORK


def _perfect_nest(outer: Loop) -> tuple[Loop, ...]:
    """``outer`` and the parallel loops below it, each all of its parent's body, without carries, of a fixed extent."""
    match outer.body:
        case (Loop(kind=LoopKind.PARALLEL, carries=()) as inner,) if not outer.carries and not inner.axis.extent.axes():
            return outer, *_perfect_nest(inner)
    return (outer,)


def _update_of(carry: Carry, loop: Loop) -> Update | None:
    return next((s for s in tree.walk_stages(loop.body) if isinstance(s, Update) and s.carry == carry.name), None)
