"""Operators that wrappers call: how they are found, and the checks of what they return."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import torch

from gyrator.errors import OutputMismatch, UnsupportedOperator
from gyrator.ir.evaluate import as_reals, copied
from gyrator.torch_compat import reinterpret


def _put(x: torch.Tensor, y: torch.Tensor, *places: Sequence[int] | int) -> torch.Tensor:
    """`as_strided_scatter` into memory that begins with the result, as graphs count on it."""
    made: torch.Tensor = torch.ops.aten.as_strided_scatter.default(x, y, *places)
    return copied(made, made.stride()) if made.storage_offset() else made


DIRECT: Mapping[str, Callable[..., object]] = {
    f"aten.{binding.__name__}.{overload}": binding
    for binding in (torch.mm, torch.addmm, torch.bmm, torch.baddbmm)
    for overload in ("default", "out")
} | {"aten.convolution.default": torch.convolution, "aten.as_strided_scatter.default": _put}
"""Operators with a binding of the same arguments, which takes half as long (mm: 3.5 us against 6.7)."""


def operator(name: str) -> Callable[..., object]:
    """The operator called ``aten.mm.default`` or ``library.name.overload``.

    Raises: UnsupportedOperator if no library that is loaded defines it."""
    try:
        return DIRECT.get(name) or attrgetter(name)(torch.ops)
    except AttributeError:
        raise UnsupportedOperator(name, "no library that is loaded defines it") from None


def as_complex(reals: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pairs of reals as complex numbers on the same memory; autograd sees no view."""
    shape, strides = reals.shape[:-1], [stride // 2 for stride in reals.stride()[:-1]]
    made = torch.empty(0, dtype=dtype, device=reals.device)
    return made.set_(reals.untyped_storage(), reals.storage_offset() // 2, shape, strides)


def checked(
    result: object, shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, op: str
) -> torch.Tensor | None:
    """`result` if it lies in memory as promised; a copy that does if only its strides differ. None for no elements.

    Kernels address memory by the promised strides, so a wrong promise would read elsewhere. With None nobody does.

    Raises: OutputMismatch if the shape or dtype differ, or if it is no tensor."""
    if isinstance(result, torch.Tensor):
        result = as_reals(result) if result.is_complex() else result
        if result.shape == shape and result.dtype == dtype:
            return result if strides is None or result.stride() == strides else restrided(result, strides)
        got = f"{result.dtype} of shape {tuple(result.shape)}"
    elif isinstance(result, (list, tuple)) and len(result) == 1:
        return checked(result[0], shape, strides, dtype, op)
    elif result is None and 0 in shape:  # nobody reads what some operators leave away
        return None
    else:
        got = type(result).__name__
    raise OutputMismatch(op, f"{dtype} of shape {tuple(shape)}", got)


def within(number: int, low: int | None, high: int | None, op: str) -> int:
    """`number`, a result or the size of one. Raises: OutputMismatch if it is below `low` or above `high`."""
    if low is not None and number < low:
        raise OutputMismatch(op, f"a number of at least {low}", str(number))
    if high is not None and number > high:
        raise OutputMismatch(op, f"a number of at most {high}", str(number))
    return number


def restrided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """`tensor` with other strides: itself where no step can tell the difference, else a copy."""
    steps = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if tensor.numel() == 0 or all(size == 1 or have == want for size, have, want in steps):
        return reinterpret(tensor, tensor.shape, strides, 0)
    return copied(tensor, strides)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself if its first element lies at a multiple of 16 bytes, else a copy that does."""
    return tensor if tensor.data_ptr() % 16 == 0 else copied(tensor, tensor.stride())
