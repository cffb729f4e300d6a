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

# transformers returns nothing else that a user trains or predicts with; the rest repeats these.
REPORTED = ("loss", "logits", "logits_per_image", "logits_per_text")


def _step(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    outputs: Mapping[str, Any] = model(**batch)
    return {name: outputs[name] for name in REPORTED if outputs.get(name) is not None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_model(name: str, training: bool, backend: str) -> None:
    workload = build(name, "tiny")
    model = workload.model.train(training)
    batch = dict(workload.batch) if training else workload.inference_batch()
    expected = expect(_loss if training else _step, (model, batch), backward=training)
    assert_none(expected.mismatches(_compiled(backend, training)))


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The loss to differentiate and the rest of the outputs, which take no gradient."""
    return {key: value if key == "loss" else value.detach() for key, value in _step(model, batch).items()}


def _compiled(backend: str, training: bool) -> Any:
    """The same step with the model compiled as users do: ``torch.compile(model)``."""

    def run(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        compiled = torch.compile(model, backend=backend)
        return (_loss if training else _step)(compiled, batch)

    return run


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
    expected = expect(lambda model, batch: train(model, batch, _loss), args)
    compiled = torch.compile(_loss, backend=backend)
    assert_none(expected.mismatches(lambda model, batch: train(model, batch, compiled)))
