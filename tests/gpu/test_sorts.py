"""Short rows sorted by kernels on a GPU: as torch sorts them, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gyrator


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With ties, and NaN, infinities and both zeros where there are."""
    x = torch.randint(-50, 50, shape, device="cuda").to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::7], x.view(-1)[3::11], x.view(-1)[5::13], x.view(-1)[1::6] = torch.nan, torch.inf, -torch.inf, -0.0
    return x


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "floats": (lambda x: x.sort(dim=-1, stable=True), (1000, 500), torch.float32),
    "descending": (lambda x: x.sort(dim=-1, descending=True, stable=True), (1000, 128), torch.float32),
    "half": (lambda x: x.sort(dim=-1, descending=True, stable=True), (777, 512), torch.bfloat16),
    "float16": (lambda x: (x * 2).argsort(dim=-1, stable=True), (777, 33), torch.float16),
    "integers": (lambda x: x.sort(dim=-1, stable=True), (1000, 300), torch.int32),
    "short integers": (lambda x: x.sort(dim=-1, descending=True, stable=True), (1000, 300), torch.int16),
    "columns": (lambda x: x.sort(dim=0, stable=True), (60, 1000), torch.float32),
    "middle": (lambda x: x.sort(dim=1, stable=True), (9, 500, 40), torch.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_sorted_as_torch_does(case: str) -> None:
    fn, shape, dtype = CASES[case]
    x = numbers(*shape, dtype=dtype)
    gyrator.reset()
    found, wanted = torch.compile(fn, backend="gyrator", dynamic=False)(x), fn(x)
    assert not gyrator.counters().externs()
    for got, right in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)


def test_experts_of_tokens() -> None:
    """The largest of a softmax, whose gradient goes to where they were."""
    x = torch.randn(4096, 64, device="cuda", requires_grad=True)

    def routed(x: Tensor) -> tuple[Tensor, Tensor]:
        weights, experts = torch.softmax(x, -1).topk(8)
        return weights / weights.sum(-1, keepdim=True), experts

    found, wanted = torch.compile(routed, backend="gyrator", dynamic=False)(x), routed(x)
    torch.testing.assert_close(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
    (got,), (right,) = (torch.autograd.grad(y.square().sum(), x) for y in (found[0], wanted[0]))
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-6)
