"""Operators whose fake kernels state other strides, or sizes, than their real ones return.

A traced graph promises the strides of its fake tensors, and what the user sees must lie in memory as in
eager. The functions here stand in for such operators on fake tensors: same result, eager's strides.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DynamicOutputShapeException

aten = torch.ops.aten


def _log_sigmoid_forward(x: Tensor) -> Any:
    """The CPU kernel makes its argument contiguous first."""
    return aten.log_sigmoid_forward.default(x.contiguous() if x.device.type == "cpu" else x)


def _max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """On a CPU the result of a channels-last image is channels-last."""
    result = aten.max_unpool2d.default(x, indices, output_size)
    last = torch.channels_last
    if x.device.type == "cpu" and x.ndim == 4 and x.is_contiguous(memory_format=last) and not x.is_contiguous():
        return result.contiguous(memory_format=last)
    return result


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """The result is a filled clone: it lies in memory as a clone does."""
    return aten.clone.default(x)


def _unique(*args: Any, **kwargs: Any) -> Any:
    """Sizes are known from the values alone, though torch 2.11 states one element."""
    raise DynamicOutputShapeException(aten._unique.default)


REAL_STRIDES: Mapping[OpOverload, Callable[..., Any]] = {
    aten.log_sigmoid_forward.default: _log_sigmoid_forward,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.max_unpool2d.default: _max_unpool2d,
    aten._unique.default: _unique,
}
