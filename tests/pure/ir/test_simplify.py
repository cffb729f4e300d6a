"""Local rules on expressions."""

from __future__ import annotations

import pytest
import torch

from gyrator.ir.expr import Const, Expr, Load, Op, Value
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


def test_what_is_rounded_to_16_bits_is_not_scaled_beforehand() -> None:
    assert scaled("div", 0.9, torch.bfloat16) is None
