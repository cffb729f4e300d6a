"""Reductions on a GPU: few long ones are split over programs, or programs share their rows and exchange within one
launch what they reduce; a softmax reads a long row once less."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

import torch

from gyrator.ir.build import coords_of
from gyrator.ir.expr import Expr, Load, Op, Value
from gyrator.ir.index import ONE, ZERO, Index, substitute
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Scan, Scatter, defines, loads, map_nests, uses
from gyrator.ir.volume import iterations, power, volume
from gyrator.schedule.gpu import ROWS, SHORT_ROW, Gpu
from gyrator.schedule.gpu_mix import MAX_COLUMNS
from gyrator.schedule.gpu_tiling import WHOLE_ROW
from gyrator.schedule.group import Axes, Group, levels_of, singleton
from gyrator.schedule.layout import LARGE, across_rows, loop_order, member_accesses, transposes, unit_of
from gyrator.schedule.loops import SIMPLE
from gyrator.schedule.split import Cut, column_place, cut_in_turns, even_cut, split, uneven_cut
from gyrator.schedule.windows import overlap

COLUMNS, PER_PROCESSOR = 64, 4
MIN_WORK = 1 << 16
MIN_ROW, MIN_ROWS = 1 << 11, 64
"""Elements of a part of a row (there are four at least), and rows of a block of columns, that are worth a program."""
ALIGNED = 16
"""A part of a row, but for the last, has a multiple of so many elements: loads may then be wide."""
MANY_PARTS = 1 << 14
"""Parts of narrow columns, of each row that a block of threads has at once, that are combined in parts, too."""
MIN_RUN = 128
"""Elements that a program reads in one piece at least."""
MIN_ROWS_MIXED, MOST_AT_ONCE, BYTES_AT_ONCE = 16, 16, 1 << 14
"""Where a tensor is summed both ways: rows that a program runs through at least; programs of a multiprocessor at once,
and bytes of all their rows: with two tensors, and rows that begin to be loaded two iterations early, 64 KiB are on
their way, which an H200 needs and of which it has no use for more."""
MIN_PART, MIN_SHARED, LEAST_SHARED = 1 << 11, 1 << 13, 1 << 16
"""Elements of a part, of a row that is worth sharing, and of all rows, unless they are too long for programs alone."""
SCAN_PARTS = (8192, 4096, 16384)
"""Elements of a part of a row that is scanned, or of eight columns."""


def split_on_gpu(program: Program, gpu: Gpu) -> Program:
    """Split a reduction with too few results to occupy a GPU in parts, as :func:`split_reductions` does for a CPU.

    There are as many parts as make four programs per multiprocessor. Where their number does not divide the extent the
    last ones are masked, and a variance takes two sums. Splits sums, products, extremes (with their numbers), variances
    and what a softmax needs. Refuses rows that programs can share within one launch and then need again."""
    of_rows = {v for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Reduce) for v in defines(n)}
    by_rows, again = _read_by_rows(program), _read_again(program, of_rows)

    def cut(nest: Nest, least: int = 0) -> Cut | None:
        root = nest.root
        if not isinstance(root, Reduce) or not nest.on_gpu or root.partial or iterations(root.reduced) < least:
            return None
        read = {load.value for load in loads(root.body)}
        if (root.kind == "softmax" or read & again) and shared_blocks(singleton(nest, 0), gpu):
            return None
        whole = iterations((*nest.axes, *root.reduced))
        return _cut(nest, root, gpu, max((by_rows.get(v, 0) for v in read if volume(v.shape) >= whole), default=0))

    in_rows = map_nests(program, lambda nest: split(nest, _rows(nest, of_rows)))
    parted = map_nests(in_rows, lambda nest: split(nest, cut(nest)))
    return map_nests(parted, lambda nest: split(nest, cut(nest, MANY_PARTS)))


def _rows(nest: Nest, of_rows: Set[Value]) -> Cut | None:
    """A loss's sum for each row, computed where the row is at hand, as its maximum and sum of exponentials are."""
    root = nest.root
    if not isinstance(root, Reduce) or not nest.on_gpu:
        return None
    *outer, row = root.reduced
    rows, along = volume(a.extent for a in outer), volume((row.extent,))
    static = all(a.extent.value is not None for a in root.reduced)
    if volume(a.extent for a in nest.axes) > 1 or root.kind not in SIMPLE or not static or not outer:
        return None
    reads = [load.value for load in loads(root.body) if load.axes() == {*outer}]
    if of_rows.isdisjoint(reads) or not rows >= MIN_ROWS or not 2 * MIN_ROWS <= along <= WHOLE_ROW:
        return None
    return Cut(tuple(outer), rows, ONE)


def _read_again(program: Program, of_rows: Set[Value]) -> set[Value]:
    """Values that several nests read, not all to add up or compare at once: programs that share rows keep them."""
    nests = [node for node in program.nodes if isinstance(node, Nest)]
    at_once = [n for n in nests if isinstance(n.root, Reduce) and n.root.kind in SIMPLE and not uses(n) & of_rows]
    readers, reducers = (Counter(value for nest in some for value in uses(nest)) for some in (nests, at_once))
    return {value for value, count in readers.items() if count > max(reducers[value], 1)}


