"""flex_attention by templates on a GPU: values and gradients within twice eager's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from gyrator.schedule import gpu_attention
from tests.acceptance import assert_matches
from tests.scores import Mod, alibi, causal, late, softcap

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def made(shape: tuple[int, ...], dtype: torch.dtype, *, transposed: bool = False) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    if transposed:
        b, h, m, e = shape
        return torch.randn((b, m, h, e), device="cuda", generator=generator).to(dtype).transpose(1, 2)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def results(fn: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out, sums = fn(*leaves)
    generator = torch.Generator("cuda").manual_seed(7)
    weights = [torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in (out, sums)]
    loss = (out * weights[0]).sum() + (sums.masked_fill(sums == -torch.inf, 0) * weights[1]).sum()
    return [out.detach(), sums.detach(), *torch.autograd.grad(loss, leaves)]


def assert_right(fn: Callable[..., Any], compiled: Callable[..., Any], tensors: list[Tensor]) -> None:
    """Root mean squares of errors within twice eager's own."""
    got, eager, exact = results(compiled, tensors), results(fn, tensors), results(fn, [x.double() for x in tensors])
    for ours, theirs, true in zip(got, eager, exact, strict=True):
        assert_matches(ours, theirs, true, slack=4)


def attention(score: Mod | None, mask: BlockMask | None) -> Callable[..., Any]:
    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        gqa = query.shape[1] != key.shape[1]
        return flex_attention(query, key, value, score, mask, enable_gqa=gqa, return_lse=True)

    return run


def gyrator(fn: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="gyrator", **more)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("keep", [None, causal, late], ids=["all", "causal", "late"])
@pytest.mark.parametrize("score", [None, alibi, softcap], ids=["plain", "alibi", "softcap"])
def test_values_and_gradients(dtype: torch.dtype, keep: Mod | None, score: Mod | None) -> None:
    m, n = (300, 300) if keep is not None else (131, 300)
    mask = None if keep is None else create_block_mask(keep, None, None, m, n, device="cuda")
    width = 64 if dtype == F32 else 128
    shapes = [(2, 4, m, width), (2, 2, n, width), (2, 2, n, width)]
    fn = attention(score, mask)
    assert_right(fn, gyrator(fn), [made(s, dtype) for s in shapes])


