"""What things are called in Triton: element types, literals, the types that arithmetic runs in."""

from types import MappingProxyType

import torch

from gyrator.codegen import cpp_names
from gyrator.codegen.python_text import constant_text
from gyrator.errors import UnsupportedInput
from gyrator.ir.expr import Scalar

_OWN = {torch.bool: "int1", torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5"}
TYPES = MappingProxyType({d: f"tl.{_OWN.get(d) or str(d).removeprefix('torch.')}" for d in cpp_names.TYPES})
"""Element type → its name in Triton, for those that C++ kernels have too."""

_PLAIN = (torch.float32, torch.int32, torch.bool)


def type_name(dtype: torch.dtype) -> str:
    """The element type's name in Triton.

    Raises: UnsupportedInput for a type that kernels do not handle.
    """
    if dtype not in TYPES:
        raise UnsupportedInput(f"a tensor of {dtype} on a GPU")
    return TYPES[dtype]


def is_small(dtype: torch.dtype) -> bool:
    """Whether arithmetic on the type runs in float32: floats of 16 or 8 bits."""
    return dtype.is_floating_point and dtype.itemsize < 4


def working(dtype: torch.dtype) -> torch.dtype:
    """The type in which a reduction of elements of ``dtype`` runs."""
    if is_small(dtype):
        return torch.float32
    return torch.int32 if dtype.itemsize < 4 else dtype


def typed_literal(value: Scalar, dtype: torch.dtype) -> str:
    """A literal that has its type wherever an operator meets it."""
    return constant_text(value) if dtype in _PLAIN else scalar(value, dtype)


def scalar(value: Scalar, dtype: torch.dtype) -> str:
    """A literal as a tensor of no dimensions, for functions that ask for its type."""
    if is_small(dtype):
        return f"tl.full([], {constant_text(value)}, tl.float32).to({type_name(dtype)})"
    return f"tl.full([], {constant_text(value)}, {type_name(dtype)})"
