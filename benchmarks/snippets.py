"""What users write, a line or a few each, on tensors larger than a GPU's caches: ``python -m benchmarks.snippets``.

Processes make the first calls side by side, then each times its own snippets while the others wait. A time is what
a call takes on the GPU, from a cache that was just filled with something else; without one, what it takes."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier, Lock
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_check import timed
from benchmarks.measure import PEERS, Row, compiled, prepared, report

BF16 = torch.bfloat16
DTYPES = {
    "f32": torch.float32, "bf16": BF16, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8, "c64": torch.complex64,
}  # fmt: skip
FLUSH = 1 << 28
"""Bytes written before a call on a GPU, lest it find its arguments in the cache."""


# -- longer ones -------------------------------------------------------------------------------------------
def causal_softmax(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:], device=scores.device, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1)


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def quantised_blocks(x: Tensor) -> Tensor:
    blocks = x.unflatten(-1, (-1, 128))
    return (blocks / (blocks.abs().amax(-1, keepdim=True) / 448)).flatten(-2).to(torch.float8_e4m3fn)


def render_weights(density: Tensor, step: Tensor) -> Tensor:
    """How much each sample along a ray adds to its colour (NeRF)."""
    passed = torch.exp(-density.relu() * step)
    reached = torch.cumprod(F.pad(passed[:, :-1] + 1e-10, (1, 0), value=1.0), -1)
    return (1 - passed) * reached


def token_shift(x: Tensor, y: Tensor) -> Tensor:
    """Each token beside the one before it (RWKV)."""
    both = torch.tanh(x + y)
    return both + F.pad(both[:, :-1], (1, 0))


def mean_by_index(i: Tensor, x: Tensor) -> Tensor:
    start = torch.zeros(4096, x.shape[1], device=x.device)
    return start.scatter_reduce(0, i[:, None].expand_as(x), x, "mean", include_self=False)


def largest_by_index(i: Tensor, x: Tensor) -> Tensor:
    start = torch.zeros(4096, x.shape[1], device=x.device)
    return start.scatter_reduce(0, i[:, None].expand_as(x), x, "amax", include_self=False)


def counts(i: Tensor) -> Tensor:
    return torch.zeros(256, device=i.device, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i))


def alibi(scores: Tensor) -> Tensor:
    place = torch.arange(scores.shape[-1], device=scores.device)
    slope = torch.linspace(0.1, 1, scores.shape[1], device=scores.device)[:, None, None]
    return (scores - ((place - place[:, None]).abs() * slope).to(scores.dtype)).softmax(-1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.tril(torch.ones(q.shape[-2], k.shape[-2], device=q.device)) == 0
    return (q @ k.transpose(-1, -2) * 0.125).masked_fill(later, float("-inf")).softmax(-1) @ v


def padded_attention(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(kept[:, None, None] == 0, float("-inf"))
    return F.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v


def most_likely(logits: Tensor) -> Tensor:
    return torch.where(logits < logits.topk(50, -1)[0][:, -1:], float("-inf"), logits).softmax(-1)


def nucleus(logits: Tensor) -> Tensor:
    return logits.sort(-1, descending=True)[0].softmax(-1).cumsum(-1)


def router(x: Tensor) -> tuple[Tensor, Tensor]:
    share, expert = x.softmax(-1).topk(8, -1)
    return share / share.sum(-1, keepdim=True), expert


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, new = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return q * cos + torch.cat([-q[..., 32:], q[..., :32]], -1) * sin


def response_norm(x: Tensor) -> Tensor:
    size = x.norm(dim=(1, 2), keepdim=True)
    return x * size / (size.mean(-1, keepdim=True) + 1e-6)


def channels_first_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b).permute(0, 3, 1, 2)


def transposed_residual(x: Tensor, place: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x.transpose(1, 2) + place
    return h, F.layer_norm(h, w.shape, w, b)


def linear_residual_norm(x: Tensor, w: Tensor, y: Tensor, g: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w) + y, g.shape, g)


def conv_bn_relu(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.batch_norm(F.conv2d(x, w, padding=1), mean, variance, scale, shift).relu()


def patches(x: Tensor) -> Tensor:
    return x.view(32, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).reshape(32, 196, 768)


def patches_by_channel(x: Tensor) -> Tensor:
    return x.view(64, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).reshape(64, 196, 768)


def image_of_patches(x: Tensor) -> Tensor:
    return x.view(64, 14, 14, 16, 16, 3).permute(0, 5, 1, 3, 2, 4).reshape(64, 3, 224, 224)


def windows(x: Tensor) -> Tensor:
    return x.view(32, 8, 7, 8, 7, 128).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 128) + 1


def divergence(a: Tensor, b: Tensor) -> Tensor:
    return F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean")


def distillation(a: Tensor, b: Tensor) -> Tensor:
    return F.kl_div(a.float().log_softmax(-1), b.float().log_softmax(-1), log_target=True, reduction="batchmean")


def dice(x: Tensor, t: Tensor) -> Tensor:
    p, y = x.sigmoid(), (t > 0).float()
    shared, both = (p * y).sum((1, 2, 3)), p.sum((1, 2, 3)) + y.sum((1, 2, 3))
    return (1 - 2 * shared / (both + 1)).mean()


def focal(x: Tensor, t: Tensor) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(x, (t > 0).float(), reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    likeness = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() * 10
    return F.cross_entropy(likeness, torch.arange(a.shape[0], device=a.device))


def rnn(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    states = []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w * 0.02)
        states.append(h)
    return torch.stack(states, 1)


def recurrence(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(a) * h + b * x[:, t]
        states.append(h)
    return torch.stack(states, 1)


def heat(x: Tensor) -> Tensor:
    for _ in range(10):
        around = torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1)
        x = x + 0.1 * (around - 4 * x)
    return x


def stencil(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:-1, 1:-1] = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
    return y


def mandelbrot(c: Tensor) -> Tensor:
    z = c
    for _ in range(8):
        z = z * z + c
    return z.abs()


def boxes(a: Tensor, b: Tensor) -> Tensor:
    """Overlap of each pair of boxes by what they cover together."""
    size = (torch.min(a[:, None, 2:], b[:, 2:]) - torch.max(a[:, None, :2], b[:, :2])).clamp(min=0)
    shared = size[..., 0] * size[..., 1]
    areas = [(t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1]) for t in (a, b)]
    return shared / (areas[0][:, None] + areas[1] - shared)


def expert_places(experts: Tensor) -> Tensor:
    """Which place a token has among those that go to the same expert."""
    chosen = F.one_hot(experts, 64)
    return ((chosen.cumsum(0) - 1) * chosen).sum(-1)


def gravity(places: Tensor, masses: Tensor) -> Tensor:
    apart = places - places[:, None]
    return (apart * ((apart**2).sum(-1) + 0.01).pow(-1.5)[..., None] * masses[:, None]).sum(1)


def lennard_jones(places: Tensor) -> Tensor:
    squares = ((places[:, None] - places) ** 2).sum(-1) + 1e6 * torch.eye(len(places), device=places.device)
    near = 1 / squares
    return (near**6 - near**3).sum()


def adaptive_norm(x: Tensor, condition: Tensor) -> Tensor:
    """A layer norm scaled, shifted and gated by what a picture is to be (DiT)."""
    scale, shift, gate = condition[:, None].chunk(3, -1)
    return x + gate * (F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift)


def latents(x: Tensor, y: Tensor) -> Tensor:
    """Divergence of groups of 32 classes (Dreamer)."""
    p, q = (F.log_softmax(t.view(len(t), -1, 32), -1) for t in (x, y))
    return (p.exp() * (p - q)).sum(-1).mean()


def adam(*tensors: Tensor) -> Tensor:
    k = len(tensors) // 4
    params, grads, means, squares = (list(tensors[n * k : (n + 1) * k]) for n in range(4))
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, 0.001)
    sizes = torch._foreach_sqrt(squares)
    torch._foreach_add_(sizes, 1e-8)
    torch._foreach_addcdiv_(params, means, sizes, -1e-3)
    return params[0].sum()


# -- the table ---------------------------------------------------------------------------------------------
Snippet = tuple[Callable[..., Any], str]

SNIPPETS: dict[str, Snippet] = {
    # layouts and elementwise
    "add_t": (lambda a, b: a + b.t(), "f32[4096,4096] f32[4096,4096]"),
    "t_contig": (lambda a: a.t().contiguous(), "f32[4096,4096]"),
    "permute3": (lambda a: a.permute(2, 0, 1).contiguous(), "f32[256,256,256]"),
    "permute_nchw_nhwc": (lambda a: a.permute(0, 2, 3, 1).contiguous(), "f32[32,64,128,128]"),
    "permute_bhsd": (lambda a: (a.permute(0, 2, 1, 3) * 2).contiguous(), "bf16[8,1024,16,64]"),
    "outer_bcast": (lambda a, b: torch.sin(a + b), "f32[4096,1] f32[1,4096]"),
    "cat_last": (lambda a, b: torch.cat([a, b * 2], -1), "f32[4096,2048] f32[4096,2048]"),
    "cat_first": (lambda a, b: torch.cat([a, b.relu()], 0), "f32[2048,4096] f32[2048,4096]"),
    "stack_last": (lambda a, b: torch.stack([a, b], -1), "f32[4096,2048] f32[4096,2048]"),
    "cat_many": (lambda *a: torch.cat(a, -1), " ".join(["f32[4096,256]"] * 16)),
    "chunk_swiglu": (lambda a: F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], "bf16[4096,8192]"),
    "interleave_geglu": (lambda a: F.gelu(a[..., ::2]) * a[..., 1::2], "bf16[4096,8192]"),
    "flip": (lambda a: a.flip(-1) * 2, "f32[4096,4096]"),
    "roll": (lambda a: torch.roll(a, (3, 3), (1, 2)) + 1, "f32[64,256,256]"),
    "pad_reflect": (lambda a: F.pad(a, (3, 3, 3, 3), mode="reflect"), "f32[32,32,128,128]"),
    "pad_const": (lambda a: F.pad(a, (1, 2, 3, 4), value=1.0), "f32[32,32,128,128]"),
    "pad_circ": (lambda a: F.pad(a, (3, 3, 3, 3), mode="circular"), "f32[32,32,128,128]"),
    "triu": (lambda a: a.triu(1), "f32[16,1024,1024]"),
    "tril_mask_softmax": (causal_softmax, "bf16[32,1024,1024]"),
    "one_hot": (lambda i: F.one_hot(i, 256).float(), "i64[65536]<256"),
    "uint8_norm": (lambda a: (a.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25, "u8[32,256,256,3]"),
    "bit_unpack": (lambda a: torch.stack([a & 15, a >> 4], -1).view(a.shape[0], -1).to(BF16) * 0.1, "u8[4096,2048]"),
    "int64_ops": (lambda a, b: (a * 3 + b) % 17, "i64[4096,2048]<1000 i64[4096,2048]<7"),
    "div_floor": (lambda a: a // 7 + a % 7, "i64[4096,2048]<1000"),
    "dropout": (lambda a: F.dropout(a, 0.1), "bf16[4096,4096]"),
    "randn": (lambda a: a + torch.randn_like(a), "f32[4096,4096]"),
    "bernoulli": (lambda a: a * torch.bernoulli(torch.full_like(a, 0.3)), "f32[4096,4096]"),
    "lerp_ema": (lambda a, b: a.lerp_(b, 0.01), "f32[4096,4096] f32[4096,4096]"),
    "kv_write": (lambda c, k, p: c.index_copy_(2, p, k), "bf16[8,16,4096,64] bf16[8,16,1,64] i64[1]"),
    "kv_slice_write": (lambda c, k: c[:, :, 77:78].copy_(k), "bf16[8,16,4096,64] bf16[8,16,1,64]"),
    "kv_t_write": (lambda c, k: c.transpose(1, 2)[:, :, 77:78].copy_(k), "bf16[8,4096,16,64] bf16[8,16,1,64]"),
    "view_write": (lambda c, k: c.view(128, 32, 4096)[:, 3, :64].copy_(k), "f32[4096,4096] f32[128,64]"),
    "zero_slice": (lambda c: c[:, :100].zero_(), "f32[4096,4096]"),
    "masked_fill_": (lambda a, m: a.masked_fill_(m > 0, 0.0), "f32[4096,4096] f32[4096,4096]"),
    "where_nan": (lambda a: torch.nan_to_num(a).clamp(-1, 1), "f32[4096,4096]"),
    "complex_mul": (lambda a, b: a * b, "c64[4096,2048] c64[4096,2048]"),
    "rope_half": (rotary, "bf16[8,16,1024,64] f32[1024,64] f32[1024,64]"),
    "quant_int8_row": (quantised_rows, "bf16[4096,4096]"),
    "quant_fp8_tensor": (lambda a: (a * (448 / a.abs().max().float())).to(torch.float8_e4m3fn), "bf16[4096,4096]"),
    "quant_block128": (quantised_blocks, "bf16[4096,4096]"),
    "dequant_group": (lambda q, s: q.to(BF16) * s.repeat_interleave(64, -1), "i8[4096,4096] bf16[4096,64]"),
    # reductions and rows
    "sum_all": (lambda a: a.sum(), "f32[4096,4096]"),
    "sum_rows": (lambda a: a.sum(-1), "f32[4096,4096]"),
    "sum_cols": (lambda a: a.sum(0), "f32[4096,4096]"),
    "var_rows": (lambda a: a.var(-1), "f32[4096,4096]"),
    "var_cols": (lambda a: a.var(0), "f32[4096,4096]"),
    "std_all": (lambda a: a.std(), "f32[4096,4096]"),
    "max_all": (lambda a: a.max(), "f32[4096,4096]"),
    "max_rows": (lambda a: a.max(-1), "f32[4096,4096]"),
    "argmax_cols": (lambda a: a.argmax(0), "f32[4096,4096]"),
    "argmax_all": (lambda a: a.argmax(), "f32[4096,4096]"),
    "norm_all": (lambda a: a.norm(), "f32[4096,4096]"),
    "logsumexp": (lambda a: a.logsumexp(-1), "f32[4096,4096]"),
    "logsumexp_cols": (lambda a: a.logsumexp(0), "f32[4096,4096]"),
    "softmax_rows": (lambda a: a.softmax(-1), "f32[4096,4096]"),
    "softmax_cols": (lambda a: a.softmax(0), "f32[4096,4096]"),
    "log_softmax": (lambda a: a.log_softmax(-1), "f32[4096,4096]"),
    "normalize": (lambda a: F.normalize(a, dim=-1), "f32[4096,4096]"),
    "normalize_cols": (lambda a: F.normalize(a, dim=0), "f32[4096,4096]"),
    "count_nonzero": (lambda a: (a > 0).sum(), "f32[4096,4096]"),
    "minmax": (lambda a: torch.aminmax(a), "f32[4096,4096]"),
    "cumsum_rows": (lambda a: a.cumsum(-1), "f32[4096,4096]"),
    "cumsum_cols": (lambda a: a.cumsum(0), "f32[4096,4096]"),
    "cumsum_64": (lambda a: a.cumsum(0), "f32[65536,64]"),
    "cumsum_8": (lambda a: a.cumsum(0), "f32[1048576,8]"),
    "cummax_64": (lambda a: a.cummax(0), "f32[65536,64]"),
    "expert_places": (expert_places, "i64[65536]<64"),
    "gravity": (gravity, "f32[4096,3] f32[4096]+"),
    "cumprod_rows": (lambda a: a.cumprod(-1), "f32[4096,4096]"),
    "cummax_rows": (lambda a: a.cummax(-1), "f32[4096,4096]"),
    "logcumsumexp": (lambda a: a.logcumsumexp(-1), "f32[4096,4096]"),
    "exp_cumsum": (lambda a: a.exp().cumsum(-1).log(), "f32[4096,4096]"),
    "exp_cummax": (lambda a: a.exp().cummax(-1)[0], "f32[4096,4096]"),
    "render_weights": (render_weights, "f32[131072,128] f32[131072,128]"),
    "token_shift": (token_shift, "f32[8192,2048] f32[8192,2048]"),
    "nearest_point": (lambda a, b: ((a[:, None] - b) ** 2).sum(-1).argmin(1), "f32[65536,3] f32[64,3]"),
    "window_means": (lambda a: a.unfold(1, 16, 8).mean(-1), "f32[8192,2048]"),
    "standardize": (lambda a: (a - a.mean()) / a.std(), "f32[4096,4096]"),
    "std_cols_norm": (lambda a: (a - a.mean(0)) / a.std(0), "f32[4096,4096]"),
    "sum_mid": (lambda a: a.view(16, 256, 4096).sum(1), "f32[4096,4096]"),
    "sum_02": (lambda a: a.view(16, 256, 4096).sum((0, 2)), "f32[4096,4096]"),
    "diff": (lambda a: a.diff(dim=-1), "f32[4096,4096]"),
    "clip_norm": (lambda a: a * torch.clamp(1.0 / (a.norm() + 1e-6), max=1.0), "f32[4096,4096]"),
    "hist_bucket": (lambda a: torch.bucketize(a, torch.linspace(-3, 3, 64, device=a.device)), "f32[4096,4096]"),
    "topk_rows": (lambda a: a.topk(8, -1), "f32[4096,4096]"),
    "sort_rows": (lambda a: a[:, :256].contiguous().sort(-1), "f32[4096,4096]"),
    "argsort_rows": (lambda a: a[:, :512].contiguous().argsort(-1), "f32[4096,4096]"),
    "sum_cols_bf16": (lambda a: a.sum(0), "bf16[8192,4096]"),
    "sum_tall": (lambda a: a.sum(0), "f32[262144,64]"),
    "sum_tall_small": (lambda a: a.sum(0), "f32[2097152,8]"),
    "mean_nchw": (lambda a: a.mean((2, 3)), "f32[64,64,128,128]"),
    "bn_stats_nchw": (lambda a: torch.var_mean(a, (0, 2, 3)), "f32[64,64,128,128]"),
    "bn_stats_nhwc": (lambda a: torch.var_mean(a, (0, 2, 3)), "f32[64,64,128,128]cl"),
    "softmax_small_rows": (lambda a: a.softmax(-1), "f32[1048576,16]"),
    "softmax_mid_dim": (lambda a: a.softmax(1), "f32[256,64,1024]"),
    "softmax_long": (lambda a: a.softmax(-1), "f32[8,2097152]"),
    "rms_small_rows": (lambda a, w: F.rms_norm(a, (64,), w), "bf16[262144,64] bf16[64]"),
    "mse": (lambda a, b: F.mse_loss(a, b), "f32[4096,4096] f32[4096,4096]"),
    "kl_div": (divergence, "f32[4096,4096] f32[4096,4096]"),
    "cos_sim": (lambda a, b: F.cosine_similarity(a, b), "f32[4096,4096] f32[4096,4096]"),
    "bce_logits": (
        lambda a, b: F.binary_cross_entropy_with_logits(a, (b > 0).float()),
        "f32[4096,4096] f32[4096,4096]",
    ),
    "accuracy": (lambda a, t: (a.argmax(-1) == t).float().mean(), "f32[16384,1000] i64[16384]<1000"),
    "gumbel": (lambda a: F.softmax(a - torch.log(-torch.log(torch.rand_like(a) + 1e-9)), -1), "f32[4096,4096]"),
    "sample_topk": (most_likely, "f32[64,32000]"),
    "top_p": (nucleus, "f32[64,32000]"),
    # rows that begin or end amid 16 bytes
    "odd_scale": (lambda a: a * 2 + 1, "bf16[8191,50257]"),
    "odd_scale_f32": (lambda a: a * 2 + 1, "f32[4095,50257]"),
    "odd_gated": (lambda a, b: F.gelu(a) * b, "bf16[8191,50257] bf16[8191,50257]"),
    "odd_softmax": (lambda a: a.softmax(-1), "bf16[8192,50257]"),
    "odd_logsumexp": (lambda a: a.float().logsumexp(-1), "bf16[8192,50257]"),
    "odd_log_softmax": (lambda a: a.float().log_softmax(-1), "bf16[4096,50265]"),
    "odd_layer_norm": (lambda a, w, b: F.layer_norm(a, w.shape, w, b), "bf16[8192,40003] bf16[40003] bf16[40003]"),
    "odd_argmax": (lambda a: a.argmax(-1), "bf16[8192,50257]"),
    # reads and writes at run-time indices
    "embedding": (lambda w, i: F.embedding(i, w), "bf16[50000,1024] i64[16384]<50000"),
    "gather_rows": (lambda a, i: a.gather(1, i), "f32[4096,4096] i64[4096,4096]<4096"),
    "gather_cols": (lambda a, i: a.gather(0, i), "f32[4096,4096] i64[4096,4096]<4096"),
    "take_along": (lambda a, i: torch.take_along_dim(a, i, 1), "f32[4096,4096] i64[4096,16]<4096"),
    "index_select1": (lambda a, i: a.index_select(1, i), "f32[4096,4096] i64[4096]<4096"),
    "index_rows": (lambda a, i: a[i] * 2, "f32[4096,4096] i64[4096]<4096"),
    "index_2d": (lambda a, i, j: a[i, j], "f32[4096,4096] i64[262144]<4096 i64[262144]<4096"),
    "scatter_add_rows": (lambda a, i, v: a.scatter_add(1, i, v), "f32[4096,4096] i64[4096,4096]<4096 f32[4096,4096]"),
    "scatter_add_0": (lambda a, i, v: a.scatter_add(0, i, v), "f32[4096,4096] i64[4096,4096]<4096 f32[4096,4096]"),
    "index_add": (lambda a, i, v: a.index_add(0, i, v), "f32[4096,256] i64[65536]<4096 f32[65536,256]"),
    "index_add_bf16": (lambda a, i, v: a.index_add(0, i, v), "bf16[4096,256] i64[65536]<4096 bf16[65536,256]"),
    "index_put_acc": (
        lambda a, i, v: a.index_put((i,), v, accumulate=True),
        "f32[4096,256] i64[65536]<4096 f32[65536,256]",
    ),
    "scatter_mean": (mean_by_index, "i64[65536]<4096 f32[65536,64]"),
    "scatter_amax": (largest_by_index, "i64[65536]<4096 f32[65536,64]"),
    "bincount_scatter": (counts, "i64[16777216]<256"),
    "masked_select_sum": (lambda a: torch.where(a > 0, a, 0).sum() / (a > 0).sum(), "f32[4096,4096]"),
    # images, pooling, resizing
    "grid_sample": (lambda a, g: F.grid_sample(a, g, align_corners=False), "f32[16,16,256,256] f32[16,256,256,2]"),
    "unfold": (lambda a: F.unfold(a, 3, padding=1), "f32[16,16,128,128]"),
    "fold": (lambda a: F.fold(a, (128, 128), 3, padding=1), "f32[16,144,16384]"),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 4), "f32[16,64,128,128]"),
    "space2depth": (lambda a: F.pixel_unshuffle(a, 2), "f32[16,16,256,256]"),
    "patchify": (patches, "f32[32,3,224,224]"),
    "window_part": (windows, "f32[32,56,56,128]"),
    "maxpool": (lambda a: F.max_pool2d(a, 3, 2, 1), "f32[32,64,128,128]"),
    "avgpool": (lambda a: F.avg_pool2d(a, 2), "f32[32,64,128,128]"),
    "maxpool_nhwc": (lambda a: F.max_pool2d(a, 2), "f32[32,64,128,128]cl"),
    "adaptive_avg7": (lambda a: F.adaptive_avg_pool2d(a, 7), "f32[32,256,64,64]"),
    "up_bilinear": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), "f32[16,32,128,128]"),
    "up_nearest": (lambda a: F.interpolate(a, scale_factor=2), "f32[16,32,128,128]"),
    "up_bicubic": (lambda a: F.interpolate(a, scale_factor=2, mode="bicubic"), "f32[16,32,128,128]"),
    "down_area": (lambda a: F.interpolate(a, scale_factor=0.5, mode="area"), "f32[16,32,256,256]"),
    "down_antialias": (
        lambda a: F.interpolate(a, scale_factor=0.5, mode="bilinear", antialias=True),
        "f32[16,3,512,512]",
    ),
    # products, convolutions, norms
    "repeat_kv": (lambda a: a.repeat_interleave(4, 1), "bf16[8,8,1024,128]"),
    "expand_reshape": (
        lambda a: a[:, :, None].expand(8, 8, 4, -1, 128).reshape(8, 32, -1, 128) * 2,
        "bf16[8,8,1024,128]",
    ),
    "tile": (lambda a: a.tile(1, 4), "f32[4096,1024]"),
    "alibi": (alibi, "bf16[8,16,512,512]"),
    "cdist_hand": (lambda a, b: (a[:, None] - b[None]).pow(2).sum(-1), "f32[512,64] f32[512,64]"),
    "cdist": (lambda a, b: torch.cdist(a, b), "f32[2048,64] f32[2048,64]"),
    "pairwise_l1": (lambda a, b: (a[:, None] - b[None]).abs().sum(-1), "f32[512,64] f32[512,64]"),
    "matvec": (lambda a, v: a @ v, "bf16[8192,4096] bf16[4096]"),
    "vecmat": (lambda a, v: v @ a, "bf16[8192,4096] bf16[8192]"),
    "tiny_covariance": (lambda r, s: (r * s[:, None]) @ (r * s[:, None]).mT, "f32[1048576,3,3] f32[1048576,3]"),
    "tiny_poses": (lambda a, b: a @ b, "f32[1048576,4,4] f32[1048576,4,4]"),
    "tiny_dct": (lambda x, d: d @ x.unfold(1, 8, 8).unfold(2, 8, 8) @ d.t(), "f32[192,256,256] f32[8,8]"),
    "tiny_turn": (lambda x, r, t: torch.addmm(t, x, r), "f32[8388608,3] f32[3,3] f32[3]"),
    "g_tiny_covariance": (lambda r, s: (r * s[:, None]) @ (r * s[:, None]).mT, "f32[1048576,3,3]* f32[1048576,3]*"),
    "bmm_small": (lambda a, b: a @ b, "f32[65536,8,8] f32[65536,8,8]"),
    "outer_sum": (lambda a, b: torch.einsum("bi,bj->ij", a, b), "f32[64,4096] f32[64,4096]"),
    "einsum_bhqk": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1),
        "bf16[8,512,16,64] bf16[8,512,16,64]",
    ),
    "attn_hand": (attention, "bf16[4,12,1024,64] bf16[4,12,1024,64] bf16[4,12,1024,64]"),
    "attn_causal": (causal_attention, "bf16[4,12,1024,64] bf16[4,12,1024,64] bf16[4,12,1024,64]"),
    "attn_padded": (padded_attention, "bf16[4,12,1024,64] bf16[4,12,1024,64] bf16[4,12,1024,64] i64[4,1024]"),
    "attn_f32": (attention, "f32[4,12,512,64] f32[4,12,512,64] f32[4,12,512,64]"),
    "linear_gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), "bf16[4096,1024] bf16[4096,1024] bf16[4096]"),
    "linear_ln_res": (linear_residual_norm, "bf16[4096,1024] bf16[1024,1024] bf16[4096,1024] bf16[1024]"),
    "conv_bn_relu": (conv_bn_relu, "f32[32,64,56,56] f32[64,64,3,3] f32[64] f32[64] f32[64] f32[64]+"),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=128) * 2, "f32[32,128,56,56] f32[128,1,3,3]"),
    "conv1d_dw": (
        lambda x, w: F.silu(F.conv1d(x, w, padding=3, groups=2048)[..., :-3]),
        "bf16[8,2048,2048] bf16[2048,1,4]",
    ),
    "conv1d_k3": (lambda x, w: F.conv1d(x, w, padding=1).relu(), "f32[8,256,4096] f32[256,256,3]"),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1).relu(), "f32[4,16,16,64,64] f32[16,16,3,3,3]"),
    "convt": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1).relu(), "f32[8,64,64,64] f32[64,32,4,4]"),
    "group_norm": (lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), "bf16[32,256,64,64] bf16[256] bf16[256]"),
    "instance_norm": (lambda x: F.instance_norm(x), "f32[32,64,128,128]"),
    "ln_nchw": (channels_first_norm, "f32[32,256,64,64] f32[256] f32[256]"),
    "ln_nchw_96": (channels_first_norm, "bf16[64,96,56,56] bf16[96] bf16[96]"),
    "ln_nchw_out_96": (
        lambda x, w, b: channels_first_norm(x, w, b).contiguous(),
        "bf16[64,96,56,56] bf16[96] bf16[96]",
    ),
    "ln_nchw_384": (channels_first_norm, "bf16[64,384,14,14] bf16[384] bf16[384]"),
    "ln_nchw_out_384": (
        lambda x, w, b: channels_first_norm(x, w, b).contiguous(),
        "bf16[64,384,14,14] bf16[384] bf16[384]",
    ),
    "ln_nchw_1024": (channels_first_norm, "bf16[64,1024,32,32] bf16[1024] bf16[1024]"),
    "ln_nchw_out_1024": (
        lambda x, w, b: channels_first_norm(x, w, b).contiguous(),
        "bf16[64,1024,32,32] bf16[1024] bf16[1024]",
    ),
    "grn": (response_norm, "f32[32,56,56,256]"),
    "softcap": (lambda x: 30 * torch.tanh(x / 30), "bf16[4096,4096]"),
    "moe_router": (router, "f32[16384,64]"),
    "lstm_cell": (lstm_cell, "f32[4096,4096] f32[4096,1024]"),
    # loops over time, optimizers
    "rnn_loop": (rnn, "f32[256,16,512] f32[256,512] f32[512,512]"),
    "ssm_loop": (recurrence, "f32[64,32,16384] f32[16384] f32[16384]"),
    "heat_roll": (heat, "f32[4096,4096]"),
    "stencil": (stencil, "f32[4096,4096]"),
    "mandel": (mandelbrot, "c64[4096,2048]"),
    "iou": (boxes, "f32[4096,4] f32[4096,4]"),
    "adam_foreach": (adam, " ".join(["f32[1024,1024]+"] * 96)),
    "grad_norm_many": (lambda *g: torch.stack([x.norm() for x in g]).norm(), " ".join(["f32[1024,1024]"] * 48)),
    "ln_whisper": (
        lambda x, w, b: F.layer_norm(x.transpose(1, 2), (768,), w, b),
        "bf16[32,768,1500] bf16[768] bf16[768]",
    ),
    "ln_whisper_res": (transposed_residual, "bf16[32,768,1500] bf16[1500,768] bf16[768] bf16[768]"),
    "softmax_t": (lambda x: x.transpose(1, 2).softmax(-1), "bf16[32,512,1024]"),
    "kl_rows": (divergence, "f32[65536,256] f32[65536,256]"),
    "ln_mean_sq": (lambda a: F.layer_norm(a, (a.shape[-1],)).pow(2).mean(), "f32[4096,4096]"),
    "entropy": (lambda a: -(a.softmax(-1) * a.log_softmax(-1)).sum(-1).mean(), "f32[4096,4096]"),
    "kl_bf16_vocab": (distillation, "bf16[4096,32000] bf16[4096,32000]"),
    "patchify_hw": (patches_by_channel, "bf16[64,3,224,224]"),
    "unpatchify": (image_of_patches, "f32[64,196,768]"),
    "up_bilinear_ac": (
        lambda a: F.interpolate(a, size=(300, 300), mode="bilinear", align_corners=True),
        "bf16[16,32,128,128]",
    ),
    "up_trilinear": (lambda a: F.interpolate(a, scale_factor=2, mode="trilinear"), "f32[4,16,32,64,64]"),
    "up_nearest_odd": (lambda a: F.interpolate(a, size=(211, 333)), "f32[16,32,128,128]"),
    "softmax_mid_rows": (lambda a: a.softmax(-1), "f32[64,262144]"),
    "logsumexp_long": (lambda a: a.logsumexp(-1), "f32[4,4194304]"),
    "sum_cols_wide": (lambda a: a.sum(0), "f32[1024,16384]"),
    "max_cols": (lambda a: a.amax(0), "f32[4096,4096]"),
    "bias_grad": (lambda a: a.sum(0), "bf16[32768,1024]"),
    "bias_grad_nchw": (lambda a: a.sum((0, 2, 3)), "f32[64,64,128,128]"),
    # training
    "g_layer_norm": (lambda x, w, b: F.layer_norm(x, (2048,), w, b), "bf16[8192,2048]* bf16[2048]* bf16[2048]*"),
    "g_rms_norm": (lambda x, w: F.rms_norm(x, (2048,), w), "bf16[8192,2048]* bf16[2048]*"),
    "g_group_norm": (lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), "bf16[32,256,64,64]* bf16[256]* bf16[256]*"),
    "g_batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True).relu(),
        "f32[32,64,128,128]* f32[64]* f32[64]*",
    ),
    "g_bn_nhwc": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True).relu(),
        "f32[32,64,128,128]cl* f32[64]* f32[64]*",
    ),
    "g_softmax": (lambda x: x.softmax(-1), "bf16[4096,4096]*"),
    "g_xent": (lambda x, t: F.cross_entropy(x.float(), t), "bf16[4096,32000]* i64[4096]<32000"),
    "g_xent_smooth": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), "f32[16384,1000]* i64[16384]<1000"),
    "g_gelu_bias": (lambda x, b: F.gelu(x + b), "bf16[8192,4096]* bf16[4096]*"),
    "g_swiglu": (lambda a: F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], "bf16[4096,8192]*"),
    "g_dropout_res": (lambda a, b: F.dropout(a, 0.1) + b, "bf16[4096,4096]* bf16[4096,4096]*"),
    "g_embedding": (lambda w, i: F.embedding(i, w), "f32[50000,1024]* i64[16384]<50000"),
    "g_embedding_bf16": (lambda w, i: F.embedding(i, w), "bf16[50000,1024]* i64[16384]<50000"),
    "g_gather": (lambda a, i: a.gather(1, i), "f32[4096,4096]* i64[4096,64]<4096"),
    "g_index": (lambda a, i: a[i], "f32[4096,512]* i64[16384]<4096"),
    "g_cumsum": (lambda a: a.cumsum(-1), "f32[4096,4096]*"),
    "g_max_rows": (lambda a: a.max(-1)[0], "f32[4096,4096]*"),
    "g_norm": (lambda a: F.normalize(a, dim=-1), "f32[4096,4096]*"),
    "g_prod": (lambda a: a.prod(-1), "f32[1048576,16]*"),
    "g_maxpool": (lambda a: F.max_pool2d(a, 3, 2, 1), "f32[32,64,128,128]*"),
    "g_avgpool": (lambda a: F.avg_pool2d(a, 3, 2, 1), "f32[32,64,128,128]*"),
    "g_up_bilinear": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), "f32[16,32,128,128]*"),
    "g_up_bicubic": (lambda a: F.interpolate(a, scale_factor=2, mode="bicubic"), "f32[16,32,128,128]*"),
    "g_up_linear": (lambda a: F.interpolate(a, scale_factor=1.5, mode="linear"), "f32[64,256,1024]*"),
    "g_up_trilinear": (lambda a: F.interpolate(a, scale_factor=2, mode="trilinear"), "f32[4,32,16,64,64]*"),
    "g_up_nearest": (lambda a: F.interpolate(a, scale_factor=2), "f32[16,32,128,128]*"),
    "g_pad_reflect": (lambda a: F.pad(a, (3, 3, 3, 3), mode="reflect"), "f32[32,32,128,128]*"),
    "g_grid_sample": (lambda a, g: F.grid_sample(a, g, align_corners=False), "f32[16,16,256,256]* f32[16,256,256,2]"),
    "g_roll": (lambda a: torch.roll(a, (3, 3), (1, 2)).relu(), "f32[64,256,256]*"),
    "g_cat": (lambda a, b: torch.cat([a, b * 2], -1).relu(), "f32[4096,2048]* f32[4096,2048]*"),
    "g_bcast_mul": (lambda x, s, t: x * s + t, "f32[64,1024,1024]* f32[1024]* f32[64,1,1024]*"),
    "g_bcast_col": (lambda x, s: torch.tanh(x * s), "f32[4096,4096]* f32[4096,1]*"),
    "g_prelu": (lambda x, w: F.prelu(x, w), "f32[32,64,128,128]* f32[64]*"),
    "g_rope": (rotary, "bf16[8,16,1024,64]* f32[1024,64] f32[1024,64]"),
    "g_repeat_kv": (lambda a: a.repeat_interleave(4, 1), "bf16[8,8,1024,128]*"),
    "g_expand_kv": (lambda a: a[:, :, None].expand(8, 8, 4, -1, 128).reshape(8, 32, -1, 128), "bf16[8,8,1024,128]*"),
    "g_cos_sim": (lambda a, b: F.cosine_similarity(a, b), "f32[4096,4096]* f32[4096,4096]*"),
    "g_smooth_l1": (lambda a, b: F.smooth_l1_loss(a, b), "f32[4096,4096]* f32[4096,4096]"),
    "g_cdist_hand": (lambda a, b: (a[:, None] - b[None]).pow(2).sum(-1), "f32[512,64]* f32[512,64]*"),
    "g_logsumexp": (lambda a: a.logsumexp(-1), "f32[4096,4096]*"),
    "g_var": (lambda a: a.var(-1), "f32[4096,4096]*"),
    "g_ssm": (recurrence, "f32[64,32,4096]* f32[4096]* f32[4096]*"),
    "g_depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=128), "f32[32,128,56,56]* f32[128,1,3,3]*"),
    "g_attn_hand": (attention, "bf16[4,8,512,64]* bf16[4,8,512,64]* bf16[4,8,512,64]*"),
    "g_attn_causal": (causal_attention, "bf16[4,12,1024,64]* bf16[4,12,1024,64]* bf16[4,12,1024,64]*"),
    "g_mlp": (
        lambda x, a, b: F.linear(F.gelu(F.linear(x, a)), b) + x,
        "bf16[4096,1024]* bf16[4096,1024]* bf16[1024,4096]*",
    ),
    "g_xent_2d": (lambda x, t: F.cross_entropy(x, t), "f32[16,21,256,256]* i64[16,256,256]<21"),
    "g_dice": (dice, "f32[16,1,512,512]* f32[16,1,512,512]"),
    "g_focal": (focal, "f32[4096,4096]* f32[4096,4096]"),
    "g_lennard_jones": (lennard_jones, "f32[4096,3]*"),
    "g_adaptive_norm": (adaptive_norm, "f32[64,256,1152]* f32[64,3456]*"),
    "g_adaptive_norm_bf16": (adaptive_norm, "bf16[64,256,1152]* bf16[64,3456]*"),
    "g_latents": (latents, "f32[8192,2048]* f32[8192,2048]*"),
    "g_contrastive": (contrastive, "f32[2048,256]* f32[2048,256]*"),
}
"""A function and its arguments: ``bf16[32,64]``; ``<9`` are whole numbers below 9, ``cl`` is channels-last, ``+`` is
not negative, and of what has a ``*`` gradients are taken."""


# -- running -----------------------------------------------------------------------------------------------
def arguments(text: str, device: str) -> list[Tensor]:
    """Random tensors as a snippet asks for them."""
    return [_tensor(one, device) for one in text.split()]


def _tensor(text: str, device: str) -> Tensor:
    found = re.fullmatch(r"(\w+)\[([\d,]*)\](?:<(\d+))?(cl)?(\+)?(\*)?", text)
    assert found is not None, text
    name, sizes, below, last, positive, wanted = found.groups()
    shape, dtype = [int(size) for size in sizes.split(",")], DTYPES[name]
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, int(below or 100), shape, device=device, dtype=dtype)
    x = torch.randn(shape, device=device, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    x = x.abs() if positive else x
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    return x.requires_grad_(bool(wanted))


def step(fn: Callable[..., Any], args: Sequence[Tensor], tangent: Tensor | None) -> Callable[[], object]:
    """A call, with a tangent the gradients of what asks for them too."""
    leaves = [a for a in args if a.requires_grad]

    def call() -> object:
        out = fn(*args)
        return out if tangent is None else (out, torch.autograd.grad(out, leaves, tangent))

    return call


def seconds(call: Callable[[], object], device: str) -> float:
    """The median of some calls; on a GPU as `gpu_check` times them."""
    if device == "cuda":
        return timed(call, torch.empty(FLUSH, dtype=torch.uint8, device="cuda")) / 1e3
    times: list[float] = []
    while len(times) < 5 or (len(times) < 25 and sum(times) < 0.1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def worker(names: Sequence[str], peers: Sequence[str], device: str, barrier: Barrier, lock: Lock, out: Any) -> None:
    """First calls of all peers, then, alone, their times: a row for each name."""
    torch.set_num_threads(1)
    ready = [(name, *_prepared(name, peers, device)) for name in names]
    barrier.wait()
    with lock:
        for name, calls, first, errors in ready:
            taken = {peer: seconds(call, device) for peer, call in calls.items()}
            out.put(Row("snippets", name, 1, False, taken, first, errors))
    out.put(None)


def _prepared(
    name: str, peers: Sequence[str], device: str
) -> tuple[dict[str, Callable[[], object]], dict[str, float], dict[str, str]]:
    fn, text = SNIPPETS[name]
    torch.manual_seed(0)
    args = arguments(text, device)
    tangent = torch.randn_like(fn(*args)) if any(a.requires_grad for a in args) else None

    def build(peer: str) -> Callable[[], object]:
        torch._dynamo.reset()
        return step(compiled(fn, peer, dynamic=False), args, tangent)

    return prepared(build, peers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes that make first calls")
    parser.add_argument("--only", nargs="+", choices=list(SNIPPETS), default=list(SNIPPETS), metavar="NAME")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    jobs = min(options.jobs, len(options.only))
    barrier, lock, out = spawn.Barrier(jobs), spawn.Lock(), spawn.Queue()
    shares = [options.only[n::jobs] for n in range(jobs)]
    every = [(share, options.peers, options.device, barrier, lock, out) for share in shares]
    processes = [spawn.Process(target=worker, args=args) for args in every]
    for process in processes:
        process.start()
    rows: list[Row] = []
    while jobs:
        row = out.get()
        jobs -= row is None
        if row is not None:
            rows.append(row)
            times = "  ".join(f"{peer} {1e6 * taken:10.1f}" for peer, taken in row.seconds.items())
            print(f"{row.case:22} us: {times}  {' '.join(row.errors)}", flush=True)
    for process in processes:
        process.join()
    rows.sort(key=lambda row: list(SNIPPETS).index(row.case))
    made = report(rows, [])
    print(json.dumps(made["geomeans"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
