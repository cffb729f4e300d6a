"""From groups in order to a plan: kernels, placements, and when each value's name ends."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gyrator.ir.expr import Value, indirect_values
from gyrator.ir.index import ONE, ZERO, Index, Size, contiguous_strides, is_less, lower, product, substitute, upper
from gyrator.ir.program import Extern, Pointwise, Program, Reduce, Scatter, Update, output_values, shown_values, uses
from gyrator.ir.simplify import Rule
from gyrator.ir.tree import Kernel
from gyrator.ir.volume import bytes_of
from gyrator.origin import Origins, merge
from gyrator.schedule.attention import build_attention
from gyrator.schedule.canonical import Canonical, canonicalise
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_tiling import streamed
from gyrator.schedule.group import Group, Member, exclusive_axes, levels_of
from gyrator.schedule.join import joined
from gyrator.schedule.kernel import Built, build_kernel
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Join, Launch, Plan, Step, full_view, has_out_variant
from gyrator.schedule.products import Templated, Unit, defines_of, nodes_of, product_of, uses_of, whole_of
from gyrator.schedule.templated import build_templated, contract_of, product_group

_COLLECTIVES = ("_c10d_functional", "_dtensor", "symm_mem")
"""How the names of operators begin that may still run when their call has ended."""


@dataclass(frozen=True, slots=True)
class Life:
    """When each value is last read, as a position among the units; outputs and pending updates live to the end."""

    last: Mapping[Value, int]
    forever: frozenset[Value]

    def dies_at(self, value: Value, position: int) -> bool:
        """Whether nothing reads the value after that position."""
        return value not in self.forever and self.last.get(value, -1) <= position


def plan_memory(
    program: Program, units: tuple[Unit, ...], rule: Rule, *, in_place: bool, gpu: Gpu | None, overlays: bool = False
) -> Plan:
    """Place every value that lies in memory, build each group's kernel, and end each name after its last use.

    A result takes the memory of a value that dies in the same step where the step reads it element by element; the
    new contents of an input are written into the input itself under the same condition, else copied at the end.
    Without ``in_place`` every result has memory of its own, and with ``overlays`` what is there beside the largest one:
    what it would lie upon may then lie in that one. ``gpu`` is what nests on "cuda" run on."""
    planner = _Planner(program, units, rule, in_place, gpu, overlays)
    steps = tuple(planner.steps())
    kernels = tuple(planner.kernels.values())
    return Plan(program.name, program.inputs, steps, program.outputs, kernels, program.constants, program.derived)


@dataclass(frozen=True, slots=True)
class _Here:
    """A group that becomes a launch: its place among the units, what it reads and makes, its members' levels.
    ``whole`` is what a template reads rows and columns of: nothing is placed upon it."""

    group: Group
    position: int
    reads: set[Value]
    made: frozenset[Value]
    levels: Mapping[int, int]
    whole: frozenset[Value]


class _Planner:
    """Walks the units once. Mutable, and private to one call of :func:`plan_memory`."""

    def __init__(
        self, program: Program, units: tuple[Unit, ...], rule: Rule, in_place: bool, gpu: Gpu | None, overlays: bool
    ) -> None:
        self._program, self._units, self._rule, self._gpu, self._in_place = program, units, rule, gpu, in_place
        self._life = life_of(program, units)
        self._beside = _beside_largest(program, units, self._life) if overlays else set[Value]()
        collectives = [unit for unit in units if isinstance(unit, Extern) and unit.op.startswith(_COLLECTIVES)]
        self._sent = {value for call in collectives for value in (*uses_of(call), *defines_of(call))}
        self._kept = self._sent.union(program.constants, (i.value for i in program.inputs if i.value is not None))
        self._outputs = output_values(program.outputs)
        self._updates = {u.value.value: u for u in program.updates if u.value.is_full}
        self._becomes = _becomes(program, self._updates)
        self._home: dict[Value, Value] = {}  # what lies in other memory: versions of an input, parts of a whole
        self._joined = joined(program) if in_place else {}
        self._whole = {v: (n.out[0], start) for n, (at, _) in self._joined.items() for v, start in at.items()}
        self._parts: dict[Value | None, list[Value]] = {}  # those made so far, by what they are parts of
        self._updated: set[Update] = set()
        self._built: dict[Hashable, Built] = {}
        self.kernels: dict[str, Kernel] = {}

    def steps(self) -> Iterator[Step]:
        for position, unit in enumerate(self._units):
            yield from self._call(unit, position) if isinstance(unit, Extern) else self._launch(unit, position)
            yield from self._frees(unit, position)
        yield from self._write_back()

    def _launch(self, unit: Group | Templated, position: int) -> Iterator[Step]:
        if isinstance(unit, Templated) and unit.attend is not None:
            yield from (Allocate(v) for v in unit.call.out if v is not None)
            yield self._run(build_attention(unit.call, unit.attend, unit.configs), {}, unit.call.origins)
            return
        group = unit if isinstance(unit, Group) else _group_of(unit)
        made = frozenset(defines_of(group))
        outside = frozenset(v for v in made if not self._life.dies_at(v, position))
        if not outside:  # what attention computes instead of reading it
            return
        here = _Here(group, position, uses_of(unit), made, levels_of(group.members), whole_of(unit))
        placed: dict[Value, Value] = {}
        for member, value in [(m, v) for m in group.members for v in m.nest.out if v in outside]:
            yield from self._place(here, member, value, placed)
        common = canonicalise(group, outside)
        built = self._build(common, placed, unit if isinstance(unit, Templated) else None, position)
        yield self._run(built, common.slots, merge(*(m.nest.origins for m in group.members)))

    def _run(self, built: Built, slots: Mapping[Size, Index], origins: Origins) -> Launch:
        kernel = self.kernels[built.kernel.name] = built.kernel
        return Launch(kernel.name, built.args, tuple(slots.get(s, s.index()) for s in kernel.sizes), origins)

    def _build(self, common: Canonical, placed: Mapping[Value, Value], unit: Templated | None, position: int) -> Built:
        gpu = self._gpu if common.group.members[0].nest.on_gpu else None
        key, actual = common.key, common.actual
        if unit is None:
            built = self._built.get(key) or build_kernel(common.group, common.stored, self._rule, gpu)
        else:
            contract, total, actual = contract_of(unit, common, self._rule)
            key = (key, contract, unit.configs)
            built = self._built.get(key) or build_templated(contract, total, common, unit.configs, self._rule, gpu)
        self._built[key] = built
        built = Built(built.kernel, tuple(actual[v] for v in built.args))
        names = {v: p.value.name for v, p in zip(built.args, built.kernel.params, strict=True)}
        alias = {names[new]: names[old] for new, old in placed.items() if old in names}
        both = alias | {old: new for new, old in alias.items()}
        last = {names[v] for v in built.args if self._life.dies_at(v, position)} if gpu and not unit else set[str]()
        last &= {value.name for value in streamed(built.kernel)}
        params = [replace(p, alias=both.get(p.value.name), last=p.value.name in last) for p in built.kernel.params]
        marks = ("inplace", [p.alias is not None for p in params]), ("last", [p.last for p in params])
        parts = [[mark, *(str(k) for k, here in enumerate(those) if here)] for mark, those in marks if any(those)]
        name = "_".join([built.kernel.name, *("_".join(part) for part in parts)])
        return Built(replace(built.kernel, params=tuple(params), name=name), built.args)

    def _place(self, here: _Here, member: Member, value: Value, placed: dict[Value, Value]) -> Iterator[Step]:
        if value in self._whole:
            yield from self._place_within(value, *self._whole[value])
            return
        if isinstance(member.nest.root, Scatter):
            base = member.nest.root.into
            shared = any(base in uses(m.nest) for m in here.group.members if m is not member)
            read = shared or not _reads_where_it_writes(member)
            for step in self._place_new_version(base, value, here.position, read=read):
                if isinstance(step, Allocate) and step.upon is not None:
                    placed[value] = base
                yield step
            return
        old = self._update_target(here, member, value) if self._in_place else None
        if old is None and self._in_place and value not in self._beside:
            old = self._dying(here, member, value, placed)
        if old is not None:
            placed[value] = old
        yield Allocate(value, old)

    def _place_within(self, value: Value, whole: Value | None, start: Index) -> Iterator[Step]:
        """As a part of what is joined later, which is allocated with its first part."""
        assert whole is not None
        if whole not in self._parts:
            yield Allocate(whole)
        self._parts.setdefault(whole, []).append(value)
        self._home[value] = whole
        yield Allocate(value, whole, start)

    def _dies(self, value: Value, position: int) -> bool:
        """Whether nothing reads the value after that position, nor a part of it there."""
        parts = self._parts.get(value, ())
        return self._life.dies_at(value, position) and all(self._life.dies_at(v, position - 1) for v in parts)

    def _place_new_version(self, base: Value, value: Value, position: int, *, read: bool) -> Iterator[Step]:
        """In place of ``base`` where nothing needs its old contents: no later unit, and no ``read`` by this one."""
        if self._in_place and base.layout == value.layout and not read:
            dies = base not in self._kept and self._dies(base, position)
            home = self._home.get(base, base)
            if (home is base or dies) and (self._updates_input(home, value, position) or (dies and home is base)):
                yield Allocate(value, base)
                return
        yield Allocate(value)
        yield Copy(full_view(value), full_view(base))

    def _update_target(self, here: _Here, member: Member, value: Value) -> Value | None:
        target = self._updates[value].target if value in self._updates else None
        if target is None or target.layout != value.layout:
            return None
        if target in here.reads and not _elementwise(here, member, target, value):
            return None
        return target if self._updates_input(target, value, here.position) else None

    def _updates_input(self, target: Value, value: Value, position: int) -> bool:
        """Whether ``value``, if it is the new contents of that input or a version on the way there, may take its place,
        as nothing needs the old ones after ``position``; then the contents are no longer to be copied at the end."""
        update = self._becomes.get(value)
        if update is None or update.target is not target or value in self._outputs or target in self._outputs:
            return False
        elsewhere = any(u.value.value is target for u in self._program.updates if u is not update)
        if elsewhere or target in self._sent or self._life.last.get(target, -1) > position:
            return False
        if update.value.value is value:
            self._updated.add(update)
        self._home[value] = target
        return True

    def _dying(self, here: _Here, member: Member, value: Value, placed: Mapping[Value, Value]) -> Value | None:
        read = dict.fromkeys(load.value for m in (member, *here.group.members) for load in m.loads)
        refused = (self._kept, self._home, placed.values(), here.made)
        ending = (v for v in read if not any(v in values for values in refused) and self._dies(v, here.position))
        fitting = (old for old in ending if _same_places(old, value) and _elementwise(here, member, old, value))
        return next(fitting, None)

    def _call(self, extern: Extern, position: int) -> Iterator[Step]:
        if self._joined and extern in self._joined:
            parts, rows = self._joined[extern]
            yield from (Join(whole, tuple(parts), rows) for whole in extern.out if whole is not None)
            return
        into = has_out_variant(extern) and (extern.op.startswith("aten.") or self._life.forever.isdisjoint(extern.out))
        if into:
            yield from (Allocate(v) for v in extern.out if v is not None)
        for old, new in extern.mutates:
            yield from self._place_new_version(old, new, position, read=False)
        yield Call(extern, into)

    def _frees(self, unit: Unit, position: int) -> Iterator[Step]:
        made = defines_of(unit)
        read = sorted(uses_of(unit).difference(made), key=lambda v: v.name)
        # what a kernel other than attention's makes has a name only if a later unit reads it
        named = [*read, *made] if isinstance(unit, Extern) or (isinstance(unit, Templated) and unit.attend) else read
        yield from (Free(v) for v in named if self._life.dies_at(v, position))

    def _write_back(self) -> Iterator[Step]:
        pending = [u for u in self._program.updates if u not in self._updated]
        targets = {u.target for u in pending}
        moved: dict[Value, Value] = {}
        for update in pending:  # an input whose old contents another input receives is copied before it is overwritten
            source = update.value.value
            if source in targets and source is not update.target and source not in moved:
                moved[source] = replace(source, name=f"{source.name}_old")
                yield from (Allocate(moved[source]), Copy(full_view(moved[source]), full_view(source)))
        for update in pending:
            view, into = update.value, full_view(update.target)
            dims = zip(into.shape, into.strides, strict=True)  # what an expanded input repeats is written once
            shape = tuple([ONE if step is ZERO and is_less(ZERO, size) else size for size, step in dims])
            yield Copy(replace(into, shape=shape), replace(view, value=moved.get(view.value, view.value), shape=shape))
        values = (*(v for u in self._program.updates for v in (u.value.value, u.target)), *moved.values())
        yield from (Free(v) for v in dict.fromkeys(values) if v not in self._outputs)


def _becomes(program: Program, updates: Mapping[Value, Update]) -> Mapping[Value, Update]:
    """The new contents of inputs, and the versions from which scatters and calls make them, by what they lead to."""
    found = dict(updates)
    for node in reversed(program.nodes):
        versions = node.mutates if isinstance(node, Extern) else ()
        if not isinstance(node, Extern) and isinstance(node.root, Scatter):
            versions = tuple([(node.root.into, new) for new in node.out if new is not None])
        found |= {old: found[new] for old, new in versions if new in found and old is not found[new].target}
    return found


def _reads_where_it_writes(member: Member) -> bool:
    """Whether a scatter reads of what it starts from only what it does not write, or that iteration alone writes."""
    root, axes = member.nest.root, member.nest.axes
    assert isinstance(root, Scatter)
    places = [load.index for load in member.loads if load.value is root.into]
    alone = exclusive_axes(root).union(a for a in axes if a.extent is ONE).issuperset(axes)
    return all((alone and at == root.index) or _apart(at, root.index) for at in places)


def _apart(a: Sequence[Index], b: Sequence[Index]) -> bool:
    """Whether places differ in a coordinate, whatever the iterations are."""
    ends = [(lower(i), upper(i), lower(j), upper(j)) for i, j in zip(a, b, strict=True)]
    return any((q and r and is_less(q, r)) or (s and p and is_less(s, p)) for p, q, r, s in ends)


def _group_of(unit: Templated) -> Group:
    product = product_of(unit.call)
    origins = merge(*(node.origins for node in nodes_of(replace(unit, epilogue=None))))
    group = None if product is None else product_group(product, unit.epilogue, origins)
    assert isinstance(group, Group)
    return group


def life_of(program: Program, units: Sequence[Unit]) -> Life:
    """When each value is last read, if the units run in this order."""
    last = {v: p for p, unit in enumerate(units) for v in uses_of(unit)}
    return Life(last, shown_values(program) | {update.target for update in program.updates})


def _beside_largest(program: Program, units: Sequence[Unit], life: Life) -> set[Value]:
    """Smaller values that are there when the largest result is written: not an input's update, as that has memory."""
    made = {v: at for at, unit in enumerate(units) for v in defines_of(unit)}
    results = output_values(program.outputs)
    largest = max((v for v in made if v in results), key=bytes_of, default=None)
    if largest is None:
        return set()
    at, most = made[largest], bytes_of(largest)
    return {v for v, made_at in made.items() if made_at < at <= life.last.get(v, -1) and bytes_of(v) < most}


