"""The joint trace: a captured graph is run once on fake tensors, then torch.autograd runs its backward; both
are recorded as one functional ATen graph.

    placeholders: inputs, constants, tangents (one per differentiable output)
    outputs:      forward's results (updates of inputs, outputs, bases of aliases), gradients, backward's updates"""

import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from gyrator import torch_compat
from gyrator.autograd.aliasing import Program, Result, describe_outputs
from gyrator.autograd.attention import Kinds, Masks
from gyrator.autograd.builder import Args, GraphBuilder, Kwargs, Meta, inherited
from gyrator.autograd.fake_results import FakeResults, tangent_strides
from gyrator.autograd.fused_attention import as_captured, attention, by_template, index
from gyrator.autograd.inputs import Inputs
from gyrator.autograd.joined_linears import joined, linears_to_join
from gyrator.autograd.recorder import Recorder
from gyrator.autograd.written_attention import attend, dropout_rate
from gyrator.errors import UnsupportedOperator


@dataclass(frozen=True)
class Joint:
    """A traced program.

    Attributes:
        build: the builder with the graph, whose last node is its output. Its placeholders are the program's inputs,
            its constants, then tangents.
        program: what the caller's results are made of.
        results: what the forward half returns.
        tangents: positions, among the forward half's results, of those that have a tangent.
        gradients: positions of the inputs whose gradients the graph returns, in order, before what backward writes."""

    build: GraphBuilder
    program: Program
    results: tuple[Result, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]


