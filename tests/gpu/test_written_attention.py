"""Attention that a program writes out is a library's kernel on a GPU: as exact, and without a matrix of scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.acceptance import assert_matches

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SIZES = 4, 8, 512, 512, 64


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT * 0.125).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    later = torch.ones(q.shape[-2], k.shape[-2], device=q.device).tril() == 0
    return (q @ k.mT * 0.125).masked_fill(later, -math.inf).softmax(-1) @ v


def hidden(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = F.softmax((q @ k.mT * 0.125).masked_fill(~mask, -math.inf), dim=-1, dtype=F32)
    return weights.to(v.dtype) @ v


def hidden_by_a_number(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT * 0.125).masked_fill(~mask, -3e4).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT * 0.125 + torch.where(mask, 0.0, -6e4).to(q.dtype)).softmax(-1) @ v


def lowest(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As models add the lowest number where keys are hidden."""
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, torch.finfo(q.dtype).min)
    return (q @ k.mT * 0.125 + bias).softmax(-1) @ v


def results(fn: Callable[..., Tensor], given: list[Tensor], mask: Tensor, *, gradients: bool) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(gradients) for x in given]
    out = fn(*leaves, mask)
    tangent = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(out.dtype)
    return [out.detach(), *(torch.autograd.grad(out, leaves, tangent) if gradients else ())]


CASES = [
    pytest.param(attention, dtype, id=f"{attention.__name__}-{dtype}")
    for attention in (plain, causal, hidden, hidden_by_a_number, biased, lowest)
    for dtype in (BF16, F16, F32)
    if (attention, dtype) != (lowest, F16)  # in wider types its lowest number is not as good as infinite
]


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize(("attention", "dtype"), CASES)
def test_it_is_as_exact_as_written(attention: Callable[..., Tensor], dtype: torch.dtype, gradients: bool) -> None:
    """Rows 3 and 4 see no key, where numbers hide them; the gradients of those that are nan are nobody's."""
    batch, heads, rows, keys, width = SIZES
    generator = torch.Generator("cuda").manual_seed(0)
    given = [
        torch.randn(batch, heads, size, width, device="cuda", generator=generator).to(dtype)
        for size in (rows, keys, keys)
    ]
    mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(5)
    if attention is not hidden:
        mask[3:5] = False
    torch._dynamo.reset()
    run = torch.compile(attention, backend="gyrator", dynamic=False)
    got = results(run, given, mask, gradients=gradients)
    eager = results(attention, given, mask, gradients=gradients)
    exact = results(attention, [x.double() for x in given], mask, gradients=gradients)
    for ours, theirs, true in zip(got, eager, exact, strict=True):
        assert_matches(ours.contiguous(), theirs.contiguous(), true.contiguous(), slack=4)


@pytest.mark.parametrize("attention", [plain, causal, hidden], ids=lambda f: f.__name__)
def test_no_matrix_of_scores_is_kept(attention: Callable[..., Tensor]) -> None:
    batch, heads, rows, keys, width = SIZES
    given = [torch.randn(batch, heads, n, width, device="cuda", dtype=BF16) for n in (rows, keys, keys)]
    mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril()
    torch._dynamo.reset()
    run = torch.compile(attention, backend="gyrator", dynamic=False)
    results(run, given, mask, gradients=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(run, given, mask, gradients=True)
    assert torch.cuda.max_memory_allocated() - before < 3 * batch * heads * rows * keys


def test_rows_that_see_nothing_are_no_numbers() -> None:
    batch, heads, rows, keys, width = SIZES
    given = [torch.randn(batch, heads, n, width, device="cuda", dtype=BF16) for n in (rows, keys, keys)]
    mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda")
    mask[3:5] = False
    torch._dynamo.reset()
    found = torch.compile(hidden, backend="gyrator", dynamic=False)(*given, mask)
    assert found.isnan().equal(hidden(*given, mask).isnan())
