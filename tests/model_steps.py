"""A step of a model of the zoo as users make it, and its comparison with eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.zoo import build
from tests.acceptance import assert_none, expect

Step = Callable[[nn.Module, Mapping[str, Tensor]], dict[str, Tensor]]

# transformers returns nothing else that a user trains or predicts with; the rest repeats these.
REPORTED = ("loss", "logits", "logits_per_image", "logits_per_text")


def outputs_of(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a user reads of a forward; a loss in the type of 16-bit weights, as it is no more exact than they are."""
    dtype = next(model.parameters()).dtype
    if dtype == torch.float64:
        exact_experts(model)
    outputs: Mapping[str, Any] = model(**batch)
    found = {name: outputs[name] for name in REPORTED if outputs.get(name) is not None}
    return {name: x.to(dtype) if name == "loss" and dtype.itemsize == 2 else x for name, x in found.items()}


def exact_experts(model: nn.Module) -> None:
    """torch's grouped product knows no float64: experts are then called one by one."""
    if isinstance(model, PreTrainedModel):
        model.set_experts_implementation("eager")


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The loss to differentiate and the rest of the outputs, which take no gradient."""
    return {key: value if key == "loss" else value.detach() for key, value in outputs_of(model, batch).items()}


def check_model(
    name: str,
    training: bool,
    backend: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    slack: float | None = None,
) -> None:
    """A tiny model's outputs, and in training every parameter's gradient and the buffers, are as right as eager's."""
    workload = build(name, "tiny")
    model = workload.model.train(training).to(device, dtype)
    given = dict(workload.batch) if training else workload.inference_batch()
    batch = {name: _moved(value, device, dtype) for name, value in given.items()}
    step: Step = loss_of if training else outputs_of

    def compiled(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return step(torch.compile(model, backend=backend), batch)  # type: ignore[arg-type]

    assert_none(expect(step, (model, batch), backward=training).mismatches(compiled, slack=slack))


def _moved(value: Any, device: str, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)
