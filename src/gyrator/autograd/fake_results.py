"""Results of operators on fake tensors: as their real kernels return them, and asked of torch once per metadata.

A traced graph promises the strides of its fake tensors, and what the user sees must lie in memory as in eager. For
operators whose fake kernels state other strides, or sizes, than their real ones return, functions here stand in.

A model repeats its layers: most calls are like an earlier one, and what torch's fake mode does for a call,
its own cache included, costs ten times as much as making a tensor of known metadata.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autograd.builder import PLAIN_TYPES, metadata_key

aten = torch.ops.aten

_UNKNOWN_SIZES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


class FakeResults:
    """Remembers the metadata of results of pure operators: one new tensor, of sizes that are numbers."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Any, tuple[Any, ...]] = {}

    def call(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, pure: bool) -> Any:
        """The results of a call of `op`, which are new each time and remembered if it is `pure`."""
        function: Callable[..., Any] = _STAND_INS.get(op, op)
        if pure and torch.Tag.pointwise in op.tags:
            function = partial(_pointwise, op)
        key = _key((op, args, *kwargs.items())) if pure and op.namespace in ("aten", "prims") else None
        if key is None or not _UNKNOWN_SIZES.isdisjoint(op.tags):
            return function(*args, **kwargs)
        known = self._known.get(key)
        if known is not None:
            size, strides, dtype, device = known
            with _disable_current_modes():
                return FakeTensor(self._mode, torch.empty_strided(size, strides, dtype=dtype, device="meta"), device)
        out = function(*args, **kwargs)
        found = _metadata(out) if type(out) is FakeTensor and out.storage_offset() == 0 else None
        if found is not None:
            self._known[key] = found[:4]
        return out


def _key(value: Any) -> Any:
    """A value as part of a key; None where a call with it is not to be remembered."""
    kind = type(value)
    if kind is FakeTensor:
        return _metadata(value)
    if kind in PLAIN_TYPES or kind is OpOverload:
        return kind, value
    if kind in (tuple, list, torch.Size):
        parts = [_key(item) for item in value]
        return None if None in parts else (kind, *parts)
    return None


def _metadata(tensor: FakeTensor) -> tuple[Any, ...] | None:
    """What an operator's fake kernel can see of a tensor; None with symbols or a known value."""
    if tensor.constant is not None or tensor.layout is not torch.strided:
        return None
    if any(type(number) is not int for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
        return None
    return metadata_key(tensor)


# --- results that torch states otherwise --------------------------------------------------------------


def _pointwise(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """A dimension that an operand lacks has stride 0 in eager's kernels; fake ones state another and count it."""
    rank = max([x.ndim for x in args if isinstance(x, Tensor)], default=0)
    lacks = [x.ndim and rank - x.ndim if isinstance(x, Tensor) else 0 for x in args]
    given = zip(args, lacks, strict=True)
    return op(*[x.new_empty_strided((1,) * n + x.shape, (0,) * n + x.stride()) if n else x for x, n in given], **kwargs)


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


def _roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    """The CPU kernel concatenates two parts of the tensor for each dimension."""
    if x.device.type != "cpu" or not dims or x.numel() == 0 or _key((x, shifts)) is None:
        return aten.roll.default(x, shifts, dims)
    for shift, dim in zip(shifts, dims, strict=True):
        start = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _unique(*args: Any, **kwargs: Any) -> Any:
    """Sizes are known from the values alone, though torch 2.11 states one element."""
    raise DynamicOutputShapeException(aten._unique.default)


_STAND_INS: Mapping[OpOverload, Callable[..., Any]] = {
    aten.log_sigmoid_forward.default: _log_sigmoid_forward,
    # a filled clone lies in memory as a clone does
    **dict.fromkeys(
        (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), lambda x, *_, **__: aten.clone.default(x)
    ),
    aten.max_unpool2d.default: _max_unpool2d,
    aten.roll.default: _roll,
    aten._unique.default: _unique,
}
