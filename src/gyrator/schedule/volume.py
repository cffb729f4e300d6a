"""How large things are, for cost models."""

from collections.abc import Iterable

from gyrator.ir.expr import Value
from gyrator.ir.index import Index, upper


def volume(shape: Iterable[Index], hint: int = 64) -> int:
    """About how many elements, for cost models: an extent counts as its upper bound, or ``hint`` if it has none."""
    total = 1
    for extent in shape:
        most = at_most(extent)
        total *= hint if most is None else most
    return total


def at_most(index: Index) -> int | None:
    """The most that an index can be, if that is known."""
    bound = upper(index)
    return None if bound is None else bound.value


def bytes_of(value: Value) -> int:
    """About how many bytes a value has, for cost models."""
    return volume(value.shape) * value.dtype.itemsize
