"""Pooling against eager, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.ir.program import Nest, Scatter
from tests.pure.lowering.harness import check, tensor

aten = torch.ops.aten
WINDOWS: dict[str, tuple[Any, ...]] = {  # kernel, stride, padding, dilation, ceil
    "2": ([2, 2], [], [0], [1], False),
    "3 by 2, padded": ([3, 3], [2, 2], [1, 1], [1], False),
    "overlapping, ceil": ([3, 2], [2, 3], [1, 0], [1], True),
    "dilated": ([2, 3], [1, 2], [1, 1], [2, 1], False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", WINDOWS)
def test_max_pool(case: str, dtype: torch.dtype) -> None:
    x = tensor(2, 3, 9, 8, dtype=dtype)
    window = WINDOWS[case]
    values, indices = aten.max_pool2d_with_indices(x, *window)
    check(lambda x: aten.max_pool2d_with_indices(x, *window), x)
    grad = tensor(*values.shape, dtype=dtype)
    check(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *window, i), grad, x, indices)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_maxima_are_added_where_they_belong(layout: torch.memory_format) -> None:
    x = tensor(2, 3, 8, 9).contiguous(memory_format=layout)
    values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    window = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    low = check(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *window, i), values, x, indices)
    (scatter,) = [n.root for n in low.program.nodes if isinstance(n, Nest) and isinstance(n.root, Scatter)]
    assert scatter.combine == "add" and [str(n) for n in scatter.into.shape] == ["2", "3", "72"]
    assert len(low.program.nodes) == 2  # the zeros and the sum: no copy to eager's strides


def test_max_pool_finds_nan_and_the_first_of_equals() -> None:
    x = torch.tensor([[[1.0, 1.0, float("nan")], [1.0, 0.0, 2.0], [float("-inf")] * 3]])
    check(lambda x: aten.max_pool2d_with_indices(x, [2, 2], [1, 1], [1, 1]), x)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("divisor", [None, 5])
@pytest.mark.parametrize("case", ["2", "3 by 2, padded", "overlapping, ceil"])
def test_avg_pool(case: str, include: bool, divisor: int | None) -> None:
    kernel, stride, padding, _, ceil = WINDOWS[case]
    options = (kernel, stride or kernel, padding, ceil, include, divisor)
    x = tensor(2, 3, 9, 8)
    check(lambda x: aten.avg_pool2d(x, *options), x)
    check(lambda x: aten.avg_pool2d(x, *options), x.bfloat16())
    grad = tensor(*aten.avg_pool2d(x, *options).shape)
    check(lambda g, x: aten.avg_pool2d_backward(g, x, *options), grad, x)


@pytest.mark.parametrize("size", [(3, 4), (2, 5), (1, 1), (9, 8), (11, 3)])
def test_adaptive_avg_pool(size: tuple[int, int]) -> None:
    x = tensor(2, 3, 9, 8)
    check(lambda x: aten._adaptive_avg_pool2d(x, size), x)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), tensor(2, 3, *size), x)


@pytest.mark.parametrize("size", [(3, 4), (2, 5), (1, 1), (4, 3)])
def test_adaptive_max_pool_and_its_gradient(size: tuple[int, int]) -> None:
    x = tensor(2, 3, 9, 8).round()  # with ties
    values, indices = aten.adaptive_max_pool2d(x, size)
    check(lambda x: aten.adaptive_max_pool2d(x, size), x)
    grad = tensor(*values.shape)
    check(lambda g, x, i: aten.adaptive_max_pool2d_backward(g, x, i), grad, x, indices)


def test_adaptive_pools_in_three_dimensions() -> None:
    x, size = tensor(2, 4, 5, 6), (2, 5, 4)
    check(lambda x: aten._adaptive_avg_pool3d(x, size), x)
    check(lambda g, x: aten._adaptive_avg_pool3d_backward(g, x), tensor(2, *size), x)
    check(lambda x: aten.adaptive_max_pool3d(x, size), x)


def test_pools_in_three_dimensions() -> None:
    x = tensor(2, 4, 5, 6)
    check(lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 2], [1, 1, 1]), x)
    check(lambda x: aten.avg_pool3d(x, [2, 3, 2], [2, 2, 2], [1, 1, 1]), x)


def test_symbolic_sizes() -> None:
    check(lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[0], tensor(2, 3, 9, 8), dynamic=True)
    check(lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1], False, False), tensor(2, 3, 9, 8), dynamic=True)


def test_averages_of_integers_are_truncated() -> None:
    x = torch.arange(-20, 28).reshape(1, 6, 8)
    check(lambda x: aten.avg_pool2d(x, [3, 2], [2, 2], [1, 1]), x)
