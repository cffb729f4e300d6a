"""The backend that `torch.compile(backend="gyrator")` calls."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any
from warnings import warn

import msgspec
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from gyrator import torch_compat
from gyrator.autograd.aot import Traced, aot_program, assemble
from gyrator.autograd.attention import Kinds, handed_on
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.function import Differentiable
from gyrator.autograd.inputs import Inputs, fake_inputs, has_subclasses
from gyrator.autograd.interface import BoxedCallable, Compiled, GraphInfo, Pending
from gyrator.autograd.partition.min_cut import min_cut_with_budget
from gyrator.autograd.partition.plan import JointGraph, Partition
from gyrator.autograd.record import from_json
from gyrator.autograd.shell import flattened, lifted, taking_list, taking_lists
from gyrator.config import Config, unknown_environment
from gyrator.errors import GyratorError, GyratorWarning, UnsupportedInput, UnsupportedOperator
from gyrator.pipeline import Process, compile_graph, device_of, frozen_garbage, loaded
from gyrator.report.data import ProgramRecord
from gyrator.report.dump import dump_graph, dump_partition
from gyrator.report.watch import GraphCompiled, program_compiled, program_record
from gyrator.runtime.entries import find_program, keep_program, program_key
from gyrator.runtime.load import WRAPPER
from gyrator.session import Session

UNTRACED = (
    "modified by an inplace operation", "derivative for ", "no autograd formula was registered",
    "returned an invalid gradient", "input_is_complex == grad_is_complex",
)  # fmt: skip
"""Of what torch says of programs without a backward, which eager raises when that is asked for, or whose fakes have
none: they run as captured, as do those whose errors of ours are for eager."""

MOST_WEIGHTS = 64
"""For how many sets of weights one captured graph is compiled with them as constants."""


def compile_program(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, name: str, process: Process, sets: int = 1
) -> Callable[..., Any]:
    """Compile a captured graph, or take it from the cache: then it is neither traced nor compiled. With `freezing`
    weights are constants, and those of this call are the set number `sets`.

    The callable's attribute `wrappers` has the files of its graphs' programs."""
    config = replace(config, freezing=config.freezing and sets <= MOST_WEIGHTS)
    masks = handed_on(gm.graph, process.masks) if any(isinstance(x, FakeTensor) for x in example_inputs) else {}
    try:
        inputs = fake_inputs(gm, example_inputs)
        compiled = partial(_compile, gm, inputs, config=config, process=process, masks=masks)
        traced, wrappers = compiled(example_inputs, name=name, for_loss=True)
    except (RuntimeError, UnsupportedInput, UnsupportedOperator) as error:
        for_eager = error.for_eager if isinstance(error, GyratorError) else any(t in str(error) for t in UNTRACED)
        if not for_eager:
            raise
        warn(f"{name} runs uncompiled, as it or its backward cannot be traced: {error}", GyratorWarning, stacklevel=2)
        return gm.forward

    def complete() -> Traced:
        with process.lock, frozen_garbage():
            return compiled(inputs.values, name=f"{name}_complete")[0]

    call = assemble(traced, gm, example_inputs, complete)
    drawn = torch_compat.drawn_numbers(gm)
    if drawn or any(isinstance(x, Tensor) and type(x) not in (Tensor, Parameter, FakeTensor) for x in example_inputs):
        call = partial(_as_captured, call, drawn)
    if config.freezing and inputs.static and not isinstance(traced.run, Differentiable):

        def again(given: Sequence[Any]) -> Callable[..., Any]:
            with process.lock, frozen_garbage():
                return compile_program(gm, given, config, f"{name}_weights{sets}", process, sets + 1)

        call = _of_weights(call, {k: example_inputs[k] for k in inputs.static}, again)
    if isinstance(call, FunctionType):  # no method of a module that runs uncompiled
        call.__dict__["wrappers"] = tuple(wrappers)
    return call


def compile_subclasses(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, name: str, process: Process
) -> Callable[..., Any]:
    """Compile a captured graph with tensor subclasses, which torch's AOTAutograd takes apart and differentiates: what
    comes of it are graphs without gradients. Freezing has no effect there."""
    numbers = count()

    def compiled(graph: fx.GraphModule, fakes: Sequence[Any]) -> BoxedCallable:
        with process.lock, frozen_garbage(), torch.no_grad(), torch_compat.without_autocast():
            inputs, part = fake_inputs(graph, fakes), f"{name}_{next(numbers)}"
            traced = _compile(graph, inputs, fakes, config=config, name=part, process=process)[0]
            assert not isinstance(traced.run, Differentiable)
            return taking_list(traced.program, traced.run, assemble(traced, graph, fakes, lambda: traced))

    return torch_compat.taken_apart(gm, example_inputs, compiled, decomposition_table(numerics="eager"))


def _of_weights(
    call: Callable[..., Any], weights: Mapping[int, object], again: Callable[[Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """`call` for inputs among which are these `weights`, by position; for others what compiles it `again` for them. One
    captured graph serves modules of a class, and new parameters of a module."""
    others: list[Callable[..., Any]] = []
    lock = threading.Lock()

    def chosen(*args: Any) -> Any:
        if all(args[k] is weight for k, weight in weights.items()):
            return call(*args)
        with lock:
            if not others:
                others.append(again(args))
        return others[0](*args)

    return chosen


def _as_captured(call: Callable[..., Any], drawn: Sequence[int], *args: Any) -> Any:
    """A call without what subclasses do, as capture has written that out, and with `drawn` fractions as float32."""
    with torch_compat.without_functions():
        return call(*[x.float() if k in drawn and x.is_floating_point() else x for k, x in enumerate(args)])


def _compile(
    gm: fx.GraphModule, inputs: Inputs, args: Sequence[Any], *,
    config: Config, name: str, process: Process, for_loss: bool = False, masks: Kinds | None = None,
) -> tuple[Traced, Sequence[str]]:  # fmt: skip
    """A program compiled or found, and the files of its graphs' programs."""
    start = time.perf_counter()
    inside = [node.meta.get("example_value", node.meta.get("val")) for node in gm.graph.nodes]
    shape_env, device = torch_compat.shape_env_of(inputs.values), device_of([*inputs.values, *inside])
    guards = 0 if shape_env is None else len(shape_env.guards)
    session = Session(config, device, f"{name}_program", told=process.told, why_missed=process.watch is not None)
    with session as program, ExitStack() as parts:
        process.counted.append(program.counters)
        for text in unknown_environment(os.environ):
            program.warn(text)
        if "recompiles" in config.logs and (why := torch_compat.recompile_reason()):
            print(f"gyrator: {name} compiles a function again: {why}")
        if program.dump is not None:
            dump_graph(program.dump, "captured", gm, inputs.values)
        stores = process.stores(program)
        with program.stage("look up"):
            key = program_key(gm, inputs, args, shape_env, program, for_loss, masks or {})
            found = find_program(key, stores, inputs.values, program)
        if found is not None:
            notes, graphs = found
            calls = [loaded(GraphCompiled(entry, True, program), process) for entry in graphs]
            record = msgspec.json.decode(notes["about"], type=ProgramRecord)
            program_compiled(program, gm, record, start, process.watch, cached=True)
            return from_json(notes["program"], calls), [str(entry.folder / WRAPPER) for entry in graphs]

        made: list[Compiled] = []
        records: list[ProgramRecord] = []

        def compiler(graph: fx.GraphModule, values: Sequence[object], info: GraphInfo) -> Compiled | Pending:
            with program.stage(f"{info.kind} graph"):
                session = parts.enter_context(program.child(f"{name}_{info.kind}"))
                finish = compile_graph(graph, values, info, session, process)

            def finished() -> Compiled:
                with program.stage(f"{info.kind} kernels"):
                    compiled = finish()
                process.counted.append(session.counters)
                made.append(compiled)
                return compiled

            # what is timed for the next graph is to have the machine to itself
            return finished() if config.max_autotune or config.benchmark_fusion else finished

        def partition(joint: JointGraph) -> Partition:
            chosen = min_cut_with_budget(config.memory_budget)(joint)
            records.append(program_record(chosen))
            if program.dump is not None:
                dump_partition(program.dump, joint, chosen)
            return chosen

        if device.type == "cuda":
            process.workers.prepare(2)  # they import Triton while the graphs are traced
        with program.stage("list decompositions"):
            table = decomposition_table(numerics=config.numerics)
        traced = aot_program(
            gm,
            args,
            fw_compiler=compiler,
            partition_fn=partition,
            decompositions=table,
            channels_last={"on": True, "off": False}.get(config.channels_last, device.type == "cuda" or None),
            frozen=config.freezing,
            for_loss=for_loss,
            fuses=config.numerics == "fast",
            masks=masks,
            stage=program.stage,
        )
        if config.freezing and isinstance(traced.run, Differentiable):
            program.warn("freezing has no effect on a program that computes gradients; call it under torch.no_grad()")
        about = records[0] if records else ProgramRecord()
        kept = [compiled.key for compiled in made if compiled.key is not None]
        if key is not None and len(kept) == len(made):
            with program.stage("store"):
                keep_program(key, traced, kept, shape_env, guards, stores.programs, msgspec.json.encode(about).decode())
        program_compiled(program, gm, about, start, process.watch, cached=False)
        return traced, [compiled.wrapper for compiled in made]


