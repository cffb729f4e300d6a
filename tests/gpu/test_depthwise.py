"""Depthwise convolutions and their gradients on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from tests.acceptance import assert_matches

CASES: dict[str, tuple[tuple[int, ...], int, dict[str, int]]] = {
    "3 x 3": ((4, 96, 28, 27), 3, {"padding": 1}),
    "in steps": ((4, 40, 29, 28), 5, {"padding": 2, "stride": 2}),
    "large": ((2, 64, 16, 16), 9, {"padding": 4}),
    "with holes": ((2, 24, 20, 20), 3, {"padding": 2, "dilation": 2}),
    "a sequence": ((2, 80, 300), 4, {"padding": 3}),
    "volumes": ((2, 16, 6, 7, 8), 3, {"padding": 1}),
    "large, in steps, two filters for a channel": ((64, 128, 28, 28), 7, {"padding": 3, "stride": 2, "filters": 2}),
    "two filters for a channel": ((4, 32, 28, 27), 3, {"padding": 1, "filters": 2}),
}


def results(fn: object, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """What a block computes, and its gradients."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = fn(x, w)  # type: ignore[operator]
    return (
        y.detach(),
        *torch.autograd.grad((y * torch.arange(y.shape[1], device="cuda").view(-1, *[1] * (y.ndim - 2))).sum(), (x, w)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_eager(case: str, dtype: torch.dtype) -> None:
    shape, side, options = CASES[case][0], CASES[case][1], dict(CASES[case][2])
    several = options.pop("filters", 1)
    conv = getattr(F, f"conv{len(shape) - 2}d")

    def block(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = torch.sigmoid(conv(x, w, groups=x.shape[1], **options))
        return y

    x = torch.randn(shape, device="cuda").to(dtype)
    w = torch.randn(several * shape[1], 1, *[side] * (len(shape) - 2), device="cuda").to(dtype)
    got = results(torch.compile(block, backend="gyrator", dynamic=False), x, w)
    externs = gyrator.counters().externs()
    assert "aten.convolution.default" not in externs
    assert case != "large" or not externs
    for mine, eager, exact in zip(got, results(block, x, w), results(block, x.double(), w.double()), strict=True):
        assert_matches(mine, eager, exact)


def test_float32_takes_the_layout_that_tensor_cores_ask_for() -> None:
    def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv2d(F.relu6(F.conv2d(x, w)), v, padding=2, groups=v.shape[0]).relu()

    shapes = ((2, 64, 64, 64), (128, 64, 1, 1), (128, 1, 5, 5))
    args = [torch.randn(shape, device="cuda") for shape in shapes]
    got = torch.compile(block, backend="gyrator", dynamic=False)(*args)
    assert_matches(got, block(*args), block(*[arg.double() for arg in args]))
    assert gyrator.counters().externs() == {"aten.convolution.default": 1}
