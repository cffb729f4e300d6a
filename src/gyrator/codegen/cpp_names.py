"""What things are called in C++: element types, literals, identifiers."""

import math
import re
from collections.abc import Mapping

import numpy
import torch
from sympy.printing.cxx import reserved

from gyrator.errors import UnsupportedInput
from gyrator.ir.expr import Scalar

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "gy::bf16", torch.float16: "gy::f16",
    torch.float8_e4m3fn: "gy::f8e4m3fn", torch.float8_e5m2: "gy::f8e5m2", torch.bool: "bool",
    **{getattr(torch, name): f"{name}_t" for name in ("int8", "int16", "int32", "int64", "uint8")},
}  # fmt: skip
"""Element type → its name in C++."""

_KEYWORDS = frozenset(reserved["C++11"]).union(
    """catch char8_t co_await co_return co_yield concept consteval constinit requires int8_t int16_t
    int32_t int64_t uint8_t uint16_t uint32_t uint64_t main linux unix gy""".split()
)


def legal(wish: str) -> str:
    """An identifier like ``wish``: ``x@1`` → ``x_1``, ``2d`` → ``v_2d``, ``int`` → ``v_int``."""
    base = re.sub(r"_{2,}|\W", "_", wish).lstrip("_") or "v"
    return f"v_{base}" if base[0].isdigit() or base in _KEYWORDS else base


def type_name(dtype: torch.dtype) -> str:
    """``float`` for torch.float32, and so on.

    Raises: UnsupportedInput for an element type that kernels have no arithmetic for (complex, quantised)."""
    if dtype not in TYPES:
        raise UnsupportedInput(f"an element of type {dtype}")
    return TYPES[dtype]


def literal(value: Scalar, dtype: torch.dtype) -> str:
    """A C++ expression of exactly the type of ``dtype``; the value is rounded as torch rounds a Python scalar.

    ``0.1`` as float32 is ``0.1f``, as bfloat16 ``gy::bf16{0x3dcd}``. Integers are within the type."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype == torch.float64:
        return _float_literal(float(value), "double", "")
    if dtype == torch.float32:
        with numpy.errstate(over="ignore"):
            return _float_literal(numpy.float32(value), "float", "f")
    if dtype.is_floating_point:
        bits = torch.tensor(float(value), dtype=dtype).view(torch.uint8 if dtype.itemsize == 1 else torch.uint16).item()
        return f"{type_name(dtype)}{{0x{int(bits):0{2 * dtype.itemsize}x}}}"
    return "INT64_MIN" if value == -(1 << 63) else f"{type_name(dtype)}({int(value)})"


def _float_literal(value: float | numpy.float32, name: str, suffix: str) -> str:
    if math.isnan(value):
        return f"gy::quiet_nan<{name}>"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}gy::infinity<{name}>"
    return str(value) + suffix  # the shortest decimal that reads back as the same number
