"""On a GPU, too, every level of a graph runs on the same inputs: the interpreter computes where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from gyrator.config import Config
from tools.bisect import check


def layers(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x @ w) @ w.t() + x, (64,)).softmax(-1)


def indices(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    at = x.argmax(-1) % 48
    return w[at], x.cumsum(0), torch.zeros_like(w).index_add(0, at, x), F.pad(x, (1, 2))[:, ::2], x.sort(-1)[1]


def written(x: Tensor, w: Tensor) -> Tensor:
    x[1:3].mul_(2)
    w.copy_(w.flip(0))
    return x.var(0) + w.sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [layers, indices, written])
def test_levels_agree(fn: Callable[..., Any], dynamic: bool) -> None:
    given = [torch.randn(48, 64, device="cuda"), torch.randn(64, 64, device="cuda")]
    copies = [x.clone() for x in given]
    found = torch.compile(fn, backend="gyrator", options={"validate": True}, dynamic=dynamic)(*given)
    torch.testing.assert_close((found, given), (fn(*copies), copies), rtol=1e-4, atol=1e-4)


def test_a_step_of_training_agrees() -> None:
    x, w = (torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2))
    torch.compile(layers, backend="gyrator", options={"validate": True})(x, w).square().sum().backward()
    found = [x.grad, w.grad]
    x.grad = w.grad = None
    layers(x, w).square().sum().backward()
    torch.testing.assert_close(found, [x.grad, w.grad], rtol=1e-3, atol=1e-4)


def test_bisect_finds_nothing_wrong_with_a_right_program() -> None:
    gm = fx.symbolic_trace(lambda x, w: (F.relu(x @ w).sum(-1), x + 1))
    assert check(gm, [torch.randn(48, 64, device="cuda"), torch.randn(64, 64, device="cuda")], Config()) is None
