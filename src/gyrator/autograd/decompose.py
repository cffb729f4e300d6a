"""Rewrites a functional graph by a table of decompositions.

A decomposition is run once per distinct call (operator, metadata of its tensors, other arguments): recorded, it is a
template, a short graph, pasted wherever that call stands. Layers repeat: few distinct calls stand for many nodes.

    silu(x: bf16)   →   a = convert(x, float32); b = sigmoid(a); c = mul(a, b); convert(c, bfloat16)

A result with other strides than the operator's own is restrided, so that every other node keeps its metadata."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate, map_arg

from gyrator import torch_compat
from gyrator.autograd.builder import ORIGIN_KEYS, GraphBuilder, ancestors, copy_node, inherited, mapped, values_of
from gyrator.autograd.decompositions import DecompositionTable, stays_whole
from gyrator.autograd.effects import Effect, behaviour, is_statement
from gyrator.autograd.fake_results import metadata_key, same_sizes
from gyrator.autograd.recorder import Recorder
from gyrator.autograd.symbols import SYMBOLIC_TYPES, Held, expression
from gyrator.errors import InternalCheckError

INHERITED_KEYS = (*ORIGIN_KEYS, "backward", "repeated", "region")  # torch.fx prints "recompute" as a policy of torch's


def decompose(build: GraphBuilder, table: DecompositionTable) -> GraphBuilder:
    """A new graph with every call of an operator in `table` replaced.

    Raises: InternalCheckError for a decomposition whose result has another size or dtype than the operator."""
    return _Pass(table, GraphBuilder(build.results)).run(build.graph, build.bodies)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One run over a graph: the templates made so far and the nodes of the new graph by those of the old."""

    _table: DecompositionTable
    _new: GraphBuilder
    _templates: dict[Any, Graph | None] = field(default_factory=dict)
    _nodes: dict[Node, Any] = field(default_factory=dict)

    def run(self, graph: Graph, bodies: Mapping[Any, Any]) -> GraphBuilder:
        new, nodes = self._new, self._nodes
        live = ancestors([graph.output_node(), *filter(is_statement, graph.nodes)])
        for node in graph.nodes:
            if node.op == "call_function":
                if node in live:
                    self._call(node)
            elif node.op == "output":
                new.graph.output(map_arg(node.args[0], nodes.__getitem__))
            elif node.op == "get_attr":
                body = bodies[node.target]
                nodes[node] = new.body(self._inner(keep_numbers=False).run(body.graph, dict(body.named_children())))
            else:
                nodes[node] = new.graph.node_copy(node)
                new.symbols.bind(node.meta["val"], nodes[node])
        return new

    def _inner(self, keep_numbers: bool) -> "_Pass":
        return _Pass(self._table, GraphBuilder(self._new.results, keep_numbers), self._templates)

    def _call(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            source = self._nodes[node.args[0]]  # type: ignore[index]
            if isinstance(source, tuple):
                self._nodes[node] = source[node.args[1]]  # type: ignore[index]
                return
        elif target in self._table and isinstance(target, OpOverload) and not stays_whole(node):
            tensors: list[Node] = []
            key = target, _key(node.args, tensors), _key(node.kwargs, tensors)
            if key not in self._templates:
                self._templates[key] = None  # a call that its own decomposition makes again stays whole
                self._templates[key] = self._template(target, node)
            if (template := self._templates[key]) is not None:
                self._nodes[node] = self._paste(template, [self._nodes[tensor] for tensor in tensors], node)
                return
        copy = self._nodes[node] = copy_node(self._new.graph, node, self._nodes.__getitem__)
        if isinstance(node.meta["val"], SYMBOLIC_TYPES) or "unbacked_bindings" in node.meta:
            self._new.symbols.bind(node.meta["val"], copy)

    def _template(self, op: OpOverload, node: Node) -> Graph | None:
        """Records the decomposition of a call, the calls that it makes decomposed in turn; None where it declines
        or holds a tensor, as of one point of a grid, for which a template has no place."""
        build = GraphBuilder(self._new.results, keep_numbers=True)
        recorder = Recorder(build)
        numbers = count()

        def argument(value: Any) -> Any:
            held = values_of(value)
            if not isinstance(held, Tensor):
                return held
            fresh = build.results.alias(held)
            recorder.add_input(f"x{next(numbers)}", fresh)
            return fresh

        with build.fake_mode, torch.no_grad(), torch_compat.without_autocast():
            args, kwargs = mapped(node.args, argument), mapped(node.kwargs, argument)
            with recorder:
                results = self._table[op](*args, **kwargs)
        if results is NotImplemented or recorder.constants:
            return None
        build.graph.output(self._results(op, recorder, results, node.meta["val"]))
        return self._inner(keep_numbers=True).run(build.graph, {}).graph

    def _results(self, op: OpOverload, recorder: Recorder, results: Any, wanted: Any) -> Any:
        """The nodes of a decomposition's results, restrided to what the operator itself returns."""
        if isinstance(results, (tuple, list)):
            return tuple(self._results(op, recorder, *pair) for pair in zip(results, wanted, strict=True))
        if not isinstance(results, Tensor):
            return results
        node = recorder.node_of(results)
        given = node.meta["val"]
        if given is wanted or not isinstance(wanted, Tensor):
            return node
        if given.is_floating_point() and wanted.is_floating_point():
            node = recorder.build.converted(node, wanted.dtype)
            given = node.meta["val"]
        ours, theirs = metadata_key(given), metadata_key(wanted)
        if not same_sizes(given.shape, wanted.shape) or ours[2:4] != theirs[2:4]:
            problem = f"the decomposition of {op} gives {ours[:4]}, the operator {theirs[:4]}"
            raise InternalCheckError("decompose", problem)
        if ours[0] != theirs[0] or (ours[1] != theirs[1] and wanted.numel() != 0):
            return recorder.build.restrided(node, wanted)
        return node

    def _paste(self, template: Graph, inputs: Sequence[Any], node: Node) -> Any:
        """Appends a template's calls; the nodes of its results."""
        meta = inherited(node.meta, INHERITED_KEYS)
        graph = self._new.graph
        values: dict[Node, Any] = dict(zip(template.find_nodes(op="placeholder"), inputs, strict=True))

        def filled(argument: Any) -> Any:
            if isinstance(argument, Node):
                return values[argument]
            return self._new.number(argument.value) if type(argument) is Held else argument

        for call in template.nodes:
            if call.op == "call_function":
                args, kwargs = map_aggregate(call.args, filled), map_aggregate(call.kwargs, filled)
                pasted = values[call] = torch_compat.append_node(graph, "call_function", call.target, args, kwargs)
                pasted.meta.update(meta, val=call.meta["val"])
        return map_aggregate(template.output_node().args[0], filled)


def _key(argument: Any, tensors: list[Node]) -> Any:
    """An argument as part of a template's key; its tensors are appended to `tensors` in order."""
    if isinstance(argument, Node):
        value = argument.meta["val"]
        if isinstance(value, Tensor):
            tensors.append(argument)
            return "tensor", id(value)
        return "number", expression(value)
    if isinstance(argument, Held):
        return "number", expression(argument.value)
    if isinstance(argument, (tuple, list)):
        return tuple([_key(item, tensors) for item in argument])
    if isinstance(argument, dict):
        return tuple([(name, _key(item, tensors)) for name, item in argument.items()])
    return type(argument), repr(argument) if isinstance(argument, (float, complex)) else argument  # 0.0 and -0.0 differ


def merge_equal_calls(graph: Graph) -> None:
    """Replaces each call of a pure operator by an earlier one with the same arguments, as layers of T5 add one mask to
    one position bias:  a = add(bias, mask);  …  b = add(bias, mask)   →   a = add(bias, mask);  …

    Refuses random draws, sizes that come from data (each has its name), constants of several elements (cheaper to write
    anew than to copy where two scatters start from one), calls whose results are the graph's, calls in other regions of
    activation checkpoints or in the other half of the program, and graphs in which a call writes to its arguments."""
    calls = [node for node in graph.nodes if node.op == "call_function" and isinstance(node.target, OpOverload)]
    if any(node.target._schema.is_mutable for node in calls):
        return
    results = graph.output_node().all_input_nodes
    shown = {*results, *(node.args[0] for node in results if node.target is operator.getitem)}
    first: dict[str, Node] = {}
    for node in calls:
        op = node.target
        pure = op.namespace in ("aten", "prims") and behaviour(op).effect in (Effect.PURE, Effect.VIEW)
        fresh = "unbacked_bindings" in node.meta or torch.Tag.nondeterministic_seeded in op.tags
        filled = not node.all_input_nodes and getattr(node.meta.get("val"), "ndim", 1) > 0
        if node in shown or filled or not pure or fresh:
            continue
        about = [node.meta.get(key) for key in ("backward", "region", "repeated")]
        known = first.setdefault(repr((op, node.args, node.kwargs, about)), node)  # 1, 1.0 and True differ
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
