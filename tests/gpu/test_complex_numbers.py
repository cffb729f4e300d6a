"""Complex numbers on a GPU: kernels on pairs of reals, libraries on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.acceptance import assert_none, expect

C64 = torch.complex64


def rotated(q: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(q)


def filtered(x: Tensor, w: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * w, n=x.shape[-1])


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y.conj(), (x / (y + 5)).abs(), x.sum(0), torch.cat([x, y.conj()]), x @ y.mH, x.real + y.angle()


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(1j)
    torch.view_as_real(y).add_(1)
    return x[1:].clone()


def normal(*shape: int, dtype: torch.dtype = C64) -> Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "rotary": (rotated, lambda: (normal(2, 37, 5, 64, dtype=torch.float32), normal(1, 37, 1, 32))),
    "rotary bf16": (rotated, lambda: (normal(2, 37, 5, 64, dtype=torch.bfloat16), normal(1, 37, 1, 32))),
    "filter": (filtered, lambda: (normal(8, 16, 1000, dtype=torch.float32), normal(16, 501))),
    "mixed": (mixed, lambda: (normal(130, 70), normal(130, 70))),
    "gaps": (mixed, lambda: (normal(70, 130).t(), normal(130, 140)[:, ::2])),
    "conjugates": (mixed, lambda: (normal(130, 70).conj(), normal(130, 70))),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_eager(case: str, dynamic: bool) -> None:
    fn, make = CASES[case]
    args = tuple(x.requires_grad_() for x in make())
    compiled = torch.compile(fn, backend="gyrator", dynamic=dynamic)
    assert_none(expect(fn, args, backward=True).mismatches(compiled))


def test_inputs_are_written_to() -> None:
    x, y = normal(9, 5), normal(8)
    ours = x.clone(), y.clone()
    torch.testing.assert_close(torch.compile(written, backend="gyrator")(*ours), written(x, y))
    torch.testing.assert_close(ours, (x, y))


def test_calls_can_be_recorded() -> None:
    x, w = normal(8, 16, 1000, dtype=torch.float32), normal(16, 501)
    compiled = torch.compile(filtered, backend="gyrator", mode="reduce-overhead")
    with torch.no_grad():
        for scale in (1, 2, 3):
            torch.testing.assert_close(compiled(x * scale, w), filtered(x * scale, w))
