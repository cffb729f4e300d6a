"""The min-cut partitioner: saves the fewest bytes from which backward can cheaply compute the rest again.

Every forward value that backward may need is an edge (entry → exit) whose capacity is the price of saving
it; values that cannot be recomputed hang on the source, values that backward reads hang on the sink. A cut is then a
set of values to save that lets backward reach everything it reads, and the minimum cut is the cheapest one. (The
formulation is known from T. Chen et al., arXiv:1604.06174 and from torch's partitioner; the bans below are ours.)"""

import operator
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import networkx as nx
import torch
from networkx.algorithms.flow import boykov_kolmogorov
from torch import Tensor
from torch.fx import Node

from gyrator.autograd.builder import ancestors, flatten
from gyrator.autograd.fused_attention import fused_attention
from gyrator.autograd.partition.plan import JointGraph, Partition, PartitionFunction, is_number, save_all
from gyrator.autograd.partition.recompute import Cost, cost, fusible, is_copyless, readers, reduces, tensor_bytes, work
from gyrator.errors import InternalCheckError

aten = torch.ops.aten
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

WIDE_READ_RATIO = 4
"""A value read across a heavy operator ties its reader down unless it is this many times smaller than the reader."""
_SOURCE, _SINK = -1, -2
"""Vertices of the network; the others are numbered from 0."""
PRICE_OF_AN_INPUT, PRICE_OF_A_BYTE, PRICE_OF_A_WRITE, PRICE_OF_A_COPY = 31, 32, 33, 64
"""Prices of a byte that the caller may hold too, that is in memory anyway, must be written, or read and written."""


@dataclass(frozen=True)
class Ban:
    """A node that backward must not compute again, and why; `negotiable` where a memory budget may overrule it."""

    reason: str
    negotiable: bool


@dataclass(frozen=True)
class _Problem:
    """What may be saved or recomputed: candidates in order, those that backward reads, and the bans."""

    joint: JointGraph
    candidates: tuple[Node, ...]
    read: frozenset[Node]
    bans: Mapping[Node, Ban]


def min_cut_with_budget(budget: float) -> PartitionFunction:
    """A partitioner that saves at most `budget` times the bytes that `min_cut` saves, where that is possible.

    It gives up bans in the order of least work per byte saved. 1 is `min_cut`; 0 recomputes all that is not random.

    Raises: ValueError for a budget outside [0, 1]."""
    if not 0 <= budget <= 1:
        raise ValueError(f"a memory budget lies between 0 and 1, not {budget}")

    def partition(joint: JointGraph) -> Partition:
        problem = _problem(joint)
        saved = _solve(problem)
        if budget == 1:
            return _described(problem, saved)
        limit, bans = int(budget * _saved_bytes(joint, saved)), problem.bans
        order = [node for node, ban in bans.items() if ban.negotiable]
        order.sort(key=lambda node: work(node) / max(tensor_bytes(node.meta.get("val")), 1))

        def lifted(last: int) -> tuple[_Problem, tuple[Node, ...]]:
            """The problem without the bans up to the one at `last` in the order, and what is saved then."""
            gone = {*order[: last + 1]}
            rest = replace(problem, bans={node: ban for node, ban in bans.items() if node not in gone})
            return rest, _solve(rest)

        few = bisect_left(range(len(order)), True, key=lambda last: _saved_bytes(joint, lifted(last)[1]) <= limit)
        return _described(*lifted(few))

    return partition


min_cut = min_cut_with_budget(1)
"""Saves the fewest bytes under the default bans: recomputation must be nearly free."""


def _problem(joint: JointGraph) -> _Problem:
    forward = (node for node in joint.graph.nodes if node in joint.needed and node not in joint.backward_nodes)
    candidates = tuple(node for node in forward if not is_number(node))
    gradients, readers = {*joint.gradients}, joint.backward_nodes & joint.needed
    read = frozenset(node for node in candidates if node in gradients or not readers.isdisjoint(node.users))
    stages = _stages(joint)
    bans = {node: ban for node in candidates if (ban := _ban(node, joint, stages)) is not None}
    return _Problem(joint, candidates, read, bans)


