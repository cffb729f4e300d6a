"""Reductions in two steps that all cores, or all multiprocessors, share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import gcd

import torch

from gyrator.ir.build import axes_of, cast, coords_of, op
from gyrator.ir.expr import Const, Expr, IndexValue, Load, Masked, Value
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, const, exact_quotient, product
from gyrator.ir.ops import REDUCTIONS, identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Root, defines, loads, map_nests
from gyrator.ir.volume import iterations
from gyrator.schedule.align import digits_of
from gyrator.schedule.loops import LANES, SIMPLE

PARTS = 16
WIDE = 2048
MIN_WORK = 1 << 16
FILLED, SHORT = 128, 4
"""Elements that rows have at most which fill vectors; how many vectors take as long as one that is not full."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a reduction is split: ``axes`` of the reduced ones, as one, into ``parts`` of ``step`` iterations, which
    follow each other or, ``in_turns``, lie ``parts`` apart; before the kept axis ``column`` or, if ``ends``, after."""

    axes: tuple[Axis, ...]
    parts: int
    step: Index
    in_turns: bool = False
    column: Axis | None = None
    ends: bool = False

    @property
    def length(self) -> Index:
        """Iterations in all."""
        return product([a.extent for a in self.axes])


def split_reductions(program: Program) -> Program:
    """Split a reduction over rows into partial results of equal blocks of rows, and their combination.

    Before: ``s = nest[j<C] reduce sum over i<R  x[i, j]``
    after:  ``p = nest[b<16, j<C] reduce sum over i<R/16  x[b*R/16 + i, j]; s = nest[j<C] reduce sum over b<16 p[b, j]``

    Only where columns are contiguous and too few to occupy the cores (under 2,048), and there are about 65,536
    elements at least. Where the parts are not even, the last ones are masked. Variances too, if they are even: of
    parts, then of all. The result does not depend on the number of threads.

    Before that, where columns are no whole vectors, rows that fill some are summed apart:
    ``s = nest[j<2] reduce sum over i<R  x[i, j]`` → ``p = nest[b<32, j<2] reduce sum over i<R/32 x[i*32 + b, j]; …``
    and so are short ends of rows, as the 8 along k of ``x[i, j, k]``, which vectors hold with those of other j."""
    joined = map_nests(program, lambda nest: split(nest, _cut(nest, _short_ends)))
    filled = map_nests(joined, lambda nest: split(nest, _cut(nest, _rows_for_vectors)))
    return map_nests(filled, lambda nest: split(nest, _cut(nest, _rows_for_cores)))


def _cut(nest: Nest, choose: Callable[[Nest, Reduce], Cut | None]) -> Cut | None:
    root = nest.root
    if not isinstance(root, Reduce) or root.kind not in (*SIMPLE, "welford") or nest.on_gpu or not nest.axes:
        return None
    return None if iterations((*nest.axes, *root.reduced)) < MIN_WORK else choose(nest, root)


def _short_ends(nest: Nest, root: Reduce) -> Cut | None:
    """Ends of rows of less than four vectors that a kept axis follows in memory, of many rows."""
    place = _largest_place(root)
    end = next((a for a in root.reduced if place.coefficient(a) is ONE), None)
    near = next((a for a in nest.axes if end and place.coefficient(a) is end.extent), None)
    parts = end.extent.value if end and near and root.kind != "welford" else None
    few = parts and parts < 4 * LANES and iterations(root.reduced) >= FILLED * parts
    return Cut((end,), parts, ONE, column=near, ends=True) if end and parts and few else None


def _rows_for_vectors(nest: Nest, root: Reduce) -> Cut | None:
    """In turns. None where columns fill vectors, loads lie otherwise, and for variances, which would be less exact."""
    positions = [load.value.position(load.index) for load in loads(root.body)]
    column = next((a for a in nest.axes if positions and all(p.coefficient(a) is ONE for p in positions)), None)
    width = column.extent if column else ZERO
    row = next((a for a in root.reduced if all(p.coefficient(a) is width for p in positions)), None)
    rows, columns = row.extent.value if row else None, width.value
    if row is None or rows is None or not columns or rows < LANES or root.kind == "welford":
        return None

    def vectors(n: int) -> int:
        return n * columns // LANES + (SHORT if n * columns % LANES else 0)

    best = min(range(1, FILLED // columns + 1), key=lambda n: -(-rows // n) * vectors(n) + n * vectors(1), default=1)
    return None if best == 1 else replace(cut_in_turns((row,), best), column=column)


def _rows_for_cores(nest: Nest, root: Reduce) -> Cut | None:
    if column_place(nest, root) is None or iterations(nest.axes) >= WIDE:
        return None
    parts = range(PARTS // 2, 2 * PARTS + 1)
    cuts = (even_cut(root.reduced[: k + 1], PARTS, parts) for k in range(len(root.reduced)))
    even = next((cut for cut in cuts if cut is not None), None)
    return even or (None if root.kind == "welford" else uneven_cut(root.reduced, PARTS))


def even_cut(axes: tuple[Axis, ...], wanted: int, parts: Iterable[int], *, aligned: bool = True) -> Cut | None:
    """Equal ``parts`` of the axes as one, as near to ``wanted`` as can be; ``aligned``: none ends within a row."""
    length = product([a.extent for a in axes])
    divisor = gcd(*[times for _, times in length.terms])
    steps = {p: length // p for p in parts if divisor and divisor % p == 0}
    even = [p for p, step in steps.items() if not aligned or reached(axes, step)]
    best = min(even, key=lambda p: abs(p - wanted), default=None)
    return None if best is None else Cut(axes, best, steps[best])


def uneven_cut(axes: tuple[Axis, ...], wanted: int, unit: int = 1) -> Cut | None:
    """At most so many parts of the longest axis, of one length in ``unit``s; the last may be short or empty."""
    axis = max(axes, key=lambda a: iterations((a,)))
    step = (axis.extent + (wanted * unit - 1)) // (wanted * unit) * unit
    parts = wanted if step.value is None else ((axis.extent + (step - 1)) // step).value
    return None if parts is None or parts < 2 else Cut((axis,), parts, step)


def cut_in_turns(axes: tuple[Axis, ...], parts: int) -> Cut:
    """So many parts of the axes as one; some may have one iteration less than others."""
    return Cut(axes, parts, (product([a.extent for a in axes]) + (parts - 1)) // parts, in_turns=True)


def column_place(nest: Nest, root: Reduce) -> Index | None:
    """Where the largest load reads if that is contiguous along a kept axis: columns are reduced; else None."""
    largest = _largest_place(root)
    moves = any(axis in root.reduced for axis in largest.axes())  # else what is reduced is computed, not read
    return largest if moves and any(largest.coefficient(axis) is ONE for axis in nest.axes) else None


def _largest_place(root: Reduce) -> Index:
    positions = [load.value.position(load.index) for load in loads(root.body)]
    return max(positions, key=lambda position: iterations(position.axes()), default=ZERO)


def reached(axes: tuple[Axis, ...], step: Index) -> list[Index]:
    """How far parts of ``step`` iterations of the axes as one reach along each; nothing if they end within rows:
    of 8 × 1,500 by 20 (1, 20), by 3,000 (2, 1,500), by 16 nothing."""
    found: list[Index] = []
    for axis in reversed(axes):
        rows = exact_quotient(step, axis.extent)
        if rows is None and exact_quotient(axis.extent, step) is None:
            return []
        found.insert(0, step if rows is None else axis.extent)
        step = rows or ONE
    return found


def split(nest: Nest, cut: Cut | None) -> list[Node]:
    """Partial results of a reduction, and their combination; the nest itself without a ``cut``."""
    root = nest.root
    if cut is None or not isinstance(root, Reduce):
        return [nest]
    if root.kind == "welford" and cut.step * cut.parts is not cut.length:  # each element is a part: one more pass
        none = Const(0.0, root.body[0].dtype)
        sums = _welford(nest, root.reduced, (root.body[0], none), product([a.extent for a in root.reduced]), ONE)
        return [node for each in sums for node in split(each, cut)]
    reach = [] if cut.in_turns else reached(cut.axes, cut.step)
    counts = [a.extent // n for a, n in zip(cut.axes, reach, strict=False)] or [const(cut.parts)]
    sizes, before = [a.extent for a in nest.axes], nest.axes.index(cut.column) + cut.ends if cut.column else 0
    sizes[before:before] = counts
    axes, end = axes_of("i", tuple(sizes)), before + len(counts)
    blocks, kept = axes[before:end], axes[:before] + axes[end:]
    steps, others = reach or [cut.step], [a for a in root.reduced if a not in cut.axes]
    reduced = axes_of("r", (*steps, *(a.extent for a in others)))
    inner, rest = reduced[: len(steps)], reduced[len(steps) :]
    block, within = blocks[0].index(), inner[0].index()
    place = within * cut.parts + block if cut.in_turns else block * cut.step + within
    digits = zip(cut.axes, blocks, reach, inner, strict=False)
    at: dict[Atom, Index] = {axis: block.index() * n + r.index() for axis, block, n, r in digits}
    at = at or digits_of(place, cut.axes)
    at |= {old: new.index() for old, new in zip((*nest.axes, *others), (*kept, *rest), strict=True)}
    body = tuple(b.substitute(at) for b in root.body)
    if cut.step * cut.parts is not cut.length:  # the last part is shorter
        end_place = cut.length
        if cut.column is not None:  # as positions, which let the two axes be one
            place, end_place = place * cut.column.extent + at[cut.column], cut.length * cut.column.extent
        inside = op("lt", IndexValue(place), IndexValue(end_place))
        starts = [identity(root.kind, body[0].dtype), torch.iinfo(torch.int64).max]
        body = tuple(Masked(inside, b, Const(s, b.dtype)) for b, s in zip(body, starts, strict=False))
    dtypes = REDUCTIONS[root.kind].dtypes(body[0].dtype)
    whole, *_ = defines(nest)
    stem = "row" if cut.step is ONE else "part"  # sums of rows may be split again, and those of parts
    stem += "s" * any(load.value.name == f"{whole.name}_part" for load in loads(root.body))
    partial = tuple(whole.derived(f"{stem}{k or ''}", tuple(sizes), dtype) for k, dtype in enumerate(dtypes))
    first = replace(nest, out=partial, axes=axes, root=Reduce(root.kind, reduced, body, True))
    rows = axes_of("r", tuple(counts))
    here = [a.index() for a in nest.axes]
    coords = (*here[:before], *(r.index() for r in rows), *here[before:])
    parts = tuple(Load(p, coords) for p in partial)
    if root.kind == "softmax":
        return [first, *_softmax(nest, rows, parts)]
    if root.kind != "welford":
        return [first, replace(nest, root=Reduce(root.kind, rows, parts))]
    count = product([cut.step, *(a.extent for a in rest)])
    return [replace(first, out=(*partial[:2], None)), *_welford(nest, rows, parts[:2], const(cut.parts), count)]


def _softmax(nest: Nest, rows: tuple[Axis, ...], parted: tuple[Load, ...]) -> list[Node]:
    """The maximum of all, and the sum by it: ``s = Σ s_b · exp(m_b - m)``. Parts of -inf alone add 0, or NaN to NaN."""
    tops, totals = parted
    dtype, (top, total) = tops.dtype, defines(nest)
    highest = Load(top, coords_of(nest.axes))
    share = op("mul", totals, op("exp", op("sub", tops, highest)))
    part = op("where", op("eq", tops, Const(identity("max", dtype), dtype)), op("sub", highest, highest), share)
    maximum = replace(nest, out=(top,), root=Reduce("max", rows, (tops,)))
    return [maximum, replace(nest, out=(total,), root=Reduce("sum", rows, (part,)))]


def _welford(nest: Nest, rows: tuple[Axis, ...], parted: tuple[Expr, ...], parts: Index, count: Index) -> list[Nest]:
    """The variance of all from means and squared deviations of so many ``parts`` of ``count`` elements.

    ``mean = Σ mean_b / P``; ``m2 = Σ (m2_b + count·(mean_b - mean)²)``"""
    means, m2s = parted
    dtype = means.dtype
    shape = tuple(a.extent for a in nest.axes)
    here = tuple(a.index() for a in nest.axes)
    whole, *_ = defines(nest)
    total, mean = whole.derived("means", shape, dtype), nest.out[0] or whole.derived("mean", shape, dtype)
    average = op("div", Load(total, here), cast(IndexValue(parts), dtype))
    off = op("sub", means, Load(mean, here))
    deviation = op("add", m2s, op("mul", op("mul", off, off), cast(IndexValue(count), dtype)))
    found: list[tuple[Value | None, Root]] = [
        (total, Reduce("sum", rows, (means,))),
        (mean, Pointwise(average)),
        (nest.out[1], Reduce("sum", rows, (deviation,))),
        (nest.out[2], Pointwise(cast(IndexValue(count * parts), dtype))),
    ]
    return [replace(nest, out=(value,), root=root) for value, root in found if value is not None]
