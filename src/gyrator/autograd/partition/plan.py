"""A partition: the values that forward saves for backward, and why. `save_all` is the plain one."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from gyrator.autograd.builder import ancestors
from gyrator.autograd.partition.joint_graph import JointGraph, is_number


@dataclass(frozen=True)
class Partition:
    """What forward saves.

    Attributes:
        saved: forward values (primals among them) that backward reads; it computes everything else again.
        reasons: for values where it was a choice, why it is saved or recomputed.
        saved_bytes: bytes of the saved values that would otherwise be freed.
        default_bytes: the same for `save_all`.
    """

    saved: tuple[Node, ...]
    reasons: Mapping[Node, str] = field(default_factory=dict)
    saved_bytes: int = 0
    default_bytes: int = 0


PartitionFunction = Callable[[JointGraph], Partition]


def save_all(joint: JointGraph) -> Partition:
    """Saves every forward value that backward reads; recomputes nothing."""
    forward = _runs_forward(joint)
    needed = ancestors(node for node in joint.gradients if isinstance(node, Node))
    saved = tuple(
        node
        for node in joint.graph.nodes
        if (
            node in forward
            and not is_number(node)
            and not isinstance(node.meta.get("val"), tuple)
            and any(user in needed and user not in forward for user in node.users)
        )
        or (node in joint.gradients and node in forward)
    )
    return Partition(saved)


def _runs_forward(joint: JointGraph) -> set[Node]:
    """What forward runs: what its results need, and results of the same calls."""
    forward = set(joint.forward_nodes) | set(joint.primals)
    for node in joint.graph.nodes:
        recorded_forward = not node.meta.get("backward") and node not in joint.backward_nodes
        part = node.target is operator.getitem and node.args[0] in forward
        if part or (node.op == "call_function" and recorded_forward):
            forward.add(node)
    return forward
