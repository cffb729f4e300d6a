"""flex_attention: the operators that define it; an operator that a template computes, on a GPU two for its backward.

    flex_attention(q, k, v, score_mod, (..., mask_mod), scale, ...)   →
        s = score_mod(q @ kᵀ * scale, b, h, i, j);  s = -inf where not mask_mod(b, h, i, j)
        softmax(s) @ v,  log2(sum(exp(s))),  max(s) / log(2)

`score_mod` and `mask_mod` say what happens to one score, so they run under vmap over batch, head, query and
key. Gradients are autograd's own. The score matrix is a tensor of the graph, which the operator avoids:

    out, sums, maxima = gyrator_attention("forward", [score, keep], [query, key, value], lists, sides, scale, *reads)
    delta             = (out * d_out).sum(-1) - d_sums / log(2)
    d_query           = gyrator_attention("rows", [score, keep, slope], [query, key, value, d_out, sums, delta], ...)
    d_key, d_value    = gyrator_attention("columns", ...)

The user's functions are bodies on one score: `slope` is the derivative of `score` times a gradient. `lists` say which
blocks of `sides` rows and columns the masks keep: counts and numbers, then of those that they keep whole."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.backends import cuda
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from gyrator import torch_compat
from gyrator.autograd.attention import name_of
from gyrator.autograd.builder import ancestors
from gyrator.autograd.partition.recompute import Cost, cost, size_hint, tensor_bytes
from gyrator.autograd.recorder import Recorder

DEVICES, WIDEST, NO_BLOCKS = ("cuda", "cpu"), 256, 1 << 30
"""Where templates are; the widest heads; the sides of blocks where the user gave no mask."""
FASTER_ON, NARROW, FEW, FEWER = "cuda", 32, 64, 8
"""Where the template is faster than the library in 16 bits; narrow heads and few keys of :func:`_is_faster`; how many
times fewer numbers a mask is made of that is not stored."""

Call = Callable[[Any, Sequence[Any]], Any]


def flex_attention(call: Call, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """The results of the operator on these arguments: values, logarithm of sums and maxima (both base 2).

    Args:
        call: runs one of the user's functions, a captured graph, on tensors without dimensions.
        args: the operator's own: query [B, H, M, E], key [B or 1, H / g, N, E], value [B or 1, H / g, N, V],
            score_mod, block mask, scale, options, then the tensors that score_mod and mask_mod read."""
    (query, key, value), (score_mod, mask, scale) = autocast(*args[:3]), args[3:6]
    score_reads, mask_reads = reads_of(args)
    with torch.autocast(query.device.type, enabled=False):
        key, value = (_like_query(x, query) for x in (key, value))
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = query.to(dtype) @ key.to(dtype).mT * scale
        places = [torch.arange(size, device=query.device) for size in scores.shape]
        scores = _mapped(call, score_mod, [scores], places, score_reads)
        scores = torch.where(_mapped(call, mask[-1], [], places, mask_reads), scores, -math.inf)
        # Rows without any score would be nan: they count as zeros, and what comes of them is replaced.
        empty = (scores == -math.inf).all(-1)
        filled = scores.masked_fill(empty[..., None], 0.0)
        weights = filled.softmax(-1).masked_fill(empty[..., None], 0.0)
        sums = filled.logsumexp(-1).masked_fill(empty, -math.inf) / math.log(2)
        maxima = scores.detach().amax(-1) / math.log(2)
        return laid_out(weights.to(query.dtype) @ value.to(query.dtype), (*query.stride()[:3], 0)), sums, maxima


def by_template(recorder: Recorder, given: Mapping[str, Any], shared: Mapping[str, Any]) -> Tensor | None:
    """What scaled_dot_product_attention gives, by the template of flex_attention; None where the library is faster or a
    mask has a gradient. Rows that see no key give 0, as they do in eager. `given` are all the arguments by name, and
    `shared` those with keys that heads share where `given` has copies."""
    operands, mask = autocast(*(shared[name] for name in ("query", "key", "value"))), given.get("attn_mask")
    if operands[0].device.type != FASTER_ON or given.get("dropout_p"):
        return None
    causal, boolean = bool(given.get("is_causal")), mask is not None and mask.dtype == torch.bool
    made = mask is not None and _is_made(recorder.node_of(mask), mask)
    if not (_is_possible(operands, mask, made=made) and _is_faster(operands, mask, causal=causal, made=made)):
        return None

    def entry(mask: Tensor, *place: Any) -> Tensor:
        known = zip(mask.shape, place[-mask.ndim :], strict=True)
        return index(mask, tuple(0 if type(n) is int and n == 1 else at for n, at in known))

    def score(score: Tensor, b: Any, h: Any, i: Any, j: Any, *bias: Tensor) -> Tensor:
        return score + entry(*bias, b, h, i, j) if bias else score

    def keep(b: Any, h: Any, i: Any, j: Any, *mask: Tensor) -> Tensor:
        return entry(*mask, b, h, i, j) if mask else (i >= j if causal else torch.ones_like(i, dtype=torch.bool))

    with torch_compat.outside_tracing(), recorder.build.fake_mode, torch.no_grad():
        like = F.scaled_dot_product_attention(**given)
    scale = operands[0].shape[-1] ** -0.5 if given.get("scale") is None else given["scale"]
    reads = [() if mask is None or boolean is of_scores else (mask,) for of_scores in (True, False)]
    args = (*operands, score, (NO_BLOCKS, NO_BLOCKS, keep), scale, None, *reads)
    return laid_out(attention(recorder, lambda function, x: function(*x), args)[0], like.stride())


def _is_made(last: Node, mask: Tensor) -> bool:
    """Whether the graph makes a mask, by its ``last`` node, element by element of far fewer numbers: they are read
    instead, and what keys a row cannot see by its number is left out."""
    repeated = (guard_or_false(step == 0) for step in mask.stride())
    stored = prod(size_hint(n) for n, again in zip(mask.shape, repeated, strict=True) if not again) * mask.itemsize
    large = [node for node in ancestors([last]) if tensor_bytes(node.meta.get("val")) * FEWER > stored]
    return all(node.op == "call_function" and cost(node) in (Cost.VIEW, Cost.POINTWISE) for node in large)


def _is_possible(operands: Sequence[Tensor], mask: Tensor | None, *, made: bool) -> bool:
    """Whether the template means the same for query, key and value, where it may be faster."""
    (query, key, value), widths = operands, [x.shape[-1] for x in operands]
    alike = all((x.ndim, x.shape[0], x.dtype) == (4, query.shape[0], query.dtype) for x in operands)
    alike = alike and query.dtype in (torch.bfloat16, torch.float16) and key.shape[:3] == value.shape[:3]
    static = all(type(n) is int and n > 0 for n in (*widths, *([] if made else [key.shape[-2]])))
    enabled = cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()
    plain = mask is None or (mask.ndim > 0 and not mask.requires_grad and mask.dtype in (torch.bool, query.dtype))
    return alike and static and enabled and plain


def _is_faster(operands: Sequence[Tensor], mask: Tensor | None, *, causal: bool, made: bool) -> bool:
    """Whether it takes less than the library's time on an H200 (benchmarks/few_keys.py). What is said of each row is
    read in vectors where rows of it begin at multiples of 8 elements, if it is not made; else a number at a time."""
    (rows, keys), width = (x.shape[-2] for x in operands[:2]), max(x.shape[-1] for x in operands)
    if mask is None or (type(keys) is int and keys <= FEW):
        most = FEW if mask is not None or width > NARROW else FEW * (2 if causal else 8)
        return keys <= most and width <= 2 * NARROW
    of_rows = mask.ndim > 1 and not (guard_or_false(mask.shape[-2] == 1) or guard_or_false(mask.stride(-2) == 0))
    steps = (*mask.stride()[:-1], mask.storage_offset())
    vectors = guard_or_false(mask.stride(-1) == 1) and all(type(n) is int and n % 8 == 0 for n in steps)
    few = type(rows) is int and rows < FEW
    return not few and width <= 4 * NARROW and (made or vectors or not of_rows)


def reads_of(args: Sequence[Any]) -> list[list[Any]]:
    """What score_mod and mask_mod read."""
    return [[*reads] for reads in (*args[7:9], (), ())[:2]]


def _mapped(call: Call, function: Any, scores: list[Tensor], places: Sequence[Tensor], reads: list[Any]) -> Tensor:
    """`function(score, b, h, i, j, *reads)` for every score, or without `scores`, a list of one, for every place."""

    def one(*given: Any) -> Any:
        return call(function, given)

    for place in (3, 2, 1, 0):  # the innermost vmap runs over keys, the outermost over the batch
        dims = [0 if k == place else None for k in range(4)]
        one = torch.vmap(one, in_dims=(*[0 for _ in scores], *dims, *[None for _ in reads]))
    return one(*scores, *places, *reads)


def _like_query(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with the query's batch, and each of their heads once for every head that shares it."""
    groups = query.shape[1] // x.shape[1]
    x = x if isinstance(groups, int) and groups == 1 else x.repeat_interleave(groups, 1)
    return x.expand(query.shape[0], *x.shape[1:])


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type of autocast, if that is on; it leaves float64 as it is."""
    kind = tensors[0].device.type
    casts = torch.is_autocast_enabled(kind) and all(x.dtype != torch.float64 for x in tensors)
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors) if casts else tensors


def laid_out(out: Tensor, strides: Sequence[Any]) -> Tensor:
    """`out`, dense, with its dimensions in the order of these strides."""
    order = sorted(range(out.ndim), key=lambda dim: strides[dim], reverse=True)
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(out.ndim)])


def as_captured(out: Tensor, node: Node) -> Tensor:
    """What attention gives, in the layout that capture saw: kernels that a simpler mask chooses may have another.
    As it is where that cannot be seen: it is turned, reshaped, and then copied by `contiguous`."""
    captured, last = node.meta.get("example_value"), node
    while len(last.users) == 1 and (last is node or name_of(last) in ("transpose", "permute", "reshape")):
        last = next(iter(last.users))
    if not isinstance(captured, Tensor) or name_of(last) == "contiguous":
        return out
    given, wanted = ([size_hint(n) for n in x.stride()] for x in (out, captured))
    return out if given == wanted else laid_out(out, wanted)


def index(x: Tensor, place: Any) -> Tensor:
    """`x[place]` for a place of tensors without dimensions, which vmap may run over: no number is read."""
    places = place if isinstance(place, tuple) else (place,)
    tensors = [p if isinstance(p, Tensor) else torch.full((), p, device=x.device) for p in places]
    return torch.ops.aten.index.Tensor(x, tensors)


class FusedAttention(HigherOrderOperator):
    """The operator; called as it is, it computes all scores."""

    def __init__(self) -> None:
        super().__init__("gyrator_attention")

    def __call__(self, kind: str, bodies: Any, tensors: Any, _: Any, __: Any, scale: float, *reads: Any) -> Any:
        """Its results by torch's operators."""
        with torch.set_grad_enabled(kind != "forward"):
            leaves = [x.detach().requires_grad_(kind != "forward") for x in tensors[:3]]
            results = flex_attention(lambda f, x: f(*x), (*leaves, bodies[0], (bodies[1],), scale, None, *reads))
        if kind == "forward":
            return results
        grad, _, delta = tensors[3:]
        d_sums = ((results[0].float() * grad.float()).sum(-1) - delta) * math.log(2)
        d_query, d_key, d_value = torch.autograd.grad(results[:2], leaves, (grad, d_sums))
        return (d_query,) if kind == "rows" else (d_key, d_value)


