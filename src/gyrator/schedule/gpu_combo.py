"""Combining: small GPU kernels that do not depend on each other become one launch, a *foreach* kernel.

    launch adam_1(p, g, m)                  launch foreach(p, g, m, p_1, g_1, m_1)
    launch adam_2(p_1, g_1, m_1)     →

A launch moves up to an earlier one if nothing from there on writes what it reads, or reads or writes what it writes.
What it needs is allocated before the common launch, and what has had its last use is freed after it: only where hardly
more is held than at the plan's peak (``MOST_EARLY``)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from gyrator.ir.expr import Checked, Expr, Ref, Value, reading, rewrite, stem_of
from gyrator.ir.index import ONE, Axis
from gyrator.ir.program import output_values
from gyrator.ir.tree import Config, Kernel, Let, Loop, LoopKind, Param, Stage, Store, Tile, Tiling, loads_in, walk_exprs
from gyrator.ir.volume import bytes_of
from gyrator.origin import merge
from gyrator.schedule.canonical import named
from gyrator.schedule.gpu import WINDOW
from gyrator.schedule.kernel import Built
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Join, Launch, Plan, Step, held, touched

MOST_POINTERS = 480
"""Of one launch: a driver takes 4,096 bytes of arguments."""
MOST_FORMS = 8
"""Different computations in one launch: each is compiled, and all get the registers that the largest needs."""
LARGE, SMALL = 1 << 22, 1 << 18
"""Elements up to which a kernel joins its like, and others."""
MOST_BUSY = 32
"""Kernels in one launch of more than ``LARGE`` elements: finding its own costs a program time for each of them."""
MOST_EARLY = 1 << 16
"""Bytes that members of one launch may allocate earlier than without it, and by which the plan's peak may rise."""
BLOCK, WARPS = 2048, 4


@dataclass(slots=True)
class _Slot:
    """Steps that run as one, with what is allocated before and freed after them. ``forms`` are what the kernels compute
    if others may join them, ``pointers`` where, ``elements`` how many, ``early`` the bytes that they allocate but for
    outputs; ``room`` is how many bytes more may be held then."""

    steps: list[Launch | Call | Copy | Join]
    forms: set[Hashable]
    pointers: set[Value]
    elements: int
    early: int
    room: int
    before: list[Allocate]
    after: list[Free] = field(default_factory=list)

    def takes(self, new: "_Slot", *, last: bool) -> bool:
        """Whether ``new`` may run here, if nothing in between needs another order; ``last``: nothing is in between."""
        soon = last or self.early + new.early <= MOST_EARLY
        alike = new.forms <= self.forms or (0 < len(self.forms) < MOST_FORMS and new.elements <= SMALL)
        few = len(self.steps) < MOST_BUSY or self.elements + new.elements <= LARGE
        return soon and alike and few and len(self.pointers | new.pointers) <= MOST_POINTERS

    def add(self, new: "_Slot") -> None:
        self.steps += new.steps
        self.forms |= new.forms
        self.pointers |= new.pointers
        self.elements += new.elements
        self.early += new.early
        self.before += new.before


def combine(plan: Plan) -> Plan:
    """The plan with pointwise kernels of static sizes combined where they are independent and small."""
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    owner = plan.owners()
    made: dict[str, Kernel] = {}
    steps: list[Step] = []
    for slot in _slots(plan, kernels, owner):
        launches = [step for step in slot.steps if isinstance(step, Launch)]
        if len(launches) > 1:
            built = _side_by_side([Built(kernels[step.kernel], step.args) for step in launches], owner)
            slot.steps = [Launch(built.kernel.name, built.args, (), merge(*(step.origins for step in launches)))]
            made[built.kernel.name] = built.kernel
        else:
            made |= {step.kernel: kernels[step.kernel] for step in launches}
        steps += [*slot.before, *slot.steps, *slot.after]
    return replace(plan, steps=tuple(steps), kernels=tuple(made.values()))


def _slots(plan: Plan, kernels: Mapping[str, Kernel], owner: Mapping[Value, Value]) -> list[_Slot]:
    """The plan in its new order; ``owner`` says in whose memory values lie, parts of a whole once that is allocated."""
    kept, owner = output_values(plan.outputs), dict(owner)
    slots: list[_Slot] = []
    # how many slots run up to the last one that writes into a memory, that uses it, that mentions a value
    written, used, mentioned = dict[Value, int](), dict[Value, int](), dict[Value, int]()
    before: list[Allocate] = []
    totals = [total for total, _ in held(plan, bytes_of)]
    most = max(totals, default=0) + MOST_EARLY  # about as many bytes may be held as at the peak
    rooms = (most - now for now in totals)
    for step in plan.steps:
        match step:
            case Allocate():
                before.append(step)
            case Free(value):
                slots[mentioned.get(value, 0) - 1].after.append(step)
            case _:
                reads, writes = touched(step, kernels)
                memory = {owner.get(v, v): v in writes for v in (*reads, *writes)}
                first = [(used if writing else written).get(v, 0) for v, writing in memory.items()]
                # a part may come with what allocates its whole
                first += [mentioned.get(s.upon, 1) - 1 for s in before if s.upon is not None and s.offset is not None]
                kernel = kernels[step.kernel] if isinstance(step, Launch) else None
                elements = kernel.tiling.hint if kernel and kernel.tiling else 0
                sizes = {s.value: bytes_of(s.value) for s in before if s.upon is None}
                made, early = sum(sizes.values()), sum(size for v, size in sizes.items() if v not in kept)
                new = _Slot([step], _forms(kernel), set(memory), elements, early, next(rooms), before)
                end = _put(new, slots, max(first, default=0), made)
                names = [*(s.upon for s in before if s.upon is not None), *reads, *writes]
                mentioned |= {v: max(end, mentioned.get(v, 0)) for v in names}
                used |= {v: max(end, used.get(v, 0)) for v in memory}
                written |= {v: end for v, writing in memory.items() if writing}
                before = []
                if isinstance(step, Join):
                    owner |= dict.fromkeys(step.parts, owner.get(step.whole, step.whole))
    return slots