@pytest.mark.parametrize("keep", [None, late], ids=["all", "late"])
@pytest.mark.parametrize("widths", [(64, 64), (128, 64), (64, 128)], ids=str)
def test_warps_with_roles(keep: Mod | None, widths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are tried with `max_autotune`: functions that do much for each score, and read tensors."""
    monkeypatch.setattr(gpu_attention, "_is_light", lambda *_: True)
    bias = made((4, 333), F32)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return softcap(s, b, h, i, j) + bias[h, j] * (b + 1)

    mask = None if keep is None else create_block_mask(keep, None, None, 333, 333, device="cuda", BLOCK_SIZE=256)
    fn = attention(score, mask)
    shapes = [(2, 4, 333, widths[0]), (2, 2, 333, widths[0]), (2, 2, 333, widths[1])]
    assert_right(fn, gyrator(fn), [made(s, BF16) for s in shapes])


@pytest.mark.parametrize("masked", [False, True], ids=["all", "documents"])
def test_programs_with_roles_take_tiles_until_all_are_done(masked: bool) -> None:
    """Of unequal length, some without keys; the counter that they share is as before when they end."""
    numbers = torch.repeat_interleave(
        torch.arange(5, device="cuda"), torch.tensor([130, 500, 3, 140, 117], device="cuda")
    )

    def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (numbers[i] == numbers[j]) & (i >= j) & (numbers[i] != b + 1)

    mask = create_block_mask(documents, 3, None, 890, 890, device="cuda") if masked else None
    fn, tensors = attention(None, mask), [made((3, heads, 890, 128), BF16) for heads in (32, 8, 8)]
    compiled = gyrator(fn)
    for _ in range(3):
        assert_right(fn, compiled, tensors)


def test_tensors_that_begin_anywhere() -> None:
    fn = attention(None, create_block_mask(causal, None, None, 256, 256, device="cuda"))
    compiled, tensors = gyrator(fn), [made((20, 8, 256, 128), BF16) for _ in range(3)]
    assert_right(fn, compiled, tensors)
    moved = [torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape) for t in tensors]
    assert all(t.data_ptr() % 16 for t in moved)
    torch.testing.assert_close(compiled(*moved), compiled(*tensors), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("width", [16, 80, 128, 256])
def test_widths_of_heads_and_transposed_operands(width: int) -> None:
    mask = create_block_mask(causal, None, None, 256, 256, device="cuda")
    tensors = [made((1, 2, 256, width), BF16, transposed=True) for _ in range(2)]
    fn = attention(None, mask)
    assert_right(fn, gyrator(fn), [*tensors, made((1, 2, 256, 64), BF16, transposed=True)])


@pytest.mark.parametrize("batch", [1, 40], ids=["shared", "whole"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("score", [None, alibi], ids=["plain", "alibi"])
def test_few_rows_whose_keys_programs_share(score: Mod | None, rows: int, batch: int) -> None:
    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i + 2990) & (j > i + 100)

    mask = create_block_mask(keep, None, None, rows, 3001, device="cuda") if rows > 1 else None
    fn = attention(score, mask)
    compiled, shapes = gyrator(fn), [(batch, 8, rows, 64), (batch, 2, 3001, 64), (batch, 2, 3001, 64)]
    for _ in range(3):  # counters are as before
        assert_right(fn, compiled, [made(s, BF16) for s in shapes])


def test_tensors_that_functions_read_and_masks_of_each_batch_and_head() -> None:
    bias, number = made((4, 300), F32), torch.arange(300, device="cuda") // 77

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias[h, j] * (b + 1)

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (number[i] == number[j]) & (j > h * b)

    fn = attention(score, create_block_mask(keep, 2, 4, 300, 300, device="cuda"))
    assert_right(fn, gyrator(fn), [made((2, 4, 300, 32), F16) for _ in range(3)])


def test_sizes_that_change() -> None:
    fn = attention(alibi, None)
    compiled = gyrator(fn, dynamic=True)
    for batch, m, n in ((1, 200, 200), (3, 77, 333), (2, 256, 128)):
        shapes = ((batch, 4, m, 128), (batch, 4, n, 128), (batch, 4, n, 128))
        assert_right(fn, compiled, [made(s, BF16) for s in shapes])


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "pairs", "bias", "before", "near"])
@pytest.mark.parametrize(
    ("rows", "keys", "width"),
    [
        (16, 16, 6),
        (49, 49, 32),
        (64, 64, 64),
        (200, 33, 24),
        (1, 20, 64),
        (77, 200, 64),
        (130, 1000, 32),
        (90, 320, 128),
    ],
)
def test_few_or_masked_keys_are_as_exact_as_the_librarys(
    rows: int, keys: int, width: int, kind: str, gradients: bool
) -> None:
    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if kind in ("before", "near") and mask is not None:  # the program makes the mask
            i, j = torch.arange(rows, device="cuda")[:, None], torch.arange(keys, device="cuda")
            mask = mask & ((j <= i) if kind == "before" else ((i - j).abs() <= 40))
        return scaled_dot_product_attention(query, key, value, mask, is_causal=kind == "causal", enable_gqa=True)

    mask = made((1, 8, rows, keys), BF16) if kind == "bias" else None
    if kind in ("padding", "before", "near"):
        mask = (torch.arange(keys, device="cuda") < torch.tensor([[1], [keys], [9]], device="cuda"))[:, None, None]
    if kind == "pairs":
        mask = made((3, 1, rows, keys), BF16) > 0
    tensors = [made((3, h, n, width), BF16, transposed=True) for h, n in ((8, rows), (4, keys), (4, keys))]
    found = []
    compiled = torch.compile(run, backend="gyrator", dynamic=False)
    for call, dtype in ((compiled, BF16), (run, BF16), (run, torch.float64)):
        torch._dynamo.reset()
        leaves = [x.detach().to(dtype).requires_grad_(gradients) for x in tensors]
        out = call(*leaves, mask.to(dtype) if kind == "bias" and mask is not None else mask)
        grads = torch.autograd.grad(out, leaves, made(out.shape, dtype)) if gradients else ()
        found.append([out.detach(), *grads])
    if width % 8 == 0 and rows > 1:  # the library's are padded, or of one row
        assert found[0][0].stride() == found[1][0].stride()
    for tensors_alike in zip(*found, strict=True):
        assert_matches(*(x.contiguous() for x in tensors_alike), slack=4)