fused_attention = FusedAttention()


def attention(recorder: Recorder, call: Call, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """flex_attention's results as traced: by the operator of this file where a template computes that. It does not for
    float64, gradients on a CPU, heads wider than WIDEST, masks without lists of blocks or whose blocks are no multiples
    of 16, and where what score_mod reads has a gradient. Scale, widths, heads and sides of blocks become plain."""
    (query, key, value), tracks = autocast(*args[:3]), torch.is_grad_enabled()
    mask = (*args[4][:-3], *map(int, args[4][-3:-1]), args[4][-1])
    grads = tracks and any(x.requires_grad for x in (query, key, value))
    if (
        query.device.type not in DEVICES[: 1 + (not grads)]
        or {query.dtype, key.dtype, value.dtype} not in ({torch.float32}, {torch.bfloat16}, {torch.float16})
        or any(side % 16 for side in mask[-3:-1])
        or not all(isinstance(x, Tensor) for at in (2, 6)[: 1 + grads] for x in _lists(mask, at))
        or (tracks and any(isinstance(x, Tensor) and x.requires_grad for x in reads_of(args)[0]))
        or not all(0 < int(x.shape[3]) <= WIDEST and int(x.shape[1]) for x in (query, key, value))
    ):
        return flex_attention(call, args)
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    return _Function.apply(query, key, value, recorder, call, (*args[:4], mask, *args[5:]))


def _lists(mask: Sequence[Any], at: int) -> list[Any]:
    """The lists of blocks that rows walk (at 2) or columns (at 6)."""
    return [] if min(mask[-3:-1]) >= NO_BLOCKS else [*mask[at : at + (2 if mask[4] is None else 4)]]


def _slope(call: Call, score_mod: Any, score: Tensor, grad: Tensor, *rest: Any) -> Tensor:
    """The gradient of the score that score_mod is given."""
    with torch.enable_grad():
        score = score.detach().requires_grad_()
        result = call(score_mod, (score, *rest)).to(torch.float32)
        (found,) = torch.autograd.grad(result, score, grad, allow_unused=True) if result.requires_grad else (None,)
    return torch.zeros_like(grad) if found is None else found


class _Function(torch.autograd.Function):
    """The operator, recorded, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, recorder: Recorder, call: Call, args: Sequence[Any]
    ) -> tuple[Tensor, ...]:
        score_mod, mask, scale, reads = *args[3:5], float(args[5]), reads_of(args)
        with torch_compat.outside_tracing(), recorder.build.fake_mode:
            out = laid_out(query.new_empty((*query.shape[:3], value.shape[-1])), (*query.stride()[:3], 0))
            sums = query.new_empty(query.shape[:3], dtype=torch.float32)
            score, *at = (query.new_empty((), dtype=dtype) for dtype in (torch.float32, *[torch.int64] * 4))
            bodies = [
                recorder.body("score_mod", lambda *x: call(score_mod, x), (score, *at, *reads[0])),
                recorder.body("mask_mod", lambda *x: call(mask[-1], x), (*at, *reads[1])),
                recorder.body("score_mod", partial(_slope, call, score_mod), (score, score, *at, *reads[0])),
            ]

        def record(kind: str, tensors: list[Tensor], like: Sequence[Tensor]) -> tuple[Tensor, ...]:
            lists, found = _lists(mask, 6 if kind == "columns" else 2), bodies[: 2 if kind == "forward" else 3]
            return recorder.record(fused_attention, (kind, found, tensors, lists, [*mask[-3:-1]], scale, *reads), like)

        results = record("forward", [query, key, value], (out, sums, sums))
        ctx.record = record
        ctx.save_for_backward(query, key, value, *results[:2])
        ctx.mark_non_differentiable(results[2])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        grad = torch.zeros_like(out) if grads[0] is None else grads[0]
        delta = (out.float() * grad.float()).sum(-1)
        delta = delta if grads[1] is None else delta - grads[1] / math.log(2)
        tensors = [query, key, value, grad, sums, delta]
        return *ctx.record("rows", tensors, [query]), *ctx.record("columns", tensors, [key, value]), None, None, None
