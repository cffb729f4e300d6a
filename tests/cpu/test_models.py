"""Real architectures with random weights: inference, and a training step with every parameter's gradient.

The sizes are small; what varies is the code: rotary embeddings and grouped queries, expert routing, relative
positions, windowed attention, batch norm's running statistics, depthwise convolutions, a selective scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.zoo import MODELS, build
from tests.acceptance import assert_none, expect
from tests.model_steps import check_model, loss_of


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_model(name: str, training: bool, backend: str) -> None:
    check_model(name, training, backend)


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_three_optimizer_steps_end_at_the_same_weights(name: str, backend: str) -> None:
    workload = build(name, "tiny")

    def train(model: nn.Module, batch: Mapping[str, Tensor], step: Any) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with torch.enable_grad():
            for _ in range(3):
                optimizer.zero_grad()
                step(model, batch)["loss"].backward()
                optimizer.step()
        return {key: value.detach() for key, value in model.state_dict().items()}

    args = (workload.model.train(), dict(workload.batch))
    expected = expect(lambda model, batch: train(model, batch, loss_of), args)
    compiled = torch.compile(loss_of, backend=backend)
    assert_none(expected.mismatches(lambda model, batch: train(model, batch, compiled)))
