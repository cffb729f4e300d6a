"""Cuts a joint graph into a forward and a backward graph, given the values that go from one to the other."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.symbolic_shapes import free_symbols

from gyrator.autograd.builder import ancestors, copy_node
from gyrator.autograd.effects import is_statement
from gyrator.autograd.partition.plan import JointGraph, is_number
from gyrator.autograd.partition.recompute import is_copyless
from gyrator.autograd.symbols import SymbolTable, expression, sizes_of
from gyrator.errors import InternalCheckError

aten = torch.ops.aten


@dataclass(frozen=True)
class Halves:
    """A forward and a backward graph.

    Attributes:
        forward: placeholders are the primals; outputs are the results, then `saved_values`, then `numbers`.
        backward: placeholders are the numbers, saved values, saved primals, tangents; outputs are gradients.
        saved_values: how many values forward returns for backward.
        saved_primals: positions of primals that backward reads.
        numbers: the expressions of what forward returns for backward after them.
        tangents: the placeholders of backward for the tangents."""

    forward: Graph
    backward: Graph
    saved_values: int
    saved_primals: tuple[int, ...]
    numbers: tuple[str, ...]
    tangents: tuple[Node, ...]


def split(joint: JointGraph, saved: Sequence[Node]) -> Halves:
    """The two graphs. Backward computes again what it needs and `saved` lacks, each value just before its first use."""
    positions = {node: position for position, node in enumerate(joint.primals)}
    values = [node for node in saved if node not in positions or node in joint.updated]
    primals = [node for node in saved if node in positions and node not in joint.updated]
    numbers = _numbers(joint, set(saved))
    forward, kept = _forward_graph(joint, values, numbers)
    handed = zip((*numbers, *values, *primals), (*numbers, *kept, *primals), strict=True)
    backward = _backward_graph(joint, dict(handed))
    inputs = backward.find_nodes(op="placeholder")
    tangents = tuple(inputs[len(inputs) - len(joint.tangents) :])
    named = tuple(str(expression(node.meta["val"])) for node in numbers)
    return Halves(forward, backward, len(values), tuple(positions[node] for node in primals), named, tangents)


def inference_graph(joint: JointGraph) -> Graph:
    """The graph of a program without backward: the joint graph, each result in memory of its own."""
    return _forward_graph(joint, [], [])[0]


def _numbers(joint: JointGraph, saved: set[Node]) -> list[Node]:
    """Numbers that backward reads: computed in forward, carried over as they are."""
    numbers = {node for node in joint.needed.difference(joint.backward_nodes, saved) if is_number(node)}
    computed = ancestors(joint.gradients, known=saved | numbers)
    found = {source for node in computed for source in node.all_input_nodes if source in numbers}
    found |= _unreadable(joint, [*computed, *saved, *joint.tangents], [*saved, *found, *joint.tangents])
    return sorted(found)


def _unreadable(joint: JointGraph, nodes: Iterable[Node], given: Iterable[Node]) -> set[Node]:
    """Forward's numbers that are symbols in sizes of `nodes`, but no size of `given`; new ones if tensors have them."""
    readable = {size for node in given for size in sizes_of(node)}
    mentioned = free_symbols([value for node in nodes if isinstance(value := node.meta.get("val"), Tensor)])
    table = SymbolTable(joint.graph, (node for node in joint.graph.nodes if node not in joint.backward_nodes))
    return {number for number in map(table.find, sorted(mentioned - readable, key=str)) if number is not None}


