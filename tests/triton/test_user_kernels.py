"""Triton kernels that a user's program launches, as torch.compile captures them, here by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor, fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation
from triton.language import store as keep
from triton.runtime.interpreter import InterpretedFunction

from gyrator.autograd.triton_kernels import stored
from gyrator.backend import gyrator
from gyrator.insight import counters


def put(pointer, at, value):
    tl.store(pointer + at, value)


put = InterpretedFunction(put)


def gather_scaled(x, index, out, marks, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + i, mask=i < n)
    into = out
    tl.store(into + i, tl.load(x + at, mask=i < n) * factor, mask=i < n)
    put(marks, tl.program_id(0), 7.0)


def add_to_columns(x, row, column, n):
    i = tl.arange(0, 4)
    tl.atomic_add(x + i * row + tl.program_id(0) * column, i + n)


def add_by_another_name(x, y):
    i = tl.arange(0, 4)
    keep(y + i, tl.load(x + i) + 1)


def launched(kernel: Callable[..., Any], grid: tuple[Any, ...], **kwargs: Any) -> dict[str, Any]:
    """What capture records for a launch; what is written in capitals is constant."""
    constants = {name: kwargs.pop(name) for name in list(kwargs) if name.isupper()}
    return {
        "kernel_idx": kernel_side_table.add_kernel(InterpretedFunction(kernel)),
        "constant_args_idx": kernel_side_table.add_constant_args(constants),
        "grid": [grid],
        "tma_descriptor_metadata": {},
        "kwargs": kwargs,
    }


def test_what_a_kernel_stores_to_is_read_from_its_source() -> None:
    tensors = {"x", "index", "out", "marks"}
    assert stored(gather_scaled) & tensors == {"out", "marks"}
    assert stored(add_to_columns) & {"x"} == {"x"}
    assert stored(add_by_another_name) == {"y"}


def test_a_launch_writes_new_values_of_its_arguments() -> None:
    graph = fx.Graph()
    x, index = graph.placeholder("x"), graph.placeholder("index")
    given, out = graph.call_function(torch.add, (x, 1)), graph.call_function(torch.empty_like, (x,))
    marks = graph.call_function(torch.zeros, (4,))
    call = launched(gather_scaled, (3,), x=given, index=index, out=out, marks=marks, n=20, factor=2.5, BLOCK=8)
    graph.call_function(triton_kernel_wrapper_mutation, (), call)
    graph.output((graph.call_function(torch.mul, (out, 2)), marks, given))
    a, order = torch.randn(20), torch.randperm(20)
    compiled = gyrator(fx.GraphModule({}, graph), [a, order])
    for _ in range(2):
        doubled, found, sums = compiled(a, order)
        assert torch.equal(doubled, (a + 1)[order] * 2.5 * 2) and torch.equal(sums, a + 1)
        assert found.tolist() == [7, 7, 7, 0]


def test_a_kernel_may_write_where_it_reads() -> None:
    """Its programs do not wait for each other, so that it is launched as always, on what it reads and a new value."""
    graph = fx.Graph()
    x, index = graph.placeholder("x"), graph.placeholder("index")
    given, marks = graph.call_function(torch.add, (x, 1)), graph.call_function(torch.zeros, (4,))
    call = launched(gather_scaled, (3,), x=given, index=index, out=given, marks=marks, n=20, factor=2.5, BLOCK=8)
    graph.call_function(triton_kernel_wrapper_mutation, (), call)
    graph.output((given,))
    a, before = torch.randn(20), counters().externs()
    (doubled,) = gyrator(fx.GraphModule({}, graph), [a, torch.arange(20)])(a, torch.arange(20))
    called = counters().externs().keys() - before.keys()
    assert torch.equal(doubled, (a + 1) * 2.5)
    assert not any("region" in name for name in called)


@pytest.mark.parametrize("view", [Tensor.t, lambda x: x[:4]], ids=["transposed", "a part"])
def test_a_kernel_gets_the_strides_that_the_program_tells_it(view: Callable[[Tensor], Tensor]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    own = graph.call_function(torch.clone, (x,))
    part = graph.call_function(view, (own,))
    row, column = view(torch.empty(6, 4)).stride()
    graph.call_function(
        triton_kernel_wrapper_mutation, (), launched(add_to_columns, (2,), x=part, row=row, column=column, n=5)
    )
    graph.output((own, graph.call_function(torch.add, (part, 0))))
    a = torch.randn(6, 4)
    whole, seen = gyrator(fx.GraphModule({}, graph), [a])(a)
    expected = a.clone()
    view(expected)[:4, :2] += torch.arange(4.0)[:, None] + 5
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(seen, view(expected))
