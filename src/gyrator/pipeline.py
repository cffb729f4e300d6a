"""READ THIS FIRST: the whole compiler as one function, from an ATen graph to a callable.

    graph ──key──▶ in the cache? ──yes─────────────────────────────────────────────────────────────▶ load
                         └──no──▶ lower ─▶ schedule ─▶ print kernels ─▶ build, print wrapper ─▶ store ─▶ load

Autograd has run before: `backend.py` calls `compile_graph` for each forward, backward and inference graph.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.autograd.interface import BoxedCallable, Compiled, GraphInfo, interpret
from gyrator.cache.store import Entry, Json
from gyrator.codegen.cpp import CppKernel, print_kernel
from gyrator.codegen.wrapper import BuiltKernel, print_wrapper
from gyrator.errors import ToolchainMissing
from gyrator.ir.program import Program
from gyrator.ir.symbols import Symbols
from gyrator.ir.text import program_text
from gyrator.ir.tree import Kernel
from gyrator.lowering import lower
from gyrator.origin import Origin
from gyrator.report.describe import describe
from gyrator.report.dump import dump_compiled, dump_graph
from gyrator.report.record import to_json
from gyrator.report.watch import COUNTERS, RECORD, Watch, graph_compiled
from gyrator.runtime.build import Build, start_build
from gyrator.runtime.entries import (
    facts_of,
    find,
    keep,
    key_of,
    moved_places,
    numbered_places,
    open_stores,
)
from gyrator.runtime.load import WRAPPER, Runtime, load
from gyrator.runtime.pool import Pool
from gyrator.runtime.toolchain import find_toolchain
from gyrator.schedule.plan import Plan
from gyrator.schedule.stage import schedule
from gyrator.session import Counters, Session
from gyrator.validate import validated


@final
@dataclass(frozen=True)
class Process:
    """What the compilations of one process share: one compiles at a time, and their code shares a memory
    pool. `watch` is told of every graph and program that is ready; `counted` are the counters of all
    sessions.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    pool: Pool = field(default_factory=Pool)
    told: set[str] = field(default_factory=set)
    watch: Watch | None = None
    counted: list[Counters] = field(default_factory=list)
    scratch: list[TemporaryDirectory[str]] = field(default_factory=list)

    def scratch_folder(self) -> Path:
        """A folder that is removed when the process ends, for code that is not kept."""
        if not self.scratch:
            self.scratch.append(TemporaryDirectory(prefix="gyrator-"))
        return Path(self.scratch[0].name)


def compile_graph(
    graph: fx.GraphModule,
    example_inputs: Sequence[object],
    info: GraphInfo,
    session: Session,
    process: Process,
) -> Compiled:
    """Compile a functional ATen graph into a callable that takes the list of its inputs and empties it.

    Args:
        graph: as `autograd` leaves it; every node has `meta["val"]`.
        example_inputs: fake tensors, sizes and scalars, one per placeholder.
        info: what else is known of the graph, above all which outputs are new contents of inputs.
        session: options, counters, progress, dumps.
        process: see `Process`.

    Returns:
        The callable; it writes all updates into the inputs. Without a C++ compiler: one that calls torch's
        operators one by one, after one warning.

    Raises:
        UnsupportedOperator, UnsupportedInput: the graph cannot be compiled.
        KernelBuildError: the C++ compiler refused a kernel.
        InternalCheckError: a stage broke its own rules.
    """
    with process.lock, frozen_garbage():
        foreign = without_kernels(graph)
        if foreign is not None:
            session.warn(f"{foreign}: the graph runs operator by operator")
            return interpret(graph, example_inputs, info)
        try:
            toolchain = find_toolchain(session.config)
        except ToolchainMissing as missing:
            session.warn(f"graphs run operator by operator: {missing}")
            return interpret(graph, example_inputs, info)
        if session.dump is not None:
            dump_graph(session.dump, "aten", graph, example_inputs)
        updates = [(update.input, update.output) for update in info.updates]
        shown = range(0 if info.kind == "backward" else len(info.strides) - info.saved)
        written = frozenset(range(len(updates)))
        shape_env = shape_env_of(example_inputs)
        guards = 0 if shape_env is None else len(shape_env.guards)
        stores = open_stores(session, process.scratch_folder())
        with session.stage("look up"):
            key = key_of(graph, session, shape_env, updates, shown, toolchain.key())
            entry = find(key, stores.graphs, example_inputs, session)
        if entry is not None and not session.config.validate:
            call = loaded(entry, {}, moved_places(entry, graph), session, process)
            graph_compiled(session, entry, process.watch, cached=True)
            return Compiled(call, written, entry.key)

        symbols = Symbols(shape_env)
        with session.stage("lower"):
            lowered = lower(graph, example_inputs, symbols=symbols, name=session.name, updates=updates)
        session.keep("lower", lowered.program)
        if session.dump is not None:
            session.dump.write("lowered", program_text(lowered.program))
        for op in lowered.fallbacks:
            session.counters.add_extern(op)
        with session.stage("schedule"):
            scheduled = schedule(lowered.program, session)
            plan = scheduled.plan
        with session.stage("print kernels"):
            printed = tuple([print_kernel(kernel) for kernel in plan.kernels])
        build = start_build(printed, toolchain, stores.kernels, session, places(plan))
        with session.stage("print wrapper"):
            built = built_kernels(plan, printed, build)
            text = print_wrapper(plan, built, symbols.hints, shown=shown)
        if "output_code" in session.config.logs:
            print("\n".join([*(kernel.text for kernel in printed), text]))
        with session.stage("record"):
            texts = {k.name: (text.name, text.text) for k, text in zip(plan.kernels, printed, strict=True)}
            counters = session.counters
            record = describe(
                session.name, info.kind, lowered.program, scheduled, texts, symbols.hints, counters
            )
        with session.stage("build"):
            libraries = build.wait()
        with session.stage("store"):
            notes: dict[str, Json] = {
                "facts": facts_of(shape_env, guards, key),
                "places": numbered_places(graph, built),
                COUNTERS: {**record.counters},
            }
            again = None if lowered.regions else key  # regions run from graphs that this process holds
            about = {RECORD: to_json(record)}
            entry = keep(again, text, libraries, lowered.constants, notes, stores, about)
        if session.dump is not None:
            dump_compiled(session.dump, scheduled, record, entry, [kernel.text for kernel in printed])
        call = loaded(entry, lowered.constants, {}, session, process, lowered.regions)
        graph_compiled(session, entry, process.watch, cached=False)
        compiled = Compiled(call, written, entry.key)
        if session.config.validate:
            programs = [(name, p) for name, p in session.programs if isinstance(p, Program)]
            return validated(compiled, graph, info, programs, lowered)
        return compiled


