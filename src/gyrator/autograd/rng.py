"""Random numbers that backward can draw again.

In a region that backward computes again (an activation checkpoint), a draw from torch's generator would differ the
second time. Such draws become pure functions of a seed, which is drawn once, in forward, and saved:

    r = aten.rand([4, 8])     →     s = gyrator.seeds(1, cpu);  r = gyrator.rand([4, 8], s, 0, float32, cpu)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from gyrator.autograd import ops
from gyrator.autograd.builder import GraphBuilder

aten = torch.ops.aten

_SEEDED: Mapping[OpOverload, OpOverload] = {aten.rand.default: ops.rand, aten.randn.default: ops.randn}


def seed_recomputed(build: GraphBuilder) -> None:
    """Rewrites the draws of `build`'s graph that backward is to repeat."""
    draws: dict[torch.device, list[Node]] = {}
    for node in build.graph.nodes:
        if node.op == "call_function" and node.target in _SEEDED and node.meta.get("recompute"):
            draws.setdefault(node.meta["val"].device, []).append(node)
    build.origin = {}
    for device, nodes in draws.items():
        with build.graph.inserting_before(nodes[0]):
            seeds = build.call(ops.seeds, (len(nodes), device), {})
        for slot, node in enumerate(nodes):
            args: tuple[Any, ...] = (node.args[0], seeds, slot, node.meta["val"].dtype, device)
            with build.graph.inserting_before(node):
                seeded = build.graph.call_function(_SEEDED[node.target], args)  # type: ignore[index]
            seeded.meta = node.meta
            node.replace_all_uses_with(seeded)
            build.graph.erase_node(node)
