"""From a group to a kernel: which loops, in which order, what is kept where.

A group's outer axes become parallel loops, each space at each *level* a loop nest inside them. A member's level is how many
reductions it must wait for. A value of one level that a later one needs is recomputed if that is cheap, read back if it is
stored anyway, and otherwise kept in a scratch row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gyrator.ir.expr import Const, Expr, Load, Op, Random, Ref, Value, rewrite
from gyrator.ir.index import Atom, Axis, Index, as_index, contiguous_strides, minimum, substitute
from gyrator.ir.ops import OPS, REDUCTIONS
from gyrator.ir.program import Pointwise, Reduce, Scan, Scatter
from gyrator.ir.tree import Carry, Let, Loop, LoopKind, Stage, Store, Update
from gyrator.origin import Origin
from gyrator.schedule.group import Axes, Group, Member
from gyrator.schedule.layout import accesses, coalesce, loop_order, unit_axes
from gyrator.schedule.naming import Built, canonical
from gyrator.schedule.simplify import Rule
from gyrator.schedule.uses import loads, node_exprs, volume

LANES = 16
BLOCK = 2048
CHEAP = 6
MAX_SCRATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """The loops chosen for a group.

    ``parallel`` run outermost; then ``lanes`` if the vectors lie along an outer axis (with everything else serial
    inside), or each space's own axes with vectors along its last.
    """

    group: Group
    parallel: tuple[Axis, ...]
    outer_lanes: Axis | None
    spaces: tuple[Axes, ...]
    lanes: int


def build_kernel(group: Group, stored: frozenset[Value], rule: Rule) -> Built:
    """The loop tree of a group; ``stored`` are the results that something outside the group needs."""
    shape = choose_loops(group, stored)
    writer = _Writer(shape, stored, rule)
    body = writer.body()
    return canonical(body, tuple(writer.scratch.values()), writer.params(), _origins(group), _title(group))


def _origins(group: Group) -> tuple[Origin, ...]:
    return tuple(dict.fromkeys(o for m in group.members for o in m.nest.origins))


def _title(group: Group) -> str:
    names = dict.fromkeys(o.op.rpartition(".")[0].rpartition(".")[2] or o.op for o in _origins(group) if o.op)
    if not names:
        names = dict.fromkeys(v.name.rstrip("0123456789_") for m in group.members for v in m.nest.out if v is not None)
    return "_".join(list(names)[:5]) or "kernel"


# -- which loops -----------------------------------------------------------------------------------------------------
def choose_loops(group: Group, stored: frozenset[Value]) -> Shape:
    """Order and merge the loops, and choose the axis for vectors.

    Vectors lie along a space's innermost axis where that is contiguous, otherwise along a contiguous outer axis (a
    column sum: each lane has its own accumulator).
    """
    found = accesses(group, stored)
    group, outer = coalesce(group, loop_order(group.outer, found), found)
    spaces: list[Axes] = []
    for k in range(len(group.spaces)):
        fixed = any(isinstance(m.nest.root, Scan) and m.space == k for m in group.members)
        found = accesses(group, stored)
        order = list(group.spaces[k]) if fixed else loop_order(group.spaces[k], found)
        group, order = coalesce(group, order, found)
        spaces.append(tuple(order))
    group = Group(tuple(outer), tuple(spaces), group.members)
    if group.pointwise:
        return _pointwise_loops(group, outer)
    return _row_loops(group, outer, spaces)


def _pointwise_loops(group: Group, outer: list[Axis]) -> Shape:
    if not outer:
        return Shape(group, (), None, (), 1)
    *parallel, last = outer
    if _rows(parallel) < 64 and volume((last.extent,), 1 << 20) > 2 * BLOCK:
        group, block, last = _blocked(group, last, BLOCK)
        parallel.append(block)
    return Shape(group, tuple(parallel), last, (), LANES)


def _row_loops(group: Group, outer: list[Axis], spaces: list[Axes]) -> Shape:
    unit = unit_axes(group)
    scans = {m.space for m in group.members if isinstance(m.nest.root, Scan)}
    column = next((a for a in outer if a in unit), None)
    rows = any(unit & set(s[-1:]) and k not in scans for k, s in enumerate(spaces) if s)
    if column is not None and not rows:
        parallel = [a for a in outer if a is not column]
        width = 4 * LANES
        if volume((column.extent,), 1 << 12) > width:
            group, block, column = _blocked(group, column, width)
            parallel.append(block)
        return Shape(group, tuple(parallel), column, tuple(spaces), width if volume((column.extent,)) >= width else LANES)
    return Shape(group, tuple(outer), None, tuple(spaces), LANES)


def _rows(axes: list[Axis]) -> int:
    return volume(a.extent for a in axes)


def _blocked(group: Group, axis: Axis, size: int) -> tuple[Group, Axis, Axis]:
    """Split a loop into blocks: ``m < n`` → ``b < ⌈n/size⌉``, ``t < min(size, n - b*size)``."""
    blocks = (axis.extent + (size - 1)) // size
    block = Axis(axis.name + "b", blocks)
    inner = Axis(axis.name + "t", minimum(as_index(size), axis.extent - block.index() * size))
    mapping: dict[Atom, Index] = {axis: block.index() * size + inner.index()}
    members = tuple(replace(m, at={a: substitute(i, mapping) for a, i in m.at.items()}) for m in group.members)
    return Group(group.outer, group.spaces, members), block, inner


# -- stages ------------------------------------------------------------------------------------------------------------
class _Writer:
    """Writes the body of one kernel. Mutable, and private to one call of :func:`build_kernel`."""

    def __init__(self, shape: Shape, stored: frozenset[Value], rule: Rule) -> None:
        self.shape, self.stored, self.rule = shape, stored, rule
        self.members = shape.group.members
        self.made: dict[Value, tuple[Member, int]] = {
            v: (m, k) for m in self.members for k, v in enumerate(m.nest.out) if v is not None
        }
        self.levels = _levels(self.members, self.made)
        self.scratch: dict[Value, Value] = {}
        self._memo: dict[tuple[int, int], tuple[Expr, ...]] = {}
        self._loaded: dict[Value, None] = {}

    def params(self) -> tuple[tuple[Value, bool, bool], ...]:
        """(value, read, written) for every tensor in memory: what is read first, then what is written."""
        written = [v for m in self.members for v in m.nest.out if v is not None and v in self.stored]
        combined = {v for m in self.members if isinstance(m.nest.root, Scatter) for v in m.nest.out}
        reads = [v for v in self._loaded if v not in written]
        return tuple(
            [(v, True, False) for v in reads] + [(v, v in self._loaded or v in combined, True) for v in written]
        )

    def body(self) -> tuple[Loop | Stage, ...]:
        last = max(self.levels.values(), default=0)
        stages: list[Loop | Stage] = []
        keep = self._rows_to_keep(last)
        for level in range(last + 1):
            stages += self._outer_stages(level)
            for space in range(len(self.shape.spaces)):
                stages += self._space(level, space, keep)
        return self._wrap(tuple(stages))

    # -- loops -------------------------------------------------------------------------------------------------------
    def _wrap(self, stages: tuple[Loop | Stage, ...]) -> tuple[Loop | Stage, ...]:
        lanes = self.shape.outer_lanes
        grain = _cost(stages)
        if lanes is not None:
            stages = (Loop(lanes, LoopKind.LANES, stages, lanes=self.shape.lanes),)
            grain *= volume((lanes.extent,))
        for axis in reversed(self.shape.parallel):
            stages = (Loop(axis, LoopKind.PARALLEL, stages, grain=grain),)
            grain *= volume((axis.extent,))
        return stages

    def _space(self, level: int, space: int, keep: set[Value]) -> list[Loop | Stage]:
        here = [m for m in self.members if m.space == space and self.levels[m.position] == level]
        stages: list[Loop | Stage] = []
        carries: list[Carry] = []
        reverse = False
        for member in here:
            root = member.nest.root
            if isinstance(root, Reduce | Scan):
                carry, update = self._carry(member, level)
                carries.append(carry)
                stages.append(update)
                reverse = reverse or (isinstance(root, Scan) and root.reverse)
            stages += self._stores(member, level, keep)
        if not stages:
            return []
        axes = self.shape.spaces[space]
        vector = self.shape.outer_lanes is None and not any(isinstance(m.nest.root, Scan) for m in here)
        body: tuple[Loop | Stage, ...] = tuple(stages)
        for depth in range(len(axes) - 1, -1, -1):
            innermost, outermost = depth == len(axes) - 1, depth == 0
            kind, lanes = (LoopKind.LANES, self.shape.lanes) if innermost and vector else (LoopKind.SERIAL, 1)
            body = (Loop(axes[depth], kind, body, tuple(carries) if outermost else (), lanes, reverse=reverse),)
        return list(body)

    def _outer_stages(self, level: int) -> list[Loop | Stage]:
        stages: list[Loop | Stage] = []
        for member in self.members:
            if isinstance(member.nest.root, Reduce) and self.levels[member.position] == level - 1:
                stages += self._result_stores(member)
        for member in self.members:
            if member.space is not None or self.levels[member.position] != level:
                continue
            value = member.nest.out[0]
            assert value is not None
            if isinstance(member.nest.root, Scatter):
                stages += self._stores(member, level, set())
                continue
            (expr,) = self._exprs(member, level)
            if self._needed_inside(value):
                stages.append(Let(self._ref(value), expr))
                expr = self._ref(value)
            if value in self.stored:
                stages.append(Store(value, member.coordinates(), expr))
        return stages

    def _result_stores(self, member: Member) -> list[Loop | Stage]:
        return [
            Store(v, member.coordinates(), self._ref(v))
            for v in member.nest.out
            if v is not None and v in self.stored
        ]

    def _carry(self, member: Member, level: int) -> tuple[Carry, Update]:
        root = member.nest.root
        assert isinstance(root, Reduce | Scan)
        name = f"{root.kind}_{member.position}"
        results = tuple(None if v is None else self._ref(v) for v in member.nest.out)
        args = self._exprs(member, level)
        if isinstance(root, Reduce):
            return Carry(name, root.kind, results), Update(name, args)
        none = tuple(None for _ in REDUCTIONS[root.kind].results)
        last_wins = root.kind in ("argmax", "argmin")
        return Carry(name, root.kind, none, last_wins), Update(name, args, results)

    def _stores(self, member: Member, level: int, keep: set[Value]) -> list[Loop | Stage]:
        root = member.nest.root
        if isinstance(root, Reduce):
            return []
        stages: list[Loop | Stage] = []
        if isinstance(root, Scatter):
            value = member.nest.out[0]
            assert value is not None
            body, *rest = self._exprs(member, level)
            mask = rest[0] if root.mask is not None else None
            index = tuple(self._index(i, member, level) for i in root.index)
            return [Store(value, index, body, root.combine, mask)]
        for k, value in enumerate(member.nest.out):
            if value is None or (value not in self.stored and value not in keep):
                continue
            expr = self._ref(value) if isinstance(root, Scan) else self._exprs(member, level)[k]
            if value in self.stored:
                stages.append(Store(value, member.coordinates(), expr))
            elif value in keep:
                row = self._row(value, member)
                stages.append(Store(row, self._row_index(member), expr))
        return stages

    # -- expressions -----------------------------------------------------------------------------------------------------
    def _exprs(self, member: Member, level: int) -> tuple[Expr, ...]:
        """The member's bodies as computed at ``level``, over the group's axes, with results of the group put in."""
        key = (member.position, level)
        done = self._memo.get(key)
        if done is None:
            root = member.nest.root
            exprs = node_exprs(replace(member.nest, root=replace(root, index=()))) if isinstance(root, Scatter) else node_exprs(member.nest)
            done = self._memo[key] = tuple(self._expr(e, member, level) for e in exprs)
        return done

    def _expr(self, expr: Expr, member: Member, level: int) -> Expr:
        return rewrite(expr, lambda e: self._replace(e, level), member.at)

    def _index(self, index: Index, member: Member, level: int) -> Index:
        mapping = dict(member.at)
        for atom in index.indirects():
            mapping[atom] = type(atom)(self._expr(atom.value, member, level), substitute(atom.size, member.at)).index()
        return substitute(index, mapping)

    def _replace(self, expr: Expr, level: int) -> Expr | None:
        if not isinstance(expr, Load):
            return self.rule(expr)
        made = self.made.get(expr.value)
        if made is None:
            self._loaded[expr.value] = None
            return None
        result = self._result(expr, *made, level)
        if expr.mask is None:
            return result
        other = self.rule(Op("cast", (_literal(expr),), result.dtype)) or _literal(expr)
        return Op("where", (expr.mask, result, other), result.dtype)

    def _result(self, load: Load, member: Member, k: int, level: int) -> Expr:
        """What a reader at ``level`` sees of a result of the group."""
        value, root = load.value, member.nest.root
        own = self.levels[member.position]
        if isinstance(root, Reduce) or member.space is None:
            return self._ref(value)
        if level == own:
            return self._ref(value) if isinstance(root, Scan) else self._exprs(member, level)[k]
        if value in self.scratch:
            return Load(self.scratch[value], self._row_index(member))
        if value in self.stored:
            self._loaded[value] = None
            return Load(value, member.coordinates())
        return self._exprs(member, level)[k]

    def _rows_to_keep(self, last: int) -> set[Value]:
        """Values that a later level needs, too dear to recompute and not stored: they get a scratch row."""
        keep: set[Value] = set()
        for member in self.members:
            if member.space is None or isinstance(member.nest.root, Reduce | Scatter):
                continue
            own = self.levels[member.position]
            later = [m for m in self.members if self.levels[m.position] > own and m.space == member.space]
            for value in member.nest.out:
                if value is None or value in self.stored:
                    continue
                if not any(load.value is value for m in later for load in loads(node_exprs(m.nest))):
                    continue
                scan = isinstance(member.nest.root, Scan)
                size = volume((a.extent for a in self.shape.spaces[member.space]), 1024) * value.dtype.itemsize
                cheap = not scan and _recompute_cost(self._exprs(member, own)) <= CHEAP
                if scan or (not cheap and size <= MAX_SCRATCH and self.shape.outer_lanes is None):
                    keep.add(value)
                    self._row(value, member)
        self._memo.clear()
        return keep

    def _row(self, value: Value, member: Member) -> Value:
        if value not in self.scratch:
            assert member.space is not None
            extents = tuple(a.extent for a in self.shape.spaces[member.space])
            self.scratch[value] = Value(f"row_{value.name}", extents, value.dtype, contiguous_strides(extents))
        return self.scratch[value]

    def _row_index(self, member: Member) -> tuple[Index, ...]:
        assert member.space is not None
        return tuple(a.index() for a in self.shape.spaces[member.space])

    def _ref(self, value: Value) -> Ref:
        member, _ = self.made[value]
        scope = set(self.shape.parallel) | ({self.shape.outer_lanes} if self.shape.outer_lanes else set())
        if isinstance(member.nest.root, Scan) and member.space is not None:
            scope |= set(self.shape.spaces[member.space])
        return Ref(value.name, value.dtype, frozenset(a for a in scope if a is not None))

    def _needed_inside(self, value: Value) -> bool:
        return any(load.value is value for m in self.members for load in loads(node_exprs(m.nest)))


def _literal(load: Load) -> Const:
    return Const(load.other, load.dtype)


def _levels(members: tuple[Member, ...], made: Mapping[Value, tuple[Member, int]]) -> dict[int, int]:
    """Per member: how many reductions of the group must be complete before it. Pointwise members sink to their first reader."""
    levels: dict[int, int] = {}
    readers: dict[int, list[Member]] = {}
    for member in members:
        level = 0
        for load in loads(node_exprs(member.nest)):
            if load.value in made:
                producer, _ = made[load.value]
                readers.setdefault(producer.position, []).append(member)
                step = 1 if isinstance(producer.nest.root, Reduce) else 0
                level = max(level, levels[producer.position] + step)
        levels[member.position] = level
    for member in reversed(members):
        later = [levels[r.position] for r in readers.get(member.position, ())]
        if later and isinstance(member.nest.root, Pointwise) and member.space is not None:
            levels[member.position] = max(levels[member.position], min(later))
    top = max(levels.values(), default=0)
    for member in members:
        if isinstance(member.nest.root, Reduce) and levels[member.position] == top:
            return {**levels, -1: top + 1}
    return levels


def _recompute_cost(exprs: tuple[Expr, ...]) -> int:
    total = 0
    for node in {n for e in exprs for n in e.walk()}:
        match node:
            case Op(name):
                total += OPS[name].cost
            case Load():
                total += 1
            case Random():
                total += 40
    return total


def _cost(stages: tuple[Loop | Stage, ...]) -> int:
    """Cheap instructions of one pass over the stages, about."""
    total = 1
    for stage in stages:
        match stage:
            case Loop(axis, _, body):
                total += _cost(body) * volume((axis.extent,))
            case Let(_, expr) | Store(_, _, expr):
                total += 1 + _recompute_cost((expr,))
            case Update(_, args):
                total += 1 + _recompute_cost(args)
    return total

