"""decompose-K: a product with long sums as a batch of products over parts of K, and a sum of the partial products.

mm(a: [M, K], b: [K, N])   →   sum over s of bmm(a as [S, M, K/S], b as [S, K/S, N])
"""

from collections.abc import Callable
from functools import partial
from math import log2
from typing import Any

import torch
from torch import Tensor, fx

from gyrator.autotune.subgraphs import SubgraphTemplate

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LEAST_RATIO = 32
"""K is at least so many times M and N: otherwise the library has tiles enough for all cores."""
PART, SHORTEST, MOST = 256, 128, 5
"""Lengths of parts are divisors of K from the shortest up to K/2: at most so many, powers of two first, near 256."""


def operands(node: fx.Node) -> tuple[Tensor, Tensor] | None:
    """The matrices of mm, addmm or bmm, if they are of fp32, fp16 or bf16 and all sizes are static."""
    if node.target not in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
        return None
    left, right = (arg.meta["val"] for arg in node.args[-2:] if isinstance(arg, fx.Node))
    static = all(type(size) is int for size in (*left.shape, *right.shape))
    return (left, right) if left.dtype in FLOATS and static else None


def decompositions(node: fx.Node) -> tuple[SubgraphTemplate, ...]:
    """The ways to split K of mm, addmm or bmm, the likeliest first. Refuses (none) other dtypes than fp32, fp16 and
    bf16, sizes that are not static, and K < 32 · max(M, N)."""
    sides = operands(node)
    if sides is None:
        return ()
    m, k, n = sides[0].shape[-2], sides[0].shape[-1], sides[1].shape[-1]
    if k < LEAST_RATIO * max(m, n, 1):
        return ()
    lengths = [length for length in range(SHORTEST, k // 2 + 1) if k % length == 0]
    lengths.sort(key=lambda length: (length & (length - 1) != 0, abs(log2(length / PART))))
    splits = (k // length for length in lengths[:MOST])
    return tuple(template(node, f"decompose_k_{parts}", partial(_split, parts)) for parts in splits)


def _split(splits: int, left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` by ``splits`` partial products in float32."""
    *batch, m, k = left.shape
    n = right.shape[-1]
    a = left.view(*batch, m, splits, k // splits).transpose(-2, -3)
    b = right.view(*batch, splits, k // splits, n)
    if batch:
        a, b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    if left.is_cuda and left.dtype is not torch.float32:
        partials = torch.ops.aten.bmm.dtype(a, b, torch.float32)
    else:  # the processor's bmm would round partial products to the inputs' dtype
        partials = torch.bmm(a.float(), b.float())
    return partials.view(*batch, splits, m, n).sum(len(batch))


def template(node: fx.Node, name: str, product: Callable[[Tensor, Tensor], Tensor]) -> SubgraphTemplate:
    """mm, addmm or bmm by ``product``, which gives ``left @ right`` in float32."""
    scales: Any = node.kwargs
    return SubgraphTemplate(name, partial(_added, product, **scales))


def _added(product: Callable[[Tensor, Tensor], Tensor], *inputs: Tensor, alpha: float = 1, beta: float = 1) -> Tensor:
    """``alpha · left @ right (+ beta · bias)``; there are no scales without a bias."""
    *bias, left, right = inputs
    total = product(left, right)
    return (beta * bias[0].float() + alpha * total if bias else total).to(left.dtype)
