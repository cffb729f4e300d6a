"""Sums and variances down the columns of a matrix are as exact as eager's, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def sums(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), (x * x).sum(0)


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return torch.var_mean(x, 0)


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("rows", "columns", "mean"),
    [(100_000, 64, 0.0), (100_000, 64, 100.0), (99_991, 70, 3.0), (32, 144, 0.0), (1, 3, 1.0)],
)
@pytest.mark.parametrize("fn", [sums, moments], ids=lambda fn: fn.__name__)
def test_error_is_at_most_twice_eagers(
    fn: Callable[[Tensor], tuple[Tensor, ...]], rows: int, columns: int, mean: float, dynamic: bool, backend: str
) -> None:
    torch._dynamo.reset()
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) + mean
    found = torch.compile(fn, backend=backend, dynamic=dynamic)(x)
    for ours, eager, exact in zip(found, fn(x), fn(x.double()), strict=True):
        if exact.isfinite().all():
            assert rms(ours - exact) <= 2 * rms(eager - exact) + 1e-9 * rms(exact)
        else:
            assert ours.isnan().equal(eager.isnan())


@pytest.mark.parametrize(("rows", "columns"), [(512, 7), (509, 3), (2048, 20), (37, 5)])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_columns_narrower_than_vectors(rows: int, columns: int, mean: float, backend: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(100, rows, columns, generator=torch.Generator().manual_seed(rows)) + mean
    found = torch.compile(lambda x: x.sum(1), backend=backend)(x)
    exact = x.double().sum(1)
    assert rms(found - exact) <= 2 * rms(x.sum(1) - exact) + 1e-9 * rms(exact)


@pytest.mark.parametrize("rows", [64, 96, 128, 130])
def test_rounding_of_equal_numbers_does_not_add_up(rows: int, backend: str) -> None:
    """Each addition of the same number may round the same way."""
    torch._dynamo.reset()
    x = torch.rand(20, 1, 9, generator=torch.Generator().manual_seed(0)).repeat(1, rows, 1)
    found, exact = torch.compile(lambda x: x.mean(1), backend=backend)(x), x.double().mean(1)
    assert rms(found - exact) <= 2 * rms(x.mean(1) - exact) + 4 * torch.finfo(x.dtype).eps * rms(exact)


@pytest.mark.parametrize(("rows", "columns"), [(1000, 37), (5, 4096), (300, 1)])
@pytest.mark.parametrize("width", [2, 8])
def test_the_last_two_dimensions_differ_but_follow_one_another_in_memory(
    rows: int, columns: int, width: int, backend: str
) -> None:
    """As real and imaginary parts do, whose vectors hold both."""
    x = torch.randn(rows, columns, width, generator=torch.Generator().manual_seed(0))

    def turned(x: Tensor) -> tuple[Tensor, ...]:
        y = x * torch.where(torch.arange(width) < 1, 1, -2)
        return y.sum(0), x.flip(2).sum(0), (y + x[..., :1]).amax(0)

    for ours, eager, exact in zip(
        torch.compile(turned, backend=backend)(x), turned(x), turned(x.double()), strict=True
    ):
        assert rms(ours - exact) <= 2 * rms(eager - exact) + 1e-7


@pytest.mark.parametrize("shape", [(99991,), (16, 7), (64, 4190)])
def test_equal_numbers_have_no_variance(backend: str, shape: tuple[int, ...]) -> None:
    """Also where parts are summed by several cores, and where a row is no multiple of a vector."""
    torch._dynamo.reset()
    assert not torch.compile(lambda x: x.var(-1), backend=backend)(torch.full(shape, 3.3)).any()


def test_variance_after_an_outlier_in_the_first_row(backend: str) -> None:
    """Around which the values are summed."""
    torch._dynamo.reset()
    x = torch.randn(4096, 80)
    x[0] = 1e6
    variance, mean = torch.compile(moments, backend=backend)(x)
    exact = moments(x.double())
    torch.testing.assert_close(variance.double(), exact[0], rtol=3e-7, atol=0.0)
    torch.testing.assert_close(mean.double(), exact[1], rtol=3e-7, atol=0.0)