def _region_ban(node: Node) -> Ban | None:
    """In a region of an activation checkpoint: its results are saved, and what its policy saves."""
    if not node.meta["repeated"]:
        return Ban("saved by the checkpoint's policy", False) if cost(node) is not Cost.VIEW else None
    if _leaves_region(node) and not is_copyless(node):
        return Ban("the result of an activation checkpoint", False)
    return None


def _leaves_region(node: Node) -> bool:
    """Whether forward reads the value, or a view of it, outside of its region."""
    region = node.meta["region"]
    forward = (user for user in readers(node) if user.op == "call_function" and not user.meta.get("backward"))
    return any(user.meta.get("region") != region for user in forward)


def _ban(node: Node, joint: JointGraph, stages: Mapping[Node, int]) -> Ban | None:
    """Why backward must not compute a value of forward again. What only backward needs is computed once, there."""
    kind = cost(node)
    if node.op == "placeholder":
        return Ban("an input", False)
    if kind is Cost.RANDOM and not node.meta.get("backward"):
        return Ban("random, and would differ", False)
    if node.meta.get("region") is not None and node in joint.forward_nodes:
        return _region_ban(node)
    if kind is Cost.EQUALITY and not any(source.meta.get("repeated") for source in node.all_input_nodes):
        return Ban("other numbers may be equal when they are computed again", False)
    of_forward = node.op == "call_function" and node in joint.forward_nodes and not node.meta.get("backward")
    if not of_forward or kind in (Cost.VIEW, Cost.NUMBER):
        return None
    if kind is Cost.HEAVY:
        return Ban("takes too long to compute again", True)
    if kind is Cost.REDUCTION and reduces(node):
        return Ban("a small result of a reduction", True)
    copies_input = node.target is aten.clone.default and node.all_input_nodes[0].op == "placeholder"
    if not copies_input and _materialised_in_backward(node, joint):  # an input is copied again, not held in two layouts
        return Ban("read from memory by a heavy operator of backward", True)
    return Ban("would tie together what heavy operators separate", True) if _reads_across(node, stages) else None


def _stages(joint: JointGraph) -> dict[Node, int]:
    """For each forward node how many heavy operators lie on the longest way to it."""
    stages: dict[Node, int] = {}
    for node in joint.graph.nodes:
        if node.op != "output" and node not in joint.backward_nodes:
            before = max((stages[source] for source in node.all_input_nodes), default=0)
            stages[node] = before + (node.op == "call_function" and cost(node) is Cost.HEAVY)
    return stages


def _reads_across(node: Node, stages: Mapping[Node, int]) -> bool:
    """Whether a node reads a fusible value from before a heavy operator that it also depends on, and others read it
    before the operator: recomputed for both, it would chain the model's stages together, as residual sums do."""
    size = tensor_bytes(node.meta.get("val"))
    return any(
        origin.op == "call_function"
        and stages[origin] < stages[node]
        and fusible(origin)
        and tensor_bytes(origin.meta.get("val")) * WIDE_READ_RATIO > size
        and any(stages.get(user, 0) <= stages[origin] + 1 and user is not node for user in origin.users)
        for origin in map(_through_views, node.all_input_nodes)
    )


def _through_views(node: Node) -> Node:
    while node.op == "call_function" and cost(node) is Cost.VIEW:
        node = node.all_input_nodes[0]
    return node


def _materialised_in_backward(node: Node, joint: JointGraph) -> bool:
    """Whether backward hands the value, or a view of it, to an operator that reads it from memory."""
    needed = (user for user in readers(node) if user in joint.needed)
    backward = (user for user in needed if user in joint.backward_nodes or user.meta.get("backward"))
    return any(cost(user) in (Cost.HEAVY, Cost.RANDOM) and not _computes(user, node) for user in backward)


