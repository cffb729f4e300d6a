"""Every model of the zoo trains as users train: at sizes that change, under autocast, with activation checkpoints.

Three optimizer steps each. Losses, weights, buffers and the last gradients are compared with float64, eager in
the same way of training being the yardstick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import build
from tests.acceptance import SLACK, assert_none, expect
from tests.model_steps import exact_experts

Batch = Mapping[str, Any]
SIZES = ((2, 0), (3, 3), (4, 4))
"""Rows of each batch, and how many positions its texts are shorter and its images larger (times 8)."""
ANY_SIDE = ("convnext", "resnet")
"""Models that get images of several sizes. The others have learnt a position for each patch, or pad by formulas of
the size (MobileNet, Swin) with which torch's own symbolic shapes take minutes; for those the size is a constant."""
QUICK = (("vit", "dynamic"), ("bert", "autocast"), ("cait", "checkpoints"))
"""What runs without ``--training-full``."""


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    """The large eps keeps a gradient that is rounding alone from becoming a whole step."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    """For autocast: in bfloat16, AdamW too makes a step of what is rounding."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Way:
    """A way of training: which batches, what is done to the model, what surrounds each forward on a device.

    ``precision`` is the type to which autocast rounds operands: the rule of acceptance counts in its units.
    """

    batches: Callable[[str, Batch], Sequence[Batch]] = lambda name, batch: [batch] * len(SIZES)
    prepare: Callable[[nn.Module], None] = lambda model: None
    around: Callable[[str], AbstractContextManager[Any]] = lambda device: nullcontext()
    optimizer: Callable[[Any], torch.optim.Optimizer] = _adamw
    dynamic: bool = False
    precision: torch.dtype | None = None


def _sized(name: str, batch: Batch, rows: int, change: int) -> dict[str, Any]:
    """The batch with ``rows`` rows, repeated as needed; texts lose their first positions, images grow by 8s."""

    def resize(tensor: Tensor) -> Tensor:
        tensor = torch.cat([tensor.roll(i, 1) if tensor.dim() > 1 else tensor for i in range(rows)])[:rows]
        if tensor.dim() == 4 and name in ANY_SIDE:
            return F.pad(tensor, (0, 8 * change, 0, 8 * change), mode="circular")
        return tensor[:, change:].contiguous() if tensor.dim() == 2 else tensor

    return {key: resize(value) if isinstance(value, Tensor) else value for key, value in batch.items()}


def _mark_sides(name: str, batch: Batch) -> None:
    """Tell torch.compile that height and width of images never change, for models that take one size."""
    for tensor in batch.values():
        if isinstance(tensor, Tensor) and tensor.dim() == 4 and name not in ANY_SIDE:
            torch._dynamo.mark_static(tensor, [2, 3])


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
    "autocast": Way(
        around=lambda device: torch.autocast(device, torch.bfloat16), optimizer=_sgd, precision=torch.bfloat16
    ),
    "checkpoints": Way(prepare=_checkpoint_layers),
}


def train(
    name: str, model: nn.Module, batches: Sequence[Batch], way: Way, wrap: Callable[[nn.Module], Callable[..., Any]]
) -> dict[str, Tensor]:
    """Every loss, the weights and the buffers at the end; the last step's gradients stay in the parameters."""
    way.prepare(model)
    call, losses = wrap(model), []
    optimizer = way.optimizer(model.parameters())
    first = next(model.parameters())
    exact = first.dtype == torch.float64
    if exact:
        exact_experts(model)
    with torch.enable_grad():
        for batch in batches:
            optimizer.zero_grad()
            _mark_sides(name, batch)
            with nullcontext() if exact else way.around(first.device.type):
                losses.append(call(**batch)["loss"])
            losses[-1].backward()
            optimizer.step()
    return {**model.state_dict(), "losses": torch.stack(losses).detach()}


def check_training(name: str, way: Way, backend: str, device: str = "cpu") -> None:
    """Trains one model in eager, in float64 and compiled, from the same weights, and compares the results."""
    workload = build(name, "tiny")
    model = workload.model.train().to(device)
    batches = [pytree.tree_map_only(Tensor, lambda t: t.to(device), b) for b in way.batches(name, workload.batch)]

    def run(wrap: Callable[[nn.Module], Callable[..., Any]]) -> Callable[..., Any]:
        return lambda model, batches: train(name, model, batches, way, wrap)

    compiled = partial(torch.compile, backend=backend, dynamic=way.dynamic)
    expected = expect(run(lambda model: model), (model, batches))
    slack = way.precision and SLACK[way.precision] * torch.finfo(way.precision).eps / torch.finfo(torch.float32).eps
    assert_none(expected.mismatches(run(compiled), way.precision, slack=slack))
