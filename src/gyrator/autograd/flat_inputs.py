"""Graphs that take lists: compiled autograd passes all that a backward reads as one list, which the call empties."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree


def flattened(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """`gm` with a placeholder per item of its lists:  f([a, b])  →  f(a, b)."""
    graph, new = Graph(), dict[Node, Any]()
    examples, numbers = iter(example_inputs), count()
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            new[node] = graph.node_copy(node, new.__getitem__)
            continue
        new[node] = pytree.tree_map(lambda _: graph.placeholder(f"input_{next(numbers)}"), next(examples))
        values = pytree.tree_leaves(node.meta.get("example_value"))
        for placeholder, value in zip(pytree.tree_leaves(new[node]), values, strict=False):
            placeholder.meta["example_value"] = value
    return GraphModule(gm, graph)


def taking_lists(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, called with lists of its arguments, which are emptied first so that it can free them early."""

    def call(*args: Any) -> Any:
        leaves = pytree.tree_leaves(args)
        for arg in args:
            if isinstance(arg, list):
                arg.clear()
        return run(*leaves)

    return call
