"""Where elements lie: the axes of a shape, their coordinates, and the way back from a position."""

from collections.abc import Sequence
from functools import lru_cache

from gyrator.ir.index import ONE, ZERO, Axis, Coords, Index, div_mod, is_nonnegative


@lru_cache(maxsize=1024)
def axes_of(prefix: str, shape: tuple[Index, ...]) -> tuple[Axis, ...]:
    """One axis per dimension: ``i0 < shape[0]``, ``i1 < shape[1]``, … for the prefix ``i``."""
    return tuple([Axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape)])


@lru_cache(maxsize=1024)
def coords_of(axes: tuple[Axis, ...]) -> Coords:
    """The axes as indices; an axis of extent 1 is 0."""
    return tuple([ZERO if a.extent is ONE else a.index() for a in axes])


def split_position(position: Index, extents: Sequence[Index]) -> list[Index]:
    """The row-major coordinates of a linear position within ``extents``; it must lie in range."""
    coords: list[Index] = []
    for extent in reversed(extents[1:]):
        position, inner = div_mod(position, extent)
        coords.append(inner)
    if extents:
        coords.append(position)
    return coords[::-1]


def nested_order(shape: Sequence[Index], strides: Sequence[Index]) -> list[int] | None:
    """The dimensions of more than one element, widest stride first, if each stride spans what is inner."""
    order: list[int] = []
    left = [k for k, extent in enumerate(shape) if extent is not ONE]
    span = ONE
    while left:
        inner = [k for k in left if all(is_nonnegative(strides[j] - strides[k]) for j in left)]
        if not inner or not is_nonnegative(strides[inner[-1]] - span):
            return None
        k = inner[-1]
        span = span + (shape[k] - 1) * strides[k]
        order.insert(0, k)
        left.remove(k)
    return order
