"""What a partitioner gets and gives: a joint graph with its nodes by role; what forward saves for backward, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor
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
        updated: primals that are overwritten once forward ran."""

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
        return frozenset(ancestors(self.results))

    @cached_property
    def needed(self) -> frozenset[Node]:
        """Nodes that gradients need."""
        return frozenset(ancestors(self.gradients))


def is_number(node: Node) -> bool:
    """Whether a node holds a size or another number."""
    return isinstance(node.meta.get("val"), (*SYMBOLIC_TYPES, int, float, bool))


@dataclass(frozen=True)
class Partition:
    """What forward saves.

    Attributes:
        saved: forward values (primals among them) that backward reads; it computes everything else again.
        reasons: for values where it was a choice, why it is saved or recomputed.
        saved_bytes: bytes of the saved values that would otherwise be freed.
        default_bytes: the same for `save_all`."""

    saved: tuple[Node, ...]
    reasons: Mapping[Node, str] = field(default_factory=dict)
    saved_bytes: int = 0
    default_bytes: int = 0


PartitionFunction = Callable[[JointGraph], Partition]


def save_all(joint: JointGraph) -> Partition:
    """Saves every forward value that backward reads; recomputes nothing."""
    recorded = {node for node in joint.graph.nodes if node.meta.get("backward")}
    backward = joint.backward_nodes | (recorded - joint.forward_nodes)
    read = {*joint.gradients}.union(*(node.all_input_nodes for node in backward & joint.needed)) - backward
    return Partition(tuple(n for n in joint.graph.nodes if n in read and isinstance(n.meta.get("val"), Tensor)))