def _forward_graph(joint: JointGraph, values: Sequence[Node], numbers: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """The forward graph, and the nodes that it returns for the values to be saved."""
    statements = [node for node in joint.graph.nodes if is_statement(node) and node not in joint.backward_nodes]
    needed = ancestors([*joint.results, *values, *numbers, *statements])
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in joint.graph.nodes:
        if node not in joint.backward_nodes and (node.op == "placeholder" or node in needed):
            copies[node] = copy_node(graph, node, copies.__getitem__)
    results = _owned(map_arg(joint.results, copies.__getitem__), graph)
    kept = [_clone(graph, copies[n], dense=True) if n in joint.updated or is_copyless(n) else copies[n] for n in values]
    graph.output((*results, *kept, *(copies[node] for node in numbers)))
    return graph, kept


def _backward_graph(joint: JointGraph, available: Mapping[Node, Node]) -> Graph:
    """The backward graph, each node after what it needs; `available`: what describes what forward hands over."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node, described in {**available, **{node: node for node in joint.tangents}}.items():
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(described.meta)
    runs = [n for n in joint.graph.nodes if n in joint.backward_nodes and (n in joint.needed or is_statement(n))]
    for value in (*runs, *joint.gradients):
        for source in sorted(ancestors([value], known=copies)):
            if source.op == "placeholder":
                raise InternalCheckError("partition", f"backward needs {source.name}, which is not saved")
            copies[source] = copy_node(graph, source, copies.__getitem__)
    graph.output(map_arg(joint.gradients, copies.__getitem__))
    return graph


def _owned(results: Iterable[Any], graph: Graph) -> list[Any]:
    """Each tensor with memory of its own: inputs, views of them and what shares an earlier result's are cloned."""
    seen: set[Node] = set()
    owned: list[Any] = []
    for result in results:
        if isinstance(result, Node) and isinstance(result.meta.get("val"), Tensor):
            owner = _owner(result)
            if owner.op == "placeholder" or owner in seen:
                result = _clone(graph, result)
            seen.add(_owner(result))
        owned.append(result)
    return owned


def _owner(node: Node) -> Node:
    while is_copyless(viewing := node.all_input_nodes[0] if node.target is operator.getitem else node):
        node = viewing.all_input_nodes[0]
    return node


def _clone(graph: Graph, node: Node, *, dense: bool = False) -> Node:
    """A clone; a ``dense`` one lacks the gaps that a view may have, another holds what is expanded once."""
    if not dense and is_copyless(node) and any(type(step) is int and step == 0 for step in node.meta["val"].stride()):
        return graph.node_copy(node, lambda given: _clone(graph, given) if given is node.args[0] else given)
    clone = graph.call_function(aten.clone.default, (node,))
    clone.meta = dict(node.meta)
    if dense:
        clone.meta["val"] = aten.clone.default(node.meta["val"])
    return clone


_LINEAR = frozenset({
    aten.view, aten._unsafe_view, aten.permute, aten.transpose, aten.t, aten.expand, aten.unsqueeze, aten.squeeze,
    aten.slice, aten.select, aten.clone, aten.neg, aten._to_copy, torch.ops.prims.convert_element_type,
})  # fmt: skip
"""Zeros where their first argument is zeros."""


def behind_loss(results: Sequence[object], tangents: Mapping[int, Node], inputs: Iterable[Node]) -> tuple[int, ...]:
    """Which of the results with a tangent the loss is computed from: the only one that is a single number. Nothing
    if there is no such one, or if the other `inputs` of backward do not tell the sizes of theirs."""
    nodes = {at: node for at in tangents if isinstance(node := results[at], Node)}
    losses = [node for node in nodes.values() if node.meta["val"].dim() == 0]
    if len(losses) != 1:
        return ()
    before = ancestors(losses) - set(losses)
    found = tuple(at for at, node in nodes.items() if node in before)
    gone = {tangents[at] for at in found}
    needed = {symbol for node in gone for size in sizes_of(node) for symbol in getattr(size, "free_symbols", ())}
    return found if needed <= {size for node in inputs if node not in gone for size in sizes_of(node)} else ()


def without_zeros(graph: Graph, zeros: set[Node]) -> None:
    """Removes inputs of a graph that are zeros, as gradients of logits beside a loss, and what follows from them alone.

    d = sub(softmax, target);  mm(add(d, tangent_logits), weight)   →   d = sub(softmax, target);  mm(d, weight)"""
    table = SymbolTable(graph, (node for node in graph.find_nodes(op="placeholder") if node not in zeros))
    for node in list(graph.nodes):
        given = [source for source in node.all_input_nodes if source in zeros]
        packet = getattr(node.target, "overloadpacket", None)
        others = [source for source in node.args[:2] if source not in given]
        if not given:
            continue
        if packet in _LINEAR or (packet is aten.add and not others):
            zeros = zeros | {node}
        elif packet is aten.add and not node.kwargs and isinstance(others[0], Node) and _alike(others[0], node):
            node.replace_all_uses_with(others[0])
            graph.erase_node(node)
        else:
            for source in given:
                value = source.meta["val"]
                like = {"dtype": value.dtype, "device": value.device}
                with graph.inserting_before(node):
                    shape = [n if type(n) is int else table.node_of(n) for n in value.shape]
                    made = graph.call_function(aten.full.default, (shape, 0), like)
                made.meta = dict(source.meta)
                node.replace_input_with(source, made)
    for node in reversed([node for node in graph.nodes if node in zeros]):
        graph.erase_node(node)


def _alike(one: Node, other: Node) -> bool:
    return sizes_of(one) == sizes_of(other) and one.meta["val"].dtype == other.meta["val"].dtype
