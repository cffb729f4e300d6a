"""Products as graphs of other operators. decompose-K: long sums as a batch of products over parts of K, and a sum of
the partial products. By elements: what is bound by memory is multiplied and summed in one kernel, without matrix units.

mm(a: [M, K], b: [K, N])          →   sum over s of bmm(a as [S, M, K/S], b as [S, K/S, N])
bmm(a: [B, M, K], b: [B, K, N])   →   sum over k of a[:, :, k, None] * b[:, None, k, :]"""

from collections.abc import Callable
from functools import partial
from math import log2, prod
from typing import Any

import torch
from torch import Tensor, fx

from gyrator.autotune.subgraphs import SubgraphTemplate

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LEAST_RATIO = 32
"""K is at least so many times M and N: otherwise the library has tiles enough for all cores."""
PART, SHORTEST, MOST = 256, 128, 5
"""Lengths of parts are divisors of K from the shortest up to K/2: at most so many, powers of two first, near 256."""
MANY_ROWS, MANY_PRODUCTS = 4096, 256
LONGEST, MOST_MULTIPLIED = 64, 4096
"""The longest small side, and the most elements that are multiplied for a row (of mm) or a product (of bmm)."""


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
        ways["by_elements"] = _by_elements
    scales: Any = node.kwargs
    return tuple(SubgraphTemplate(name, partial(_added, way, **scales)) for name, way in ways.items())


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


def _by_elements(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right``, multiplied and summed in float32."""
    return (left.float().unsqueeze(-1) * right.float().unsqueeze(-3)).sum(-2)


def _added(product: Callable[[Tensor, Tensor], Tensor], *inputs: Tensor, alpha: float = 1, beta: float = 1) -> Tensor:
    """``alpha · left @ right (+ beta · bias)`` by ``product``, in float32; there are no scales without a bias."""
    *bias, left, right = inputs
    total = product(left, right)
    return (beta * bias[0].float() + alpha * total if bias else total).to(left.dtype)