def _put(new: _Slot, slots: list[_Slot], first: int, made: int) -> int:
    """Put ``new`` into the earliest slot from ``first`` on that has its forms, else into the earliest that takes it, if
    the ``made`` bytes of its results have room from there on; else after all. Returns how many slots run up to it."""
    reached = takewhile(lambda k: slots[k].room >= made, range(len(slots) - 1, first - 1, -1))
    fitting = [k for k in reached if slots[k].takes(new, last=k == len(slots) - 1)] if new.forms else []
    if not fitting:
        slots.append(new)
        return len(slots)
    at = min(fitting, key=lambda k: (not new.forms <= slots[k].forms, k))
    slots[at].add(new)
    for slot in slots[at:]:
        slot.room -= made
    return at + 1


def _forms(kernel: Kernel | None) -> set[Hashable]:
    """What a kernel computes, but for its sizes; nothing if it cannot be combined."""
    tiling = None if kernel is None else kernel.tiling
    if kernel is None or tiling is None or tiling.wide or kernel.sizes or tiling.hint > LARGE:
        return set()
    windowed = len(loads_in(kernel.body)) > WINDOW  # registers for a window would be those of all
    body = _loop(kernel).body
    stages = [s for s in body if isinstance(s, Let) or (isinstance(s, Store) and s.combine == "set")]
    scattered = any(i.indirects() for s in stages if isinstance(s, Store) for i in s.index)
    checked = any(isinstance(node, Checked) for e in walk_exprs(stages) for node in e.walk())
    if len(stages) < len(body) or len(tiling.tiles) > 1 or scattered or checked or windowed:
        return set()
    return {(tuple(o.op for o in kernel.origins), tuple((p.value.dtype, p.read, p.written) for p in kernel.params))}


def _loop(kernel: Kernel) -> Loop:
    """The loop around a kernel; one of one step if it has none."""
    first, *others = kernel.body
    return first if isinstance(first, Loop) and not others else Loop(Axis("one", ONE), LoopKind.PARALLEL, kernel.body)


def _side_by_side(members: Sequence[Built], owner: Mapping[Value, Value]) -> Built:
    """One kernel for several, and its arguments, from theirs. Params in the same memory are one.

    a[i] = f(x[i])   and   b[j] = f(y[j])   →   | i { a[i] = f(x[i]) } | j { b[j] = f(y[j]) }"""
    params: dict[Value, Param] = {}
    given: dict[Value, Value] = {}
    body: list[Loop] = []
    for number, built in enumerate(members):
        values: dict[Value, Value] = {}
        for param, arg in zip(built.kernel.params, built.args, strict=True):
            place, old = owner.get(arg, arg), param.value
            new = replace(old, name=f"{stem_of(old.name)}_{len(params)}")
            same = params.get(place, Param(new, False, False))
            params[place] = replace(same, read=same.read or param.read, written=same.written or param.written)
            given[place], values[old] = arg, same.value
        body.append(_renamed(_loop(built.kernel), values, number))
    origins = merge(*(built.kernel.origins for built in members))
    tiles = tuple(Tile(axis, "XBLOCK") for axis in dict.fromkeys(loop.axis for loop in body))
    hint = sum(built.kernel.tiling.hint for built in members if built.kernel.tiling is not None)
    tiling = Tiling(tiles, (Config((("XBLOCK", BLOCK),), WARPS),), "foreach", hint=hint)
    made = named(Kernel("foreach", tuple(params.values()), (), (), tuple(body), origins))
    return Built(replace(made, tiling=tiling), tuple(given.values()))


def _renamed(loop: Loop, values: Mapping[Value, Value], number: int) -> Loop:
    """A loop over other values, its locals numbered."""

    def local(ref: Ref) -> Ref:
        return Ref(f"{ref.name}_{number}", ref.dtype, ref.scope)

    def swap(expr: Expr) -> Expr:
        return rewrite(reading(expr, values), lambda e: local(e) if isinstance(e, Ref) else None)

    def moved(stage: Loop | Stage) -> Stage:
        if isinstance(stage, Let):
            return Let(local(stage.name), swap(stage.expr))
        assert isinstance(stage, Store)
        return replace(stage, value=values[stage.value], expr=swap(stage.expr))

    return replace(loop, body=tuple(moved(stage) for stage in loop.body))