class Backend:
    """Compiles what torch.compile captured. `process` is the state that all its compilations share."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._numbers = count()

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Callable[..., Any]:
        """Compile a captured graph of torch operators, its backward included.

        Raises: UnknownOption, InvalidOption; UnsupportedInput, UnsupportedOperator for what cannot be compiled."""
        torch_compat.guard_parameters()
        config = Config.from_options(mode, options)
        if any(isinstance(x, FakeTensor) and torch_compat.is_of_user(x) for x in example_inputs):
            return gm.forward  # called for shapes alone, in a FakeTensorMode of the user's: there is no memory
        name = f"graph{next(self._numbers)}"
        gm, held = lifted(gm)
        example_inputs = (*example_inputs, *held)
        lists = any(isinstance(example, (list, tuple)) for example in example_inputs)
        if lists:
            gm, example_inputs = flattened(gm, example_inputs), pytree.tree_leaves(example_inputs)
        if has_subclasses(gm, example_inputs):
            call = compile_subclasses(gm, example_inputs, config, name, self.process)
        elif self.process.instead is not None:
            call = self.process.instead(gm, example_inputs, config)
        else:
            with self.process.lock, frozen_garbage(), torch_compat.without_functions():
                call = compile_program(gm, example_inputs, config, name, self.process)
        call = taking_lists(call) if lists else call
        return (lambda *args: call(*args, *held)) if held else call

    def __reduce__(self) -> str:
        """Copies and pickles of compiled modules refer to this object by its name."""
        return "gyrator"

    def reset(self) -> None:
        """Zero the counters and give back the memory that compiled code keeps, as `gyrator.reset` does."""
        self.process.pool.clear()
        self.process.counted.clear()


gyrator = Backend(Process())
"""What the entry point of the package names."""
