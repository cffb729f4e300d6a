"""How a group walks through memory: strides of its accesses along its axes, and what follows for the order of loops."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gyrator.ir.expr import Load, Value
from gyrator.ir.index import ONE, ZERO, Axis, Index, as_index, substitute
from gyrator.ir.program import Nest, Pointwise, Scatter, defines, expressions, loads
from gyrator.ir.volume import iterations, volume
from gyrator.schedule.align import digits_of
from gyrator.schedule.group import Group, Member

SECTOR = 8
"""Elements that lie beside each other for a GPU's memory."""
LARGE = 1 << 20
"""Bytes of a value for which it is worth a kernel to lie in another way."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of a value: its position in memory over some axes, and how many bytes it moves."""

    value: Value
    position: Index
    weight: int


def accesses(group: Group, stored: frozenset[Value], *, inside: bool = False) -> list[Access]:
    """Loads from memory and stores of the values in ``stored``; only those ``inside`` the loops over spaces."""
    own = ((m, a) for m, a in _own_accesses(group, stored) if not inside or m.space is not None)
    return [replace(a, position=substitute(a.position, m.at)) for m, a in own]


def _own_accesses(group: Group, stored: frozenset[Value] | None = None) -> Iterator[tuple[Member, Access]]:
    """As :func:`accesses` (with None for stores of all results), over the axes of the members' own nests."""
    made = {v for m in group.members for v in m.nest.out}
    for member in group.members:
        loaded, written = member_accesses(member.nest)
        yield from ((member, access) for access in loaded if access.value not in made)
        yield from ((member, access) for access in written if stored is None or access.value in stored)


def lane_cost(group: Group, stored: frozenset[Value], column: Axis | None, width: int) -> int:
    """About how many instructions load and store where vectors of ``width`` lie along an outer axis, or with None along
    rows: one for each element that is not beside the last one."""
    cost = 0
    for member, access in _own_accesses(group, stored):
        space = () if member.space is None else group.spaces[member.space]
        lane, position = column or (space[-1] if space else None), substitute(access.position, member.at)
        near = lane is not None and position.coefficient(lane) in (ZERO, ONE)
        times = iterations((*group.outer, *space))
        cost += times // width if near else times
    return cost


def across_rows(group: Group) -> bool:
    """Whether memory is contiguous along outer axes alone, so that a row is read with a stride."""
    own = ((unit_of(access.position), member, access) for member, access in _own_accesses(group))
    unit = contiguous_axes(replace(a, position=m.at[axis]) for axis, m, a in own if axis is not None)
    return not unit.isdisjoint(group.outer) and all(unit.isdisjoint(s) for s in group.spaces)


