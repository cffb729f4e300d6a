"""Equal calls of a graph are made once. T5 adds a mask to its position bias, and lays the sum in rows, in each layer:

a = clone(bias);  x = attention(q, k, v, a)            a = clone(bias);  x = attention(q, k, v, a)
b = clone(bias);  y = attention(x, k, v, b)     →      y = attention(x, k, v, a)
"""

import operator

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from gyrator.autograd.effects import Effect, behaviour


def merge_equal_calls(graph: Graph) -> None:
    """Replaces each call of a pure operator by an earlier one with the same arguments.

    Refuses random draws, sizes that come from data (each has its name), constants (cheaper to write anew than to copy
    where two scatters start from one), calls whose results are the graph's, calls in other regions of activation
    checkpoints or in the other half of the program, and graphs in which a call writes to its arguments.
    """
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
        if node in shown or not node.all_input_nodes or not pure or fresh:
            continue
        about = [node.meta.get(key) for key in ("backward", "region", "recompute")]
        known = first.setdefault(repr((op, node.args, node.kwargs, about)), node)  # 1, 1.0 and True differ
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