def _same_places(a: Value, b: Value) -> bool:
    """Whether ``b`` can lie on all of ``a``: as it does, or both without gaps: (8, 4, 16) upon (32, 16)."""
    dense = all(v.strides == contiguous_strides(v.shape) for v in (a, b)) and product(a.shape) is product(b.shape)
    return a.layout == b.layout or (dense and a.dtype == b.dtype and a.device == b.device)


def _elementwise(here: _Here, writer: Member, old: Value, new: Value) -> bool:
    """Whether every element of ``old`` is last read in the iteration that writes the same place of ``new``, or before.

    An iteration reads before it writes, and the levels of a group follow each other within an outer
    iteration. So what depends on ``old``, other than through a reduction, must be of a lower level than
    ``writer``, or of the same level in the same loops; and it must read ``old`` at the place that is written. Indices
    stay as they are: a kernel that is timed runs again, and what it wrote over them may point anywhere."""
    if not isinstance(writer.nest.root, Pointwise) or old in here.whole:
        return False
    place = new.position(writer.coordinates())
    last = here.levels[writer.position]
    tainted: set[Value | None] = set()
    for member in here.group.members:
        found = [load for load in member.loads if load.value is old]
        if any(old is load.value for x in member.loads for e in indirect_values(x.index) for load in e.loads()):
            return False
        if not found and not any(load.value in tainted for load in member.loads):
            continue
        if not isinstance(member.nest.root, Reduce):
            tainted.update(member.nest.out)
        own = here.levels[member.position]
        if own > last or (own == last and member.space not in (None, writer.space)):
            return False
        places = [substitute(old.position(load.index), member.at) for load in found]
        if isinstance(member.nest.root, Scatter) or any(at is not place for at in places):
            return False
    return True


