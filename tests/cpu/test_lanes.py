"""Functions of many instructions, which run for four vectors at once, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.acceptance import check
from tests.cpu.runtime.headers import VECTORS_HERE


def mixed(x: Tensor, half: Tensor, small: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """Types of several widths, a mask, numbers that are compared and rounded."""
    a = torch.where(kept, x.exp(), half.float().tanh())
    return a, a.bfloat16(), (a > 0.5) & kept, (a * 10).clamp(-100, 100).to(torch.int8) + small


def places(x: Tensor) -> tuple[Tensor, ...]:
    """Elements that are reversed, apart, transposed, joined or beyond the end."""
    rows = x[:768].view(3, 256)
    return (
        x.flip(0).sin(),
        x[::2].cos(),
        rows.t().exp(),
        torch.cat([rows[:, :5], rows], 1).tanh(),
        F.pad(x, (1, 2)).sin(),
    )


def test_places_of_lanes_may_need_more_than_32_bits(backend: str) -> None:
    """Rows, each element several times, and columns in turns; little of the memory is ever touched."""
    memory = torch.zeros(2**31 + 2, dtype=torch.int8)
    memory[:: 2**29] = torch.arange(1, 6)
    for size, strides in (((5, 2), (2**29, 1)), ((5, 4), (2**29, 0)), ((4, 5), (0, 2**29))):

        def moved(x: Tensor, size: tuple[int, ...] = size, strides: tuple[int, ...] = strides) -> Tensor:
            return x.as_strided(size, strides) + 1

        assert torch.equal(torch.compile(moved, backend=backend, dynamic=False)(memory), moved(memory))


@pytest.mark.parametrize("isa", VECTORS_HERE)
@pytest.mark.parametrize("fn", [mixed, places], ids=lambda fn: fn.__name__)
def test_whole_and_partial_steps_are_right(fn: Callable[..., Any], isa: str, backend: str) -> None:
    for n in (1000, 1024, 1025):
        x = torch.randn(n)
        given = (x, x.flip(0).bfloat16(), torch.randint(-5, 5, (n,), dtype=torch.int8), x > 0)
        check(fn, given if fn is mixed else (x,), backend=backend, options={"cpu_isa": isa})


@pytest.mark.parametrize("isa", VECTORS_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_random_numbers_are_those_of_their_places(dtype: torch.dtype, isa: str, backend: str) -> None:
    """Also where a row does not begin at a multiple of four, whose elements share a call of Philox."""

    def drawn(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        return torch.rand(rows * columns, dtype=dtype), torch.randn(rows, columns, dtype=dtype)[:, 1:].neg()

    compiled = torch.compile(drawn, backend=backend, dynamic=False, options={"cpu_isa": isa})
    for rows, columns in ((1, 1000), (3, 1025)):
        torch.manual_seed(3)
        got = compiled(rows, columns)
        torch.manual_seed(3)
        seeds = torch.ops.gyrator.seeds(2, torch.device("cpu"))
        uniform = torch.ops.gyrator.rand((rows * columns,), seeds, 0, dtype, torch.device("cpu"))
        normal = torch.ops.gyrator.randn((rows, columns), seeds, 1, dtype, torch.device("cpu"))
        torch.testing.assert_close(got[0], uniform, rtol=0, atol=0)
        torch.testing.assert_close(got[1], -normal[:, 1:])


def limited(x: Tensor) -> tuple[Tensor, ...]:
    """Numbers between limits, of which one is a zero."""
    return F.relu(x), x.clamp(min=0), x.clamp(max=-0.0), F.relu6(x), x.clamp(0, 0)


@pytest.mark.parametrize("isa", VECTORS_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_zero_keeps_its_sign_where_a_limit_is_zero(dtype: torch.dtype, isa: str, backend: str) -> None:
    x = torch.tensor([-0.0, 0.0, torch.nan, 1.0, -1.0] * 8, dtype=dtype)
    for got, want in zip(torch.compile(limited, backend=backend, options={"cpu_isa": isa})(x), limited(x), strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(torch.copysign(torch.ones(()), got[x == x]), torch.copysign(torch.ones(()), want[x == x]))