def _computes(user: Node, node: Node) -> bool:
    """Whether an operator may compute a value where it reads it: attention what it reads of each score."""
    given = user.args[2:4] if user.target is fused_attention else user.args
    operands = [_through_views(x) for x in flatten(given) if isinstance(x, Node)]
    return user.target in (fused_attention, _BACKWARD) and node not in operands


def _price(node: Node, joint: JointGraph) -> float:
    """What saving a value costs, in parts of bytes: a little more where forward would not have written it otherwise.
    Of views only those of a small part are saved, as copies: the whole is freed. Infinity for what is never saved."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return inf
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node  # of one of several results
    if node.meta.get("repeated") and cost(maker) is not Cost.RANDOM and not _leaves_region(node):
        return inf
    size = tensor_bytes(value)
    if node.op == "placeholder":
        if node in joint.updated:
            return size * PRICE_OF_A_COPY
        return 0 if node in joint.static else size * PRICE_OF_AN_INPUT
    if is_copyless(node):
        return size * PRICE_OF_A_COPY if reduces(node) else inf
    written = any(not fusible(user) for user in node.users) or not fusible(_through_views(node))
    return size * (PRICE_OF_A_BYTE if written else PRICE_OF_A_WRITE)


def _solve(problem: _Problem) -> tuple[Node, ...]:
    """The values to save: the cheapest cut, of several the one nearest to what backward reads.

    Only what there is a choice about has vertices of its own: what is not recomputed begins at the source, what is read
    ends at the sink if it does not begin at the source, and what is not saved ends where it begins."""
    entries = {node: _SOURCE if node in problem.bans else 2 * k for k, node in enumerate(problem.candidates)}
    exits: dict[Node, int] = {}
    graph = nx.DiGraph()
    graph.add_nodes_from((_SOURCE, _SINK))
    for k, (node, entry) in enumerate(entries.items()):
        price, read = _price(node, problem.joint), node in problem.read
        exits[node] = end = _SINK if read and entry != _SOURCE else entry if price == inf else 2 * k + 1
        graph.add_edge(entry, end, capacity=price)
        if end != _SINK:  # edges without a capacity are unbounded
            graph.add_edges_from((end, entries[user]) for user in node.users if entries.get(user, _SOURCE) != _SOURCE)
            graph.add_edges_from([(end, _SINK)] * read)
    try:
        _, (_, behind) = nx.minimum_cut(graph, _SOURCE, _SINK, flow_func=boykov_kolmogorov)
    except nx.NetworkXUnbounded:
        text = "backward needs a value that can neither be saved nor recomputed"
        raise InternalCheckError("partition", text) from None
    return tuple(node for node in entries if exits[node] in behind and entries[node] not in behind)


def _described(problem: _Problem, saved: tuple[Node, ...]) -> Partition:
    """The partition with its reasons: for what is saved why it was not recomputed, for what is recomputed from what."""
    joint = problem.joint
    free = Ban("the cheapest value to start again from", True)
    reasons = {node: f"saved: {problem.bans.get(node, free).reason}" for node in saved}
    recomputed = ancestors(problem.read, known={*saved, *filter(is_number, joint.needed)})
    again = ((n, cost(n)) for n in joint.graph.nodes if n in recomputed)
    reasons |= {n: f"recomputed: {c.name.lower()}, cheaper than its bytes" for n, c in again if c is not Cost.VIEW}
    return Partition(saved, reasons, _saved_bytes(joint, saved), _saved_bytes(joint, save_all(joint).saved))


def _saved_bytes(joint: JointGraph, saved: Iterable[Any]) -> int:
    """Bytes that saving adds: of values that do not live on anyway."""
    return sum(tensor_bytes(node.meta.get("val")) for node in saved if node not in joint.static)
