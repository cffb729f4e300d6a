"""How shapes, constants and names are written in Python. The text of a size, ``2*s0 + (s0 // 3)``, is Python too."""

import keyword
import math
import re
from collections.abc import Iterable

import torch

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

    Raises: TypeError for a value of another kind.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({constant_text(value.real)}, {constant_text(value.imag)})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, torch.device):
        return device_text(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} has no text")


def device_text(device: torch.device) -> str:
    """``torch.device("cuda", 0)``."""
    return f'torch.device("{device}")'
