"""Triton kernels that a user's program launches, captured by torch.compile and run among compiled kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def scale_rows(x, out, row, n, factor, BLOCK: tl.constexpr):
    at, i = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * row + i, tl.load(x + at * row + i, mask=i < n) * factor, mask=i < n)


tuned_rows = triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 128)], key=["n"])(scale_rows)


def scaled(x: Tensor, factor: float, kernel: Any = scale_rows, **fixed: int) -> Tensor:
    out = torch.empty_like(x)
    rows, columns = x.shape
    kernel[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))](x, out, x.stride(0), columns, factor, **fixed)
    return out


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return scaled(x, 3.0, BLOCK=64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return scaled(gradient.contiguous(), 3.0, BLOCK=64)


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["plain", "tuned"])
def test_a_kernel_among_others(name: str, dynamic: bool | None) -> None:
    def fn(x: Tensor) -> Tensor:
        y = scaled(x + 1, 2.0, BLOCK=64) if name == "plain" else scaled(x + 1, 2.0, tuned_rows)
        return y.sum(0) + x

    compiled = torch.compile(fn, backend="gyrator", dynamic=dynamic, fullgraph=True)
    for rows in (5, 8):
        x = torch.randn(rows, 200, device="cuda")
        torch.testing.assert_close(compiled(x), ((x + 1) * 2).sum(0) + x)


def test_a_kernel_in_an_autograd_function() -> None:
    x = torch.randn(6, 100, device="cuda", requires_grad=True)
    torch.compile(lambda x: Scaled.apply(x.sin()).cos().sum(), backend="gyrator", fullgraph=True)(x).backward()
    (expected,) = torch.autograd.grad((x.sin() * 3).cos().sum(), x)
    torch.testing.assert_close(x.grad, expected)


def test_a_kernel_that_writes_into_an_input() -> None:
    x, out = torch.randn(4, 100, device="cuda"), torch.zeros(4, 100, device="cuda")

    def fn(x: Tensor, out: Tensor) -> Tensor:
        scale_rows[(4, 2)](x, out, 100, 100, 2.0, BLOCK=64)
        return out + 1

    result = torch.compile(fn, backend="gyrator", fullgraph=True)(x, out)
    torch.testing.assert_close(out, x * 2)
    torch.testing.assert_close(result, x * 2 + 1)
