"""READ THIS FIRST: the whole compiler, from an ATen graph to a callable.

    graph ──key──▶ in the cache? ──yes─────────────────────────────────────────────────────────────▶ load
                         └──no──▶ lower ─▶ schedule ─▶ print kernels ─▶ build, print wrapper ─▶ store ─▶ load

Autograd has run before: `backend.py` calls `compile_graph` for each forward, backward and inference graph. From "build"
on the work waits in a function that it returns, so that backward is compiled while forward's kernels are built."""

import atexit
import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.weak import WeakIdKeyDictionary

from gyrator.autograd.builder import flatten
from gyrator.autograd.interface import BoxedCallable, Compiled, GraphInfo, Pending, interpret
from gyrator.autotune.parts import Builder
from gyrator.autotune.sandbox import Sandboxes
from gyrator.autotune.subgraphs import with_subgraphs
from gyrator.autotune.tuner import Choice, Tuner
from gyrator.benchmark_fusion import slower_fusions
from gyrator.cache.key import Key, graph_key
from gyrator.cache.remote import Remote, remote_of
from gyrator.cache.store import Content, Json
from gyrator.codegen.wrapper import kernel_scripts, print_wrapper
from gyrator.config import Config
from gyrator.errors import ToolchainMissing
from gyrator.ir.program import Program
from gyrator.ir.symbols import Symbols
from gyrator.ir.text import program_text
from gyrator.lowering.activations import with_activations
from gyrator.lowering.graph import Lowered, lower
from gyrator.report.describe import called, describe
from gyrator.report.dump import dump_compiled, dump_graph
from gyrator.report.watch import COUNTERS, RECORD, GraphCompiled, Watch, graph_compiled, kernel_tuned, record_in
from gyrator.runtime.cuda_graphs import Roles, record_on_gpu, recordable, replayed
from gyrator.runtime.entries import Stores, facts_of, find, keep, moved_places, numbered_places, open_stores
from gyrator.runtime.gpu_kernels import GpuKernels
from gyrator.runtime.load import WRAPPER, Note, Runtime, constant_file, load
from gyrator.runtime.pool import Pool, Workspaces
from gyrator.runtime.profile import BandwidthProfile
from gyrator.runtime.targets import Targets, find_targets, start_kernels
from gyrator.runtime.triton_build import rebuild
from gyrator.runtime.triton_tune import Tuned
from gyrator.runtime.workers import Workers
from gyrator.schedule.cpu_gemm import panels_of
from gyrator.schedule.plan import Call
from gyrator.schedule.stage import Scheduled, schedule
from gyrator.session import Counters, Session
from gyrator.torch_compat import on_device, shape_env_of
from gyrator.validate import validated

RECORDED = "recorded"
"""What an entry notes of a graph whose calls can be recorded: its GPU, how many inputs lie in forward's recording and
how many outputs in its own, and the inputs that stay in place."""


@dataclass(frozen=True)
class Process:
    """What the compilations of one process share: one compiles at a time, their code shares a memory pool,
    `workers` compile their GPU kernels, `sandboxes` time candidates, and `remotes` share entries among machines.

    `watch` is told of every graph and program that is ready; `counted` are the counters of all sessions; `profile`
    collects for the option `profile_bandwidth`; `instead` takes captured programs in the backend's place; `recorded` is
    memory that recordings of launches hold; `masks` says what masks let pass that parts of a captured graph hand on."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    pool: Pool = field(default_factory=Pool)
    workers: Workers = field(default_factory=Workers)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    remotes: dict[tuple[str, bytes], Remote] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    watch: Watch | None = None
    instead: Callable[[fx.GraphModule, Sequence[object], Config], Callable[..., object]] | None = None
    counted: list[Counters] = field(default_factory=list)
    profile: BandwidthProfile = field(default_factory=BandwidthProfile)
    recorded: list[torch.Tensor] = field(default_factory=list)
    masks: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    @cached_property
    def scratch(self) -> Path:
        """A folder that is removed when the process ends, for code that is not kept."""
        folder = TemporaryDirectory(prefix="gyrator-")
        atexit.register(folder.cleanup)  # else Python warns that it had to
        return Path(folder.name)

    def stores(self, session: Session) -> Stores:
        """The stores that a session's options name."""
        remote = remote_of(session.config, self.remotes) if session.config.cache else None
        return open_stores(session, self.scratch, remote)

    def runtime(self, ready: GraphCompiled, pool: Pool, tuned: Tuned, note: Note | None = None) -> Runtime:
        """What a graph's wrapper is bound to, with what GPU kernels share; options say if it uses `pool`."""
        session, folder, moved = ready.session, ready.entry.folder, ready.moved
        kernels, config = self.stores(session).kernels, session.config
        build = partial(rebuild, workers=self.workers, store=kernels, session=session)
        gpu = GpuKernels(folder, kernels, build, moved, tuned=tuned)
        lent, space = pool if config.reuse_buffers else None, Workspaces(self.recorded)
        given = (folder, lent, ready.constants, moved, config.threads)
        return Runtime(*given, note=note, regions=ready.regions, gpu=gpu, workspace=space)


