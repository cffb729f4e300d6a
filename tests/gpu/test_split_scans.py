"""Scans of few long rows on a GPU: right, the same bits each time, also recorded and in streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.acceptance import assert_matches


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    return *x.cummax(-1), *x.cummin(-1)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "one row": (lambda x: x.cumsum(0), (10_000_000,), torch.float32),
    "rows": (lambda x: x.cumsum(-1) * 2 + x, (7, 1_000_003), torch.float32),
    "many rows": (lambda x: x.cumsum(-1), (260, 20_000), torch.bfloat16),
    "products": (lambda x: (1 + x * 1e-4).cumprod(-1), (4, 300_000), torch.float32),
    "logarithms": (lambda x: x.logcumsumexp(-1), (4, 300_000), torch.float32),
    "two scans": (lambda x: (x.cumsum(-1), x.abs().cumsum(-1).sqrt().cumsum(-1)), (4, 300_000), torch.float64),
    "columns": (lambda x: x.cumsum(0), (100_003, 60), torch.float32),
    "columns of batches": (lambda x: x.cumsum(1) - x, (3, 50_000, 5), torch.bfloat16),
    "logarithms of columns": (lambda x: x.logcumsumexp(0), (30_000, 300), torch.float32),
    "groups of groups of columns": (lambda x: x.cumsum(0), (1024 * 128 * 3 + 7, 8), torch.float64),
    "groups of groups": (lambda x: x.cumsum(-1), (2, 2048 * 128 * 130), torch.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_continue_what_came_before_them(case: str) -> None:
    fn, shape, dtype = CASES[case]
    x = random(*shape, dtype=dtype)
    function = torch.compile(fn, backend="gyrator", dynamic=False)
    found, exact, eager = function(x), fn(x.double()), fn(x)
    for got, right, plain in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, exact, eager)), strict=True):
        assert_matches(got, plain, right, slack=8)
    first = found if isinstance(found, tuple) else (found,)
    for _ in range(30):
        again = function(x)
        assert all(map(torch.equal, again if isinstance(again, tuple) else (again,), first))


def test_of_equal_extremes_the_last_counts() -> None:
    x = torch.randint(0, 50, (3, 200_000), device="cuda").float()
    x[1, 70_000] = torch.nan
    x[2] = -torch.inf
    found = torch.compile(extremes, backend="gyrator", dynamic=False)(x)
    for got, wanted in zip(found, extremes(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_of_equal_extremes_of_columns_the_last_counts() -> None:
    x = torch.randint(0, 50, (200_000, 3), device="cuda").float()
    x[70_000, 1] = torch.nan
    x[:, 2] = -torch.inf
    found = torch.compile(lambda x: (*x.cummax(0), *x.cummin(0)), backend="gyrator", dynamic=False)(x)
    for got, wanted in zip(found, (*x.cummax(0), *x.cummin(0)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_integers_and_sizes_that_change() -> None:
    function = torch.compile(lambda x: (x > 0).cumsum(-1), backend="gyrator", dynamic=True)
    for shape in ((3, 100_000), (2, 17), (5, 1_234_567), (300, 4000)):
        x = random(*shape)
        assert torch.equal(function(x), (x > 0).cumsum(-1))


def test_from_the_end_as_gradients_are() -> None:
    x, tangent = random(4, 300_000, dtype=torch.float64).requires_grad_(), random(4, 300_000, dtype=torch.float64)
    y = torch.compile(lambda x: x.cumsum(-1), backend="gyrator", dynamic=False)(x)
    (got,) = torch.autograd.grad(y, x, tangent)
    torch.testing.assert_close(got, tangent.flip(-1).cumsum(-1).flip(-1))


def test_workspaces_are_shared_with_other_kernels_and_recorded() -> None:
    """Kernels that wait for each other leave signs in the counters that a scan uses next."""
    x = random(16, 131072)

    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x, -1).cumsum(-1)

    torch._dynamo.reset()
    for mode in ("default", "reduce-overhead"):
        function = torch.compile(fn, backend="gyrator", dynamic=False, mode=mode)
        for _ in range(6):
            torch.testing.assert_close(function(x), fn(x), rtol=1e-4, atol=1e-5)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    function = torch.compile(lambda x: x.cumsum(-1), backend="gyrator", dynamic=False)
    inputs = [random(4, 1 << 20) + k for k in range(2)]
    wanted = [function(x) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        results = []
        for stream, x in zip((first, second), inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(function(x))
        torch.cuda.synchronize()
        assert all(map(torch.equal, results, wanted))
