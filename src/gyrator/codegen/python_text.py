"""How shapes, constants and names are written in Python. The text of a size, ``2*s0 + (s0 // 3)``, is Python too."""

import keyword
import math
import re
from collections.abc import Iterable, Mapping

import torch

from gyrator.codegen import cpp_names
from gyrator.errors import UnsupportedInput
from gyrator.ir.expr import Scalar
from gyrator.ir.index import Index
from gyrator.ir.program import Arg


class Names:
    """Python identifiers handed out once each; a key keeps the name that it was given."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._given: dict[object, str] = {}

    def of(self, key: object, wish: str) -> str:
        """The name of `key`; the first time a legal identifier like `wish` that nobody has: ``x@1`` → ``x_1``."""
        if key not in self._given:
            self._given[key] = self.fresh(wish)
        return self._given[key]

    def fresh(self, wish: str) -> str:
        """A legal identifier like `wish` that nobody has."""
        base = re.sub(r"_*\W+_*", "_", wish).strip("_") or "v"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"v_{base}"
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def tuple_of(items: Iterable[Index | str]) -> str:
    """A tuple of expressions: ``(8, s0)``, ``(8,)``, ``()``."""
    texts = [*map(str, items)]
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def constant_text(value: Arg) -> str:
    """A literal for an argument of an operator that is neither a tensor nor a size.

    Raises: TypeError for a value of another kind."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({constant_text(value.real)}, {constant_text(value.imag)})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} has no text")


_OWN = {torch.bool: "int1", torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5"}
TYPES: Mapping[torch.dtype, str] = {d: f"tl.{_OWN.get(d) or str(d).removeprefix('torch.')}" for d in cpp_names.TYPES}
"""Element type → its name in Triton, for those that C++ kernels have too."""

_PLAIN = (torch.float32, torch.int32, torch.bool)


def type_name(dtype: torch.dtype) -> str:
    """The element type's name in Triton. Raises: UnsupportedInput for a type that kernels do not handle."""
    if dtype not in TYPES:
        raise UnsupportedInput(f"a tensor of {dtype} on a GPU")
    return TYPES[dtype]


def is_small(dtype: torch.dtype) -> bool:
    """Whether arithmetic on the type runs in float32: floats of 16 or 8 bits."""
    return dtype.is_floating_point and dtype.itemsize < 4


def working(dtype: torch.dtype) -> torch.dtype:
    """The type in which a reduction of elements of ``dtype`` runs."""
    return torch.float32 if is_small(dtype) else torch.int32 if dtype.itemsize < 4 else dtype


def typed_literal(value: Scalar, dtype: torch.dtype) -> str:
    """A literal that has its type wherever an operator meets it."""
    return constant_text(value) if dtype in _PLAIN and str(value) != "-0.0" else scalar(value, dtype)


def scalar(value: Scalar, dtype: torch.dtype) -> str:
    """A literal as a tensor of no dimensions, for functions that ask for its type. Triton writes 0.0 for -0.0."""
    made = f"tl.full([], {constant_text(value)}, {'tl.float32' if is_small(dtype) else type_name(dtype)})"
    made = f"rt.neg({made})" if str(value) == "-0.0" else made
    return f"{made}.to({type_name(dtype)})" if is_small(dtype) else made
