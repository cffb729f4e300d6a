"""Where a 16-bit float must be rounded though a kernel widens it again.

Else it keeps the digits that eager rounds away, which is faster and closer to the exact result. But in
``y = x.float(); y == y.amax()`` both sides must be rounded alike, whichever kernels compute them, or none is equal.
"""

import torch
from torch import fx

from gyrator.autograd.partition.recompute import Cost, cost

aten = torch.ops.aten
_CHOOSES = (aten.argmax.default, aten.argmin.default)
_LARGEST = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)


def rounding_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes that read 16-bit floats as rounded: that test equality or choose, and what computes their operands."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        kind = cost(node)
        follows = node.target in _LARGEST or kind in (Cost.VIEW, Cost.POINTWISE)
        if kind is Cost.EQUALITY or node.target in _CHOOSES or (follows and not found.isdisjoint(node.users)):
            found.add(node)
    return frozenset(found)