@dataclass(frozen=True, slots=True)
class _Task:
    """A graph to compile: its roles (`info`), whose options it has, what it is built for, and where it is kept: under
    `key`, if it has one. `guards` is how many facts about sizes were guarded before."""

    graph: fx.GraphModule
    info: GraphInfo
    session: Session
    process: Process
    device: torch.device
    targets: Targets
    stores: Stores
    shape_env: ShapeEnv | None
    guards: int
    key: Key | None = None

    @property
    def saved(self) -> tuple[int, int]:
        """How many inputs at the start forward has saved, and how many outputs at the end are saved for backward."""
        return (self.info.saved, 0) if self.info.kind == "backward" else (0, self.info.saved)

    @property
    def shown(self) -> range:
        """The outputs that the user keeps, and whose strides he sees. Of gradients he keeps one set, whose strides he
        does not see: that they take larger blocks, which values of forward left, makes the most memory at once less."""
        return range(0) if self.info.kind == "backward" else range(len(self.info.strides) - self.info.saved)


def compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[object], info: GraphInfo, session: Session, process: Process
) -> Pending:
    """Compile a functional ATen graph into a callable that takes the list of its inputs and empties it.

    Args:
        graph: as `autograd` leaves it; every node has `meta["val"]`.
        example_inputs: fake tensors, sizes and scalars, one per placeholder.

    The result waits for the kernels, which are built meanwhile, stores and loads. The callable writes all updates into
    the inputs. Where kernels lack a C++ compiler, or Triton, it calls torch's operators one by one, after one warning.

    Raises: UnsupportedOperator, UnsupportedInput; DeviceUnsupported if the GPU is missing, or it, its driver or Triton
    is too old; KernelBuildError; InternalCheckError if a stage broke its own rules."""
    by_operators = partial(interpret, graph, example_inputs, info)
    device = device_of(tensors_of(graph))
    if (foreign := without_kernels(graph, device)) is not None:
        session.warn(f"{foreign}: the graph runs operator by operator")
        return by_operators
    made = [n.meta["val"] for n in graph.graph.nodes if "unbacked_bindings" in n.meta]
    shape_env = shape_env_of((*example_inputs, *flatten(made)))
    guards, stores = 0 if shape_env is None else len(shape_env.guards), process.stores(session)
    try:
        targets = find_targets(session.config, device)
        task = _Task(graph, info, session, process, device, targets, stores, shape_env, guards)
        if session.dump is not None:
            dump_graph(session.dump, "aten", graph, example_inputs)
        with session.stage("look up"):
            if not info.frozen:
                static = info.static_inputs if session.config.cuda_graphs else ()
                updates = [(u.input, u.output) for u in info.updates]
                roles = repr((info.kind, updates, task.shown, task.saved, static))
                target = targets.key()
                task = replace(task, key=graph_key(graph, session.config, roles, shape_env=shape_env, target=target))
            entry = find(task.key, stores.graphs, example_inputs, session)
        if entry is not None and not session.config.validate:
            return partial(_compiled, GraphCompiled(entry, True, session, moved=moved_places(entry, graph)), process)
        if targets.gpu is not None:  # how many kernels there will be is a guess
            process.workers.prepare(min(len(graph.graph.nodes) // 16, session.config.builders))
        return _build(task, *_lower_and_schedule(task))
    except ToolchainMissing as missing:
        session.warn(f"graphs run operator by operator: {missing}")
        return by_operators


def _lower_and_schedule(task: _Task) -> tuple[Lowered, Scheduled, Sequence[Choice]]:
    """graph → program → plan, and what was chosen by measurement for it."""
    session, config, targets = task.session, task.session.config, task.targets
    builder = Builder(targets, task.stores, session, task.process.workers, task.shape_env)
    graph, tuner = task.graph, None
    if config.max_autotune and (task.device.type == "cpu" or torch.cuda.is_available()):
        if len(config.gemm_backends) > 1:
            task.process.sandboxes.prepare(task.device)  # starts while the graph is lowered
        tuner = Tuner(builder, task.device, task.process.sandboxes)
        if "subgraph" in config.gemm_backends:
            graph = with_subgraphs(graph, tuner)
    elif task.device.type == "cuda":
        graph = with_activations(graph)
    with session.stage("lower"):
        symbols = Symbols(task.shape_env)
        updates = [(update.input, update.output) for update in task.info.updates]
        lowered = lower(graph, symbols, session.name, updates, config.numerics, builder.computed)
    session.keep("lower", lowered.program)
    if session.dump is not None:
        session.dump.write("lowered", program_text(lowered.program))
    with session.stage("schedule"):
        slower = slower_fusions(builder) if config.benchmark_fusion else None
        given = (lowered.program, session, targets.gpu, slower, tuner.ask if tuner else None, targets.cpu)
        scheduled = schedule(*given, overlays=task.info.kind == "inference", freed=task.saved[0])
        for op in called(lowered.fallbacks, scheduled):
            session.counters.add_extern(op)
    return lowered, scheduled, () if tuner is None else tuner.choices


def _build(task: _Task, lowered: Lowered, scheduled: Scheduled, choices: Sequence[Choice]) -> Pending:
    """plan → kernels and wrapper on their way; what waits for them stores and loads them. Raises: ToolchainMissing."""
    session, info, plan = task.session, task.info, scheduled.plan
    packed = {p.value.name: panels_of(lowered.constants[p.source.value.name], *p.layout) for p in scheduled.packings}
    constants = {**lowered.constants, **packed}
    kernels = start_kernels(plan, task.targets, task.stores.kernels, session, task.process.workers)
    with session.stage("print wrapper"):
        text = print_wrapper(plan, kernels.built, shown=task.shown, align=kernels.align)
    with session.stage("record"):
        record = describe(session, info.kind, lowered.program, scheduled, kernels.texts)
        record = replace(record, choices=tuple(choices))
        called_ops = {step.extern.op for step in plan.steps if isinstance(step, Call)}
        regions = {name: region for name, region in lowered.regions.items() if name in called_ops}
        recorded = not regions and recordable(plan, info)
        notes: dict[str, Json] = {
            "facts": facts_of(task.shape_env, task.guards, task.key),
            "places": numbered_places(task.graph, kernels.places),
            COUNTERS: {**record.counters},
            RECORDED: [task.device.index, *task.saved, *info.static_inputs] if recorded else None,
        }
        files: dict[str, Content] = {WRAPPER: text, RECORD: msgspec.json.encode(record).decode()}
        if not info.frozen:
            files |= {constant_file(name): tensor for name, tensor in constants.items()}
        if session.config.benchmark_kernel:
            files |= dict(kernel_scripts(plan, kernels.built))

    def finish() -> Compiled:
        with session.stage("build"):
            built = kernels.wait()
        with session.stage("store"):
            # regions run from graphs that this process holds
            entry = keep(None if regions else task.key, {**built, **files}, notes, task.stores)
        if session.dump is not None:
            dump_compiled(session.dump, scheduled, record, entry)
        compiled = _compiled(GraphCompiled(entry, False, session, regions, constants), task.process)
        if session.config.validate:
            programs = [(name, p) for name, p in session.programs if isinstance(p, Program)]
            return validated(compiled, task.graph, info, programs, lowered)
        return compiled

    return finish


def without_kernels(graph: fx.GraphModule, device: torch.device) -> str | None:
    """Which tensors of the graph on `device` no kernel can be generated for, if there are any."""
    for value in tensors_of(graph):
        if value.device.type not in ("cpu", "cuda"):
            return f"no kernels are generated for tensors on {value.device.type}"
        if value.device.type == "cuda" and value.device != device:
            return "no kernels are generated for graphs on several GPUs"
        if value.layout is not torch.strided or value.is_quantized:
            kind = "quantised tensors" if value.is_quantized else f"layout {value.layout}"
            return f"no kernels are generated for {kind}"
    return None


def device_of(values: Iterable[object]) -> torch.device:
    """The GPU that the first tensor on one lies on, else the CPU."""
    on_gpu = (v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda")
    return next(on_gpu, torch.device("cpu"))


def tensors_of(graph: fx.GraphModule) -> Iterator[torch.Tensor]:
    """The results of all nodes."""
    return (v for node in graph.graph.nodes for v in flatten(node.meta.get("val")) if isinstance(v, torch.Tensor))


def _compiled(ready: GraphCompiled, process: Process) -> Compiled:
    return Compiled(loaded(ready, process), ready.entry.key, str(ready.entry.folder / WRAPPER))


def loaded(ready: GraphCompiled, process: Process) -> BoxedCallable:
    """The callable of a compiled graph, after all who watch were told of it."""
    entry, config, note = ready.entry, ready.session.config, None
    with ready.session.stage("load"):
        if config.profile_bandwidth:
            process.profile.expect({kernel.symbol: kernel.facts.bytes for kernel in record_in(entry.folder).kernels})
            note = process.profile.note
        runtime = process.runtime(ready, process.pool, partial(kernel_tuned, config, entry.folder), note)
        call = load(entry.text(WRAPPER), runtime)
        if config.cuda_graphs and entry.notes[RECORDED] is not None:
            index, kept, saved, *static = entry.notes[RECORDED]
            call = on_device(index, replayed(call, Roles(frozenset(static), kept, saved), record_on_gpu))
    graph_compiled(ready, process.watch)
    return call


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """No garbage collection inside: a compile makes many small objects and frees few, so that passes find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