def _read_by_rows(program: Program) -> dict[Value, int]:
    """Large values along whose rows something is reduced: column sums of them may join (see gpu_mix). If none are
    summed so, also what they are computed of and what is computed of them. With the bytes of an element, of the widest
    for values of one size: sums that may join each other are then cut alike."""
    elements: dict[Value, int] = {}
    nests, down = [node for node in program.nodes if isinstance(node, Nest)], set[Value]()
    for node in nests:
        if isinstance(node.root, Reduce) and column_place(node, node.root) is None:
            size = max(iterations((*node.axes, *node.root.reduced)), MIN_WORK)
            elements |= {v: count for v in uses(node) if (count := volume(v.shape)) >= size}
        elif isinstance(node.root, Reduce):
            down |= uses(node)
    joined = {elements[v] for v in down & elements.keys()}
    for node in (*reversed(nests), *nests):
        if isinstance(node.root, Pointwise):
            sizes = {v: volume(v.shape) for v in (*uses(node), *defines(node))}
            found = {elements[v] for v in sizes if v in elements} - joined
            elements |= {v: count for v, count in sizes.items() if count in found}
    widest: dict[int, int] = {}
    for value, count in elements.items():
        widest[count] = max(widest.get(count, 0), value.dtype.itemsize)
    return {value: widest[count] for value, count in elements.items()}