def contiguous_bytes(group: Group) -> tuple[Counter[Axis | None], Counter[Axis | None]]:
    """Bytes of large accesses by the axis they are contiguous along, or go on along after a short one: all, written."""
    own, moved, stored = [*_own_accesses(group)], Counter[Axis | None](), Counter[Axis | None]()
    least, written = max(LARGE, *[a.weight // 4 for _, a in own]), {v for m in group.members for v in m.nest.out}
    for member, access in own:
        axis = unit_of(access.position)
        if axis is not None and iterations((axis,)) < SECTOR:
            axis = unit_of(access.position, axis.extent.value)
        if axis is not None and access.weight >= least:
            moved[unit_of(member.at[axis])] += access.weight
            stored[unit_of(member.at[axis])] += access.weight * (access.value in written)
    return moved, +stored


def contiguous_axes(found: Iterable[Access]) -> set[Axis]:
    """The axes along which the largest accesses are contiguous."""
    units = [(axis, access.weight) for access in found if (axis := unit_of(access.position)) is not None]
    largest = max((weight for _, weight in units), default=0)
    return {axis for axis, weight in units if weight * 2 > largest}


@lru_cache(maxsize=1 << 13)
def member_accesses(nest: Nest) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """The loads of a nest and its stores, over the nest's axes."""
    into = nest.root.index if isinstance(nest.root, Scatter) else tuple(a.index() for a in nest.axes)
    loaded = tuple([_access(load.value, load.index) for load in loads(expressions(nest.root))])
    return loaded, tuple([_access(v, into) for v in defines(nest)])


def _access(value: Value, index: tuple[Index, ...]) -> Access:
    position = value.position(index)
    return Access(value, position, iterations(position.axes()) * value.dtype.itemsize)


def transposes(nest: Nest, least: int = LARGE) -> bool:
    """Whether a nest on a GPU copies at least so many bytes to where neighbours become none: in tiles of two sides."""
    if not (nest.on_gpu and isinstance(nest.root, Pointwise) and isinstance(nest.root.body, Load)):
        return False
    (read, *indices), (written,) = member_accesses(nest)
    return not indices and written.weight >= least and unit_of(read.position) not in (None, unit_of(written.position))


def unit_of(position: Index, step: int | None = 1) -> Axis | None:
    """The axis along which neighbours are ``step`` elements apart in memory, in this or that direction."""
    return next((m[0] for m, c in position.terms if abs(c) == step and len(m) == 1 and isinstance(m[0], Axis)), None)


@lru_cache(maxsize=1 << 13)
def steps_along(position: Index, axis: Axis) -> frozenset[int | None]:
    """How far 16 neighbours along ``axis`` are from the first one; None among them if that depends on other axes."""
    position = substitute(position, {size: as_index(volume((size.index(),))) for size in position.sizes()})
    places = [substitute(position, {axis: as_index(n)}) for n in range(min(2 * SECTOR, iterations((axis,))))]
    return frozenset((place - places[0]).value for place in places)


def contiguous(position: Index, axis: Axis) -> bool:
    """Whether neighbours along ``axis`` are neighbours in memory, or most are: so at ``axis``, at ``axis % 12`` and at
    ``axis // 2``; not at ``3 * axis``, ``axis % 3`` or ``axis // 64``."""
    if (step := position.coefficient(axis)) is not None:
        return step.value in (1, -1)
    found = steps_along(position, axis)
    sectors = {n // SECTOR for n in found if n is not None}
    return None not in found and 2 * len(found) >= SECTOR and len(sectors) <= 3


def loop_order(axes: Iterable[Axis], found: list[Access]) -> list[Axis]:
    """Axes, outermost loop first: by decreasing stride, but last the one along which most bytes lie contiguously."""
    steps = {a: [(access.position.coefficient(a), access.weight) for access in found] for a in axes}
    contiguous = {a: sum(weight for c, weight in moves if c is ONE) for a, moves in steps.items()}
    stride = {a: sum(n * (1 if c is None else abs(volume((c,)))) for c, n in moves) for a, moves in steps.items()}
    most = max(contiguous.values(), default=0)
    return sorted(contiguous, key=lambda a: (most > 0 and contiguous[a] == most, -stride[a]))


def coalesce(group: Group, order: list[Axis], found: list[Access]) -> tuple[Group, list[Axis]]:
    """Merge neighbouring loops that walk through everything as one: ``i < 4, j < 9`` with strides 9, 1 → ``m < 36``.
    Gives the group with its members over the axes that are left, which the caller puts in their places, and these.

    Refuses a pair where some index uses the axes other than as ``i*extent(j) + j``."""
    raw = [a.position for a in found] + _raw_indices(group)
    merged: list[Axis] = []
    for axis in order:
        if merged and _mergeable(merged[-1], axis, raw):
            outer = merged.pop()
            both = Axis(outer.name, outer.extent * axis.extent)
            mapping = digits_of(both.index(), (outer, axis))
            moved = [replace(m, at={a: substitute(i, mapping) for a, i in m.at.items()}) for m in group.members]
            group = replace(group, members=tuple(moved))
            raw = [substitute(i, mapping) for i in raw]
            axis = both
        merged.append(axis)
    return group, merged


def _raw_indices(group: Group) -> list[Index]:
    """Indices whose value itself matters: index values, counters of random numbers, what is within indirect ones."""
    found: list[Index] = []
    for member in group.members:
        for node in {n for expr in expressions(member.nest.root) for n in expr.walk()}:
            whole = not isinstance(node, Load)
            found += [substitute(i, member.at) for i in node.indices() if whole or i.indirects()]
    return found


def _mergeable(outer: Axis, inner: Axis, indices: list[Index]) -> bool:
    pairs = ((index.coefficient(outer), index.coefficient(inner)) for index in indices)
    return inner.extent is not ZERO and all(b is not None and a is b * inner.extent for a, b in pairs)
