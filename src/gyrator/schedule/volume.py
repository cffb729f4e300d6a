"""How large things are, for cost models."""

from collections.abc import Iterable

from gyrator.ir.expr import Value
from gyrator.ir.index import Index, upper


def volume(shape: Iterable[Index], hint: int = 64) -> int:
    """About how many elements, for cost models: an extent counts as its upper bound, or ``hint`` if it has none."""
    total = 1
    for extent in shape:
        value = extent.value
        if value is None:
            bound = upper(extent)
            value = None if bound is None else bound.value
        total *= hint if value is None else value
    return total


def bytes_of(value: Value) -> int:
    """About how many bytes a value has, for cost models."""
    return volume(value.shape) * value.dtype.itemsize
