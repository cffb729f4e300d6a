"""Canonical groups: those that differ only in names, in the seeds they draw from, and in the rows they write, are one.
The twelve layers of a model give twelve equal groups of each kind; finding that out costs a tenth of building one."""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import torch

from gyrator.ir.expr import Expr, Load, Random, Value, reading, stem_of, with_loads
from gyrator.ir.index import ONE, Atom, Axis, Index, Size, substitute
from gyrator.ir.program import Nest, Scatter, defines, expressions, loads
from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Kernel, indices_in
from gyrator.schedule.group import Group, Member


@dataclass(frozen=True, slots=True)
class Canonical:
    """A group under canonical names; ``actual`` gives each canonical value's own, ``slots`` what the sizes are that say
    where its seeds lie and its scatters write. Equal keys: equal kernels."""

    key: Hashable
    group: Group
    stored: frozenset[Value]
    actual: dict[Value, Value]
    slots: Mapping[Size, Index]


def canonicalise(group: Group, stored: frozenset[Value]) -> Canonical:
    """Rename values by what they hold and axes by their order, and number the members from 0."""
    names = _rename_values(group, stored)
    axes: dict[Atom, Index] = {}
    for k, axis in enumerate((*group.outer, *(a for s in group.spaces for a in s), *group.serial)):
        axes[axis] = Axis(f"i{k}", substitute(axis.extent, axes)).index()  # a serial loop's depends on the outer ones
    group = group.rewrite(axes)

    members: list[Member] = []
    slots = _slots_of(group)
    seeds: dict[Expr, Expr] = {reading(seed, names): Load(names[seed.value], (s.index(),)) for seed, s in slots.items()}
    places: dict[Size, Index] = {}
    for number, member in enumerate(group.members):
        nest = member.nest.renamed(names)
        nest = nest.rewritten(seeds.get) if seeds else nest
        nest = _anywhere(nest, f"place{number}", places)
        members.append(replace(member, nest=nest, position=number, loads=loads(expressions(nest.root))))
    kept = frozenset(names[v] for v in stored if v in names)
    parts = tuple([(m.nest.out, m.nest.axes, m.nest.root, tuple(m.at.items()), m.space, m.down) for m in members])
    key, actual = (group.outer, group.spaces, group.serial, parts, kept), {n: v for v, n in names.items()}
    sizes = {size: seed.index[0] for seed, size in slots.items()} | places
    return Canonical(key, replace(group, members=tuple(members)), kept, actual, sizes)


def _slots_of(group: Group) -> dict[Load, Size]:
    """Each of several seeds that the group draws from, and the size that says where it lies: ``rand(seeds[7], i0)`` is
    to become ``rand(seeds[slot1], i0)``. Otherwise the seed alone would tell each layer's dropout from the others'."""
    drawing = [member.nest for member in group.members if any(map(_is_one_of_several, member.loads))]
    nodes = (node for nest in drawing for e in expressions(nest.root) for node in e.walk())
    seeds = dict.fromkeys(node.seed for node in nodes if isinstance(node, Random))
    several = [seed for seed in seeds if isinstance(seed, Load) and _is_one_of_several(seed)]
    return {seed: Size(f"slot{k}", 0, (seed.value.shape[0] - 1).value) for k, seed in enumerate(several, 1)}


def _is_one_of_several(load: Load) -> bool:
    """Whether it reads a known element of a vector of integers."""
    fixed = len(load.index) == 1 and load.index[0].value is not None and load.mask is None
    return fixed and load.dtype == torch.int64 and load.value.shape[0] is not ONE


def _anywhere(nest: Nest, name: str, places: dict[Size, Index]) -> Nest:
    """A scatter into a known row with a size, called ``name``, for its number, so that rows that are filled one after
    the other have one kernel; ``places`` gets the number.

    ``out with [7, i] = x[7, i] + out[6, i]``  →  ``out with [place, i] = x[place, i] + out[place - 1, i]``"""
    root = nest.root
    rows = zip(root.index, root.into.shape, strict=True) if isinstance(root, Scatter) else ()
    known = [(row, extent) for row, extent in rows if row.value is not None and extent is not ONE]
    if not isinstance(root, Scatter) or not known:
        return nest
    (row, extent), number = known[0], known[0][0].value or 0
    size = Size(name, 0, (extent - 1).value)

    def moved(at: tuple[Index, ...], shape: tuple[Index, ...]) -> tuple[Index, ...]:
        sides = zip(at, [n.value is not None and abs(n.value - number) <= 1 for n in at], shape, strict=True)
        return tuple([size.index() + (n - row) if here and side is not ONE else n for n, here, side in sides])

    places[size] = row
    body = with_loads(root.body, lambda e: Load(e.value, moved(e.index, e.value.shape), e.mask, e.other))
    return replace(nest, root=replace(root, index=moved(root.index, root.into.shape), body=body))


def _rename_values(group: Group, stored: frozenset[Value]) -> dict[Value, Value]:
    """What the kernel reads first, then what it stores, then what it keeps to itself."""
    made = dict.fromkeys(v for m in group.members for v in defines(m.nest))
    read = [load.value for m in group.members for load in m.loads if load.value not in made]
    bases = [m.nest.root.into for m in group.members if isinstance(m.nest.root, Scatter)]
    names: dict[Value, Value] = {}
    counts: Counter[str] = Counter()
    for value in dict.fromkeys((*read, *(v for v in made if v in stored), *made, *bases)):
        stem = stem_of(value.name)
        stem = f"v_{stem}" if stem.startswith("row_") else stem  # so are scratch rows called
        counts[stem] += 1
        names[value] = replace(value, name=stem if counts[stem] == 1 else f"{stem}_{counts[stem]}")
    return names


def named(kernel: Kernel, more: str = "") -> Kernel:
    """The kernel with its sizes; its name gets a digest of its text and ``more``, the same in every process."""
    values = (*(p.value for p in kernel.params), *kernel.scratch)
    indices = (*(i for v in values for i in (*v.shape, *v.strides)), *indices_in(kernel.body))
    sizes = tuple(sorted({size for index in indices for size in index.sizes()}, key=lambda s: s.name))
    name = re.sub(r"\W+", "_", kernel.name).strip("_")[:60] or "kernel"
    plain = replace(kernel, name=name, sizes=sizes, origins=())
    digest = hashlib.sha256((kernel_text(plain) + more).encode()).hexdigest()[:10]
    return replace(plain, name=f"{name}_{digest}", origins=kernel.origins)
