"""From a group to a kernel: what is computed in which loop, and what is kept where.

A group's outer axes become the outer loops, each space at each *level* a loop nest inside them. A member's
level is how many reductions it must wait for. A value of one level that a later one needs is recomputed if
that is cheap, read back if it is stored anyway, and otherwise kept in a scratch row."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from gyrator.ir.build import cast, op
from gyrator.ir.expr import Const, Expr, Load, Ref, Value, map_indirect, rewrite, stem_of
from gyrator.ir.index import ONE, ZERO, Axis, Index, contiguous_strides, substitute, upper
from gyrator.ir.ops import identity
from gyrator.ir.program import Reduce, Scan, Scatter, bodies, defines
from gyrator.ir.simplify import Rule
from gyrator.ir.tree import Carry, Kernel, Let, Loop, LoopKind, Param, Stage, Store, Update, loads_in, stage_exprs
from gyrator.ir.volume import at_most, cost_of, iterations, volume
from gyrator.origin import merge
from gyrator.schedule.canonical import named
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_reductions import shared_blocks
from gyrator.schedule.gpu_tiling import tile_kernel
from gyrator.schedule.group import Axes, Group, Member, is_atomic, levels_of
from gyrator.schedule.loops import PART, SIMPLE, Shape, Style, choose_loops, gpu_loops

CHEAP = 6
MAX_SCRATCH = 1 << 20

Body = tuple[Loop | Stage, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel and the values its parameters stand for, in order."""

    kernel: Kernel
    args: tuple[Value, ...]


def build_kernel(group: Group, stored: frozenset[Value], rule: Rule, gpu: Gpu | None) -> Built:
    """The loop tree of a group, for ``gpu`` or else a CPU; ``stored`` are the results that are needed outside it."""
    writer = Writer(choose_loops(group, stored) if gpu is None else gpu_loops(group, stored), stored, rule)
    body = writer.body()
    params = writer.params({load.value for load in loads_in(body)})
    origins = merge(*(m.nest.origins for m in group.members))
    kernel = named(Kernel(title_of(group), tuple(params), (), writer.rows(), body, origins))
    return Built(kernel if gpu is None else tile_kernel(kernel, gpu, shared_blocks(group, gpu)), tuple(params.values()))


def title_of(group: Group) -> str:
    """What a kernel of the group is called: what its first results hold."""
    names = dict.fromkeys(stem_of(v.name) for m in group.members for v in defines(m.nest))
    return "_".join(list(names)[:5]) or "kernel"


