"""How large things are in the call that is compiled for; what is fast may depend on it, what is right never does."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod

from gyrator.ir.expr import Checked, Expr, Op, Random, Value
from gyrator.ir.index import Atom, Axis, FloorDiv, Index, Max, Min, Mod, Size, evaluate, is_nonnegative, upper
from gyrator.ir.ops import OPS

UNKNOWN_SIZE = 64
"""What a size without a hint counts as."""
WITHIN_32_BITS = (1 << 31) - (1 << 16)
"""Up to here 32 bits also hold the places in lanes of a last block that lie past the end."""


def cost_of(node: Expr) -> int:
    """About how many cheap instructions an expression's own node takes, its operands apart."""
    if isinstance(node, Op):
        return OPS[node.name].cost
    return 40 if isinstance(node, Random | Checked) else 0


def volume(shape: Iterable[Index], unknown: int = UNKNOWN_SIZE) -> int:
    """About how many elements, for cost models: hints round up to powers of two, so that similar sizes run alike.
    An extent whose sizes have no hints counts as its upper bound; where it has none, each of them as ``unknown``, so
    that ``(s0*s1,)`` has as many elements as ``(s0, s1)``."""
    return prod([_about(n, unknown) if n.value is None else n.value for n in shape])


def iterations(axes: Iterable[Axis], unknown: int = UNKNOWN_SIZE) -> int:
    """About how many iterations loops over all these axes have."""
    return volume((axis.extent for axis in axes), unknown)


@lru_cache(maxsize=1 << 13)
def _about(extent: Index, unknown: int) -> int:
    if any(s.hint is not None for s in extent.sizes()):
        return _in_call(extent, lambda s: unknown if s.hint is None else rounded_hint(s.hint))
    most = at_most(extent)
    about = sum(times * unknown ** len(atoms) for atoms, times in extent.terms)
    return max(about, unknown) if most is None else most


def rounded_hint(hint: int) -> int:
    """The power of two that a size counts as in cost models; 8 at least: what changes will hardly stay smaller."""
    return max(power(hint), 8)


def power(n: int | None) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max((n or 1) - 1, 0).bit_length()


def at_most(index: Index) -> int | None:
    """The most that an index can be, if that is known."""
    bound = upper(index)
    return None if bound is None else bound.value


def fits_32_bits(index: Index) -> bool:
    """Whether an index provably stays within 32 bits, and so does what it is computed from."""
    return bounds_in_sizes(index) == frozenset()


def bounds_in_sizes(index: Index) -> frozenset[Index] | None:
    """Bounds that depend on sizes: where these are WITHIN_32_BITS, so is an index, and what it is computed from.
    ``s*i + j`` for i < s, j < s: ``s*s - 1``. None if it may be larger anyway."""
    ends = [upper(index), upper(-index)]
    if any(end is None or (end.value or 0) >= WITHIN_32_BITS for end in ends):
        return None
    divisions = [(a.num, a.den) for a in index.atoms() if isinstance(a, FloorDiv | Mod)]
    extremes = [(a.a, a.b) for a in index.atoms() if isinstance(a, Min | Max)]
    parts = [bounds_in_sizes(i) for both in divisions + extremes for i in both]
    own = frozenset(end for end in ends if end is not None and not is_nonnegative(-end) and end.value is None)
    return None if None in parts else own.union(*(part for part in parts if part is not None))


def bytes_of(value: Value) -> int:
    """About how many bytes a value has, for cost models."""
    return volume(value.shape) * value.dtype.itemsize


def count_of(size: Index) -> int:
    """A size as a number, its hints exact."""
    return _in_call(size, lambda s: max(s.lo, UNKNOWN_SIZE) if s.hint is None else s.hint)


def value_bytes(value: Value) -> int:
    """Bytes of a value's elements, hints exact."""
    return prod(map(count_of, value.shape)) * value.dtype.itemsize


def _in_call(index: Index, number: Callable[[Size], int]) -> int:
    """An index with ``number`` of each size, axes at their start; indices that are loaded are unknown."""
    if index.value is not None:
        return max(index.value, 0)
    env: dict[Atom, int] = {**{s: number(s) for s in index.sizes()}, **dict.fromkeys(index.axes(), 0)}
    try:
        return max(evaluate(index, env), 0)
    except KeyError:
        return UNKNOWN_SIZE
