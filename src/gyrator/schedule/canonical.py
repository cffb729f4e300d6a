"""Canonical groups: groups that differ only in the names of values and axes are built once.

The twelve layers of a model give twelve equal groups of each kind; finding that out costs a tenth of building a kernel.
"""

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from gyrator.ir.expr import Value
from gyrator.ir.index import Axis
from gyrator.ir.program import Scatter, defines, expressions, loads
from gyrator.schedule.group import Group, Member


@dataclass(frozen=True, slots=True)
class Canonical:
    """A group under canonical names; ``actual`` gives each canonical value's own. Equal keys: equal kernels."""

    key: Hashable
    group: Group
    stored: frozenset[Value]
    actual: dict[Value, Value]


def canonicalise(group: Group, stored: frozenset[Value]) -> Canonical:
    """Rename values by what they hold and axes by their order, and number the members from 0."""
    names = _rename_values(group, stored)
    axes = (*group.outer, *(a for s in group.spaces for a in s), *group.serial)
    group = group.rewrite({axis: Axis(f"i{k}", axis.extent).index() for k, axis in enumerate(axes)})

    members: list[Member] = []
    for number, member in enumerate(group.members):
        nest = member.nest.renamed(names)
        members.append(replace(member, nest=nest, position=number, loads=loads(expressions(nest.root))))
    kept = frozenset(names[v] for v in stored if v in names)
    parts = tuple([(m.nest.out, m.nest.axes, m.nest.root, tuple(m.at.items()), m.space, m.down) for m in members])
    return Canonical(
        (group.outer, group.spaces, group.serial, parts, kept),
        replace(group, members=tuple(members)),
        kept,
        {n: v for v, n in names.items()},
    )


def stem_of(name: str) -> str:
    """What a value holds, without the numbers that tell it from others: ``var_mean_10_welford`` →
    ``var_mean_welford``."""
    return re.sub(r"_?\d+", "", name).strip("_") or "t"


def _rename_values(group: Group, stored: frozenset[Value]) -> dict[Value, Value]:
    """What the kernel reads first, then what it stores, then what it keeps to itself."""
    made = dict.fromkeys(v for m in group.members for v in defines(m.nest))
    read = [load.value for m in group.members for load in m.loads if load.value not in made]
    bases = [m.nest.root.into for m in group.members if isinstance(m.nest.root, Scatter)]
    names: dict[Value, Value] = {}
    counts: Counter[str] = Counter()
    for value in dict.fromkeys((*read, *(v for v in made if v in stored), *made, *bases)):
        stem = stem_of(value.name)
        if stem.startswith("row_"):  # so are scratch rows called
            stem = f"v_{stem}"
        counts[stem] += 1
        name = stem if counts[stem] == 1 else f"{stem}_{counts[stem]}"
        names[value] = Value(name, value.shape, value.dtype, value.strides, value.device)
    return names
