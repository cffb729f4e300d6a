"""flex_attention as the operators that define it: scores, the user's functions on each of them, softmax, mix.

    flex_attention(q, k, v, score_mod, (..., mask_mod), scale, ...)   →
        s = score_mod(q @ kᵀ * scale, b, h, i, j);  s = -inf where not mask_mod(b, h, i, j)
        softmax(s) @ v,  log2(sum(exp(s))),  max(s) / log(2)

`score_mod` and `mask_mod` say what happens to one score, so they run under vmap over batch, head, query and
key. Gradients are autograd's own. The score matrix is a tensor of the graph, which `fused_attention.py` avoids."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

INDICES = ((0, None, None, None), (None, 0, None, None), (None, None, 0, None), (None, None, None, 0))
"""For each vmap from the outermost, batch, to the innermost, key: which of (b, h, i, j) it runs over."""

Call = Callable[[Any, Sequence[Any]], Any]


def flex_attention(call: Call, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """The results of the operator on these arguments: values, logarithm of sums and maxima (both base 2).

    Args:
        call: runs one of the user's functions, a captured graph, on tensors without dimensions.
        args: the operator's own: query [B, H, M, E], key [B or 1, H / g, N, E], value [B or 1, H / g, N, V],
            score_mod, block mask, scale, options, then the tensors that score_mod and mask_mod read.
    """
    (query, key, value), (score_mod, mask, scale) = autocast(*args[:3]), args[3:6]
    score_reads, mask_reads = reads_of(args)
    with torch.autocast(query.device.type, enabled=False):
        key, value = (_like_query(x, query) for x in (key, value))
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = query.to(dtype) @ key.to(dtype).mT * scale
        places = [torch.arange(size, device=query.device) for size in scores.shape]
        scores = _mapped(call, score_mod, scores, places, score_reads)
        kept = _mapped(call, mask[-1], None, places, mask_reads)
        scores = torch.where(kept, scores, -math.inf)
        # Rows without any score would be nan: they count as zeros, and what comes of them is replaced.
        empty = (scores == -math.inf).all(-1)
        filled = scores.masked_fill(empty[..., None], 0.0)
        weights = filled.softmax(-1).masked_fill(empty[..., None], 0.0)
        sums = filled.logsumexp(-1).masked_fill(empty, -math.inf) / math.log(2)
        maxima = scores.detach().amax(-1) / math.log(2)
        out = weights.to(query.dtype) @ value.to(query.dtype)
        return laid_out_like(out, query), sums, maxima


def reads_of(args: Sequence[Any]) -> list[list[Any]]:
    """What score_mod and mask_mod read."""
    return [[*reads] for reads in (*args[7:9], (), ())[:2]]


def _mapped(call: Call, function: Any, scores: Tensor | None, places: Sequence[Tensor], reads: list[Any]) -> Tensor:
    """`function(score, b, h, i, j, *reads)` for every score, or without scores for every place."""

    def one(*given: Any) -> Any:
        return call(function, given)

    first = () if scores is None else (scores,)
    for dims in reversed(INDICES):
        one = torch.vmap(one, in_dims=(*[0 for _ in first], *dims, *[None for _ in reads]))
    return one(*first, *places, *reads)


def _like_query(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with the query's batch, and each of their heads once for every head that shares it."""
    groups = query.shape[1] // x.shape[1]
    x = x if isinstance(groups, int) and groups == 1 else x.repeat_interleave(groups, 1)
    return x.expand(query.shape[0], *x.shape[1:])


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type of autocast, if that is on."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)


def laid_out_like(out: Tensor, query: Tensor) -> Tensor:
    """`out`, dense, its rows in one piece, with its other dimensions in the order in which those of `query` lie."""
    order = [*sorted(range(3), key=lambda dim: query.stride(dim), reverse=True), 3]
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])


def index(x: Tensor, place: Any) -> Tensor:
    """`x[place]` for a place of tensors without dimensions, which vmap may run over: no number is read."""
    places = place if isinstance(place, tuple) else (place,)
    tensors = [p if isinstance(p, Tensor) else torch.full((), p, device=x.device) for p in places]
    return torch.ops.aten.index.Tensor(x, tensors)
