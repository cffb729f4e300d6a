"""Choosing a group's loops: their order, which run in parallel, along which axis vectors lie."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gyrator.ir.expr import Expr, Load, Op, Random, Value
from gyrator.ir.index import ONE, ZERO, Atom, Axis, FloorDiv, Index, Mod, as_index, minimum, product
from gyrator.ir.program import Pointwise, Reduce, Scan, Scatter, bodies, defines
from gyrator.ir.volume import at_most, cost_of, iterations
from gyrator.schedule.align import digits_of
from gyrator.schedule.group import Axes, Group, demote, waits_for_reduction
from gyrator.schedule.layout import Access, accesses, coalesce, contiguous, contiguous_axes, lane_cost, loop_order

LANES = 16
BLOCK = 2048
FEW_ROWS, LONG_ROW = 8, 1 << 15
STREAMS = 64
"""As many places are written to or read in turns without losing a row of memory."""
TINY = 8
"""Elements of rows that are walked one by one, with a row in each lane."""
TILE_ROWS, TILE_COLUMNS, TILE_BYTES = 64, 64, 1 << 16
"""Rows and columns of the tile through which a transposed access of a larger tensor goes: runs of several
cache lines both ways, and the tile stays in the first cache."""
TILE_OF_ROWS = 1 << 18
"""Bytes of the tile through which whole rows go: half of it at least stays in the second cache."""
DIVISION = 8
"""The cost of dividing an index, in additions."""
DEAR, DEAREST = 12, 160
"""The cost of an exponential, and that of all operations up to which more vectors at once pay."""
PART = 64
"""Rows that a sheet sums apart in float32, and adds up in float64: errors do not grow with the number of rows."""

Style = Enum("Style", "ROWS POINTS SHEET STRIPS SPLIT TILES")
"""How vectors and rows lie. Written with ``|`` for parallel, ``-`` for serial and ``=`` for vector loops.

``ROWS``: ``| outer { = row }`` — each row is contiguous; the usual form.
``POINTS``: ``| outer { = last outer axis }`` — purely pointwise.
``SHEET``: ``| block { - reduced { = columns: acc[column] += … } }`` — a sum over rows: reads whole rows
in order, an accumulator per column in a scratch row. Measured 3 to 5 times faster than ``STRIPS`` on a
matrix larger than the caches.
``STRIPS``: ``| block { = columns { - reduced } }`` — as SHEET for what keeps more state than one number
(Welford, scans), for rows of a few elements, one in each lane, and where most work is the same along an axis.
``SPLIT``: ``| block of the row, merged { = part }`` — few, long rows: all threads work on one.
``TILES``: ``| outer { = row }`` — on a GPU: one loop per space, no scratch rows; what a later loop needs
is recomputed, or still in registers where a tile covers the row."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The loops chosen for a group: ``parallel`` axes outermost, then as the style says.

    ``lane`` is the outer axis that vectors lie along (POINTS, SHEET, STRIPS). ``spaces`` are the axes of each
    space from the outermost loop to the innermost. ``blocks`` gives each axis of the group that runs in
    blocks as an index over the loops' axes; positions in memory are computed over the group's axes first,
    where they are simple, and blocked then. ``tile`` is a short serial loop around the vectors, over rows of a
    transposed access whose cache lines stay near (of ROWS: whole rows), or beside vectors that are few."""

    group: Group
    style: Style
    parallel: tuple[Axis, ...]
    lane: Axis | None
    spaces: tuple[Axes, ...]
    blocks: Mapping[Atom, Index]
    lanes: int = LANES
    tile: Axis | None = None


SIMPLE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "max", "all": "min"}
"""Reductions whose state is one number of the result's dtype, and the store that combines into it."""


