"""How large things are, for cost models."""

from collections.abc import Iterable

from gyrator.ir.expr import Value
from gyrator.ir.index import Index, upper


def volume(shape: Iterable[Index], hint: int = 64) -> int:
    """About how many elements, for cost models: an extent counts as its upper bound; where it has none, each size in it
    as ``hint``, so that ``(s0*s1,)`` has as many as ``(s0, s1)``.
    """
    total = 1
    for extent in shape:
        most = at_most(extent)
        about = sum(times * hint ** len(sizes) for sizes, times in extent.terms)
        total *= max(about, hint) if most is None else most
    return total


def at_most(index: Index) -> int | None:
    """The most that an index can be, if that is known."""
    bound = upper(index)
    return None if bound is None else bound.value


def bytes_of(value: Value) -> int:
    """About how many bytes a value has, for cost models."""
    return volume(value.shape) * value.dtype.itemsize
