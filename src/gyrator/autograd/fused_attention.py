"""flex_attention on a GPU: an operator that a template computes, and two for its backward.

    out, sums, maxima = gyrator_attention("forward", [score, keep], [query, key, value], lists, sides, scale, *reads)
    delta             = (out * d_out).sum(-1) - d_sums / log(2)
    d_query           = gyrator_attention("rows", [score, keep, slope], [query, key, value, d_out, sums, delta], ...)
    d_key, d_value    = gyrator_attention("columns", ...)

The user's functions are bodies on one score: `slope` is the derivative of `score` times a gradient. `lists` say which
blocks of `sides` rows and columns the masks keep: counts and numbers, then of those that they keep whole."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from gyrator import torch_compat
from gyrator.autograd.flex_attention import Call, autocast, flex_attention, laid_out_like, reads_of
from gyrator.autograd.recorder import Recorder

DEVICES, WIDEST, NO_BLOCKS = ("cuda",), 256, 1 << 30
"""Where templates are; the widest heads; the sides of blocks where the user gave no mask."""


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
    float64, heads wider than WIDEST, masks without lists of blocks or whose blocks are no multiples of 16, and where a
    tensor that score_mod reads has a gradient. The scale, widths and numbers of heads are plain numbers from here on.
    """
    query, key, value = autocast(*args[:3])
    mask, tracks = args[4], torch.is_grad_enabled()
    grads = tracks and any(x.requires_grad for x in (query, key, value))
    if (
        query.device.type not in DEVICES
        or {query.dtype, key.dtype, value.dtype} not in ({torch.float32}, {torch.bfloat16}, {torch.float16})
        or any(type(side) is not int or side % 16 for side in mask[-3:-1])
        or not all(isinstance(x, Tensor) for at in (2, 6)[: 1 + grads] for x in _lists(mask, at))
        or (tracks and any(isinstance(x, Tensor) and x.requires_grad for x in reads_of(args)[0]))
        or not all(0 < int(x.shape[3]) <= WIDEST and int(x.shape[1]) for x in (query, key, value))
    ):
        return flex_attention(call, args)
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    return _Function.apply(query, key, value, recorder, call, args)


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
            out = laid_out_like(query.new_empty((*query.shape[:3], value.shape[-1])), query)
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
