"""Choosing a group's loops for a GPU: a grid of tiles, and within a program one loop per space."""

from gyrator.ir.expr import Value
from gyrator.ir.index import ZERO, Atom, Axis, Index, product
from gyrator.ir.volume import volume
from gyrator.schedule.align import digits_of
from gyrator.schedule.group import Axes, Group
from gyrator.schedule.layout import accesses
from gyrator.schedule.loops import Shape, Style, crossing, ordered

MIN_SIDE = 2
"""Tiles over two axes pay where both are at least this long: three channels of an image are."""


def gpu_loops(group: Group, stored: frozenset[Value]) -> Shape:
    """Flatten the outer axes into one axis of the grid, and each space into one row.

    A pointwise group that reads along one axis what it writes along another keeps the two apart, so that both
    become sides of a tile, with the other axes in front:

        y[b, i, j] = x[b, j, i]   →   | b { | i tiled { | j tiled { y[…] = x[…] } } }

    If it reads along a third axis too, that is the third side.
    """
    group = ordered(group, stored)
    blocks: dict[Atom, Index] = {}
    spaces = tuple([(_flat(f"row{n}", space, blocks),) for n, space in enumerate(group.spaces)])
    parallel = tuple(_grid(group, stored, blocks))
    return Shape(group, Style.TILES, parallel, None, spaces, blocks, lanes=1)


def _grid(group: Group, stored: frozenset[Value], blocks: dict[Atom, Index]) -> list[Axis]:
    if not group.outer:
        return []
    *others, last = group.outer
    side = crossing(others, last, accesses(group, stored)) if group.pointwise else None
    if side is None or min(volume((a.extent,)) for a in (side, last)) < MIN_SIDE:
        return [_flat("point", group.outer, blocks)]
    rest = [a for a in others if a is not side]
    third = crossing(rest, last, accesses(group, stored))
    rest = [a for a in rest if a is not third]
    return [*([_flat("plane", tuple(rest), blocks)] if rest else []), *([third] if third else []), side, last]


def _flat(name: str, axes: Axes, blocks: dict[Atom, Index]) -> Axis:
    """One axis in place of several; ``blocks`` notes each as a digit of it."""
    if len(axes) == 1:
        return axes[0]
    flat = Axis(name, product([a.extent for a in axes]))
    # where nothing runs digits would divide by zero
    blocks |= dict.fromkeys(axes, flat.index()) if flat.extent is ZERO else digits_of(flat.index(), axes)
    return flat
