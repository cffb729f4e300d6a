"""Parts of a concatenation of many, which kernels and library calls write within its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.acceptance import check

N = 10


def cells(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """States that matrix products read; the last one is a result too."""
    h, found = x[:, 0] * 1, []
    for t in range(N):
        h = torch.tanh(h @ w + x[:, t])
        found.append(h)
    return torch.stack(found, 1), h


def columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    parts = [(x[:, t] * w[0] + t).sin() for t in range(N)]
    whole = torch.cat(parts, -1)
    return parts[3].cos() + whole.sum(-1, keepdim=True), whole.cos()


def heads(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([torch.relu(x[:, t] @ w) for t in range(N)], -1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("fn", [cells, columns, heads], ids=lambda fn: fn.__name__)
def test_values_and_gradients_are_eagers(
    fn: Callable[..., Any], dtype: torch.dtype, dynamic: bool, backend: str
) -> None:
    for width in (33, 64):
        x, w = torch.randn(7, N, width).to(dtype), (torch.randn(width, width) / 8).to(dtype)
        check(fn, (x.requires_grad_(), w.requires_grad_()), backend=backend, backward=True, dynamic=dynamic)


def test_images_of_one_channel_whose_rows_are_apart_as_channels_are(backend: str) -> None:
    """Only dimensions that one can step along tell where a part lies: here the first two have the same stride."""
    check(lambda x: torch.cat([(x * t).sin() for t in range(N)], 1), (torch.randn(2, 1, 4, 4),), backend=backend)


@pytest.mark.parametrize(("along", "rows"), [(-1, 1), (1, 8)], ids=["rows in one", "rows of all"])
def test_products_that_read_parts_across_their_rows(along: int, rows: int, backend: str) -> None:
    """Where the parts' rows are apart, a view of several rows as one is none of them."""

    def joined(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        parts = [(x * t).sin() for t in range(N)]
        return torch.cat(parts, along), sum((p.reshape(rows, -1) @ w for p in parts), torch.zeros(()))

    check(joined, (torch.randn(4, 2, 32), torch.randn(256 // rows, 5)), backend=backend)


def test_parts_whose_sizes_are_halves_of_symbols(backend: str) -> None:
    def joined(x: Tensor) -> Tensor:
        halves = torch.nn.functional.max_pool2d(x[None], 2)
        return torch.cat([torch.softmax(halves * t, 0) for t in range(N)], -1)

    check(joined, (torch.randn(40, 42),), backend=backend, dynamic=True)
