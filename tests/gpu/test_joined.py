"""Parts of a concatenation of many, made where they end, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gyrator
from tests.acceptance import check
from tests.cpu.test_joined import N, cells, heads


def states(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A recurrence; the last state is a result too."""
    h, found = torch.zeros_like(x[:, 0]), []
    for t in range(N):
        h = torch.sigmoid(w[0]) * h + x[:, t]
        found.append(h)
    return torch.stack(found, 1), h


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("fn", [states, cells, heads], ids=lambda fn: fn.__name__)
def test_values_and_gradients_are_eagers(fn: Callable[..., object], dtype: torch.dtype, dynamic: bool) -> None:
    for width in (33, 64):
        x = torch.randn(70, N, width, device="cuda").to(dtype)
        w = (torch.randn(width, width, device="cuda") / 8).to(dtype)
        check(fn, (x.requires_grad_(), w.requires_grad_()), backend="gyrator", backward=True, dynamic=dynamic)


def test_no_call_joins_them() -> None:
    x, w = torch.randn(64, N, 1024, device="cuda"), torch.randn(1, 1024, device="cuda")
    gyrator.reset()
    got, want = torch.compile(states, backend="gyrator", dynamic=False)(x, w), states(x, w)
    torch.testing.assert_close(got, want)
    assert not gyrator.counters().externs()