class Writer:
    """Writes the body of one kernel. Mutable, and private to one call that builds it."""

    def __init__(self, shape: Shape, stored: frozenset[Value], rule: Rule) -> None:
        self.shape, self.stored, self.rule = shape, stored, rule
        self.members, self.on_gpu = shape.group.members, shape.style is Style.TILES
        self.levels = levels_of(self.members)
        self.made = {v: (m, k) for m in self.members for k, v in enumerate(m.nest.out) if v is not None}
        self.memory = cache(lambda v: Value(v.name, (v.span,), v.dtype, (ONE,), v.device))  # as kernels see it: a line
        self.locals: dict[Value, Ref] = {}  # what a template leaves in one, instead of in memory
        self._rows: dict[tuple[Value, str], Value] = {}
        self._memo: dict[tuple[int, int], tuple[Expr, ...]] = {}
        self._loaded: dict[Value, None] = {}
        self._tiles: dict[tuple[Value, Index], Value] = {}
        self._lane: Axes = () if shape.lane is None else (shape.lane,)
        self._columns_of_tile = shape.spaces[0][-1] if shape.style is Style.ROWS and shape.tile else shape.lane
        self._read_inside = {load.value for m in self.members if m.space is not None for load in m.loads}

    def rows(self) -> tuple[Value, ...]:
        """The scratch rows and tiles."""
        return (*self._rows.values(), *self._tiles.values())

    def params(self, read: set[Value]) -> dict[Param, Value]:
        """The tensors in memory, each with the value it stands for: first what is only read. ``read`` is what the body
        reads: less than was loaded where an index disappeared, as that of a dimension with stride 0 does."""
        written = [v for m in self.members for v in defines(m.nest) if v in self.stored]
        loaded = [v for v in self._loaded if self.memory(v) in read]
        reads = {Param(self.memory(v), True, False): v for v in loaded if v not in written}
        return reads | {Param(self.memory(v), v in loaded, True): v for v in written}

    def body(self) -> Body:
        """The loops and stages."""
        self._choose_rows()
        stages: list[Loop | Stage] = []
        for level in range(max(self.levels[m.position] + isinstance(m.nest.root, Reduce) for m in self.members) + 1):
            stages += self._columns(self._outer_stages(level))
            for space in range(len(self.shape.spaces)):
                stages += self._space(level, space)
        return self._wrap(self._mixed(stages))

    def _mixed(self, stages: list[Loop | Stage]) -> Body:
        """Around the rows that a program of a GPU runs through: sums down columns start before and are stored after."""
        down, body = [(m, *_reduced(m)) for m in self.members if m.down], tuple(stages)
        if not down:
            return body
        (lane,) = self.shape.spaces[0]
        start = tuple(self._fresh(kind, v) for _, kind, v in down)
        end = tuple(Store(self.memory(v), self._place(v, m), Load(*self._row(v))) for m, _, v in down)
        for axis in reversed(self.shape.group.serial):
            body = (Loop(axis, LoopKind.SERIAL, body),)
        return Loop(lane, LoopKind.LANES, start), *body, Loop(lane, LoopKind.LANES, end)

    def _fresh(self, kind: str, value: Value, part: str = "") -> Store:
        """What the row of a reduction that goes over columns starts from."""
        row, at = self._row(value, part)
        return Store(row, at, Const(identity(kind, row.dtype), row.dtype))

    def _wrap(self, stages: Body) -> Body:
        shape = self.shape
        grain = _cost(stages)
        if shape.style in (Style.POINTS, Style.STRIPS) and shape.lane is not None:
            stages = (Loop(shape.lane, LoopKind.LANES, stages, lanes=self._lanes(shape.lane)),)
            grain *= volume((shape.lane.extent,))
        if shape.tile is not None:
            stages = self._transposed(Loop(shape.tile, LoopKind.SERIAL, stages))
            grain *= volume((shape.tile.extent,))
        kind = LoopKind.SERIAL if shape.style is Style.SPLIT else LoopKind.PARALLEL
        for axis in reversed(shape.parallel):
            stages = (Loop(axis, kind, stages, grain=grain),)
            grain *= iterations((axis,))
        return stages

    def _columns(self, stages: list[Loop | Stage]) -> list[Loop | Stage]:
        """In a sheet, what happens once per column is a vector loop of its own."""
        lane = self.shape.lane
        if self.shape.style is not Style.SHEET or lane is None or not stages:
            return stages
        return [Loop(lane, LoopKind.LANES, tuple(stages), lanes=self._lanes(lane))]

    def _space(self, level: int, space: int) -> list[Loop | Stage]:
        """The loops over one space at one level: reductions, scans, stores."""
        here = [m for m in self.members if m.space == space and self.levels[m.position] == level]
        stages: list[Loop | Stage] = []
        carries: list[Carry] = []
        for member in here:
            root = member.nest.root
            if member.down or (isinstance(root, Reduce) and self.shape.style is Style.SHEET):
                kind, value = _reduced(member)
                row = self._row(value, self._part(space))
                stages.append(Store(*row, cast(self._exprs(member, level)[0], row[0].dtype), SIMPLE[kind]))
            elif isinstance(root, Reduce | Scan):
                carry, update = self._carry(member, root, level)
                carries.append(carry)
                stages.append(update)
            if not isinstance(root, Reduce):
                stages += self._leaves(member, level)
        if not stages:
            return []
        stages = _stores_last(stages, self._rows.values())
        if self.shape.style is Style.SHEET:
            return self._sheet(space, stages, [_reduced(m) for m in here if isinstance(m.nest.root, Reduce)])
        scans = [m.nest.root for m in here if isinstance(m.nest.root, Scan)]
        # other scans add up the lanes of a vector in any order, on which way doubles might overflow
        in_order = any(root.kind == "logaddexp" or root.body[0].dtype == torch.float64 for root in scans)
        return list(self._row_loops(space, tuple(stages), tuple(carries), vector=not in_order))

    def _row_loops(self, space: int, body: Body, carries: tuple[Carry, ...], *, vector: bool) -> Body:
        axes, rows = self.shape.spaces[space], self._rows.values()
        vector = (vector and self.shape.style in (Style.ROWS, Style.SPLIT)) or self.on_gpu
        combined = [s for s in body if isinstance(s, Store) and s.combine != "set" and s.value not in rows]
        kinds = [LoopKind.SERIAL] * len(axes)
        if vector and all(s.atomic or s.index[0].coefficient(axes[-1]) is ONE for s in combined):
            kinds[-1] = LoopKind.LANES  # else iterations that hit one element run in order
        if self.shape.style is Style.SPLIT:
            kinds[0] = LoopKind.PARALLEL
        for axis, kind in zip(reversed(axes), reversed(kinds), strict=True):
            lanes = self._lanes(axis) if kind is LoopKind.LANES else 1
            grain = _cost(body) if kind is LoopKind.PARALLEL else 0
            body = (Loop(axis, kind, body, carries if axis is axes[0] else (), lanes, grain),)
        return body

    def _lanes(self, axis: Axis) -> int:
        """Those of the shape; of a short loop only as many as hold all, if they fill half a register of AVX2."""
        size = min(v.dtype.itemsize for v in (*self.made, *[load.value for m in self.members for load in m.loads]))
        return min(self.shape.lanes, max(16 // size, 1 << ((at_most(axis.extent) or 64) - 1).bit_length()))

    def _near(self, memory: Value, at: tuple[Index, ...]) -> tuple[Value, tuple[Index, ...]]:
        """The element of a tile for one in memory that is contiguous along the tile's rows; any other is itself."""
        row, lane, (position,) = self.shape.tile, self._columns_of_tile, at
        if row is None or lane is None or position.indirects() or position.coefficient(row) is not ONE:
            return memory, at
        if position.coefficient(lane) in (None, ZERO, ONE):
            return memory, at
        if (memory, position) not in self._tiles:
            name, extents = f"tile{len(self._tiles)}_{memory.name}", (_bound(row), _bound(lane))
            self._tiles[memory, position] = Value(name, extents, memory.dtype, contiguous_strides(extents))
        return self._tiles[memory, position], (row.index(), lane.index())

    def _transposed(self, rows: Loop) -> Body:
        """The loop over a tile's rows, between copies of its operands into tiles and of tiles into its results.

        - r { = c { y[r, c] = x[c, r] + 1 } }   →   - c { - r { tile[r, c] = x[c, r] } }
                                                    - r { = c { y[r, c] = tile[r, c] + 1 } }"""
        lane, written = self._columns_of_tile, {self.memory(v) for v in self.stored if v in self.made}
        assert lane is not None
        here, tiles = (rows.axis.index(), lane.index()), [(*place, tile) for place, tile in self._tiles.items()]

        def copied(outer: Axis, inner: Axis, copy: Store) -> Loop:
            return Loop(outer, LoopKind.SERIAL, (Loop(inner, LoopKind.SERIAL, (copy,)),))

        read = [Store(tile, here, Load(value, (at,))) for value, at, tile in tiles if value not in written]
        made = [Store(value, (at,), Load(tile, here)) for value, at, tile in tiles if value in written]
        before = [copied(lane, rows.axis, copy) for copy in read]
        return (*before, rows, *[copied(rows.axis, lane, copy) for copy in made])

    def _part(self, space: int) -> str:
        """The row that a sheet combines into: one for each round of the outermost loop where there are several."""
        return "_part" if self.shape.style is Style.SHEET and len(self.shape.spaces[space]) > 1 else ""

    def _sheet(self, space: int, stages: list[Loop | Stage], sums: list[tuple[str, Value]]) -> list[Loop | Stage]:
        """All rows in order. With two loops or more, each round of the outer ones sums apart and is added at its
        end: of one alone, or of all but the innermost where that makes parts of many rows."""
        axes = self.shape.spaces[space]
        apart = 1 if iterations(axes[1:]) <= 4 * PART else len(axes) - 1
        body = self._columns(stages)
        for depth in range(len(axes) - 1, -1, -1):
            body = [Loop(axes[depth], LoopKind.SERIAL, tuple(body))]
            if depth == apart:
                fresh = self._columns([self._fresh(kind, value, "_part") for kind, value in sums])
                parts = [(kind, self._row(value), self._row(value, "_part")) for kind, value in sums]
                sheet = [Store(*row, cast(Load(*part), row[0].dtype), SIMPLE[kind]) for kind, row, part in parts]
                body = [*fresh, *body, *self._columns([*sheet])]
        return [*self._columns([self._fresh(kind, value) for kind, value in sums]), *body]

    def _outer_stages(self, level: int) -> list[Loop | Stage]:
        """What runs once per outer iteration before the spaces of ``level``: reductions' results, spaceless members."""
        done = [m for m in self.members if isinstance(m.nest.root, Reduce) and self.levels[m.position] == level - 1]
        results = [(v, m) for m in done if not m.down for v in defines(m.nest) if v in self.stored]
        stages: list[Loop | Stage] = [self._store(v, m, self._result_of(v)) for v, m in results]
        once = [m for m in self.members if m.space is None and self.levels[m.position] == level]
        stages += [stage for member in once for stage in self._leaves(member, level)]
        return _stores_last(stages, self._rows.values())

    def _store(self, value: Value, member: Member, expr: Expr) -> Store:
        return Store(*self._near(self.memory(value), self._place(value, member)), expr)

    def _carry(self, member: Member, root: Reduce | Scan, level: int) -> tuple[Carry, Update]:
        name = next(f"{v.name}_acc" for v in defines(member.nest))
        results = tuple(None if v is None else self._ref(v) for v in member.nest.out)
        args = self._exprs(member, level)
        if isinstance(root, Reduce):
            return Carry(name, root.kind, results, partial=root.partial), Update(name, args)
        return Carry(name, root.kind, (None,) * len(results)), Update(name, args, results)

    def _leaves(self, member: Member, level: int) -> Iterator[Stage]:
        """What an iteration of a member other than a reduction leaves: in scratch rows, in locals, in memory."""
        root, outer = member.nest.root, member.space is None
        for k, value in enumerate(member.nest.out):
            row, stored = (value, "") in self._rows, value in self.stored
            if value is None or not (row or stored or outer):
                continue
            expr = self._ref(value) if isinstance(root, Scan) else self._exprs(member, level)[k]
            if row:
                yield Store(*self._row(value), expr)
            elif outer and value in self._read_inside:
                yield Let(self._ref(value), expr)
            if isinstance(root, Scatter):
                at = [map_indirect(i, lambda e: self._expr(e, member, level), member.at) for i in root.index]
                place = self._position(value, tuple(at))
                yield Store(self.memory(value), place, expr, root.combine, is_atomic(member.nest))
            elif stored:
                yield self._store(value, member, expr)

    def _exprs(self, member: Member, level: int) -> tuple[Expr, ...]:
        """The member's bodies as computed at ``level``, over the group's axes, with results of the group put in."""
        key = (member.position, level)
        if key not in self._memo:
            self._memo[key] = tuple(self._expr(e, member, level) for e in bodies(member.nest.root))
        return self._memo[key]

    def _expr(self, expr: Expr, member: Member, level: int) -> Expr:
        return rewrite(expr, lambda e: self._replace(e, level), member.at)

    def _replace(self, expr: Expr, level: int) -> Expr | None:
        if not isinstance(expr, Load):
            return self._blocked(expr)
        if expr.value in self.locals:
            return self.locals[expr.value]
        if (made := self.made.get(expr.value)) is None:
            self._loaded[expr.value] = None
            at = self.memory(expr.value), self._position(expr.value, expr.index)
            return Load(*(self._near(*at) if expr.mask is None else at), expr.mask, expr.other)
        result = self._result(expr.value, *made, level)
        return result if expr.mask is None else op("where", expr.mask, result, Const(expr.other, result.dtype))

    def _blocked(self, expr: Expr) -> Expr | None:
        """A node other than a load, over the loops' axes."""
        if self.shape.blocks and expr.indices():
            expr = expr.rebuild(expr.children(), tuple(substitute(i, self.shape.blocks) for i in expr.indices()))
        return self.rule(expr) or expr

    def _position(self, value: Value, index: tuple[Index, ...]) -> tuple[Index, ...]:
        return (substitute(value.position(index), self.shape.blocks),)

    def _place(self, value: Value, member: Member) -> tuple[Index, ...]:
        """The position of the element that one iteration of ``member`` defines."""
        return self._position(value, member.coordinates())

    def _result(self, value: Value, member: Member, k: int, level: int) -> Expr:
        """What a reader at ``level`` sees of a result of the group."""
        root, own = member.nest.root, self.levels[member.position]
        if isinstance(root, Reduce):
            return self._result_of(value)
        if level == own and member.space is not None:
            return self._ref(value) if isinstance(root, Scan) else self._exprs(member, level)[k]
        if (value, "") in self._rows:  # of a member without a space: a space of a sheet reads it
            return Load(*self._row(value))
        if member.space is None:
            return self._ref(value) if value in self._read_inside else self._exprs(member, level)[k]
        if value in self.stored and not self.on_gpu:
            self._loaded[value] = None
            return Load(*self._near(self.memory(value), self._place(value, member)))
        # a scan is read, on a CPU, where another value is computed again
        return Load(*self._row(value)) if isinstance(root, Scan) else self._exprs(member, level)[k]

    def _result_of(self, value: Value) -> Expr:
        of_row = self.shape.style is Style.SHEET
        return cast(Load(*self._row(value)), value.dtype) if of_row else self._ref(value)

    def _choose_rows(self) -> None:
        """Give a scratch row to each value that a later level needs and that is dear to recompute and not stored."""
        for member in self.members:
            for value in defines(member.nest):
                if self._needs_row(member, value):
                    self._row(value)
        for member in self.members:  # on a CPU scans get one, too, that are read where another value is computed again
            self._exprs(member, self.levels[member.position])
        self._memo.clear()
        self._loaded.clear()

    def _needs_row(self, member: Member, value: Value) -> bool:
        root, own, style = member.nest.root, self.levels[member.position], self.shape.style
        if isinstance(root, Reduce | Scatter):
            return False
        if member.space is None:
            return style is Style.SHEET and value in self._read_inside
        if value in self.stored or self.on_gpu:
            return False
        later = [m for m in self.members if self.levels[m.position] > own]
        if not any(load.value is value for m in later for load in m.loads):
            return False
        size = iterations(self.shape.spaces[member.space], 1024) * value.dtype.itemsize
        dear = style in (Style.ROWS, Style.STRIPS) and size <= MAX_SCRATCH and _work(self._exprs(member, own)) > CHEAP
        return dear or isinstance(root, Scan)

    def _row(self, value: Value, part: str = "") -> tuple[Value, tuple[Index, ...]]:
        """The scratch row of a value, made at its first use, and the element of this iteration in it: of the
        columns of a sheet, else of the value's space, and of the columns of strips."""
        space, axes = self.made[value][0].space, self._lane
        if self.shape.style is not Style.SHEET and space is not None:
            axes = self.shape.spaces[space] + (self._lane if self.shape.style is Style.STRIPS else ())
        if (value, part) not in self._rows:
            extents = tuple(_bound(a) for a in axes)
            root, sheet = self.made[value][0].nest.root, self.shape.style is Style.SHEET and not part
            # a sheet adds up float32 sums of parts in float64, however many they are
            wide = sheet and isinstance(root, Reduce) and root.kind == "sum" and value.dtype == torch.float32
            dtype = torch.float64 if wide else value.dtype
            self._rows[value, part] = Value(f"row_{value.name}{part}", extents, dtype, contiguous_strides(extents))
        return self._rows[value, part], tuple(a.index() for a in axes)

    def _ref(self, value: Value) -> Ref:
        shape, (member, _) = self.shape, self.made[value]
        tile = () if shape.tile is None else (shape.tile,)
        row = shape.spaces[member.space] if isinstance(member.nest.root, Scan) and member.space is not None else ()
        scope = (*shape.parallel, *shape.group.serial, *self._lane, *tile, *row)
        return Ref(value.name, value.dtype, frozenset(scope))


def _reduced(member: Member) -> tuple[str, Value]:
    """What a reduction to one number is, and its result."""
    root, value = member.nest.root, member.nest.out[0]
    assert isinstance(root, Reduce) and value is not None
    return root.kind, value


def _stores_last(stages: list[Loop | Stage], rows: Collection[Value]) -> list[Loop | Stage]:
    """One iteration reads all before it writes: a result may take the memory of an operand that other members read too.

        m[i] = f(old[i]); p[i] = g(old[i])   →   let m = f(old[i]); let p = g(old[i]); m[i] = %m; p[i] = %p

    What combines with memory, or goes to scratch ``rows`` that later stages read, stays in order between both."""
    if len(stages) < 2:
        return stages
    named: dict[Expr, Ref] = {s.expr: s.name for s in stages if isinstance(s, Let)}
    first: list[Loop | Stage] = []
    last: list[Loop | Stage] = []
    for stage in stages:
        if not isinstance(stage, Store) or stage.combine != "set" or stage.value in rows:
            first.append(stage)
            continue
        expr = stage.expr
        if not isinstance(expr, Ref | Const):
            if expr not in named:
                named[expr] = Ref(stage.value.name, expr.dtype, expr.axes())
                first.append(Let(named[expr], expr))
            expr = named[expr]
        last.append(replace(stage, expr=expr))
    return first + last


def _bound(axis: Axis) -> Index:
    """How many iterations a loop has at most, whatever the loops around it are at."""
    last = upper(axis.extent - 1)
    return axis.extent if last is None else last + 1


def _work(exprs: tuple[Expr, ...]) -> int:
    """Cheap instructions to compute the expressions once, about."""
    return sum(cost_of(node) + isinstance(node, Load) for node in {n for e in exprs for n in e.walk()})


def _cost(stages: Body) -> int:
    """Cheap instructions of one pass over the stages, about."""
    loops = [stage for stage in stages if isinstance(stage, Loop)]
    work = sum(1 + _work(stage_exprs(stage)) for stage in stages if not isinstance(stage, Loop))
    return 1 + work + sum(_cost(loop.body) * iterations((loop.axis,)) for loop in loops)
