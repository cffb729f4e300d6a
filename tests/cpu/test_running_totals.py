"""Cumulative sums, products and extremes: as exact as eager's, along rows as well as down columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def compiled_anew(fn, backend: str, dynamic: bool = False):  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_error_is_about_eagers(dim: int, dtype: torch.dtype, dynamic: bool, backend: str) -> None:
    def running(x: Tensor) -> tuple[Tensor, ...]:
        return x.cumsum(dim), (x * 0.1 + 1).cumprod(dim), x.sin().cumsum(dim).cos()

    x = torch.randn(37, 35, 41, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = compiled_anew(running, backend, dynamic)(x)
    for ours, eager, exact in zip(found, running(x), running(x.double()), strict=True):
        assert rms(ours - exact) <= 1.5 * rms(eager - exact) + 4 * torch.finfo(torch.float64).eps * rms(exact)


@pytest.mark.parametrize("length", [1, 7, 16, 17, 100, 1000, 100_003])
def test_error_does_not_grow_with_the_length(length: int, backend: str) -> None:
    def running(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length))
    found = compiled_anew(running, backend)(x)
    torch.testing.assert_close(found, running(x.double()).float(), rtol=2e-7, atol=0.0)


def test_products_too_large_for_a_moment_are_finite_again(backend: str) -> None:
    def running(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumprod(-1), x.double().mul(1e200).cumprod(-1)

    x = torch.full((2, 50), 1e20)
    x[:, ::2] = 1e-20
    found = compiled_anew(running, backend)(x)
    for ours, eager in zip(found, running(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=0.0)


def test_nan_and_infinity_spoil_what_comes_after(backend: str) -> None:
    def running(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumsum(-1), x.cumprod(-1)

    x = torch.rand(40, 40) + 0.5
    x.diagonal().fill_(torch.inf)
    x[::3, 30] = torch.nan
    x[1::3, 25] = -torch.inf
    found = compiled_anew(running, backend)(x)
    for ours, eager in zip(found, running(x), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_integers_wrap(backend: str) -> None:
    def running(x: Tensor) -> tuple[Tensor, ...]:
        return x.cumsum(-1), x.cumprod(-1), x.cumsum(-1, dtype=torch.int8), x.cumsum(0)

    x = torch.randint(-(2**31), 2**31, (5, 83), generator=torch.Generator().manual_seed(0))
    for ours, eager in zip(compiled_anew(running, backend)(x), running(x), strict=True):
        assert ours.equal(eager)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_of_equal_extremes_the_last_is_found_and_of_nans(dim: int, dtype: torch.dtype, backend: str) -> None:
    def running(x: Tensor) -> tuple[Tensor, ...]:
        return *x.cummax(dim), *x.cummin(dim), x.cumsum(dim), x.float().exp().logcumsumexp(dim)

    x = torch.randint(0, 6, (69, 83), generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype.is_floating_point:
        x[5, 7] = x[50, 7] = x[5, 61] = torch.nan
        x[:, :2] = -torch.inf
        x[:, 81:] = torch.inf
    *found, ours = compiled_anew(running, backend)(x)
    *expected, eager = running(x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    torch.testing.assert_close(ours, eager, equal_nan=True)


def read_across(x: Tensor) -> list[Tensor]:
    """Scans through all elements, whose results are read and stored across rows."""
    steps = [x.flatten().cumsum(0), *x.flatten().cummax(0), x.flatten().logcumsumexp(0)]
    return [y.view(x.shape).T.contiguous() for y in steps]


def chosen_in_order(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.masked_scatter(x > 0, x * 2)
    return y, y.T.sin()


def in_two_orders(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp().round()
    return y, y.flatten().cumsum(0), y.T.flatten().cumsum(0), y.flatten().argmax(), y.T.flatten().argmin()


@pytest.mark.parametrize("shape", [(3, 4), (40, 9), (4, 300)])
@pytest.mark.parametrize("fn", [read_across, chosen_in_order, in_two_orders], ids=lambda f: f.__name__)
def test_elements_keep_their_order_beside_readers_of_columns(
    fn: Callable[[Tensor], Sequence[Tensor]], shape: tuple[int, int], backend: str
) -> None:
    x = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(compiled_anew(fn, backend)(x), fn(x))
