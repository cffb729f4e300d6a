"""A plan's kernels for both targets: those with tiles are printed as Triton and run on a GPU, the others as C++."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from gyrator.cache.store import Store
from gyrator.codegen.cpp import print_kernel
from gyrator.codegen.texts import checked_place
from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_source import TritonKernel
from gyrator.codegen.wrapper import BuiltKernel, argument_alignment, inputs_to_align
from gyrator.config import Config
from gyrator.errors import ToolchainMissing
from gyrator.ir.expr import Value
from gyrator.ir.tree import Kernel
from gyrator.origin import Origin
from gyrator.runtime.build import start_build
from gyrator.runtime.gpu_kernels import describe
from gyrator.runtime.load import library_file
from gyrator.runtime.toolchain import Toolchain, cpu_about, find_toolchain
from gyrator.runtime.triton_build import Wanted, builder_key, find_gpu, start_triton_build
from gyrator.runtime.workers import Workers
from gyrator.schedule.cpu_gemm import Cpu
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from gyrator.session import Session


@dataclass(frozen=True, slots=True)
class Targets:
    """What kernels of a graph are built for: a GPU, this machine's processor, or both; what the schedule knows of each.

    A graph on a GPU seldom has kernels for the processor, so `toolchain` may be None for it."""

    toolchain: Toolchain | None
    cpu: Cpu | None
    gpu: Gpu | None = None

    def key(self) -> str:
        """A text for keys of the cache."""
        cpp, triton = self.toolchain and self.toolchain.key(), self.gpu and builder_key()
        return f"{cpp}\n{triton}\n{self.gpu or self.cpu}"


def find_targets(config: Config, device: torch.device) -> Targets:
    """The targets of graphs on `device`. A GPU that is not here is like an H100.

    Raises: ToolchainMissing; DeviceUnsupported for a GPU that is missing or too old."""
    try:
        toolchain = find_toolchain(config)
    except ToolchainMissing:
        if device.type != "cuda":
            raise
        toolchain = None
    threads, favoured = config.threads or torch.get_num_threads(), cpu_about("vendor_id") == "GenuineIntel"
    cpu = Cpu(toolchain.vectors, threads, favoured) if toolchain else None
    return Targets(toolchain, cpu, find_gpu(config, device) if device.type == "cuda" else None)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of a plan, printed and on their way: where the wrapper finds each, by its name in the plan, and its
    symbol and text; inputs that the wrapper aligns; the user's places, for indices out of range."""

    built: Mapping[str, BuiltKernel | TritonKernel]
    texts: Mapping[str, tuple[str, str]]
    align: tuple[Value, ...]
    places: frozenset[Origin]
    _waits: Sequence[Callable[[], Mapping[str, str | Path]]]

    def wait(self) -> dict[str, str | Path]:
        """The files that the graph's folder needs, when they are there. Raises: KernelBuildError, KeyboardInterrupt."""
        return {name: file for wait in self._waits for name, file in wait().items()}


def start_kernels(plan: Plan, targets: Targets, store: Store, session: Session, workers: Workers) -> Kernels:
    """Print a plan's kernels and begin to build them; returns at once.

    Raises: ToolchainMissing if a kernel runs on the processor and there is no compiler. UnsupportedInput,
    InternalCheckError for a kernel that cannot be printed."""
    on_gpu = [kernel for kernel in plan.kernels if kernel.tiling is not None]
    on_cpu = [kernel for kernel in plan.kernels if kernel.tiling is None]
    with session.stage("print kernels"):
        both = session.config.multi_kernel or session.config.max_autotune
        early = targets.gpu is not None and targets.gpu.capability >= 90
        forms = partial(print_forms if both else print_triton, early=early)
        own = partial(print_with_room, forms) if session.config.coordinate_descent else forms
        triton = {kernel.name: own(kernel) for kernel in on_gpu}
        cpp = {kernel.name: print_kernel(kernel) for kernel in on_cpu}
    align = inputs_to_align(plan) if on_gpu and session.config.assume_aligned_inputs else ()
    built: dict[str, BuiltKernel | TritonKernel] = {**triton}
    waits: list[Callable[[], Mapping[str, str | Path]]] = []
    places = {k.name: k.origins[0] for k in plan.kernels if k.origins}
    if on_cpu or targets.gpu is None:
        toolchain = targets.toolchain or find_toolchain(session.config)
        build = start_build(list(cpp.values()), toolchain, store, session, places)
        for kernel in on_cpu:
            printed = cpp[kernel.name]
            checks = tuple((check.size.value, checked_place(kernel)) for check in printed.checks)
            built[kernel.name] = BuiltKernel(build.library_of[printed.name], printed.name, checks)
        waits.append(lambda: {library_file(name): path for name, path in build.wait().items()})
    if on_gpu:
        assert targets.gpu is not None
        sure = argument_alignment(plan, triton, align)
        wanted = [Wanted(triton[k.name], sure[k.name], checked_place(k)) for k in on_gpu]
        capability = targets.gpu.capability
        binaries = start_triton_build(wanted, targets.gpu, workers, store, session)
        waits.append(lambda: describe(binaries(), capability))
    texts = {name: (kernel.name, kernel.source) for name, kernel in triton.items()}
    texts |= {name: (kernel.name, kernel.text) for name, kernel in cpp.items()}
    sites = {place for b in built.values() if isinstance(b, BuiltKernel) for _, place in b.sites}
    sites |= {checked_place(k) for k in on_gpu if triton[k.name].asserts}
    return Kernels(built, texts, align, frozenset(p for p in sites if p is not None), waits)


def print_forms(kernel: Kernel, *, early: bool = False) -> TritonKernel:
    """A kernel on a GPU with both its forms, if it has two: rows whole, and rows in blocks."""
    whole = print_triton(kernel, early=early)
    if kernel.tiling is None or kernel.tiling.other is None:
        return whole
    return replace(whole, other=print_triton(replace(kernel, tiling=kernel.tiling.other), early=early))


def print_with_room(forms: Callable[[Kernel], TritonKernel], kernel: Kernel) -> TritonKernel:
    """A kernel on a GPU whose text holds for blocks of the grid and of looped rows up to four times as large as any of
    its configs has, but those of shared scans. Templates and loops side by side are printed as they are."""
    tiling = kernel.tiling
    if tiling is None or tiling.category in ("template", "foreach"):
        return forms(kernel)
    blocks = {tile.block for tile in tiling.tiles if not (tile.whole or tiling.category == "split scan")}
    room = {b: 4 * max(dict(config.blocks)[b] for config in tiling.configs) for b in sorted(blocks)}
    first = tiling.configs[0]
    widest = replace(first, blocks=tuple((b, room.get(b, n)) for b, n in first.blocks))
    printed = forms(replace(kernel, tiling=replace(tiling, configs=(*tiling.configs, widest))))
    return replace(printed, configs=tiling.configs, room=tuple(room.items()))
