"""READ THIS FIRST: `aot_compile`, the whole of gyrator.autograd as one straight line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from gyrator import torch_compat
from gyrator.autograd.aliasing import Program
from gyrator.autograd.attention import Kinds
from gyrator.autograd.builder import flatten, values_of
from gyrator.autograd.channels_last import prefer_layouts
from gyrator.autograd.decompose import decompose, merge_equal_calls
from gyrator.autograd.decompositions import WRAPPED, DecompositionTable, decomposition_table
from gyrator.autograd.freeze import freeze
from gyrator.autograd.function import Differentiable, Tangent, differentiable, make_function
from gyrator.autograd.inputs import Inputs, fake_inputs, negated, overlapping
from gyrator.autograd.interface import BoxedCallable, Compiled, Compiler, GraphInfo, GraphKind, Pending
from gyrator.autograd.joint import Joint, trace
from gyrator.autograd.partition.min_cut import min_cut
from gyrator.autograd.partition.plan import JointGraph, PartitionFunction
from gyrator.autograd.partition.recompute import seed_recomputed
from gyrator.autograd.partition.split import Halves, behind_loss, inference_graph, split, without_zeros
from gyrator.autograd.shell import make_shell
from gyrator.errors import InternalCheckError

Stage = Callable[[str], AbstractContextManager[object]]
"""What the work on a part of the pipeline, given by name, runs within: for timing."""

_Compile = Callable[[Graph, GraphInfo], Pending]


def aot_compile(
    gm: GraphModule, example_inputs: Sequence[Any], *, fw_compiler: Compiler, bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction = min_cut, decompositions: DecompositionTable | None = None,
    lazy_backward: bool = False, fuses: bool = True,
) -> Callable[..., Any]:  # fmt: skip
    """A callable that behaves as `gm`: values, aliasing, mutation, gradients. Arguments, errors: see `aot_program`."""
    traced = aot_program(
        gm, example_inputs, fw_compiler=fw_compiler, bw_compiler=bw_compiler, partition_fn=partition_fn,
        decompositions=decompositions, lazy_backward=lazy_backward, fuses=fuses,
    )  # fmt: skip
    return assemble(traced, gm, example_inputs, lambda: traced)


@dataclass(frozen=True)
class Traced:
    """A compiled program in parts: what the shell needs, and the graph or both halves of it."""

    program: Program
    run: BoxedCallable | Differentiable


def assemble(
    traced: Traced, gm: GraphModule, example_inputs: Sequence[Any], complete: Callable[[], Traced]
) -> Callable[..., Any]:
    """The callable that the user calls; `gm` itself where inputs that are written share memory, or may not be
    (tensors of inference mode), or memory holds the negative of an input. `complete` compiles a program `for_loss`
    without that, in case that other results are differentiated after all."""
    program, run = traced.program, traced.run
    given = (*example_inputs, *program.constants)
    written = [*[update.input for update in program.updates], *program.written]
    frozen = not torch.is_inference_mode_enabled() and any(given[position].is_inference() for position in written)
    if overlapping(given, written) or negated(given, written) or frozen:
        return gm.forward
    enabled, after = torch.is_grad_enabled(), program.grad_mode
    within = enabled or isinstance(run, Differentiable)  # the program itself enables gradients
    if isinstance(run, Differentiable):
        run = make_function(run, partial(_completed, run, complete, torch_compat.autocast_again()))
    elif enabled and any(isinstance(value, Tensor) and value.requires_grad for value in given):
        # else operators that write into given memory refuse, and autograd sees a copy into an input
        run = torch.no_grad()(run)
    call = make_shell(program, run, gm.forward if within == enabled else torch.no_grad()(gm.forward))
    return call if within == enabled == after else _grad_mode(within, after)(call)


@contextmanager
def _grad_mode(within: bool, after: bool) -> Iterator[None]:
    with torch.set_grad_enabled(within):
        yield
    torch.set_grad_enabled(after)


def aot_program(
    gm: GraphModule, example_inputs: Sequence[Any], *, fw_compiler: Compiler, bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction = min_cut, decompositions: DecompositionTable | None = None,
    lazy_backward: bool = False, channels_last: bool | None = False, frozen: bool = False, for_loss: bool = False,
    fuses: bool = True, masks: Kinds | None = None, stage: Stage = nullcontext,
) -> Traced:  # fmt: skip
    """Compiles a graph of torch-level operators ahead of time, its backward included.

    Args:
        gm: torch-level ops, as torch.compile hands them to a backend.
        example_inputs: one per placeholder of `gm`: fake or real tensors, sizes.
        fw_compiler, bw_compiler: of forward (or a program without gradients) and backward, by default the same.
        partition_fn: decides what forward saves and backward recomputes.
        decompositions: see `decomposition_table`, whose result is the default.
        lazy_backward: compile backward at its first call: for static shapes, as facts about sizes go unguarded then.
        channels_last: None leaves that to the graph.
        frozen: parameters and buffers of a program without backward, but those that it writes, are constants.
        for_loss: backward is that of the loss alone, where the other results lie behind it.
        fuses: attention that is written out becomes an operator, which rounds less; frozen linear layers are joined.
        masks: what masks among the inputs let pass, where that is known.
        stage: each part of the work runs within `stage(its name)`.

    Raises:
        UnsupportedInput: for tensor subclasses and layouts other than strided.
        UnsupportedOperator: for operators that change what memory a tensor owns."""
    table = decomposition_table() if decompositions is None else decompositions
    with stage("trace"):
        inputs = fake_inputs(gm, example_inputs)
        joint = trace(gm, inputs, masks or {}, fuses=fuses, frozen=frozen and fuses and not torch.is_grad_enabled())
    with stage("decompose"), torch_compat.rules_for_sizes(gm, inputs.values):
        build = decompose(joint.build, {**WRAPPED, **table})
        merge_equal_calls(build.graph)
        if channels_last is not False:
            prefer_layouts(build, always=channels_last is True)
        seed_recomputed(build)
        roles = roles_of(joint, build.graph, inputs)

    def compiled(graph: Graph, info: GraphInfo, held: Mapping[str, Tensor] | None = None) -> Pending:
        examples = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        module = torch_compat.graph_module({**build.bodies, **(held or {})}, graph)
        compiler = bw_compiler if info.kind == "backward" and bw_compiler is not None else fw_compiler
        found = compiler(module, examples, info)
        return (lambda: found) if isinstance(found, Compiled) else found

    run: BoxedCallable | Differentiable
    if joint.tangents:
        with stage("partition"):
            halves = split(roles, partition_fn(roles).saved)
        run = _differentiable(joint, roles, halves, compiled, lazy_backward, for_loss)
    else:
        graph = inference_graph(roles)
        info = _info("inference", joint, roles, graph)
        given = (*example_inputs, *joint.program.constants)
        unwritten = [position for position in info.static_inputs if roles.primals[position] not in roles.updated]
        weights = {position: given[position] for position in unwritten if not isinstance(given[position], FakeTensor)}
        held = freeze(graph, weights) if frozen else {}
        run = compiled(graph, replace(info, frozen=bool(held)), held)().call
    return Traced(joint.program, run)


def roles_of(joint: Joint, graph: Graph, inputs: Inputs) -> JointGraph:
    """The decomposed joint graph with its nodes by role."""
    program, placeholders = joint.program, tuple(graph.find_nodes(op="placeholder"))
    outputs = tuple(flatten(graph.output_node().args[0]))
    primals = placeholders[: program.inputs + len(program.constants)]
    static = {primals[k] for k in {*inputs.static} - dict(program.moves).keys()} | set(primals[program.inputs :])
    return JointGraph(
        graph=graph,
        primals=primals,
        tangents=placeholders[len(primals) :],
        results=outputs[: len(joint.results)],
        gradients=outputs[len(joint.results) :],
        static=frozenset(static),
        updated=frozenset(primals[update.input] for update in program.updates),
    )


def _differentiable(
    joint: Joint, roles: JointGraph, halves: Halves, compiled: _Compile, lazy: bool, for_loss: bool
) -> Differentiable:
    kept = halves.saved_values + len(halves.numbers)
    started_forward = compiled(halves.forward, _info("forward", joint, roles, halves.forward, kept))
    tangents = dict(zip(joint.tangents, halves.tangents, strict=True))
    missing = behind_loss(roles.results, tangents, halves.backward.find_nodes(op="placeholder")) if for_loss else ()
    without_zeros(halves.backward, {tangents.pop(result) for result in missing})
    saved = [*enumerate(halves.saved_primals, kept)]
    static = tuple(at for at, position in saved if roles.primals[position] in roles.static)
    backward_info = GraphInfo("backward", static, (), (None,) * len(roles.gradients), kept)

    start_backward = partial(compiled, halves.backward, backward_info)
    started = None if lazy else start_backward()  # while forward's kernels are built
    at_first_call = cache(lambda: start_backward()().call)
    return Differentiable(
        forward=started_forward().call,
        backward=(lambda args: at_first_call()(args)) if started is None else started().call,
        results=len(roles.results),
        saved_values=halves.saved_values,
        numbers=halves.numbers,
        saved_inputs=halves.saved_primals,
        tangents=tuple(_tangent(result, node) for result, node in tangents.items()),
        missing=missing,
        gradients=joint.gradients,
        written=joint.program.written,
        inputs=len(roles.primals),
    )


def _completed(
    link: Differentiable, complete: Callable[[], Traced], autocast: Callable[[], AbstractContextManager[None]]
) -> Differentiable:
    """The halves of the program with a complete backward, which gets what the forward of `link` saves."""
    with torch.enable_grad(), autocast():  # both are off while autograd runs backward
        found = complete().run
    saved = attrgetter("saved_values", "saved_inputs", "gradients")  # numbers, among results too, may have become known
    if isinstance(found, Differentiable) and saved(found) == saved(link) and {*found.numbers} <= {*link.numbers}:
        new, old = differentiable(found), differentiable(link)
        if len(new) == len(old):
            places = dict(zip(new, old, strict=True))
            return replace(found, tangents=tuple([replace(t, result=places[t.result]) for t in found.tangents]))
    raise InternalCheckError("complete backward", "it reads other values than forward saved")


def _info(kind: GraphKind, joint: Joint, roles: JointGraph, graph: Graph, saved: int = 0) -> GraphInfo:
    """About the whole graph or its forward half. Compiled graphs write the updates that autograd need not see. Strides
    are given of outputs that the user sees, and of saved values, for which backward is compiled."""
    static = tuple(position for position, node in enumerate(roles.primals) if node in roles.static)
    updates = tuple(update for update in joint.program.updates if not update.tracked)
    seen = [result.tensor if result.exact else None for result in joint.results]
    kept = values_of(graph.output_node().args[0])[len(seen) :]
    strides = tuple(tuple(value.stride()) if isinstance(value, Tensor) else None for value in (*seen, *kept))
    return GraphInfo(kind, static, updates, strides, saved)


def _tangent(result: int, node: Node) -> Tangent:
    value = node.meta["val"]
    layout = tuple(value.shape), tuple(value.stride())
    static = all(type(size) is int for sizes in layout for size in sizes)
    return Tangent(result, layout if static else None, value.dtype, value.device)
