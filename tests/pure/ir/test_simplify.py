"""Local rules on expressions."""

from __future__ import annotations

import math

import pytest
import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Value
from gyrator.ir.index import Axis, const
from gyrator.ir.simplify import simplifier

MASK = Load(Value("mask", (const(8),), torch.bool, (const(1),)), (Axis("i", const(8)).index(),))
RULE = simplifier(exact_rounding=True)


def scaled(name: str, value: float, dtype: torch.dtype) -> Expr | None:
    return RULE(Op(name, (Op("cast", (MASK,), dtype), Const(value, dtype)), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_that_is_scaled_is_a_choice(dtype: torch.dtype) -> None:
    yes = (torch.tensor(1.0, dtype=dtype) / torch.tensor(0.9, dtype=dtype)).item()
    assert scaled("div", 0.9, dtype) is Op("where", (MASK, Const(yes, dtype), Const(0.0, dtype)), dtype)
    negative = scaled("mul", -2.0, dtype)
    assert isinstance(negative, Op) and negative.args[2] is Const(-0.0, dtype)


def test_a_choice_of_literals_is_converted_as_literals() -> None:
    def choice(yes: float, no: float, dtype: torch.dtype) -> Op:
        return Op("where", (MASK, Const(yes, dtype), Const(no, dtype)), dtype)

    integers = choice(1, 0, torch.int64)
    assert RULE(Op("cast", (integers,), torch.float32)) is choice(1.0, 0.0, torch.float32)
    assert RULE(Op("cast", (choice(2.7, -1.5, torch.float32),), torch.int64)) is choice(2, -1, torch.int64)
    infinite = choice(1.0, float("inf"), torch.float32)  # what integer becomes of it depends on the machine
    assert RULE(Op("cast", (infinite,), torch.int64)) is None


def test_what_is_rounded_to_16_bits_is_not_scaled_beforehand() -> None:
    assert scaled("div", 0.9, torch.bfloat16) is None


def test_an_integer_is_clamped_once() -> None:
    x = Load(Value("x", (const(4),), torch.int64, (const(1),)), (Axis("i", const(4)).index(),))

    def clamp(name: str, e: Expr, limit: int) -> Op:
        return Op(name, (e, Const(limit, torch.int64)), torch.int64)

    inner = clamp("maximum", clamp("minimum", x, 7), 0)
    assert RULE(clamp("minimum", inner, 7)) is inner
    assert RULE(clamp("maximum", inner, -1)) is inner
    wider = clamp("minimum", inner, 9)
    assert RULE(clamp("maximum", wider, -1)) is wider
    assert RULE(clamp("minimum", inner, 6)) is None


@pytest.mark.parametrize("shift", [-3, 0])
def test_a_place_is_cut_to_an_integer_as_a_float(shift: int) -> None:
    """Zero has the sign that a way through integers gives it."""
    at = Op("cast", (IndexValue(Axis("i", const(6)).index() + shift),), torch.float32)
    half = Op("mul", (at, Const(0.5, torch.float32)), torch.float32)
    there = RULE(Op("cast", (Op("cast", (half,), torch.int64),), torch.float32))
    assert there is Op("add", (Op("trunc", (half,), torch.float32), Const(0.0, torch.float32)), torch.float32)
    values = (torch.arange(6) + shift) * 0.5
    expected, got = values.long().float(), torch.trunc(values) + 0.0
    assert torch.equal(got, expected) and torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("step", [("mul", 1e30), ("mul", math.inf), ("add", math.nan), ("div", 0.0), ("log", None)])
def test_what_may_be_no_number_or_too_large_goes_through_integers(step: tuple[str, float | None]) -> None:
    """What becomes of it there is no float near it: -2⁶³."""
    name, by = step
    at = Op("cast", (IndexValue(Axis("i", const(6)).index()),), torch.float32)
    number = Op(name, (at,) if by is None else (at, Const(by, torch.float32)), torch.float32)
    assert RULE(Op("cast", (Op("cast", (number,), torch.int64),), torch.float32)) is None
    squared = Op("mul", (at, at), torch.float32)
    assert RULE(Op("cast", (Op("cast", (squared,), torch.int64),), torch.float32)) is None


def test_numbers_that_wrap_around_are_no_indices() -> None:
    """As those of a hash, or powers: an int64 wraps around, an index never does."""
    i, big = IndexValue(Axis("i", const(6)).index()), Const(1 << 62, torch.int64)
    assert RULE(Op("mul", (i, Const(3, torch.int64)), torch.int64)) is IndexValue(i.index * 3)
    assert RULE(Op("mul", (i, big), torch.int64)) is None
    assert RULE(Op("mul", (i, i), torch.int64)) is None
    assert RULE(Op("add", (big, big), torch.int64)) is Const(-(1 << 63), torch.int64)