def trace(gm: GraphModule, inputs: Inputs, masks: Kinds, *, fuses: bool = True, frozen: bool = False) -> Joint:
    """Traces `gm` and, where autograd is on and an output depends on an input that requires grad, its backward. If it
    `fuses`, attention that is written out becomes an operator. Parameters that are `frozen` may be joined. Of inputs at
    the positions of `masks` is known what they let pass.

    Raises: UnsupportedOperator for `set_`, `resize_`, and an input that both forward and backward mutate."""
    build = GraphBuilder(FakeResults(inputs.mode))
    recorder = Recorder(build)
    with ExitStack() as stack:
        stack.enter_context(torch_compat.replayed_views())
        stack.callback(torch_compat.ignore_saved_hooks, torch_compat.ignore_saved_hooks(True))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(torch.autograd.set_detect_anomaly(False))  # which reads gradients
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))  # undoes what the program leaves
        stack.enter_context(torch_compat.rules_for_sizes(gm, inputs.values))
        stack.enter_context(torch_compat.tracing_under(inputs.mode))
        stack.enter_context(inputs.mode)
        leaves, arguments = _leaves(inputs, recorder)
        roots = {at: recorder.alias_of(leaf).root for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        runner = _Runner(gm, recorder, Masks(gm.graph, masks), fuses=fuses)
        if frozen:
            runner.to_join = linears_to_join(gm.graph, inputs.static)
        before = [(x.grad_fn, x._version) if isinstance(x, Tensor) else (None, 0) for x in arguments]
        with recorder:
            outputs = runner.run(*arguments)
        build.origin = {}
        program, results = describe_outputs(recorder, arguments, before, outputs)
        tracked = {k: r.tensor for k, r in enumerate(results) if r.tensor is not None and r.tensor.requires_grad}
        after = {at: root.generation for at, root in roots.items()}
        gradients = _backward(runner, recorder, leaves, [*tracked.values()]) if tracked else {}
        written = {at: root.node for at, root in roots.items() if root.generation != after[at]}
        if any(after[at] for at in written):  # between both, other runs may write it too
            raise UnsupportedOperator("backward", "it mutates an input that forward mutates")
        build.graph.output((*[result.node for result in results], *gradients.values(), *written.values()))
        program = replace(
            program,
            offsets=tuple([(k, int(r.tensor.storage_offset())) for k, r in roots.items() if r.pinned]),  # guarded
            constants=tuple(value for _, value in recorder.constants),
            grad_mode=torch.is_grad_enabled(),
            autocast=torch_compat.autocast_enabled(),
            written=tuple(written),
        )
    return Joint(build, program, results, tuple(tracked), tuple(gradients))


def _leaves(inputs: Inputs, recorder: Recorder) -> tuple[list[Any], list[Any]]:
    """What to differentiate by, and what to run on: the leaf, or a tensor computed from it that may be mutated."""
    leaves, arguments = [*inputs.values], [*inputs.values]
    for position, value in enumerate(inputs.values):
        if isinstance(value, Tensor):
            leaf = leaves[position] = arguments[position] = recorder.build.results.alias(value)
            leaf.requires_grad_(inputs.requires_grad[position])
            torch_compat.set_number_behind(leaf, torch_compat.number_behind(value))
        recorder.add_input(f"arg{position}", leaves[position], position)
        if inputs.requires_grad[position] and not inputs.leaf[position]:
            with torch.enable_grad():
                arguments[position] = _Fresh.apply(leaves[position])
            recorder.share(arguments[position], leaves[position])
    return leaves, arguments


class _Fresh(torch.autograd.Function):
    """The identity, whose result is no leaf, so that the program may mutate it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.storage_offset() == 0:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        whole = torch.empty((x.untyped_storage().nbytes() // x.element_size(),), dtype=x.dtype, device=x.device)
        return x.new_empty((0,)).set_(whole.untyped_storage(), x.storage_offset(), x.shape, x.stride())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _backward(
    runner: "_Runner", recorder: Recorder, leaves: Sequence[Any], results: Sequence[Tensor]
) -> Mapping[int, Node | None]:
    """Runs backward from new tangents of `results`; the gradients' nodes by the position of the input, of inputs that
    have one (all that require grad, if none has one: then results do too)."""
    tangents = [torch.empty_strided(r.shape, tangent_strides(r), dtype=r.dtype, device=r.device) for r in results]
    for number, tangent in enumerate(tangents):
        recorder.add_tangent(f"tangent_{number}", tangent)
    wanted = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    recorder.backward_origin = runner.origin_of_sequence
    with torch_compat.without_autocast(), torch_compat.uncaptured_backward(), recorder:
        gradients = torch.autograd.grad(results, [leaves[position] for position in wanted], tangents, allow_unused=True)
    found = {at: recorder.node_of(g) for at, g in zip(wanted, gradients, strict=True) if g is not None}
    return found or dict.fromkeys(wanted)


class _Runner(Interpreter):
    """Runs the captured graph node by node, telling the recorder which node it is at."""

    def __init__(self, gm: GraphModule, recorder: Recorder, masks: Masks, *, fuses: bool) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self._recorder, self._masks, self._fuses = recorder, masks, fuses
        self._made: list[tuple[int, Meta]] = []
        self._constants: dict[str, Tensor] = {}
        self._region: Meta = {}
        self._of_scores = False
        self.to_join: Mapping[Node, tuple[Node, ...]] = {}

    def run_node(self, node: Node) -> Any:
        """Runs one node. Autograd nodes made by it carry sequence numbers from here on."""
        if node.op not in ("placeholder", "output", "get_attr"):
            origin = {**inherited(node.meta), **self._region}
            self._recorder.build.origin = origin
            self._made.append((torch_compat.next_autograd_sequence(), {**origin, "backward": True}))
        if node in self.to_join:
            self.env |= joined(self.to_join[node], self.env)  # nodes that have a value there are not run
            return self.env[node]
        value = torch_compat.by_rules_if_data_is_read(super().run_node, node)
        if self._fuses and isinstance(value, Tensor):
            value = attend(node, self.env, value, self._masks, self._attention)
        if node.target is F.scaled_dot_product_attention:
            value = as_captured(value, node)
        self._masks.note(node, value)
        return value

    def _attention(self, **given: Any) -> Tensor:
        return self.call_function(F.scaled_dot_product_attention, (), given)

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        """The arguments of a node. Torch's derivative of a power cannot ask whether a symbol is 0: it is guarded."""
        given = super().fetch_args_kwargs_from_env(n)
        power = getattr(n.target, "__name__", n.target) in ("pow", "ipow", "pow_") and torch.is_grad_enabled()
        power = power and any(isinstance(x, Tensor) and x.requires_grad for x in pytree.tree_leaves(given))
        return pytree.tree_map_only(torch.SymInt, int, given) if power else given

    def call_function(self, target: Any, args: Args, kwargs: Kwargs) -> Any:
        """A call; the body of an inlined higher-order operator runs in its place."""
        if isinstance(target, HigherOrderOperator):
            name = target.name()
            if name in ("invoke_subgraph", "foreach_map"):  # of the first the second argument is a name
                return self._inline(args[0], args[2 if name == "invoke_subgraph" else 1 :], self._region)
            if name == "tag_activation_checkpoint":
                return self._checkpoint(args[0], args[1:])
            if name == "flex_attention":
                return attention(self._recorder, partial(self._inline, region=self._region, of_scores=True), args)
        if target is operator.getitem and self._of_scores and pytree.tree_any(lambda p: isinstance(p, Tensor), args[1]):
            return index(args[0], args[1])
        if target in (F.dropout, torch.dropout) and dropout_rate(*args, **kwargs) == 0:
            return (*args, kwargs.get("input"))[0]  # where sizes are symbolic, torch's Python rule makes a copy
        if target is F.one_hot and args:  # torch's Python rule compares, so that the result lies as the classes do
            args = (args[0].contiguous(), *args[1:])
        args, kwargs = self._masks.simplified(target, args, kwargs)
        if self._fuses and target is F.scaled_dot_product_attention:
            found = by_template(self._recorder, kwargs, self._masks.shared(kwargs))
            if found is not None:
                return found
        taken_apart = target is torch.lstm and torch.is_grad_enabled()  # oneDNN's has no workspace
        with torch_compat.without_onednn() if taken_apart else nullcontext():
            value = super().call_function(target, args, kwargs)
        torch_compat.guard_floats(value)
        return value

    def _checkpoint(self, body: GraphModule, args: Sequence[Any]) -> Any:
        """A region that backward computes again; where a policy decides, it is asked for each operator."""
        region = {**self._region, "region": len(self._made), "repeated": True}
        outer, self._recorder.policy = self._recorder.policy, torch_compat.checkpoint_policy(body)
        value = self._inline(body, args, region)
        self._recorder.policy = outer
        return value

    def _inline(self, body: GraphModule, args: Sequence[Any], region: Meta, *, of_scores: bool = False) -> Any:
        """Runs a body in the place of its call; one `of_scores`, a function of one attention score, is under vmap."""
        inner = _Runner(body, self._recorder, self._masks, fuses=self._fuses and not of_scores)
        inner._made, inner._region, inner._of_scores = self._made, region, of_scores
        return inner.run(*args)

    def get_attr(self, target: Any, args: Args, kwargs: Kwargs) -> Any:
        """A tensor that the graph holds becomes a constant input."""
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        if target not in self._constants:
            with torch_compat.outside_tracing():
                fake = self._constants[target] = self._recorder.build.fake_mode.from_tensor(value, static_shapes=True)
                self._recorder.add_constant(value, fake)
        return self._constants[target]

    def origin_of_sequence(self, number: int) -> Mapping[str, Any]:
        """Where the autograd node with this number was made."""
        index = bisect_right(self._made, number, key=operator.itemgetter(0)) - 1
        return self._made[index][1] if index >= 0 and number >= 0 else {"backward": True}
