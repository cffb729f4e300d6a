"""Longer sides of products on a GPU: what becomes of their arguments."""

from __future__ import annotations

import pytest
import torch

from gyrator.ir.check import check_program
from gyrator.ir.expr import Value
from gyrator.ir.index import const, contiguous_strides
from gyrator.ir.program import Extern, Input, Program, View
from gyrator.schedule.pad import pad_rows
from gyrator.schedule.plan import full_view
from gyrator.session import Counters

GPU = torch.device("cuda", 0)


def value(name: str, *shape: int, step: int = 1) -> Value:
    sizes = tuple(map(const, shape))
    strides = tuple(s * step for s in contiguous_strides(sizes))
    return Value(name, sizes, torch.bfloat16, strides, GPU)


def padded(bias: Value) -> Extern:
    """The call that a product of 4096 x 1024 x 1111 with that bias becomes."""
    x, w, y = value("x", 4096, 1024), value("w", 1024, 1111), value("y", 4096, 1111)
    call = Extern((y,), "aten.addmm.default", (full_view(bias), full_view(x), full_view(w)))
    inputs = tuple(map(Input, (bias, x, w)))
    result = pad_rows(Program("f", inputs, (call,), (full_view(y),)), Counters())
    check_program(result)
    return next(node for node in result.nodes if isinstance(node, Extern))


def test_a_bias_gets_as_many_elements_as_the_columns() -> None:
    bias = padded(value("b", 1111)).args[0]
    assert isinstance(bias, View) and bias == full_view(bias.value) and bias.shape == (const(1112),)


@pytest.mark.parametrize("bias", [value("b", 1111, step=2), value("b", 4096, 1111)])
def test_a_product_stays_whose_bias_has_gaps_or_rows(bias: Value) -> None:
    assert padded(bias).args[0] == full_view(bias)
