"""Attention of bfloat16 by dot products of pairs and on AMX tiles, the processor's and a model of them."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.acceptance import assert_matches
from tests.cpu.runtime.headers import build_for

TEXT = """
#include "attention.h"
using gy::bf16, gy::Lying;
template <class T> using To = gy::Rows<T>;
constexpr int Rows = 64, Keys = 96;
#if defined(GY_AMX) || defined(GY_DOT_BF16)
static_assert(gy::in_pairs<Rows, Keys>);
#endif
constexpr auto late = [](float* scores, int64_t i, int64_t i_end, int64_t j, int64_t j_end) {
  for (int64_t c = j; c < j_end; ++c)
    for (int64_t r = i; r < i_end; ++r)
      if (c > r) scores[(c - j) * Rows + r - i] = -gy::infinity<float>;
};
extern "C" __attribute__((visibility("default"))) void attend(
    const bf16* q, const bf16* k, const bf16* v, bf16* out, float* logs, int64_t rows, int64_t keys,
    int64_t width, int64_t wide, int64_t qi, int64_t qk, int64_t ki, int64_t kk, int64_t vi, int64_t vk, bool causal) {
  const gy::RowTiles tiles(1, 1, rows, Rows, 1);
  gy::Attention<bf16, Rows, 4, 4, 4, Keys> attention(keys, width, wide);
  for (int64_t step = 0; step < tiles.count; ++step) {
    attention.begin(tiles.at(step), 0.11f, Lying<bf16>{q, qi, qk}, Lying<bf16>{k, ki, kk},
                    Lying<bf16>{v, vi, vk});
    if (causal) attention.walk_causal(late, gy::unchanged);
    else attention.walk(gy::unchanged);
    attention.finish(true, To<bf16>{out, wide, 1}, To<float>{logs, 1, 1});
  }
}
extern "C" __attribute__((visibility("default"))) void gradient(
    const bf16* q, const bf16* k, const bf16* v, const bf16* grad, const bf16* out, const float* logs,
    bf16* dq, bf16* dk, bf16* dv, int64_t rows, int64_t keys, int64_t width, int64_t wide, int64_t qi,
    int64_t qk, int64_t ki, int64_t kk, int64_t vi, int64_t vk, int64_t gi, int64_t gk) {
  const gy::RowTiles tiles(1, 1, rows, Rows, 1);
  gy::AttentionGradient<bf16, Rows, 4, 4, 4, 4, Keys> attention(keys, width, wide);
  for (int64_t step = 0; step < tiles.count; ++step) {
    attention.begin(tiles.at(step), 0.11f, Lying<bf16>{q, qi, qk}, Lying<bf16>{k, ki, kk},
                    Lying<bf16>{v, vi, vk}, Lying<bf16>{grad, gi, gk}, Lying<bf16>{out, wide, 1},
                    Lying<float>{logs, 1, 0});
    attention.walk_causal(late, gy::unchanged);
    attention.finish(To<bf16>{dq, width, 1}, To<bf16>{dk, width, 1}, To<bf16>{dv, wide, 1});
  }
}
"""


@pytest.fixture(scope="module", params=["avx512", "avx512_bf16", "amx", "model"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_for(request.param, TEXT, tmp_path_factory.mktemp("attention"))


def lying(x: Tensor, lies: str) -> Tensor:
    """The same matrix in memory by rows, by columns, or with gaps."""
    if lies == "columns":
        return x.t().contiguous().t()
    return x.repeat_interleave(3, 1)[:, ::3] if lies == "gaps" else x


in_sizes = pytest.mark.parametrize("sizes", [(64, 96, 64, 64), (7, 1, 3, 1), (100, 205, 40, 33), (150, 150, 33, 70)])
as_they_lie = pytest.mark.parametrize("lies", ["rows", "columns", "gaps"])


def operands(sizes: tuple[int, int, int, int], lies: str) -> list[Tensor]:
    """Query, key, value, and a gradient of the result."""
    m, n, width, wide = sizes
    return [lying(torch.randn(size).bfloat16(), lies) for size in ((m, width), (n, width), (n, wide), (m, wide))]


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(*(x[None, None] for x in (q, k, v)), is_causal=causal, scale=0.11)[0, 0]


def logarithms(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    scores = q.double() @ k.double().t() * 0.11
    late = torch.ones(scores.shape, dtype=torch.bool).triu(1)
    return (scores.masked_fill(late, -torch.inf) if causal else scores).logsumexp(1).float()


def call(function: ctypes._CFuncPtr, tensors: list[Tensor], *numbers: int) -> None:
    function(*(ctypes.c_void_p(x.data_ptr()) for x in tensors), *map(ctypes.c_int64, numbers))


@pytest.mark.parametrize("causal", [False, True])
@as_they_lie
@in_sizes
def test_values_are_weighted_by_the_softmax_of_scores(
    library: ctypes.CDLL, sizes: tuple[int, int, int, int], lies: str, causal: bool
) -> None:
    q, k, v, grad = operands(sizes, lies)
    out, logs = torch.full(grad.shape, torch.nan).bfloat16(), torch.empty(len(q))
    call(library.attend, [q, k, v, out, logs], *sizes, *q.stride(), *k.stride(), *v.stride(), causal)
    assert_matches(out, attend(q, k, v, causal), attend(*(x.double() for x in (q, k, v)), causal))
    torch.testing.assert_close(logs, logarithms(q, k, causal), rtol=1e-4, atol=1e-4)


@as_they_lie
@in_sizes
def test_gradients(library: ctypes.CDLL, sizes: tuple[int, int, int, int], lies: str) -> None:
    q, k, v, grad = operands(sizes, lies)

    def gradients(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in given[:3]]
        found = torch.autograd.grad(attend(*leaves, causal=True), leaves, given[3])
        return tuple(x.contiguous() for x in found)

    found = [torch.full(x.shape, torch.nan).bfloat16() for x in (q, k, v)]
    given = [q, k, v, grad, attend(q, k, v, causal=True).contiguous(), logarithms(q, k, causal=True)]
    call(library.gradient, given + found, *sizes, *(step for x in (q, k, v, grad) for step in x.stride()))
    exact = gradients(*(x.double() for x in (q, k, v, grad)))
    for ours, theirs, true in zip(found, gradients(q, k, v, grad), exact, strict=True):
        assert_matches(ours, theirs, true)
