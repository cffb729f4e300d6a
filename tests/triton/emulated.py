"""Whole programs for a GPU on a machine without one: graphs of CPU tensors are taken for graphs on a GPU and
go through all stages; their wrappers run on CPU tensors, with kernels in Triton's interpreter.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.codegen.triton_source import Pointer, SizeArgument, TritonKernel
from gyrator.codegen.wrapper import BuiltKernel, inputs_to_align, print_wrapper
from gyrator.config import Config
from gyrator.ir.index import evaluate
from gyrator.ir.symbols import Symbols
from gyrator.ir.tree import Attend, Contract, Kernel, walk_loops, walk_stages
from gyrator.lowering.graph import lower
from gyrator.runtime.load import Runtime, load
from gyrator.runtime.pool import Pool
from gyrator.runtime.targets import print_forms
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from gyrator.schedule.stage import schedule
from gyrator.session import Counters, Session
from gyrator.torch_compat import empty_strided_cpu, graph_module, shape_env_of
from tests.interp_tree import run_kernel
from tests.triton.worker import Worker
from tests.triton.worker import programs as count_programs

GPU = torch.device("cuda", 0)


@dataclass(frozen=True)
class Printed:
    """A graph compiled for a GPU, as text; `constants` are the tensors that it holds, `counters` what was counted."""

    plan: Plan
    kernels: tuple[TritonKernel, ...]
    wrapper: str
    constants: Mapping[str, torch.Tensor]
    counters: Counters


@dataclass
class Emulator:
    """A compiler of graphs for `aot_compile`; it keeps what it printed. With `numbers_on_cpu` inputs without
    dimensions stay on the CPU. With `trees` the reference interpreter runs the kernels that it knows all of: what the
    schedule made is tested, not its text, in a tenth of the time.
    """

    folder: Path
    worker: Worker
    numbers_on_cpu: bool = False
    trees: bool = False
    config: Config = field(default_factory=lambda: Config(check="every"))
    printed: list[Printed] = field(default_factory=list)

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[object], info: GraphInfo) -> Compiled:
        graph = graph_module(graph, copy.deepcopy(graph.graph))  # what the caller has stays on the CPU
        updates = [(update.input, update.output) for update in info.updates]
        shown = range(0 if info.kind == "backward" else len(info.strides) - info.saved)
        made = print_for_gpu(graph, on_gpu(graph, example_inputs, self.numbers_on_cpu), self.config, updates, shown)
        self.printed.append(made)
        text = made.wrapper.replace(f'torch.device("{GPU}")', 'torch.device("cpu")')
        runtime = EmulatedRuntime(Runtime(self.folder, Pool(), made.constants), made, self.worker, self.trees)
        return Compiled(load(text, runtime))  # type: ignore[arg-type]

    def backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """For torch.compile."""
        return aot_compile(gm, example_inputs, fw_compiler=self.compile)


def on_gpu(graph: fx.GraphModule, example_inputs: Sequence[object], numbers_on_cpu: bool = False) -> list[object]:
    """Move a graph's metadata to the GPU: each tensor, and each device among the arguments. Returns the moved
    inputs.
    """
    stays = [numbers_on_cpu and isinstance(x, FakeTensor) and x.dim() == 0 for x in example_inputs]
    moved = [x if stay else _moved(x) for x, stay in zip(example_inputs, stays, strict=True)]
    placeholders = graph.graph.find_nodes(op="placeholder")
    on_cpu = {node for node, stay in zip(placeholders, stays, strict=True) if stay}
    for node in graph.graph.nodes:
        sources = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), FakeTensor)]
        if node.op == "call_function" and sources and on_cpu.issuperset(sources):
            on_cpu.add(node)
        if node in on_cpu:
            continue
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(_moved, node.meta["val"])
        node.kwargs = {key: _moved(arg) for key, arg in node.kwargs.items()}
        node.args = tuple(_moved(arg) for arg in node.args)
    return moved


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device):
        return GPU
    if not isinstance(value, FakeTensor):
        return value
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


def print_for_gpu(
    graph: fx.GraphModule,
    inputs: Sequence[object],
    config: Config,
    updates: Sequence[tuple[int, int]] = (),
    shown: range = range(0),
) -> Printed:
    """A graph whose metadata lies on a GPU, through all stages."""
    made = [n.meta["val"] for n in graph.graph.nodes if "unbacked_bindings" in n.meta]
    symbols = Symbols(shape_env_of((*inputs, *pytree.tree_leaves(made))))
    low = lower(graph, symbols=symbols, updates=updates)
    with Session(config, GPU) as session:
        plan = schedule(low.program, session, Gpu()).plan
    kernels = {kernel.name: print_forms(kernel) for kernel in plan.kernels if kernel.tiling is not None}
    by_name = {k.name: kernels.get(k.name) or BuiltKernel("cpu", k.name) for k in plan.kernels}
    align = inputs_to_align(plan) if config.assume_aligned_inputs else ()
    text = print_wrapper(plan, by_name, shown=shown, align=align)
    return Printed(plan, tuple(kernels.values()), text, low.constants, session.counters)


class EmulatedRuntime:
    """A runtime whose GPU is the CPU."""

    def __init__(self, real: Runtime, made: Printed, worker: Worker, trees: bool) -> None:
        self._real, self._worker, self._by_tree = real, worker, trees
        self._trees = {kernel.name: kernel for kernel in made.plan.kernels}
        self._kernels = {kernel.name: kernel for kernel in made.kernels}
        self.launches: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def current_stream(self, index: int) -> int:
        return 4711 + index

    def on_device(self, index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def empty_cuda(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        """Memory full of garbage, so that a kernel that reads what nothing wrote shows."""
        new = empty_strided_cpu(shape, strides, dtype)
        new.untyped_storage().fill_(0x7B)
        return new

    def workspace(self, nbytes: int, zeroed: bool, stream: int) -> torch.Tensor:
        return torch.full((nbytes,), 0 if zeroed else 0x7B, dtype=torch.uint8)

    def kernel(self, library: str, symbol: str, count: int, sites: object = ()) -> Callable[..., None]:
        """A kernel of the processor, run by the reference interpreter."""
        tree = self._trees[symbol]

        def launch(*args: int) -> None:
            assert len(args) == count + 1
            bound = dict(zip(tree.sizes, args[len(tree.params) :], strict=False))
            values = [param.value for param in tree.params]
            run_kernel(
                tree,
                {
                    v.name: _at_address(at, v.dtype, evaluate(v.shape[0], bound))
                    for v, at in zip(values, args, strict=False)
                },
                bound,
            )

        return launch

    def gpu_kernel(
        self,
        name: str,
        programs: Callable[..., int],
        updated: Mapping[int, Callable[..., int]] | None = None,
        fits: Callable[..., int] | None = None,
    ) -> Callable[..., None]:
        kernel, tree = self._kernels[name], self._trees[name]
        config = kernel.configs[0]
        pointers = [p.name for p in kernel.params if isinstance(p, Pointer)]
        values = [param.value for param in tree.params]
        lengths = {name: value.shape[0] for name, value in zip(pointers, values, strict=True)}

        def launch(stream: int, *args: int) -> None:
            assert stream == 4711
            self.launches.append(name)
            given = list(zip(kernel.params, args, strict=True))
            sizes = {p.size: arg for p, arg in given if isinstance(p, SizeArgument)}
            count = programs(*sizes.values(), **dict(config.blocks))
            assert count == count_programs(kernel, config, sizes)
            assert fits is None or fits(*sizes.values())
            memory = {
                p.name: _at_address(arg, p.dtype, evaluate(lengths[p.name], sizes))
                for p, arg in given
                if isinstance(p, Pointer)
            }
            if self._by_tree and _is_interpreted(tree):
                run_kernel(tree, {p.value.name: memory[n] for n, p in zip(pointers, tree.params, strict=False)}, sizes)
            elif count:
                before = {name: tensor.clone().view(torch.uint8) for name, tensor in memory.items()}
                one = {(t.data_ptr(), t.dtype, t.shape): t.clone() for t in memory.values()}  # in place: by two names
                copies = {name: one[t.data_ptr(), t.dtype, t.shape] for name, t in memory.items()}
                self._worker.run(kernel, copies, sizes, config)
                for p in kernel.params:  # what the kernel writes by two names may lie in turns, as parts within a whole
                    if isinstance(p, Pointer) and p.written:
                        after = copies[p.name].view(torch.uint8)
                        changed = after != before[p.name]
                        memory[p.name].view(torch.uint8)[changed] = after[changed]

        return launch


def _is_interpreted(tree: Kernel) -> bool:
    """Whether the reference interpreter knows all of a kernel: neither products nor attention nor sorted rows."""
    kinds = {carry.kind for loop in walk_loops(tree.body) for carry in loop.carries}
    known = not any(isinstance(stage, Contract | Attend) for stage in walk_stages(tree.body))
    return known and not any("sort" in kind for kind in kinds)


def _at_address(address: int, dtype: torch.dtype, length: int) -> torch.Tensor:
    """The elements from an address on, as a flat tensor."""
    if length == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * (length * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)
