"""Which products of a graph share a choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autotune import subgraphs


def test_products_of_the_same_sizes_share_a_choice_if_they_lie_in_memory_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[fx.Node] = []
    monkeypatch.setattr(subgraphs, "_fastest", lambda node, *_: asked.append(node))
    tuner: Any = None

    def products(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a @ b, (a * 2) @ b, a @ c.t()

    graph = make_fx(products, tracing_mode="fake")(torch.ones(8, 4096), torch.ones(4096, 16), torch.ones(16, 4096))
    assert subgraphs.with_subgraphs(graph, tuner) is graph
    assert len(asked) == 2