def choose_loops(group: Group, stored: frozenset[Value]) -> Shape:
    """Order and merge the loops, then choose a style."""
    group = ordered(group, stored)
    found = accesses(group, stored)
    if group.pointwise:
        return _points(group, found)
    column = _column(group, stored, found)
    results = {v for m in group.members if isinstance(m.nest.root, Reduce) for v in m.nest.out}
    inside = accesses(group, stored - results, inside=True)
    if column is not None and (beside := _beside(group, column, found)) and _are_one(column, beside, inside):
        return _columns(group, column, beside, tiny=_have_at_most(TINY, group.spaces))
    narrow = column is not None and iterations((column,)) <= TINY and all(m.space is not None for m in group.members)
    rows = [a for a in group.outer if not (narrow and a is column)]
    short = bool(rows) and iterations((rows[-1],)) >= 4 * LANES and _have_at_most(TINY, group.spaces)
    across = None if narrow and short else column
    # more may be read beside each other along rows, as where a small table is read again for each row
    if across is not None and lane_cost(group, stored, across, LANES) <= lane_cost(group, stored, None, LANES):
        return _columns(group, across)
    if short:
        return _columns(group, rows[-1], tiny=True)
    if (tiled := _tiled_rows(group, found)) is not None:
        return tiled
    alone = len(group.spaces) > 1 or any(isinstance(m.nest.root, Scan | Scatter) for m in group.members)
    alone = alone or waits_for_reduction(group)
    if iterations(group.outer) < FEW_ROWS and iterations(group.spaces[0]) > LONG_ROW and not alone:
        row, blocks = list(group.spaces[0]), dict[Atom, Index]()
        if len(row) == 1 or iterations((row[0],)) < FEW_ROWS:
            block, inner = _blocked(row[-1], BLOCK, blocks)
            row = [block, *row[:-1], inner]
        return Shape(group, Style.SPLIT, group.outer, None, (tuple(row),), blocks)
    return Shape(group, Style.ROWS, group.outer, None, group.spaces, {})


def _lanes_at_once(group: Group, along: Axis) -> int:
    """More elements along a long axis where an exponential, a random number or the like is computed: its instructions
    wait for each other, and those for other elements run meanwhile (a mish of a silu of a gelu takes two thirds of the
    time, dropout 0.6). Not where many are, which need not wait for each other, and would take a compiler long."""
    nodes = {node for m in group.members for body in bodies(m.nest.root) for node in body.walk()}
    costs = [cost_of(node) for node in nodes if isinstance(node, Op | Random)]
    narrow = all(node.dtype.itemsize <= 4 for node in nodes if node.axes())
    wide = narrow and max(costs, default=0) >= DEAR and sum(costs) <= DEAREST
    return 4 * LANES if wide and iterations((along,)) >= 16 * LANES else LANES


def ordered(group: Group, stored: frozenset[Value]) -> Group:
    """The group with its axes from the outermost loop to the innermost, merged where memory allows it."""
    found = accesses(group, stored)
    group, outer = coalesce(group, loop_order(group.outer, found), found)
    spaces, kept = list[Axes](), group.in_order
    for k in range(len(group.spaces)):
        found = accesses(group, stored)
        order = list(group.spaces[k]) if k in kept else loop_order(group.spaces[k], found)
        group, order = coalesce(group, order, found)
        spaces.append(tuple(order))
    return Group(tuple(outer), tuple(spaces), group.members, group.serial)


