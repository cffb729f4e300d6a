"""Freezing: parameters and buffers become constants of the graph; what follows from constants alone is computed now.

%w = placeholder; %b = to(%w, bf16); %t = permute(%b, …); mm(%x, %t)
→   %b = constant; %t = permute(%b, …); mm(%x, %t)          the placeholder stays, unread"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node, map_arg

from gyrator.autograd.partition.recompute import Cost, cost

MOST_GROWTH = 2
"""How many times larger than its operands a result may be: what is only repeated is cheaper made anew."""
LEAST = 65536
"""Bytes up to which numbers of 8 bits are made wider for good. Larger weights are kept as small as they are."""


def freeze(graph: Graph, values: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Put `values`, by their position, in the place of inputs of a functional graph; the constants by their name in it.

    Refuses draws of random numbers, views, and what goes to an output, which the caller may write into."""
    inputs = graph.find_nodes(op="placeholder")
    known = {inputs[position]: value.detach() for position, value in values.items()}
    held: dict[Node, Tensor] = {}
    for node in list(graph.nodes):
        follows = node.op == "call_function" and all(i in known for i in node.all_input_nodes)
        if follows and (value := _computed(node, known)) is not None:
            known[node] = value
    for node in reversed(list(known)):  # bytes that only make what is wider are made anew as well
        bytes_alone = known[node].dtype.itemsize == 1 and known.keys().isdisjoint(node.users)
        if node.op == "call_function" and bytes_alone and all(_is_made_of_bytes(user) for user in node.users):
            del known[node]
    for node in list(known):
        if not (isinstance(node.target, OpOverload) and node.target.is_view):
            with graph.inserting_after(node):
                constant = graph.get_attr(f"frozen_{len(held)}")
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant, delete_user_cb=lambda user: not _is_shown(user))
            held[constant] = known[node]
    for node in reversed(list(graph.nodes)):
        if not node.users and (node in held or (node in known and node.op != "placeholder")):
            held.pop(node, None)
            graph.erase_node(node)
    return {str(constant.target): value for constant, value in held.items()}


def _is_shown(node: Node) -> bool:
    """Whether a node is the output, or a view that goes there."""
    return node.op == "output" or (cost(node) is Cost.VIEW and any(map(_is_shown, node.users)))


def _is_made_of_bytes(node: Node) -> bool:
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return any(isinstance(value, Tensor) and value.dtype in (torch.int8, torch.uint8) for value in values)


def _computed(node: Node, known: Mapping[Node, Tensor]) -> Tensor | None:
    """The value of a node whose operands are known; None for one that stays."""
    op, operands = node.target, node.all_input_nodes
    if not isinstance(op, OpOverload) or not operands or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    made = node.meta.get("val")
    if not isinstance(made, Tensor) or made.numel() > MOST_GROWTH * sum(known[i].numel() for i in operands):
        return None
    if _is_made_of_bytes(node) and made.nbytes > max(LEAST, sum(known[i].nbytes for i in operands)):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    with torch.no_grad():
        value = op(*args, **kwargs)
    return value if isinstance(value, Tensor) and (value.dtype, value.stride()) == (made.dtype, made.stride()) else None