def without_kernels(graph: fx.GraphModule) -> str | None:
    """Which tensors of the graph no kernel can be generated for, if there are any."""
    for node in graph.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (list, tuple)) else (values,):
            if isinstance(value, torch.Tensor):
                if value.device.type != "cpu":
                    return f"no kernels are generated for tensors on {value.device.type}"
                if value.layout is not torch.strided or value.is_quantized:
                    kind = "quantised tensors" if value.is_quantized else f"layout {value.layout}"
                    return f"no kernels are generated for {kind}"
    return None


# -- between the stages --------------------------------------------------------------------------------------
def built_kernels(plan: Plan, printed: Sequence[CppKernel], build: Build) -> dict[str, BuiltKernel]:
    """Where the wrapper finds each kernel of the plan."""
    found = {}
    for kernel, text in zip(plan.kernels, printed, strict=True):
        sites = tuple((check.size.value, checked_place(kernel)) for check in text.checks)
        found[kernel.name] = BuiltKernel(build.library_of[text.name], text.name, sites)
    return found


def checked_place(kernel: Kernel) -> Origin | None:
    """The place of the user's program to name when an index of the kernel is out of range."""
    words = ("index", "gather", "embedding", "scatter")
    indexing = [o for o in kernel.origins if any(word in o.op for word in words)]
    return next(iter([*indexing, *kernel.origins]), None)


def places(plan: Plan) -> dict[str, Origin]:
    """The first place of the user's program that each kernel comes from."""
    return {kernel.name: kernel.origins[0] for kernel in plan.kernels if kernel.origins}


def loaded(
    entry: Entry,
    constants: Mapping[str, torch.Tensor],
    moved: Mapping[Origin, Origin],
    session: Session,
    process: Process,
    regions: Mapping[str, fx.GraphModule] = MappingProxyType({}),
) -> BoxedCallable:
    """The callable of a compiled graph's folder. A graph that calls regions is not found again."""
    with session.stage("load"):
        pool = process.pool if session.config.reuse_buffers else None
        runtime = Runtime(entry.folder, pool, constants, moved, session.config.threads, regions=regions)
        return load(entry.text(WRAPPER), runtime)


def shape_env_of(example_inputs: Sequence[object]) -> ShapeEnv | None:
    """The environment of the inputs' symbolic sizes; None if all sizes are plain."""
    for given in example_inputs:
        sizes = (*given.shape, *given.stride()) if isinstance(given, torch.Tensor) else (given,)
        for size in sizes:
            if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return size.node.shape_env
    return None


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """No garbage collection inside: a compile makes many small objects and frees few, so that passes find
    nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
