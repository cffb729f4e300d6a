"""Groups: nests that share loops, on the way to becoming one kernel. A group has *outer* axes, under which every member
runs, and *spaces*: sets of inner axes, each the row over which some members reduce, scan or map. Softmax over
``x[i, j]`` is one group: outer ``(i,)``, one space ``(j,)``, five members. A pointwise one has outer axes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gyrator.ir.build import nested_order
from gyrator.ir.expr import Load
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Coords, Index, linear, product, substitute
from gyrator.ir.program import Nest, Pointwise, Reduce, Scan, Scatter, defines, expressions, loads
from gyrator.ir.volume import iterations
from gyrator.schedule.align import Unification, axes_of, compose, linear_terms, unify

Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A nest in a group. ``at`` gives each of its axes as an index over the group's; ``space`` is None for
    outer only. ``down``: a reduction over the group's serial axes, with a result per element of its space."""

    nest: Nest
    position: int
    at: Mapping[Atom, Index]
    space: int | None
    loads: tuple[Load, ...]
    down: bool = False

    def coordinates(self) -> Coords:
        """Where, over the group's axes, the element that one iteration defines lies in the result."""
        return tuple(substitute(a.index(), self.at) for a in self.nest.axes)

    def read(self, load: Load) -> Coords:
        """Where, over the group's axes, the element lies that one iteration reads by a load."""
        return tuple(substitute(i, self.at) for i in load.index)


@dataclass(frozen=True, slots=True)
class Group:
    """Nests in one kernel: ``outer`` axes are common to all; besides, each member runs over one of ``spaces``
    or none. ``serial`` are outer axes that one program of a GPU runs through in order (see :mod:`gpu_mix`)."""

    outer: Axes
    spaces: tuple[Axes, ...]
    members: tuple[Member, ...]
    serial: Axes = ()

    @property
    def pointwise(self) -> bool:
        """Whether no member has axes of its own inside the outer ones."""
        return not self.spaces

    @property
    def sides(self) -> tuple[int, int]:
        """About how many rows there are, and how long the longest is."""
        return iterations(self.outer), max(map(iterations, self.spaces))

    @property
    def in_order(self) -> set[int | None]:
        """The spaces whose axes keep their order: of a scan, and of argmax, which keeps the first of equal elements."""
        first = ("argmax", "argmin")
        roots = [(m.space, m.nest.root) for m in self.members]
        return {k for k, r in roots if isinstance(r, Scan) or (isinstance(r, Reduce) and r.kind in first)}

    @property
    def only_reduces(self) -> bool:
        """Whether what runs over spaces are reductions alone."""
        return all(isinstance(m.nest.root, Reduce) or m.space is None for m in self.members)

    def rewrite(self, mapping: Mapping[Atom, Index]) -> "Group":
        """Split or rename axes everywhere: each axis becomes the axes of its image, in order."""
        if not mapping:
            return self
        indices = {i for m in self.members for i in m.at.values()}
        images = {i: substitute(i, mapping) for i in indices}  # members of a group share most of them
        members = tuple([replace(m, at={a: images[i] for a, i in m.at.items()}) for m in self.members])
        spaces = tuple(_images(s, mapping) for s in self.spaces)
        return Group(_images(self.outer, mapping), spaces, members, _images(self.serial, mapping))


@dataclass(frozen=True, slots=True)
class Refused:
    """Two groups that stay apart, and why, in words for the user; ``mismatch``: their indices do not fit together."""

    reason: str
    mismatch: bool = False


def singleton(nest: Nest, position: int) -> Group:
    """The group of one nest, its axes renamed so that no two groups share one; axes of size 1 disappear."""
    inner, axes = _inner_axes(nest), nest.axes + (nest.root.reduced if isinstance(nest.root, Reduce) else ())
    own = {axis: Axis(f"n{position}{axis.name}", axis.extent) for axis in axes if axis.extent is not ONE}
    at: dict[Atom, Index] = {axis: own[axis].index() if axis in own else ZERO for axis in axes}
    outer = tuple(new for axis, new in own.items() if axis not in inner)
    space = tuple(new for axis, new in own.items() if axis in inner) or (Axis(f"n{position}one", ONE),)
    member = Member(nest, position, at, 0 if inner else None, loads(expressions(nest.root)))
    return Group(outer, (space,) if inner else (), (member,))


def _inner_axes(nest: Nest) -> Axes:
    match nest.root:
        case Reduce(_, reduced):
            return reduced
        case Scan(_, axis):
            return (axis,)
        case Scatter() if not is_atomic(nest):
            return tuple(a for a in nest.axes if a not in exclusive_axes(nest.root))
    return ()


def is_atomic(nest: Nest) -> bool:
    """Whether a scatter's iterations may collide: on a GPU, where it combines by atomics. What has none
    (products, small integers) runs its colliding iterations in order, as on a CPU."""
    root = nest.root
    if not nest.on_gpu or not isinstance(root, Scatter):
        return False
    return root.combine == "set" or (root.combine != "mul" and root.into.dtype in _ATOMIC)


_ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def exclusive_axes(root: Scatter) -> set[Axis]:
    """Axes by which iterations surely write different elements: digits of a direct coordinate, or of a flat place."""
    safe: set[Axis] = set()
    for index in (*root.index, linear(root.index, root.into.shape)):
        terms = linear_terms(Index(tuple([t for t in index.terms if t[0]])))  # the rest is a constant
        if terms is not None and nested_order([a.extent for a in terms], [*terms.values()]) is not None:
            safe.update(terms)
    return safe


def _images(axes: Axes, mapping: Mapping[Atom, Index]) -> Axes:
    return tuple([image for axis in axes for image in (axes_of(mapping[axis]) if axis in mapping else (axis,))])


