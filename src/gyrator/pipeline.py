"""READ THIS FIRST: the whole compiler as one function, from an ATen graph to a callable.

    graph ──key──▶ in the cache? ──yes─────────────────────────────────────────────────────────────▶ load
                         └──no──▶ lower ─▶ schedule ─▶ print kernels ─▶ build, print wrapper ─▶ store ─▶ load

Autograd has run before: `backend.py` calls `compile_graph` for each forward, backward and inference graph. From "build"
on the work waits in a function that it returns, so that backward is compiled while forward's kernels are built."""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import torch
from torch import fx

from gyrator.autograd.builder import flatten
from gyrator.autograd.interface import BoxedCallable, Compiled, GraphInfo, Pending, interpret
from gyrator.autotune.parts import Builder
from gyrator.autotune.product_graphs import subgraphs_of
from gyrator.autotune.sandbox import Sandboxes
from gyrator.autotune.subgraphs import with_subgraphs
from gyrator.autotune.tuner import Tuner
from gyrator.benchmark_fusion import slower_fusions
from gyrator.cache.key import graph_key
from gyrator.cache.remote import Remote, remote_of
from gyrator.cache.store import Content, Json
from gyrator.codegen.kernel_script import kernel_scripts
from gyrator.codegen.wrapper import print_wrapper
from gyrator.config import Config
from gyrator.errors import ToolchainMissing
from gyrator.ir.program import Program
from gyrator.ir.symbols import Symbols
from gyrator.ir.text import program_text
from gyrator.lowering.activations import with_activations
from gyrator.lowering.graph import lower
from gyrator.origin import Origin
from gyrator.report.describe import called, describe
from gyrator.report.dump import dump_compiled, dump_graph
from gyrator.report.record import to_json
from gyrator.report.watch import COUNTERS, RECORD, GraphCompiled, Watch, graph_compiled, kernel_tuned, traffic
from gyrator.runtime.cuda_graphs import Roles, record_on_gpu, recordable, replayed
from gyrator.runtime.entries import Stores, as_list, facts_of, find, keep, moved_places, numbered_places, open_stores
from gyrator.runtime.gpu_kernels import GpuKernels
from gyrator.runtime.load import WRAPPER, Runtime, constant_file, load
from gyrator.runtime.pool import Pool
from gyrator.runtime.profile import BandwidthProfile
from gyrator.runtime.targets import find_targets, start_kernels
from gyrator.runtime.triton_build import rebuild
from gyrator.runtime.triton_tune import Tuned
from gyrator.runtime.workers import Workers
from gyrator.schedule.cpu_gemm import packed_constants
from gyrator.schedule.plan import Call
from gyrator.schedule.stage import schedule
from gyrator.session import Counters, Session
from gyrator.torch_compat import on_device, shape_env_of
from gyrator.validate import validated

Instead: TypeAlias = Callable[[fx.GraphModule, Sequence[object], Config], Callable[..., object]]

RECORDED = "recorded"
"""What an entry notes of a graph whose calls can be recorded: its GPU, how many inputs lie in forward's recording and
how many outputs in its own, and the inputs that stay in place."""


