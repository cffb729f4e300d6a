"""Long rows that programs of a GPU share: each takes a part, and they exchange what they reduce within one launch."""

from gyrator.ir.expr import Value
from gyrator.ir.index import Index, substitute
from gyrator.ir.program import Reduce, Scan, Scatter
from gyrator.ir.volume import iterations
from gyrator.schedule.gpu import SHORT_ROW, Gpu
from gyrator.schedule.gpu_tiling import WHOLE_ROW, power
from gyrator.schedule.group import Group
from gyrator.schedule.layout import across_rows, transposes

MIN_PART, MIN_SHARED, MIN_WORK = 1 << 11, 1 << 13, 1 << 16
"""Elements of a part, of a row that is worth sharing, and of all rows, unless they are too long for programs alone."""

SCAN_PARTS = (8192, 4096, 16384)
"""Elements of a part of a row that is scanned."""


def shared_blocks(group: Group, gpu: Gpu | None) -> tuple[int, ...]:
    """Sizes of parts in which programs may share the rows of a group, the best guess first; none where they do not.

    They do if there are at most half as many rows as multiprocessors, all sizes are known, the rows lie along memory,
    and the parts stay in registers: all programs must run at the same time, so there is one on a multiprocessor.
    Refuses scatters, transpositions, and sums down the columns beside those of rows.

    Scans share rows of any number and length, if there are at most twice as many rows as multiprocessors: a program
    waits only for those before it. Refuses reductions beside them, and what is computed once for a row."""
    if gpu is None or not group.members[0].nest.on_gpu or group.serial or len(group.spaces) != 1:
        return ()
    roots = {type(m.nest.root) for m in group.members}
    if Scatter in roots or not roots & {Reduce, Scan}:
        return ()
    outer, space = group.outer, group.spaces[0]
    refused = any(transposes(m.nest) for m in group.members) or across_rows(group)
    if Scan in roots:
        refused |= Reduce in roots or any(m.space is None for m in group.members)
        refused |= any(isinstance(m.nest.root, Scan) and "sort" in m.nest.root.kind for m in group.members)
        few = iterations(outer, 1) <= 2 * gpu.processors
        long = iterations(space, MIN_SHARED) >= MIN_SHARED
        return SCAN_PARTS if few and long and not refused else ()
    rows, row = group.sides
    refused |= any(a.extent.value is None for a in (*outer, *space))
    short = row < MIN_SHARED or (rows * row < MIN_WORK and row <= SHORT_ROW)
    if refused or short or not 0 < 2 * rows <= gpu.processors:
        return ()
    part, most = max(power(-(-row // (gpu.processors // rows))), MIN_PART), WHOLE_ROW // max(_kept(group), 1)
    return tuple(n for n in dict.fromkeys((part, 2 * part, power(row))) if part <= n <= min(power(row), most))


def _kept(group: Group) -> int:
    """How many loads along a row are needed before a reduction and again after it; of all before it if none are."""
    needs: dict[Value | None, frozenset[tuple[Value, Index]]] = {}
    waiting: set[Value | None] = set()
    first, later = set[tuple[Value, Index]](), set[tuple[Value, Index]]()
    for member in group.members:
        places = [(x.value, substitute(x.value.position(x.index), member.at)) for x in member.loads]
        own = frozenset((v, at) for v, at in places if v not in needs and at.axes() & set(group.spaces[0]))
        own = own.union(*(needs[v] for v, _ in places if v in needs))
        waits, reduces = any(v in waiting for v, _ in places), isinstance(member.nest.root, Reduce)
        if waits:
            later |= own
        elif reduces:
            first |= own
        waiting.update(member.nest.out if waits or reduces else ())
        needs |= dict.fromkeys(member.nest.out, frozenset() if reduces else own)
    return len(first & later) or len(first)
