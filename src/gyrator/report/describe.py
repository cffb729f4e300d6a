"""From a plan, and the program and decisions that it was made from, to the record of a compiled graph."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from gyrator.autograd.partition.recompute import PRODUCTS, operations
from gyrator.ir.expr import Value
from gyrator.ir.program import Extern, Nest, Node, Program, Scatter, defines, shown_views, uses, views
from gyrator.ir.tree import Kernel
from gyrator.ir.volume import count_of, value_bytes
from gyrator.metrics.kernels import KernelFacts, facts_of
from gyrator.origin import place_of, places_of
from gyrator.report.data import GraphRecord, Holder, KernelRecord, StepRecord, Unfused
from gyrator.schedule.plan import Call, Copy, Join, Launch, Plan, held
from gyrator.schedule.products import Templated, Unit, defines_of, nodes_of, uses_of
from gyrator.schedule.stage import Scheduled
from gyrator.session import Count, Counters, Session

Facts = Mapping[str, KernelFacts]
Maker = Mapping[Value, Unit]


def describe(
    session: Session, kind: str, lowered: Program, made: Scheduled, printed: Mapping[str, tuple[str, str]]
) -> GraphRecord:
    """The record of a graph; counts on the way what the code is like.

    `lowered` is the program before any pass; `printed` has each kernel's symbol and source, by its name in the plan."""
    plan = made.plan
    facts = {kernel.name: facts_of(kernel) for kernel in plan.kernels}
    maker = {v: unit for unit in made.units if not isinstance(unit, Extern) for v in defines_of(unit)}
    steps = tuple(_steps(plan, facts, maker))
    launches = Counter(step.name for step in steps if step.kind == "kernel")
    _count(lowered, made, facts, launches, session.counters)
    memory, holders = _memory(plan, made.program)
    return GraphRecord(
        name=session.name,
        kind=kind,
        inputs=tuple(given.value.name for given in plan.inputs if given.value is not None),
        outputs=tuple(view.value.name for view in shown_views(plan.outputs)),
        kernels=tuple(_kernel(k, facts[k.name], printed[k.name], launches[k.name]) for k in plan.kernels),
        steps=steps,
        unfused=tuple(_unfused(made, maker)),
        memory=memory,
        holders=holders,
        counters=session.counters.about_code(),
    )


def _kernel(kernel: Kernel, facts: KernelFacts, printed: tuple[str, str], launches: int) -> KernelRecord:
    arguments = len(kernel.params) + len(kernel.sizes)
    return KernelRecord(kernel.name, *printed, places_of(kernel.origins), launches, arguments, facts)


def _steps(plan: Plan, facts: Facts, maker: Maker) -> Iterator[StepRecord]:
    params = {kernel.name: kernel.params for kernel in plan.kernels}
    for step in plan.steps:
        match step:
            case Launch(name, args):
                both = list(zip(params[name], args, strict=True))
                found = {id(g): g for param, value in both if param.written and (g := maker.get(value)) is not None}
                nodes = [node for unit in found.values() for node in nodes_of(unit)]
                yield StepRecord(
                    kind="kernel",
                    name=name,
                    nests=tuple(_value_name(node) for node in nodes),
                    reads=tuple(value.name for param, value in both if param.read),
                    writes=tuple(value.name for param, value in both if param.written),
                    bytes=facts[name].bytes,
                    operations=facts[name].operations,
                    places=places_of(step.origins),
                )
            case Call(extern):
                written = [*defines(extern)]
                read = [view.value for view in views(extern)]
                elements = next((prod(map(count_of, v.shape)) for v in extern.out if v is not None), 0)
                shapes = [[count_of(n) for n in view.shape] for view in views(extern)]
                yield StepRecord(
                    kind="extern",
                    name=extern.op,
                    reads=tuple(dict.fromkeys(value.name for value in read)),
                    writes=tuple(value.name for value in written),
                    bytes=sum(value_bytes(value) for value in {*read, *written}),
                    operations=operations(extern.op.split(".")[1], elements, shapes),
                    places=places_of(extern.origins),
                    why=why_extern(extern),
                )
            case Copy(into, source):
                moved = 2 * value_bytes(into.value)
                yield StepRecord("copy", "copy", reads=(source.value.name,), writes=(into.value.name,), bytes=moved)


def called(operators: Iterable[str], made: Scheduled) -> Iterator[str]:
    """Those of the `operators` of a program that are called, not computed by a template or parts joined in place."""
    spared = Counter(unit.call.op for unit in made.units if isinstance(unit, Templated))
    spared["aten.cat.default"] += sum(isinstance(step, Join) for step in made.plan.steps)
    yield from (Counter(operators) - spared).elements()


def why_extern(extern: Extern) -> str:
    """Why an operator is called instead of compiled into a kernel: the first reason that holds."""
    library, base, *_ = extern.op.split(".")
    ours = library == "gyrator"
    reasons = (
        (ours and extern.functions, "attention whose functions on one score are more than expressions has no template"),
        (ours and base == "seeds", "it draws the seeds of random numbers"),
        (ours, "it runs a region of the graph"),
        (base in PRODUCTS, "matrix products are left to the library, which is fast at them"),
        (
            "convolution" in base,
            "convolutions are left to the library, but for those that max_autotune finds faster on a GPU",
        ),
        ("attention" in base, "attention is left to the library's fused kernel"),
        (extern.scalars, "its result's size, or a number, is known only when it has run"),
        (extern.mutates, "it writes into its arguments"),
        (library not in ("aten", "prims"), "it is an operator of another library, whose code is not known"),
        (extern.effects, "there is no lowering for it, and it has an effect"),
    )
    return next((reason for holds, reason in reasons if holds), "there is no lowering for it")