@dataclass(frozen=True)
class Process:
    """What the compilations of one process share: one compiles at a time, their code shares a memory pool,
    `workers` compile their GPU kernels, `sandboxes` time candidates, and `remotes` share entries among machines.

    `watch` is told of every graph and program that is ready; `counted` are the counters of all sessions; `profile`
    collects for the option `profile_bandwidth`; `instead` takes captured programs in the backend's place."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    pool: Pool = field(default_factory=Pool)
    workers: Workers = field(default_factory=Workers)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    remotes: dict[tuple[str, bytes], Remote] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    watch: Watch | None = None
    instead: Instead | None = None
    counted: list[Counters] = field(default_factory=list)
    profile: BandwidthProfile = field(default_factory=BandwidthProfile)
    scratch: list[TemporaryDirectory[str]] = field(default_factory=list)

    def scratch_folder(self) -> Path:
        """A folder that is removed when the process ends, for code that is not kept."""
        if not self.scratch:
            self.scratch.append(TemporaryDirectory(prefix="gyrator-"))
        return Path(self.scratch[0].name)

    def stores(self, session: Session) -> Stores:
        """The stores that a session's options name."""
        remote = remote_of(session.config, self.remotes) if session.config.cache else None
        return open_stores(session, self.scratch_folder(), remote)

    def gpu_kernels(self, folder: Path, session: Session, tuned: Tuned, moved: Mapping[Origin, Origin]) -> GpuKernels:
        """The GPU kernels in a compiled graph's folder, with the stores and workers that kernels share."""
        kernels = self.stores(session).kernels
        build = partial(rebuild, workers=self.workers, store=kernels, session=session)
        return GpuKernels(folder, kernels, build, moved, tuned=tuned)


def compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[object], info: GraphInfo, session: Session, process: Process
) -> Pending:
    """Compile a functional ATen graph into a callable that takes the list of its inputs and empties it.

    Args:
        graph: as `autograd` leaves it; every node has `meta["val"]`.
        example_inputs: fake tensors, sizes and scalars, one per placeholder.

    The result waits for the kernels, which are built meanwhile, stores and loads. The callable writes all updates into
    the inputs. Where the processor's kernels lack a C++ compiler it calls torch's operators one by one, after one
    warning.

    Raises: UnsupportedOperator, UnsupportedInput; DeviceUnsupported, ToolchainMissing if the GPU, its driver or Triton
    is missing or too old; KernelBuildError; InternalCheckError if a stage broke its own rules."""
    by_operators = partial(interpret, graph, example_inputs, info)

    def without_compiler(missing: ToolchainMissing) -> Pending:
        session.warn(f"graphs run operator by operator: {missing}")
        return by_operators

    device = device_of(tensors_of(graph))
    foreign = without_kernels(graph, device)
    if foreign is not None:
        session.warn(f"{foreign}: the graph runs operator by operator")
        return by_operators
    try:
        targets = find_targets(session.config, device)
    except ToolchainMissing as missing:
        return without_compiler(missing)
    if session.dump is not None:
        dump_graph(session.dump, "aten", graph, example_inputs)
    updates = [(update.input, update.output) for update in info.updates]
    results = range(len(info.strides) - info.saved)
    shown = results[:0] if info.kind == "backward" else results
    written = frozenset(range(len(updates)))
    made = [n.meta["val"] for n in graph.graph.nodes if "unbacked_bindings" in n.meta]
    shape_env = shape_env_of((*example_inputs, *flatten(made)))
    guards = 0 if shape_env is None else len(shape_env.guards)
    stores = process.stores(session)
    with session.stage("look up"):
        key = None
        if not info.frozen:
            roles = repr((updates, shown, results))
            key = graph_key(graph, session.config, roles, shape_env=shape_env, target=targets.key())
        entry = find(key, stores.graphs, example_inputs, session)
    if entry is not None and not session.config.validate:
        ready = GraphCompiled(entry, True, session, moved=moved_places(entry, graph))
        return partial(_compiled, ready, process, written)

    symbols = Symbols(shape_env)
    builder = Builder(targets, stores, session, process.workers, shape_env)
    chosen, tuner = graph, None
    if session.config.max_autotune and (device.type == "cpu" or torch.cuda.is_available()):
        if len(session.config.gemm_backends) > 1:
            process.sandboxes.prepare(device)  # starts while the graph is lowered
        tuner = Tuner(builder, device, process.sandboxes)
        if "subgraph" in session.config.gemm_backends:
            chosen = with_subgraphs(graph, subgraphs_of, tuner)
    elif device.type == "cuda":
        chosen = with_activations(graph)
    with session.stage("lower"):
        lowered = lower(
            chosen,
            symbols=symbols,
            name=session.name,
            updates=updates,
            numerics=session.config.numerics,
            computed=builder.computed,
        )
    session.keep("lower", lowered.program)
    if session.dump is not None:
        session.dump.write("lowered", program_text(lowered.program))
    with session.stage("schedule"):
        slower = slower_fusions(builder) if session.config.benchmark_fusion else None
        ask = tuner.ask if tuner else None
        scheduled = schedule(
            lowered.program, session, targets.gpu, slower, ask, targets.cpu, overlays=info.kind == "inference"
        )
        plan = scheduled.plan
        for op in called(lowered.fallbacks, scheduled):
            session.counters.add_extern(op)
        constants = {**lowered.constants, **packed_constants(scheduled.packings, lowered.constants)}
    try:
        kernels = start_kernels(plan, targets, stores.kernels, session, process.workers)
    except ToolchainMissing as missing:
        return without_compiler(missing)
    with session.stage("print wrapper"):
        text = print_wrapper(plan, kernels.built, shown=shown, results=results, align=kernels.align)
    with session.stage("record"):
        record = describe(session, info.kind, lowered.program, scheduled, kernels.texts)
        record = replace(record, choices=() if tuner is None else tuple(tuner.choices))
        kept, saved = (info.saved, 0) if info.kind == "backward" else (0, info.saved)
        notes: dict[str, Json] = {
            "facts": facts_of(shape_env, guards, key),
            "places": numbered_places(graph, kernels.places),
            COUNTERS: {**record.counters},
            RECORDED: [device.index, kept, saved, *info.static_inputs] if recordable(plan, info) else None,
        }
        called_ops = {step.extern.op for step in plan.steps if isinstance(step, Call)}
        regions = {name: region for name, region in lowered.regions.items() if name in called_ops}
        again = None if regions else key  # regions run from graphs that this process holds
        files: dict[str, Content] = {WRAPPER: text, RECORD: to_json(record)}
        if not info.frozen:
            files |= {constant_file(name): tensor for name, tensor in constants.items()}
        if session.config.benchmark_kernel:
            files |= dict(kernel_scripts(plan, kernels.built))

    def finish() -> Compiled:
        with session.stage("build"):
            built = kernels.wait()
        with session.stage("store"):
            entry = keep(again, {**built, **files}, notes, stores)
        if session.dump is not None:
            dump_compiled(session.dump, scheduled, record, entry, [code for _, code in kernels.texts.values()])
        compiled = _compiled(GraphCompiled(entry, False, session, regions, constants), process, written)
        if session.config.validate:
            programs = [(name, p) for name, p in session.programs if isinstance(p, Program)]
            return validated(compiled, graph, info, programs, lowered)
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
    values = (value for node in graph.graph.nodes for value in flatten(node.meta.get("val")))
    yield from (value for value in values if isinstance(value, torch.Tensor))


# -- between the stages --------------------------------------------------------------------------------------
def _compiled(ready: GraphCompiled, process: Process, written: frozenset[int]) -> Compiled:
    """A graph that is stored, loaded."""
    entry = ready.entry
    return Compiled(loaded(ready, process), written, entry.key, str(entry.folder / WRAPPER))


def loaded(ready: GraphCompiled, process: Process) -> BoxedCallable:
    """The callable of a compiled graph, after all who watch were told of it."""
    entry, session, config, moved = ready.entry, ready.session, ready.session.config, ready.moved
    with session.stage("load"):
        pool = process.pool if config.reuse_buffers else None
        note = None
        if config.profile_bandwidth:
            process.profile.expect(traffic(entry))
            note = process.profile.note
        gpu = process.gpu_kernels(entry.folder, session, partial(kernel_tuned, config, entry.folder), moved)
        runtime = Runtime(
            entry.folder, pool, ready.constants, moved, config.threads, regions=ready.regions, gpu=gpu, note=note
        )
        call = load(entry.text(WRAPPER), runtime)
        if config.cuda_graphs and entry.notes.get(RECORDED) is not None:
            index, kept, saved, *static = as_list(entry.notes[RECORDED])
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
