"""Subgraphs as candidates: a product computed by a graph of other operators, inlined before lowering if it is fastest.

decompose-K: long sums as a batch of products over parts of K, and a sum of the partial products. By elements: what is
bound by memory is multiplied and summed in one kernel, without matrix units.

mm(a: [M, K], b: [K, N])          →   sum over s of bmm(a as [S, M, K/S], b as [S, K/S, N])
bmm(a: [B, M, K], b: [B, K, N])   →   sum over k of a[:, :, k, None] * b[:, None, k, :]"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2, prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autograd.decompositions import decomposition_table, with_bias
from gyrator.autotune.parts import Builder
from gyrator.autotune.tuner import Candidate, Tuner
from gyrator.schedule.products import FLOATS, Ask
from gyrator.torch_compat import graph_module

LEAST_RATIO = 32
"""K is at least so many times M and N: otherwise the library has tiles enough for all cores."""
PART, SHORTEST, MOST = 256, 128, 5
"""Lengths of parts are divisors of K from the shortest up to K/2: at most so many, powers of two first, near 256."""
MANY_ROWS, MANY_PRODUCTS = 4096, 256
LONGEST, MOST_MULTIPLIED = 64, 4096
"""The longest small side, and the most elements that are multiplied for a row (of mm) or a product (of bmm)."""


@dataclass(frozen=True, slots=True)
class SubgraphTemplate:
    """A name, and a function of tensors that a graph of ATen operators is traced from."""

    name: str
    make: Callable[..., Tensor]

    def trace(self, inputs: Sequence[Tensor]) -> fx.GraphModule:
        """The graph for these inputs, which are fake tensors."""
        return make_fx(self.make, decomposition_table())(*inputs)

    def candidate(
        self, inputs: Sequence[Tensor], builder: Builder, family: str = "subgraph", ask: Ask | None = None
    ) -> Candidate:
        """The graph compiled as ``benchmark_<name>``; it may stand for another family, with choices inside it."""
        kinds, graph = kinds_of(inputs), self.trace(inputs)
        info = {"backend": family, "kernel_name": self.name, "heuristic": f"{family}_{self.name}"}
        start = partial(builder.start_graph, graph, f"benchmark_{self.name}", ask)
        return Candidate(self.name, family, f"{self.name} {kinds} {graph.code}", info, start)


def kinds_of(inputs: Sequence[Tensor]) -> list[object]:
    """What times depend on of each input."""
    return [(tuple(t.shape), t.dtype, t.stride(), str(t.device)) for t in inputs]


def with_subgraphs(graph: fx.GraphModule, tuner: Tuner) -> fx.GraphModule:
    """A copy of the graph with products replaced by graphs that were measured to be faster than all others."""
    new, env = fx.Graph(), dict[fx.Node, fx.Node]()
    asked: dict[str, SubgraphTemplate | None] = {}
    for node in graph.graph.nodes:
        offered = subgraphs_of(node)
        inputs = [arg.meta["val"] for arg in node.args if isinstance(arg, fx.Node)] if offered else []
        question = f"{node.target} {kinds_of(inputs)} {node.kwargs}"
        if offered and question not in asked:
            asked[question] = _fastest(node, inputs, offered, tuner)
        best = asked.get(question)
        env[node] = _inlined(new, best.trace(inputs).graph, node, env) if best else new.node_copy(node, env.__getitem__)
    return graph_module(graph, new) if any(asked.values()) else graph


def _inlined(new: fx.Graph, graph: fx.Graph, outer: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copy a graph's nodes to the end of ``new``, as if the user's line had called them instead of ``outer``."""
    args = [env[arg] for arg in outer.args if isinstance(arg, fx.Node)]
    given = dict(zip(graph.find_nodes(op="placeholder"), args, strict=True))
    places = dict(given)
    result = new.graph_copy(graph, places)
    for inner in places.keys() - given.keys():
        places[inner].meta = {**outer.meta, "val": inner.meta["val"]}
    assert isinstance(result, fx.Node)
    return result


def _fastest(
    node: fx.Node, inputs: Sequence[Tensor], offered: Sequence[SubgraphTemplate], tuner: Tuner
) -> SubgraphTemplate | None:
    """The best template for a node, if it is the best candidate."""
    assert callable(node.target)
    op, out, builder = str(node.target).split(".")[1], node.meta["val"], tuner.builder
    others = next((family for family in builder.session.config.gemm_backends if family != "subgraph"), "")
    rival = SubgraphTemplate(op, partial(node.target, **node.kwargs)).candidate(inputs, builder, others, tuner.ask)
    shapes = ", ".join("x".join(map(str, t.shape)) for t in (*inputs[-2:], *inputs[:-2]))
    size = prod(map(int, (*out.shape, inputs[-1].shape[-2])))
    own = [template.candidate(inputs, builder) for template in offered]
    ranked = tuner.rank(f"{op}({shapes})", "a graph", size, [rival, *own])
    return next((template for template in offered if ranked and ranked[0].name == template.name), None)


def subgraphs_of(node: fx.Node) -> tuple[SubgraphTemplate, ...]:
    """What mm, addmm and bmm have: the ways to split K, the likeliest first, then the product by elements.

    Refuses (none) other dtypes than fp32, fp16 and bf16, and sizes that are not static. K is split from 32 · max(M, N)
    on. By elements are many rows with a small matrix, and many small matrices; not few rows, and so not the gradient of
    a linear layer's input for a small batch."""
    if node.target not in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
        return ()
    left, right = (arg.meta["val"] for arg in node.args[-2:] if isinstance(arg, fx.Node))
    (*batch, m, k), n = left.shape, right.shape[-1]
    if left.dtype not in FLOATS or any(type(size) is not int for size in (*left.shape, *right.shape)):
        return ()
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    if k >= LEAST_RATIO * max(m, n, 1):
        lengths = [length for length in range(SHORTEST, k // 2 + 1) if k % length == 0]
        lengths.sort(key=lambda length: (length & (length - 1) != 0, abs(log2(length / PART))))
        ways |= {f"decompose_k_{k // length}": partial(_split, k // length) for length in lengths[:MOST]}
    small = (m, k, n) if batch else (1, k, n)
    many = batch[0] >= MANY_PRODUCTS if batch else m >= MANY_ROWS
    if many and 0 < max(small) <= LONGEST and prod(small) <= MOST_MULTIPLIED:
        ways["by_elements"] = lambda a, b: (a.float().unsqueeze(-1) * b.float().unsqueeze(-3)).sum(-2)
    scales: Any = node.kwargs
    return tuple(SubgraphTemplate(name, partial(_added, way, **scales)) for name, way in ways.items())


def _split(splits: int, left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` by ``splits`` partial products in float32."""
    (*batch, m, k), n = left.shape, right.shape[-1]
    a = left.view(*batch, m, splits, k // splits).transpose(-2, -3)
    b = right.view(*batch, splits, k // splits, n)
    if batch:
        a, b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    if left.is_cuda and left.dtype is not torch.float32:
        partials = torch.ops.aten.bmm.dtype(a, b, torch.float32)
    else:  # the processor's bmm would round partial products to the inputs' dtype
        partials = torch.bmm(a.float(), b.float())
    return partials.view(*batch, splits, m, n).sum(len(batch))


def _added(product: Callable[[Tensor, Tensor], Tensor], *inputs: Tensor, alpha: float = 1, beta: float = 1) -> Tensor:
    """``alpha · left @ right (+ beta · bias)`` by ``product``, in float32; there are no scales without a bias."""
    *bias, left, right = inputs
    return with_bias(product(left, right), bias, alpha, beta).to(left.dtype)
