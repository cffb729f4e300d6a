"""Backward of a loss alone. A program that trains returns its loss and what that was computed from: logits, hidden
states. The caller differentiates by the loss. Gradients of the others are then missing, and count as zeros: left out.

    d = sub(softmax, target)                      d = sub(softmax, target)
    mm(add(d, tangent_logits), weight)      →     mm(d, weight)
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.fx import Graph, Node

from gyrator.autograd.builder import ancestors
from gyrator.autograd.symbols import SymbolTable, sizes_of

aten = torch.ops.aten

_LINEAR = frozenset({
    aten.view, aten._unsafe_view, aten.permute, aten.transpose, aten.t, aten.expand, aten.unsqueeze, aten.squeeze,
    aten.slice, aten.select, aten.clone, aten.neg, aten._to_copy, torch.ops.prims.convert_element_type,
})  # fmt: skip
"""Zeros where their first argument is zeros."""


def behind_loss(results: Sequence[object], tangents: Mapping[int, Node], inputs: Iterable[Node]) -> tuple[int, ...]:
    """Which of the results with a tangent the loss is computed from: the only one that is a single number. Nothing
    if there is no such one, or if the other `inputs` of backward do not tell the sizes of theirs.
    """
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
    """Removes inputs of a graph that are zeros, and what is computed from them alone."""
    table = SymbolTable(graph)
    for node in graph.find_nodes(op="placeholder"):
        if node not in zeros:
            table.bind(node.meta["val"], node)
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
    for node in reversed(list(graph.nodes)):
        if node in zeros:
            graph.erase_node(node)


def _alike(one: Node, other: Node) -> bool:
    return sizes_of(one) == sizes_of(other) and one.meta["val"].dtype == other.meta["val"].dtype