def _unfused(made: Scheduled, maker: Maker) -> Iterator[Unfused]:
    nodes = made.program.nodes
    producer = {value: node for node in nodes for value in defines(node)}
    verdicts = {(id(d.first), id(d.second), d.shared): d.verdict for d in made.decisions}
    for reader in nodes:
        for value in sorted(uses(reader), key=lambda v: v.name):
            first = producer.get(value)
            ours, theirs = maker.get(value), next((maker.get(v) for v in defines(reader)), None)
            if first is None or (ours is theirs and ours is not None) or (theirs and value not in uses_of(theirs)):
                continue
            verdict = verdicts.get((id(first), id(reader), value))
            reason = _call_between(first, reader, ours, theirs) or (verdict.reason if verdict else "")
            reason = reason or "each was fused with others first, and together they may not run as one"
            about = reason, place_of(first.origins), place_of(reader.origins), bool(verdict and verdict.mismatch)
            yield Unfused(_value_name(first), _value_name(reader), value.name, value_bytes(value), *about)


def _call_between(first: Node, reader: Node, ours: "Unit | None", theirs: "Unit | None") -> str:
    if isinstance(theirs, Templated) and isinstance(reader, Extern):
        return f"a template reads whole operands: {theirs.call.op}"
    if isinstance(ours, Templated) and isinstance(first, Extern):
        return f"a template goes on with elements of its own tile alone: {ours.call.op}"
    if isinstance(first, Extern) and isinstance(reader, Extern):
        return f"both are calls: {first.op} and {reader.op}"
    if isinstance(first, Extern):
        return f"the value comes from a call: {first.op}"
    return f"the value goes to a call: {reader.op}" if isinstance(reader, Extern) else ""


def _memory(plan: Plan, program: Program) -> tuple[tuple[int, ...], tuple[Holder, ...]]:
    """Bytes held after each launch, call and copy, and who holds them at the peak."""
    origins = {value: node.origins for node in program.nodes for value in defines(node)}
    totals = tuple(total for total, _ in held(plan, value_bytes))
    peak = max(totals, default=0)
    at_peak = next((tuple(values) for total, values in held(plan, value_bytes) if total == peak), ())
    most = sorted(((value, value_bytes(value)) for value in at_peak), key=lambda item: -item[1])
    return totals, tuple(Holder(v.name, n, place_of(origins.get(v, ()))) for v, n in most)


def _count(lowered: Program, made: Scheduled, facts: Facts, launches: Mapping[str, int], counters: Counters) -> None:
    plan = made.plan
    counters.add(Count.KERNELS, len(plan.kernels))
    counters.add(Count.LAUNCHES, sum(launches.values()))
    calls = [step.extern for step in plan.steps if isinstance(step, Call)]
    moved = sum(value_bytes(value) for call in calls for value in {*uses(call), *defines(call)})
    counters.add(Count.BYTES_ACCESSED, moved)
    counters.add(Count.SCATTERS_UPON_CONSTANTS, max(0, _scatters(lowered) - _scatters(made.program)))
    counters.add(Count.LOOP_REORDERINGS, _reordered(plan, facts))
    on_cpu = {kernel.name for kernel in plan.kernels if kernel.tiling is None}
    for name, fact in facts.items():
        counters.add(Count(f"{fact.kind} kernels"))
        counters.add(Count.CPP_VECTORISED, int(fact.vectorised and name in on_cpu))
        counters.add(Count.CPP_CASTS, fact.casts if name in on_cpu else 0)
        counters.add(Count.PARALLEL_REDUCTIONS, int(fact.parallel_reduction))
        if fact.inner_loops > 1:
            counters.add(Count.OUTER_LOOP_FUSIONS)
            counters.add(Count.OUTER_LOOP_INNER_KERNELS, fact.inner_loops)
            counters.add(Count.OUTER_LOOP_BUFFERS, fact.buffers)
        counters.add(Count.BYTES_ACCESSED, fact.bytes * launches[name])
        counters.add(Count.ELEMENTS, fact.elements * launches[name])
        counters.add(Count.ESTIMATED_NS, int(fact.estimate * launches[name]))


def _scatters(program: Program) -> int:
    return sum(isinstance(node, Nest) and isinstance(node.root, Scatter) for node in program.nodes)


def _reordered(plan: Plan, facts: Facts) -> int:
    """How many kernels run their loops in another order than that of the dimensions of what they write."""
    found: set[str] = set()
    for step in plan.steps:
        if isinstance(step, Launch):
            for value, steps in zip(step.args, facts[step.kernel].strides, strict=True):
                dims = [dim for at in steps if (dim := _dimension(value, at)) is not None]
                if dims != sorted(dims):
                    found.add(step.kernel)
    return len(found)


def _dimension(value: Value, step: int) -> int | None:
    """The dimension along which a loop with that step through memory runs."""
    sides = zip(map(count_of, value.shape), map(count_of, value.strides), strict=True)
    return next((dim for dim, (size, stride) in enumerate(sides) if stride <= step < stride * size), None)


def _value_name(node: Node) -> str:
    """A node by its first result; a call without results by its operator."""
    return next((value.name for value in defines(node)), node.op if isinstance(node, Extern) else "nothing")