def order_products(units: Sequence[Unit], program: Program, freed: int = 0) -> tuple[Unit, ...]:
    """Units with products moved up past neighbours where that holds less memory: what ends a large value goes first.
    Of inputs, which the caller has, only the first ``freed`` end.

    dx = mm(g, w);  dw = mm(gᵀ, y)   →   dw = mm(gᵀ, y);  dx = mm(g, w)    # dx may take the place of y"""
    order, life = list(units), life_of(program, units)
    given = (*program.constants, *(i.value for i in program.inputs[freed:] if i.value is not None))
    last = {**life.last, **dict.fromkeys((*life.forever, *given), len(order))}
    for k in range(len(order) - 1):
        at = k
        while at >= 0 and _is_better(order[at + 1], order[at], at + 1, last):
            order[at], order[at + 1] = order[at + 1], order[at]
            for unit, place in ((order[at], at), (order[at + 1], at + 1)):  # the later one ends what both read
                last |= {v: place for v in uses_of(unit) if last[v] in (at, at + 1)}
            at -= 1
    return tuple(order)


def _is_better(second: Unit, first: Unit, end: int, last: dict[Value, int]) -> bool:
    """Whether two neighbours, up to the place ``end``, hold less if they change places."""
    if not (_is_product(first) and _is_product(second)) or uses_of(second) & set(defines_of(first)):
        return False
    return _most(second, first, end, last) < _most(first, second, end, last)


def _is_product(unit: Unit) -> bool:
    return has_out_variant(unit) if isinstance(unit, Extern) else isinstance(unit, Templated)


def _most(first: Unit, second: Unit, end: int, last: dict[Value, int]) -> int:
    """Bytes that two units, run in this order, need at most at once beyond what is held before."""
    ended = uses_of(first).difference(uses_of(second), defines_of(first))
    made, more = (sum(bytes_of(v) for v in defines_of(u) if last.get(v, end) > end) for u in (first, second))
    return max(made, made - sum(bytes_of(v) for v in ended if last[v] in (end - 1, end)) + more)
