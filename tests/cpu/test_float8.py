"""8-bit floats are moved and converted in kernels, to the same bits as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gyrator

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def numbers() -> Tensor:
    """Of all sizes, those between two neighbours, and those that the types lack."""
    found = torch.randn(16, 33, generator=torch.Generator().manual_seed(0))
    found *= torch.logspace(-6, 6, 33)
    found[0, :9] = torch.tensor([float("nan"), float("inf"), -float("inf"), 448, 464, 464.1, 61439, 61440, -0.0])
    found[1] = torch.arange(33) / 64  # halves of the smallest steps
    return found


def both_types(x: Tensor) -> tuple[Tensor, ...]:
    return x.to(E4), x.to(E5), x.to(E4).float() * 2, x.half().to(E5).bfloat16()


def by_the_largest(x: Tensor) -> tuple[Tensor, ...]:
    x = x.nan_to_num(0.0, 1.0, -1.0)
    scale = 448.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return (x * scale).clamp(-448, 448).to(E4), scale.reciprocal()


def moved(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clamp(-448, 448).to(E4)  # the sign of what is no number is anyone's
    return y.t().contiguous(), torch.cat([y, y]), y.view(torch.uint8) + 1, y[1:, ::2].clone(), y.view(torch.int8)


CASES: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "both types": both_types,
    "by the largest": by_the_largest,
    "moved": moved,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_eager(case: str, dynamic: bool) -> None:
    gyrator.reset()
    got = torch.compile(CASES[case], backend="gyrator", dynamic=dynamic)(numbers())
    for mine, wanted in zip(got, CASES[case](numbers()), strict=True):
        assert mine.dtype == wanted.dtype and mine.stride() == wanted.stride()
        assert torch.equal(mine.float().nan_to_num(1e9), wanted.float().nan_to_num(1e9))
    assert not gyrator.counters().externs()


@pytest.mark.parametrize("isa", ["auto", "avx2", "scalar"])
@pytest.mark.parametrize("dtype", [E4, E5])
def test_each_number_is_converted_as_by_eager(dtype: torch.dtype, isa: str) -> None:
    """All upper halves of a float32, with lower halves beside and between two numbers of 8 bits; and all of these."""
    gyrator.reset()
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    x = torch.cat([(upper + low).view(torch.float32) for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF)])
    every = torch.arange(256, dtype=torch.uint8)
    run = torch.compile(
        lambda x, bits: (x.to(dtype), bits.view(dtype).float(), bits.view(dtype).to(torch.bfloat16)),
        backend="gyrator",
        options={"cpu_isa": isa},
    )
    wanted = x.to(dtype), every.view(dtype).float(), every.view(dtype).to(torch.bfloat16)
    for mine, exact in zip(run(x, every), wanted, strict=True):
        torch.testing.assert_close(mine.float(), exact.float(), rtol=0, atol=0, equal_nan=True)


def test_a_linear_layer_trains_in_8_bit_floats() -> None:
    """As quantising libraries do: scales of the moment, products by the library, gradients in the wider type."""

    class Quantised(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
            ctx.save_for_backward(x, w)
            sx, sw = x.abs().amax() / 448, w.abs().amax() / 448
            return torch._scaled_mm((x / sx).to(E4), (w / sw).to(E4).t(), sx, sw, out_dtype=torch.float32)

        @staticmethod
        def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def, override]
            x, w = ctx.saved_tensors
            return grad.to(E5).float() @ w, grad.to(E5).float().t() @ x

    def step(x: Tensor, w: Tensor) -> Tensor:
        return Quantised.apply(x, w).tanh().square().mean()  # type: ignore[no-untyped-call, no-any-return]

    gyrator.reset()
    torch.manual_seed(0)  # numbers halfway between two of 8 bits may go either way
    leaves = [torch.randn(32, 64, requires_grad=True), torch.randn(48, 64, requires_grad=True)]
    got = torch.autograd.grad(torch.compile(step, backend="gyrator")(*leaves) * 1e4, leaves)
    torch.testing.assert_close(got, torch.autograd.grad(step(*leaves) * 1e4, leaves), rtol=1e-3, atol=1e-3)
    assert {"aten._scaled_mm.default", "aten.mm.default"} >= gyrator.counters().externs().keys()