def _cut(nest: Nest, root: Reduce, gpu: Gpu, mixed: int) -> Cut | None:
    """``mixed`` are the bytes of an element where rows of what is reduced are read, too, else 0."""
    kept, row = iterations(nest.axes), iterations(root.reduced)
    if kept * row < MIN_WORK or root.kind not in (*SIMPLE, "argmax", "argmin", "welford", "softmax"):
        return None
    place = column_place(nest, root)
    column, wide = place is not None, kept // (_stacks(place, nest, root) if place else 1)
    if mixed and column and wide <= MAX_COLUMNS and row >= 2 * MIN_ROWS_MIXED and root.kind in SIMPLE:
        at_once = max(1, min(MOST_AT_ONCE * max(512 // wide, 1), power(BYTES_AT_ONCE // (mixed * wide) + 1) // 2))
        most = min(gpu.processors * at_once * wide // kept, row // MIN_ROWS_MIXED)
        parts = range(max(most // 2, 2), most + 1)  # in a grid of more than parts all have as many rows
        cut = even_cut(root.reduced, most, parts, aligned=False) if wide < kept else cut_in_turns(root.reduced, most)
        if cut is not None:
            return cut
    crossed = any(a.weight >= LARGE and unit_of(a.position) in nest.axes for a in member_accesses(nest)[0])
    programs, least = (-(-kept // COLUMNS), MIN_ROWS) if column else (-(-kept // ROWS) if crossed else kept, MIN_ROW)
    wanted = min(PER_PROCESSOR * gpu.processors // max(programs, 1), row // least)
    dear = any(overlap(load, nest, root) > 1 for load in loads(root.body))  # programs with windows take long
    if programs >= gpu.processors * (PER_PROCESSOR // 2 if dear else 1) or wanted < (2 if column else 4):
        return None
    joint = root.reduced if "arg" in root.kind else tuple(loop_order(root.reduced, [*member_accesses(nest)[0]]))
    even = _even(joint, wanted, 1 if column else MIN_RUN)
    return even or uneven_cut(root.reduced, wanted, 1 if column else ALIGNED)


def _stacks(place: Index, nest: Nest, root: Reduce) -> int:
    """How many stacks of rows, one beyond the other, are summed each: for ``x[b, i, c]`` over ``i`` one per ``b``."""
    steps = {a: volume((place.coefficient(a) or ZERO,)) for a in (*nest.axes, *root.reduced)}
    return iterations(a for a in nest.axes if steps[a] > max(steps[b] for b in root.reduced))


def _even(joint: Axes, wanted: int, run: int) -> Cut | None:
    """Equal parts, about as many as wanted, of an axis or several as one; the last has ``run`` iterations or more."""
    for axes, aligned in (*(((a,), True) for a in joint), (joint, False)) if wanted >= 2 else ():
        found = even_cut(axes, wanted, range(max(wanted // 2, 2), 2 * wanted + 1), aligned=aligned)
        if found is not None and (axes != joint[-1:] or volume((found.step,)) >= run):
            return found
    return None


def shared_blocks(group: Group, gpu: Gpu | None) -> tuple[int, ...]:
    """Sizes of parts in which programs may share the rows of a group, the best guess first; none where they do not.

    They do if there are at most half as many rows as multiprocessors, all sizes are known, the rows lie along memory,
    and the parts stay in registers: all programs must run at the same time, so there is one on a multiprocessor.
    Refuses scatters, transpositions, and sums down the columns beside those of rows.

    Scans share rows of any length, at most twice as many as multiprocessors, or columns, four times as many: a program
    waits only for those before it. Refuses reductions beside them, and what is computed once for a row."""
    if gpu is None or not group.members[0].nest.on_gpu or group.serial or len(group.spaces) != 1:
        return ()
    roots = {type(m.nest.root) for m in group.members}
    if Scatter in roots or not roots & {Reduce, Scan}:
        return ()
    outer, space = group.outer, group.spaces[0]
    refused, columns = any(transposes(m.nest) for m in group.members), across_rows(group)
    if Scan in roots:
        refused |= Reduce in roots or any(m.space is None for m in group.members)
        refused |= any(isinstance(m.nest.root, Scan) and "sort" in m.nest.root.kind for m in group.members)
        most, least = (4, MIN_SHARED // 4) if columns else (2, MIN_SHARED)
        few = iterations(outer, 1) <= most * gpu.processors
        return SCAN_PARTS if few and iterations(space, least) >= least and not refused else ()
    rows, row = group.sides
    refused |= columns or any(a.extent.value is None for a in (*outer, *space))
    short = row < MIN_SHARED or (rows * row < LEAST_SHARED and row <= SHORT_ROW)
    if refused or short or not 0 < 2 * rows <= gpu.processors:
        return ()
    part, most = max(power(-(-row // (gpu.processors // rows))), MIN_PART), WHOLE_ROW // max(_kept(group), 1)
    return tuple(n for n in dict.fromkeys((part, 2 * part, power(row))) if part <= n <= min(power(row), most))


def _kept(group: Group) -> int:
    """How many loads along a row are needed before a reduction and again after it; of all before it if none are."""
    needs: dict[Value | None, frozenset[tuple[Value, Index]]] = {}
    first, later, levels = set[tuple[Value, Index]](), set[tuple[Value, Index]](), levels_of(group.members)
    for member in group.members:
        places = [(x.value, substitute(x.value.position(x.index), member.at)) for x in member.loads]
        own = frozenset((v, at) for v, at in places if v not in needs and at.axes() & set(group.spaces[0]))
        own = own.union(*(needs[v] for v, _ in places if v in needs))
        reduces = isinstance(member.nest.root, Reduce)
        if levels[member.position]:
            later |= own
        elif reduces:
            first |= own
        needs |= dict.fromkeys(member.nest.out, frozenset() if reduces else own)
    return len(first & later) or len(first)


def online_softmax(program: Program, gpu: Gpu) -> Program:
    """Maximum and sum of exponentials in one pass over a row that is too long to keep.

    Before: ``m = reduce max over j of a[i, j];  s = reduce sum over j of exp(a[i, j] - m[i])``
    after:  ``m, s = reduce softmax over j of a[i, j]``

    Refuses rows of at most 16,384 elements, which stay in registers between two passes, and those of twice as many if
    what follows needs them again; but not where programs share rows: then it saves an exchange."""
    tops: dict[Value, tuple[int, Nest, Reduce]] = {}
    mapped = [n for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Pointwise)]
    made = {n.out[0]: n for n in mapped}
    nodes: list[Node | None] = list(program.nodes)
    for position, node in enumerate(program.nodes):
        if not isinstance(node, Nest) or not isinstance(node.root, Reduce) or not node.on_gpu:
            continue
        value, root = node.out[0], node.root
        known, row = all(a.extent.value is not None for a in root.reduced), iterations(root.reduced)
        short = known and row <= WHOLE_ROW and not shared_blocks(singleton(node, position), gpu)
        if value is None or (short and row <= WHOLE_ROW // 2):
            continue
        if root.kind == "max" and root.body[0].dtype == torch.float32:
            tops[value] = (position, node, root)
        match _computed(root.body[0], made):
            case Op("exp", (Op("sub", (element, Load(top, index, None))),)) if root.kind == "sum" and top in tops:
                at, first, maximum = tops[top]
            case _:
                continue
        same = (first.axes, maximum.reduced, maximum.body) == (node.axes, root.reduced, (element,))
        elements = iterations(node.axes) * row
        # whether something is computed for each element from what the rows were reduced to
        goes_on = short and any(uses(n) & {top, value} and iterations(n.axes) >= elements for n in mapped)
        if not same or index != coords_of(node.axes) or goes_on:
            continue
        del tops[top]
        both = Reduce("softmax", root.reduced, maximum.body)
        nodes[at] = replace(first, out=(top, value), root=both, origins=(*first.origins, *node.origins))
        nodes[position] = None
    return replace(program, nodes=tuple([n for n in nodes if n is not None]))


def _computed(body: Expr, made: Mapping[Value | None, Nest]) -> Expr:
    """What a load of a pointwise result stands for."""
    if isinstance(body, Load) and body.mask is None and body.value in made:
        return made[body.value].element(body.index)
    return body