def _points(group: Group, found: list[Access]) -> Shape:
    if not group.outer:
        return Shape(group, Style.POINTS, (), None, (), {}, lanes=1)
    *parallel, last = group.outer
    blocks: dict[Atom, Index] = {}
    if (inner := next((a for a in parallel if _is_repeated(group, a, last)), None)) is not None:
        outside, inside = _in_blocks(inner, LANES, blocks)
        parallel = [*[a for a in parallel if a is not inner], *outside]
        return Shape(demote(group, {*parallel, last}), Style.STRIPS, tuple(parallel), last, ((inside,),), blocks)
    across = crossing(parallel, last, found)
    if 1 < (last.extent.value or 0) <= TINY:
        near = _beside(group, last, found)
        if across is None and near and _are_one(last, near, found) and iterations((near, last)) >= LANES:
            # vectors along both as one, as in images of 7 columns: the last alone would fill but a part of them
            both, parallel = Axis(near.name, near.extent * last.extent), [a for a in parallel if a is not near]
            column = _for_threads(both, parallel, blocks)
            digits = digits_of(blocks.get(both, both.index()), (near, last))
            return Shape(group, Style.POINTS, tuple(parallel), column, (), digits)
        if (lane := across or near) is not None:
            small = iterations((lane,)) < LANES  # matrices of a few rows and columns: one in each lane
            lane = max(parallel, key=lambda a: iterations((a,))) if small else lane
            others = tuple([a for a in parallel if a is not lane])
            outside, inner = _in_blocks(lane, BLOCK // 4, blocks)
            outer = (*outside, *others) if small else (*others, *outside)
            return Shape(group, Style.POINTS, (*outer, last), inner, (), blocks)
    if across is not None:
        rows, row = _in_blocks(across, TILE_ROWS, blocks)
        columns, last = _in_blocks(last, TILE_COLUMNS, blocks)
        parallel = [a for a in parallel if a is not across] + [*rows, *columns]
        return Shape(group, Style.POINTS, tuple(parallel), last, (), blocks, tile=row)
    last = _for_threads(last, parallel, blocks)
    parallel = _in_few_streams(parallel, found)
    short = iterations((last,)) <= 4 * LANES and iterations(parallel[:-1]) >= 64 and len(parallel) > 2
    tile = parallel.pop() if short else None  # counting the steps of all axes would take longer than a vector
    return Shape(group, Style.POINTS, tuple(parallel), last, (), blocks, _lanes_at_once(group, last), tile)


def _in_few_streams(parallel: list[Axis], found: list[Access]) -> list[Axis]:
    """The last two axes, exchanged where memory is read in another order than written and the second one is much
    longer: what jumps then goes on in a few places, one after the other, and all else is walked through.

    ``[b < 8, h < 16, s < 1024]`` → ``[b, s, h]``, in which heads of 64 bfloat16 are moved in a fifth of the time."""
    if len(parallel) < 2:
        return parallel
    *others, outer, inner = parallel
    steps = [(a.position.coefficient(outer), a.position.coefficient(inner)) for a in found]
    crossed = any(a and b and a.value and b.value and abs(a.value) < abs(b.value) for a, b in steps)
    few = 4 * iterations((outer,)) <= iterations((inner,)) and iterations((outer,)) <= STREAMS
    return [*others, inner, outer] if crossed and few else parallel


def _is_repeated(group: Group, axis: Axis, lane: Axis) -> bool:
    """Whether most of the work is the same along an axis, as that of finding where to read is for all channels: vectors
    then compute it once, before an innermost loop along that axis."""
    few = iterations((axis,)) < 3 or iterations((lane,)) < LANES
    if few or not all(isinstance(m.nest.root, Pointwise) for m in group.members):
        return False
    work, varying = {False: 0, True: 0}, set[Value]()
    made = {v for m in group.members for v in m.nest.out}
    for member in group.members:
        (body,) = bodies(member.nest.root)
        along = {of: {a for a, index in member.at.items() if of in index.axes()} for of in (axis, lane)}
        found = set[Expr]()
        for node in body.walk():
            if isinstance(node, Load) and node.value in made:
                varies = node.value in varying
            else:
                own = {a for index in node.indices() for a in index.axes()}
                varies = not (along[axis].isdisjoint(own) and found.isdisjoint(node.operands()))
            if varies:
                found.add(node)
            atoms = [atom for index in node.indices() for atom in index.atoms()]
            for axes in [atom.num.axes() for atom in atoms if isinstance(atom, FloorDiv | Mod)]:
                work[not along[axis].isdisjoint(axes)] += DIVISION * (not along[lane].isdisjoint(axes))
            if along[lane] & node.axes():
                work[varies] += cost_of(node)
        if body in found:
            varying.update(defines(member.nest))
    return work[False] > max(2 * work[True], 2 * LANES)


def _beside(group: Group, last: Axis, found: list[Access]) -> Axis | None:
    """The axis that goes on in memory where the innermost one ends."""
    ends = [p for p in _large(found) if p.coefficient(last) is ONE]
    steps = {a: [p.coefficient(a) is last.extent for p in ends] for a in group.outer}
    return next((a for test in (all, any) for a, beside in steps.items() if ends and test(beside)), None)


def _are_one(last: Axis, near: Axis, found: list[Access]) -> bool:
    """Whether vectors along a short axis and the one before hold whole turns, or all lies as if both were one."""
    steps = {(a.position.coefficient(last), a.position.coefficient(near)) for a in found}
    partial = iterations((last,)) < 4 * LANES and iterations((last,)) % LANES > 0
    return last.extent.value in (2, 4, 8) or (partial and steps == {(ONE, last.extent)})


def _for_threads(lane: Axis, parallel: list[Axis], blocks: dict[Atom, Index]) -> Axis:
    """The lane, or if ``parallel`` has few iterations, the lane of a block; the loop over blocks joins them then."""
    if iterations(parallel) < 64 and iterations((lane,), 1 << 20) > 2 * BLOCK:
        block, lane = _blocked(lane, BLOCK, blocks)
        parallel.append(block)
    return lane


def crossing(parallel: list[Axis], last: Axis, found: list[Access]) -> Axis | None:
    """An axis along which a large access is contiguous while the vectors lie along another: a transpose."""
    if max((a.weight for a in found), default=0) < TILE_BYTES:
        return None
    across = [p for p in _large(found) if last in p.axes() and not contiguous(p, last)]
    return next((axis for p in across for axis in parallel if contiguous(p, axis)), None)


def _large(found: list[Access]) -> list[Index]:
    """Where the largest accesses are, which decide."""
    heavy = max((a.weight for a in found), default=0)
    return [a.position for a in found if a.weight * 4 >= heavy]


def _column(group: Group, stored: frozenset[Value], found: list[Access]) -> Axis | None:
    """The outer axis along which memory is contiguous, unless rows are contiguous too; or another one along which far
    more lies beside each other, as ``d`` of what all rows share:

    sum over j of t[i, j] * b[j, d]   →   | i { - j { = d: acc[d] += t[i, j] * b[j, d] } }"""
    unit, scanned = contiguous_axes(found), {m.space for m in group.members if isinstance(m.nest.root, Scan)}
    in_rows = any(s and s[-1] in unit and k not in scanned for k, s in enumerate(group.spaces))
    column = None if in_rows else next((a for a in reversed(group.outer) if a in unit), None)
    along = [a for a in group.outer if a is not column and iterations((a,)) >= LANES]
    others = [a for a in along if any(access.position.coefficient(a) is ONE for access in found)]
    if not others:
        return column
    costs = {a: lane_cost(group, stored, a, LANES) for a in (column, *others)}
    best = min(others, key=lambda a: costs[a])
    return best if 2 * costs[best] < costs[column] else column


def _have_at_most(most: int, spaces: Iterable[Axes]) -> bool:
    """Whether rows have so few elements, whatever symbols are."""
    sizes = [at_most(product([a.extent for a in space])) for space in spaces]
    return all(n is not None and n <= most for n in sizes)


def _columns(group: Group, column: Axis, beside: Axis | None = None, *, tiny: bool = False) -> Shape:
    """Vectors along ``column``, or along it and the axis ``beside`` it as one."""
    others, spaces = [a for a in group.outer if a not in (column, beside)], list(group.spaces)
    inner = column
    both = column = inner if beside is None else Axis(beside.name, beside.extent * inner.extent)
    roots = [m.nest.root for m in group.members]
    simple = not tiny and all(r.kind in SIMPLE if isinstance(r, Reduce) else not isinstance(r, Scan) for r in roots)
    width = iterations((column,), 1 << 12)
    small = iterations(group.outer) < BLOCK  # as results of parts are, which are added up in float64
    simple = simple and (small or not _have_at_most(PART // 2, spaces))  # so few streams a processor follows
    style = Style.SHEET if simple else Style.STRIPS
    share = max(256, -(-width // (64 * FEW_ROWS)) * 64)  # of a sheet: long runs of memory, and work for all cores
    block = 4 * LANES if not simple else 4096 if iterations(others) >= FEW_ROWS else min(4096, share)
    blocks: dict[Atom, Index] = {}
    if width > block:
        outside, column = _blocked(column, block, blocks)
        others.insert(0 if tiny else len(others), outside)
    if simple:
        for k, space in enumerate(spaces):
            if space and ((most := at_most(space[-1].extent)) is None or most > PART // 2):
                spaces[k] = (*space[:-1], *_blocked(space[-1], PART, blocks))
    if beside is not None:
        blocks |= digits_of(blocks.get(both, both.index()), (beside, inner))
    lanes = 4 * LANES if not simple and not tiny and width >= 4 * LANES else LANES
    return Shape(group, style, tuple(others), column, tuple(spaces), blocks, lanes)


def _tiled_rows(group: Group, found: list[Access]) -> Shape | None:
    """Rows that lie across memory either where they are read or where they are written, some at a time in a tile."""
    if len(group.spaces) != 1 or len(group.spaces[0]) != 1:
        return None
    (row,) = group.spaces[0]
    across = crossing(list(group.outer), row, found)
    size = max(v.dtype.itemsize for m in group.members for v in (*[load.value for load in m.loads], *defines(m.nest)))
    if across is None or (most := at_most(row.extent)) is None or most * TILE_ROWS * size > TILE_OF_ROWS:
        return None
    blocks: dict[Atom, Index] = {}
    block, inner = _in_blocks(across, TILE_ROWS if iterations(group.outer) >= FEW_ROWS * BLOCK else LANES, blocks)
    parallel = (*[a for a in group.outer if a is not across], *block)
    return Shape(group, Style.ROWS, parallel, None, group.spaces, blocks, tile=inner)


def _in_blocks(axis: Axis, size: int, blocks: dict[Atom, Index]) -> tuple[Axes, Axis]:
    """The axes of the loop over blocks and of that within one; a loop that is no longer than a block stays as it is."""
    most = at_most(axis.extent)
    if most is not None and most <= size:
        return (), axis
    block, inner = _blocked(axis, size, blocks)
    return (block,), inner


def _blocked(axis: Axis, size: int, blocks: dict[Atom, Index]) -> tuple[Axis, Axis]:
    """Split a loop into blocks, ``m < n`` → ``b < ⌈n/size⌉``, ``t < min(size, n - b*size)``; note m = b*size + t."""
    block = Axis(axis.name + "b", (axis.extent + (size - 1)) // size)
    inner = Axis(axis.name + "t", minimum(as_index(size), axis.extent - block.index() * size))
    blocks[axis] = block.index() * size + inner.index()
    return block, inner


MIN_SIDE, MIN_TILE, SHORT_SIDE = 2, 256, 16
"""Tiles over two axes pay where both are at least this long, as three channels are, and where together they keep the
threads of a program busy, as a patch of 16 does not; a short one goes on along the axis that follows in memory."""


def gpu_loops(group: Group, stored: frozenset[Value]) -> Shape:
    """Flatten the outer axes into one axis of the grid, and each space into one row.

    A group that reads along one axis of the grid what it writes along another keeps the two apart, so that both become
    sides of a tile, with the other axes in front; a third axis is the third side, or the row where it reduces:

        y[b, i, j] = x[b, j, i]   →   | b { | i tiled { | j tiled { y[…] = x[…] } } }"""
    group = ordered(group, stored)
    blocks: dict[Atom, Index] = {}
    spaces = tuple([(_flat(f"row{n}", space, blocks),) for n, space in enumerate(group.spaces)])
    return Shape(group, Style.TILES, tuple(_grid(group, stored, blocks)), None, spaces, blocks, lanes=1)


def _grid(group: Group, stored: frozenset[Value], blocks: dict[Atom, Index]) -> list[Axis]:
    if not group.outer:
        return []
    *others, last = group.outer
    found = accesses(group, stored)
    roots = [m.nest.root for m in group.members]
    sums = all(isinstance(r, Pointwise) or (isinstance(r, Reduce) and r.kind in SIMPLE) for r in roots)
    side = crossing(others, last, found) if group.pointwise or (sums and not group.serial) else None
    others = [a for a in others if a is not side]
    tiled = (last, side) if side and group.pointwise else ()
    near = [_beside(group, a, found) for a in tiled if iterations((a,)) <= SHORT_SIDE]
    third = (crossing(others, last, found) or next((a for a in others if a in near), None)) if tiled else None
    tile = [a for a in (third, side, last) if a is not None]
    rest = tuple([a for a in others if a is not third])
    if side is None or min(iterations((a,)) for a in (side, last)) < MIN_SIDE or iterations(tile) < MIN_TILE:
        return [_flat("point", group.outer, blocks)]
    return [*([_flat("plane", rest, blocks)] if rest else []), *tile]


def _flat(name: str, axes: Axes, blocks: dict[Atom, Index]) -> Axis:
    """One axis in place of several; ``blocks`` notes each as a digit of it."""
    if len(axes) == 1:
        return axes[0]
    flat = Axis(name, product([a.extent for a in axes]))
    # where nothing runs digits would divide by zero
    blocks |= dict.fromkeys(axes, flat.index()) if flat.extent is ZERO else digits_of(flat.index(), axes)
    return flat
