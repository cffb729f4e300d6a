"""A joint graph as partitioners see it: its nodes by role."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.fx import Graph, Node

from gyrator.autograd.builder import ancestors
from gyrator.autograd.symbols import SYMBOLIC_TYPES


@dataclass(frozen=True)
class JointGraph:
    """A decomposed joint graph.

    Attributes:
        graph: placeholders are `primals` then `tangents`; the output is `results` then `gradients`.
        primals: inputs and constants of the program.
        tangents: gradients of the differentiable results.
        results: what forward returns.
        gradients: what backward returns; None where an input has no gradient.
        static: primals whose memory lives on anyway (parameters, buffers, constants): saving them is free.
        updated: primals that are overwritten once forward ran.
    """

    graph: Graph
    primals: tuple[Node, ...]
    tangents: tuple[Node, ...]
    results: tuple[Any, ...]
    gradients: tuple[Any, ...]
    static: frozenset[Node] = frozenset()
    updated: frozenset[Node] = frozenset()

    @cached_property
    def backward_nodes(self) -> frozenset[Node]:
        """Nodes that depend on a tangent: they can only run in backward."""
        found: set[Node] = set(self.tangents)
        for node in self.graph.nodes:
            if node.op == "call_function" and any(source in found for source in node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    @cached_property
    def forward_nodes(self) -> frozenset[Node]:
        """Nodes that forward's results need."""
        return frozenset(ancestors(node for node in self.results if isinstance(node, Node)))


def is_number(node: Node) -> bool:
    """Whether a node holds a size or another number."""
    return isinstance(node.meta.get("val"), (*SYMBOLIC_TYPES, int, float, bool))