def join(first: Group, second: Group, left: Coords, right: Coords, shape: Coords) -> Group | Refused:
    """One group of both, in which ``left`` (over first's axes) and ``right`` (over second's) are the same element.

    Both address a value of the given shape. If the outer axes differ, a purely pointwise group may take part of its
    axes as a space of the other. Refuses where the two iterate over the value in ways that do not match, and a mix."""
    same = None if first.serial or second.serial else unify(left, right, shape)
    if same is None:
        return Refused("they read the value at indices that do not match one to one", mismatch=True)
    a, b = first.rewrite(same.left), second.rewrite(same.right)
    axes_a, axes_b = (set(group.outer).union(*group.spaces) for group in (a, b))
    rest_a, rest_b = [x for x in a.outer if x not in axes_b], [x for x in b.outer if x not in axes_a]
    if rest_a and rest_b:  # axes along which the shared value is broadcast: matched by their extents
        if (same := _unify_axes(rest_a, rest_b)) is None:
            return Refused("they iterate over different ranges", mismatch=True)
        a, b = a.rewrite(same.left), b.rewrite(same.right)
    outer_a, outer_b = set(a.outer), set(b.outer)
    if outer_a < outer_b and b.pointwise:
        b = demote(b, outer_a)
    elif outer_b < outer_a and a.pointwise:
        a = demote(a, outer_b)
    elif outer_a != outer_b:
        return Refused("they reduce or iterate over different axes")
    return _unite(a, b)


def demote(group: Group, outer: set[Axis]) -> Group:
    """Make all outer axes but ``outer`` a space: ``pointwise (i, j)`` → outer ``(i)``, space ``(j)``."""
    inner = tuple(x for x in group.outer if x not in outer)
    members = tuple(replace(m, space=0) for m in group.members)
    return Group(tuple(x for x in group.outer if x in outer), (inner,), members)


def _unite(a: Group, b: Group) -> Group | Refused:
    """Groups with equal outer axes: equal spaces become one, in the order that one needs; others of one extent too."""
    spaces, kept, fixed = list(b.spaces), a.in_order, b.in_order
    renumber: dict[int, int] = {}
    for k in range(len(a.spaces)):
        row = a.spaces[k]
        alike = (n for n, s in enumerate(spaces) if {*s} == {*row} and (s == row or not (k in kept and n in fixed)))
        found = next(alike, None)
        if found is not None and k in kept:
            spaces[found] = row
        if found is None and any({*row} & {*s} for s in spaces):
            return Refused("they reduce over different axes, or in different orders")
        if found is None:
            free = ((n, _unify_axes(row, s)) for n, s in enumerate(spaces) if n not in renumber.values())
            found, same = next(((n, same) for n, same in free if same is not None), (len(spaces), None))
            if same is None:
                spaces.append(row)
            else:
                a, b = a.rewrite(same.left), Group(b.outer, tuple(spaces), b.members).rewrite(same.right)
                spaces = list(b.spaces)
        renumber[k] = found
    moved = tuple(m if m.space is None else replace(m, space=renumber[m.space]) for m in a.members)
    return Group(b.outer, tuple(spaces), tuple(sorted(moved + b.members, key=lambda m: m.position)))


def _unify_axes(a: Sequence[Axis], b: Sequence[Axis]) -> Unification | None:
    """Axes counted through in one order are the same, if there are as many iterations."""
    return unify([compose(a)], [compose(b)], [product([axis.extent for axis in a])])


def crossing_reads(group: Group, first: frozenset[int]) -> Refused | None:
    """Whether members that read a result across the two halves of a join read the very element of their own iteration.
    ``first`` are the positions of one half; reads within a half were checked when it was made."""
    made = {v: m for m in group.members for v in defines(m.nest)}
    bases = {m.nest.root.into: m for m in group.members if isinstance(m.nest.root, Scatter)}
    for member in group.members:
        if any(load.value in bases and bases[load.value] is not member for load in member.loads):
            return Refused("what a scatter starts from is read before it is written")
        if isinstance(member.nest.root, Scatter) and member.nest.root.into in made:
            return Refused("a scatter needs its base complete")
        for load in member.loads:
            producer = made.get(load.value)
            if producer is None or (producer.position in first) == (member.position in first):
                continue
            if isinstance(producer.nest.root, Scatter):
                return Refused("the result of a scatter is complete only after all iterations")
            inner = producer.space is not None and not isinstance(producer.nest.root, Reduce)
            if inner and member.space != producer.space:
                return Refused("the reader runs outside the rows of the producer")
            if member.read(load) != producer.coordinates():
                return Refused("the reader needs other elements than those of the same iteration")
    return None


def levels_of(members: tuple[Member, ...]) -> dict[int, int]:
    """By each member's position how many reductions of the group must be complete before it.
    It is as early as its reductions allow; then pointwise ones are as late as their first reader."""
    made = {v: m for m in members for v in defines(m.nest)}
    level: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for member in members:
        own = 0
        for load in member.loads:
            if (producer := made.get(load.value)) is not None:
                readers.setdefault(producer.position, []).append(member.position)
                own = max(own, level[producer.position] + isinstance(producer.nest.root, Reduce))
        level[member.position] = own
    for member in reversed(members):
        later = [level[r] for r in readers.get(member.position, ())]
        if later and isinstance(member.nest.root, Pointwise) and member.space is not None:
            level[member.position] = max(level[member.position], min(later))
    return level


def waits_for_reduction(group: Group) -> bool:
    """Whether some member that runs over a space needs the result of a reduction in the group."""
    levels = levels_of(group.members)
    return any(levels[m.position] for m in group.members if m.space is not None)
