"""Every model of the zoo trains as users train: at sizes that change, under autocast, with activation checkpoints.

Three optimizer steps each. Losses, weights, buffers and the last gradients are compared with float64, eager in
the same way of training being the yardstick. A few rows run by default; ``--training-full`` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import MODELS, build
from tests.acceptance import assert_none, expect

Batch = Mapping[str, Any]
SIZES = ((2, 0), (3, 3), (4, 4))
"""Rows of each batch, and how many positions its texts are shorter and its images larger (times 8)."""
ANY_SIDE = ("convnext", "resnet", "mobilenet_v2")
"""Models that take images of any size; the others have learnt a position for each patch."""
QUICK = (("gpt2", "dynamic"), ("resnet", "autocast"), ("distilbert", "checkpoints"))


@dataclass(frozen=True)
class Way:
    """A way of training: which batches, what is done to the model, what surrounds each forward."""

    batches: Callable[[str, Batch], Sequence[Batch]] = lambda name, batch: [batch] * len(SIZES)
    prepare: Callable[[nn.Module], None] = lambda model: None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    dynamic: bool | None = False


def _sized(name: str, batch: Batch, rows: int, change: int) -> dict[str, Any]:
    """The batch with ``rows`` rows, repeated as needed; texts lose their first positions, images grow by 8s."""

    def resize(tensor: Tensor) -> Tensor:
        tensor = torch.cat([tensor.roll(i, 1) if tensor.dim() > 1 else tensor for i in range(rows)])[:rows]
        if tensor.dim() == 4 and name in ANY_SIDE:
            return F.pad(tensor, (0, 8 * change, 0, 8 * change), mode="circular")
        return tensor[:, change:].contiguous() if tensor.dim() == 2 else tensor

    return {key: resize(value) if isinstance(value, Tensor) else value for key, value in batch.items()}


def _sizes(name: str, batch: Batch) -> list[Batch]:
    return [_sized(name, batch, rows, change) for rows, change in SIZES]


def _checkpoint_layers(model: nn.Module) -> None:
    """Activation checkpoints as transformers makes them, else around the members of the outermost lists."""
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    for layer in _outermost_layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    for norm in model.modules():  # eager counts a batch once more as it recomputes, torch.compile does not
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats = False


def _outermost_layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from (child if isinstance(child, nn.ModuleList) else _outermost_layers(child))


WAYS: Mapping[str, Way] = {
    "dynamic": Way(batches=_sizes, dynamic=True),
    "autocast": Way(around=lambda: torch.autocast("cpu", torch.bfloat16)),
    "checkpoints": Way(prepare=_checkpoint_layers),
}


def train(
    model: nn.Module, batches: Sequence[Batch], way: Way, wrap: Callable[[nn.Module], Callable[..., Any]]
) -> dict[str, Tensor]:
    """Every loss, the weights and the buffers at the end; the last step's gradients stay in the parameters."""
    way.prepare(model)
    call, losses = wrap(model), []
    # The large eps keeps a gradient that is rounding alone from becoming a whole step.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    with torch.enable_grad():
        for batch in batches:
            optimizer.zero_grad()
            with way.around():
                losses.append(call(**batch)["loss"])
            losses[-1].backward()
            optimizer.step()
    return {**model.state_dict(), "losses": torch.stack(losses).detach()}


def check_training(name: str, way: Way, backend: str) -> None:
    """Trains one model in eager, in float64 and compiled, from the same weights, and compares the results."""
    workload = build(name, "tiny")
    batches = list(way.batches(name, workload.batch))

    def run(wrap: Callable[[nn.Module], Callable[..., Any]]) -> Callable[..., Any]:
        return lambda model, batches: train(model, batches, way, wrap)

    compiled = partial(torch.compile, backend=backend, dynamic=way.dynamic)
    assert_none(expect(run(lambda model: model), (workload.model.train(), batches)).mismatches(run(compiled)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_three_steps(name: str, way: str, backend: str, request: pytest.FixtureRequest) -> None:
    if (name, way) not in QUICK and not request.config.getoption("--training-full"):
        pytest.skip("only with --training-full")
    check_training(name, WAYS[way], backend)
