"""Tiles of a GPU kernel: which loops run in blocks, candidates for the block sizes, warps and stages. The candidates
follow from how the kernel walks through memory: a row that is contiguous is handled by a program of its own, whole if
it fits in the registers of a block of threads; of columns a program takes what fills a transaction."""

from collections import Counter
from dataclasses import dataclass, replace
from math import prod

from gyrator.ir import tree
from gyrator.ir.expr import Op, Value
from gyrator.ir.index import ONE, Axis, FloorDiv, Index, is_nonnegative, upper
from gyrator.ir.tree import Config, Kernel, Loop, LoopKind, Store, Tile, Tiling, Update
from gyrator.ir.volume import WITHIN_32_BITS, at_most, bounds_in_sizes, bytes_of, iterations, power, volume
from gyrator.schedule.gpu import FEW_PROGRAMS, Gpu
from gyrator.schedule.group import Axes
from gyrator.schedule.layout import contiguous, steps_along
from gyrator.schedule.loops import SHORT_SIDE

WHOLE_ROW = 1 << 15
"""Elements of a row that a program may keep: 32 of a thread's 64 registers, in 1,024 threads."""
WHOLE_SUM = 1 << 12
"""As WHOLE_ROW, for a row that is read once anyway: a loop then needs fewer registers."""
LONG_ROW, RAGGED = 1 << 11, 16
"""Elements from which on a row may be faster in blocks than whole, and up to which threads handle few of a tile that
rows do not fill."""
WHOLE_SCAN = 1 << 12
SIDED = 1 << 12
"""Elements of a tile over rows and two axes of the grid."""
WHOLE_COLUMN, WHOLE_COLUMN_AGAIN = 64, 512
"""Elements of a column that a program may keep, and of one that is read again."""
MANY_ACCESSES, MANY_LARGE = 6, 2
"""Accesses above which a thread should have fewer elements: of a pooling window; of all elements, in crossed rows."""
SUMS, SUMS_OF_ROWS = 80, 28
"""Sums of windows that a thread may keep, of columns and of rows, where each element has a mask of its own."""
STREAMED = range(1 << 25, (1 << 28) + 1)
"""Bytes of values of which an L2 cache of 50 MiB keeps too little for a second read; hints slow larger ones down."""
SHORT_COLUMN = 512
LITTLE = 1 << 25
"""Bytes that a kernel moves while another is launched: none of its configs can be told to be the fastest."""
WARP = 32
PERIODIC, PERIODS = ("sin", "cos", "tan"), 8
"""Functions with a path for large numbers, a hundred instructions each, and how many of them a thread computes at most:
they are written out for each of its elements. More take long to build, and registers are spilled."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """A kernel's grid axes, row axes with the loops over each, accesses: (position, bytes per element), and how many
    of PERIODIC an element takes."""

    grid: tuple[Axis, ...]
    rows: dict[Axis, tuple[Loop, ...]]
    accesses: tuple[tuple[Index, int], ...]
    periodic: int

    @property
    def is_little(self) -> bool:
        """Whether a launch moves LITTLE; sizes that are not known may be large."""
        fixed = all(axis.extent.value is not None for axis in (*self.grid, *self.rows))
        return fixed and sum(size * _reached(position) for position, size in self.accesses) <= LITTLE


def tile_kernel(kernel: Kernel, gpu: Gpu, shared: tuple[int, ...]) -> Kernel:
    """``kernel`` with its tiling: every loop over a row and the last axis of the grid get a block, the last two or
    three in a kernel whose accesses cross. Several programs share a row in parts of one of the sizes ``shared``."""
    walk = _walk(kernel)
    points = iterations(walk.grid)
    hint = points * max((iterations((r,)) for r in walk.rows), default=1)
    hint *= iterations(loop.axis for loop in tree.walk_loops(kernel.body) if loop.kind is LoopKind.SERIAL)
    if shared:
        tiling = _shared_tiles(walk, shared)
    elif walk.rows and len(walk.grid) > 1:
        tiling = _sided_tiles(walk)
    elif walk.rows:
        tiling = _row_tiles(walk, points, gpu, mixed=bool(kernel.scratch))
    else:
        tiling = _point_tiles(walk, points, gpu)
    tiling = in_32_bits(tiling, kernel)
    tiling = replace(tiling, configs=tuple(dict.fromkeys(tiling.configs)), hint=hint)
    if kernel.scratch:
        tiling = replace(tiling, configs=_staged(tiling.configs, kernel, gpu))
    elif tiling.category == "persistent":
        tiling = replace(tiling, other=_in_blocks(walk, tiling))
    return replace(kernel, tiling=tiling)


def _point_tiles(walk: _Walk, points: int, gpu: Gpu) -> Tiling:
    if not walk.grid:
        return Tiling((), (Config((), 1),), "pointwise")
    *_, last = walk.grid
    if len(walk.grid) == 1:
        first = 1024 * (2 if _item(walk) <= 2 else 1) // (2 if len(walk.accesses) > MANY_ACCESSES else 1)
        sizes = [512, 256] if points <= 512 * 4 * gpu.processors else [first, 512 if first > 512 else 1024]
        configs = [Config((("XBLOCK", n),), 4) for n in (sizes[:1] if walk.is_little else sizes)]
        return Tiling((Tile(last, "XBLOCK"),), tuple(configs), "pointwise")
    side = 64 if max((size for _, size in walk.accesses), default=4) <= 2 else 32
    tiles: list[tuple[int, ...]] = [(side,) * 2] if walk.is_little else [(32, 2 * side), (2 * side, 32), (16, 4 * side)]
    axes, names = walk.grid[-2:], ["YBLOCK", "XBLOCK"]
    steps = {p.coefficient(a) for a in walk.grid[-3:-2] for p, _ in walk.accesses if last in p.axes()}
    short = [a for a in axes if iterations((a,)) <= SHORT_SIDE and a.extent in steps - {ONE}]
    if ONE in steps or short:
        axes, names = walk.grid[-3:], ["ZBLOCK", *names]
        tiles = [(8, 8, side), (16, 16, 16), (8, 16, side // 2), (side // 4, side // 4, side)]
    if short and ONE not in steps:
        n = power(iterations(short[:1]))
        tiles = [(k * side // n, *(n if a in short else side for a in axes[1:])) for k in (2, 1)]
    found = dict.fromkeys(_clipped(shape, axes) for shape in (tiles[:1] if walk.is_little else tiles))
    configs = [Config(tuple(zip(names, shape, strict=True)), 8 if prod(shape) > 2048 else 4) for shape in found]
    return Tiling(tuple(map(Tile, axes, names)), tuple(configs), "pointwise")


def _clipped(shape: tuple[int, ...], axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """The sides of a tile, none longer than it needs to be: the longest axis gets what the others do not take."""
    most = [power(iterations((a,), 1 << 20)) for a in axes]
    sides, longest = list(map(min, shape, most)), most.index(max(most))
    sides[longest] = min(sides[longest] * (prod(shape) // prod(sides)), most[longest])
    return tuple(sides)


def _row_tiles(walk: _Walk, points: int, gpu: Gpu, *, mixed: bool) -> Tiling:
    """A program handles one row or several, each whole where it fits, and where column sums are kept (``mixed``)."""
    scans = any(map(_scans, walk.rows.values()))
    most = max((_reached(position) for position, _ in walk.accesses), default=0)
    large = sum(2 * _reached(position) > most for position, _ in walk.accesses)
    each = 512 if len(walk.accesses) > 4 * MANY_ACCESSES else 2048  # elements of a warp that crosses rows
    crossed = bool(walk.grid) and not mixed and _walks_columns(walk, 2)
    tallest = each if points >= 64 * FEW_PROGRAMS else WHOLE_ROW // 16
    tall_rows = not scans and any(power(iterations((a,))) > tallest for a in walk.rows)
    columns = crossed and (tall_rows or _walks_columns(walk))
    whole = {axis: mixed or _is_whole(axis, loops, columns=columns) for axis, loops in walk.rows.items()}
    longest = max(power(at_most(a.extent)) for a in whole)
    if not all(whole.values()):
        shapes = _looped(walk, points, gpu, [a for a, w in whole.items() if not w], columns=columns)
    elif mixed:
        shapes = [(x, 0, warps) for x, warps in _mixed_rows(longest, _item(walk))]
    else:
        pairs = _whole_columns(longest, points) if columns else _whole_rows(longest, points, gpu, _item(walk))
        if not columns and longest <= RAGGED and any(iterations((a,)) != power(iterations((a,))) for a in whole):
            pairs = [(x, 4) for x, _ in pairs]
        pairs = (pairs[:1] if scans else pairs[-1:]) if walk.is_little else [*dict.fromkeys(pairs)][:2]
        if any(map(_sorts, walk.rows.values())):
            pairs = [(1, 1)] if longest > 256 else [(4, 4), (1, 1)]
        elif crossed and not columns:
            tall = [n for n in (16, 32) if n <= power(points) and 2048 <= n * longest <= WHOLE_ROW]
            pairs = [(n, min(n * longest // (512 if large > MANY_LARGE else each), 16)) for n in tall] or pairs
        if walk.periodic:
            pairs = [_lighter(x, warps, longest * walk.periodic) for x, warps in pairs]
        shapes = [(x, 0, warps) for x, warps in pairs]
    tiled = walk.grid[-1:] if any(x > 1 for x, _, _ in shapes) else ()
    tiling = _tiling_of(tiled, [((x,) * len(tiled), block, warps) for x, block, warps in shapes], whole)
    return replace(tiling, category="scan") if scans else tiling


def _looped(walk: _Walk, points: int, gpu: Gpu, axes: list[Axis], *, columns: bool) -> list[tuple[int, int, int]]:
    """(rows or columns, block of a row, warps) where rows along these axes are in blocks."""
    row = max(power(iterations((a,), 1 << 14)) for a in axes)
    again = any(_read_again(a, loops) for a, loops in walk.rows.items())
    shapes = _looped_columns(row, points, again=again) if columns else _looped_rows(row)
    if not columns and row < LONG_ROW:  # by a hint
        shapes = [(x, max(row, 16), warps) for x, warps in _whole_rows(row, points, gpu, _item(walk))]
    sums = max(_sums(loop) for loops in walk.rows.values() for loop in loops)
    if not columns and (sums or row <= 1 << 15):
        shapes = shapes[1:] if sums else shapes[:2]
    limits = ((SUMS if columns else SUMS_OF_ROWS, sums), (PERIODS, walk.periodic))
    for most in [most * WARP // each for most, each in limits if each]:  # elements of a warp
        shapes = [(x, max(min(n, power(most * warps // x + 1) // 2), 1), warps) for x, n, warps in shapes]
    return shapes if walk.grid else [(1, block, warps) for _, block, warps in shapes]


def _sided_tiles(walk: _Walk) -> Tiling:
    """A program handles rows along two axes of the grid: what lies along one is read, and along the other written."""
    block = 4 if _item(walk) <= 2 else 16
    whole = {a: power(at_most(a.extent) or SIDED) <= block for a in walk.rows}
    points = SIDED // prod(min(power(iterations((a,))), block) for a in walk.rows)
    side = 1 << (points.bit_length() - 1) // 2
    shapes = [(_clipped((y, points // y), walk.grid[-2:]), block, 8) for y in (side, side // 2)]
    return _tiling_of(walk.grid[-2:], shapes, whole)


def _tiling_of(sides: Axes, shapes: list[tuple[tuple[int, ...], int, int]], whole: dict[Axis, bool]) -> Tiling:
    """Tiles along sides of the grid and rows, for (blocks of these sides, block of a row that is not whole, warps).
    Blocks of rows have one size: Triton computes with sums of a smaller tile in its layout, in which every thread has
    a whole row."""
    names = ("YBLOCK", "XBLOCK")[2 - len(sides) :]
    blocks = {axis: f"R{n}BLOCK" if len(whole) > 1 else "RBLOCK" for n, axis in enumerate(whole)}
    longest = max((power(at_most(axis.extent)) for axis, w in whole.items() if w), default=0)
    configs = [
        Config((*zip(names, side, strict=True), *((b, max(longest * whole[a], n)) for a, b in blocks.items())), warps)
        for side, n, warps in shapes
    ]
    tiles = (*map(Tile, sides, names), *(Tile(a, blocks[a], w) for a, w in whole.items()))
    return Tiling(tiles, tuple(configs), "persistent" if all(whole.values()) else "looped")


def _shared_tiles(walk: _Walk, parts: tuple[int, ...]) -> Tiling:
    """A program handles a part of a row, or where columns are scanned of eight: as many as there are share it."""
    (axis,) = walk.rows
    tiles = (Tile(axis, "RBLOCK", whole=True),)
    if _scans(walk.rows[axis]):
        updates = [s for loop in walk.rows[axis] for s in loop.body if isinstance(s, Update)]
        state = power(sum(max(arg.dtype.itemsize, 4) for s in updates for arg in s.args) + 1) // 2  # 12 counts as 8
        if walk.grid and _walks_columns(walk):
            x, some, few, many = min(power(iterations(walk.grid[-1:])), 8), parts[0], min(parts), max(parts)
            sizes = [(some, 4), (many, 8), (few, 8)] if state <= 4 else [(few, 4), (some, 4), (few, 8)]
            more = max(len(s.args) for s in updates)
            configs = [Config((("XBLOCK", x), ("RBLOCK", max(n // x, 2))), warps * more) for n, warps in sizes]
            return Tiling((Tile(walk.grid[-1], "XBLOCK"), *tiles), tuple(configs), "split scan")
        sizes = [(n, min(max(n * state >> 12, 4), 32)) for n in parts]
        sizes = [(n, warps) for n, warps in sizes if warps <= 16] or [(min(parts), 32)]
        configs = [Config((("RBLOCK", n),), warps) for n, warps in sizes]
        return Tiling(tiles, tuple(configs), "split scan")
    shapes = [(n, min(max(n * _item(walk) // 2048, 4), 32)) for n in parts]
    shapes.insert(1, (parts[0], min(2 * shapes[0][1], 32)))
    configs = [Config((("PARTS", -(-iterations((axis,)) // n)), ("RBLOCK", n)), warps) for n, warps in shapes]
    return Tiling(tiles, tuple(configs), "cooperative")


def _in_blocks(walk: _Walk, whole: Tiling) -> Tiling | None:
    """The tiling with rows in blocks instead; None for columns and for short rows, where it cannot pay."""
    row = min(power(at_most(axis.extent)) for axis in walk.rows)
    if row < LONG_ROW or _walks_columns(walk):
        return None
    first = [("XBLOCK", 1)] if any(tile.block == "XBLOCK" for tile in whole.tiles) else []
    names = [tile.block for tile in whole.tiles if tile.whole]
    configs = [Config((*first, *((n, block) for n in names)), warps) for _, block, warps in _looped_rows(row // 2)[:2]]
    tiles = tuple(replace(tile, whole=False) for tile in whole.tiles)
    return replace(whole, tiles=tiles, configs=tuple(dict.fromkeys(configs)), category="looped")


def _whole_rows(row: int, points: int, gpu: Gpu, item: int) -> list[tuple[int, int]]:
    """(rows, warps) of a program. A thread has 64 bytes of a row or half of that. Warps do not share short rows:
    what is loaded for all rows of a tile, as weights are, would then be laid out in another way than the rows."""
    most = power(max(1, points // (2 * gpu.processors)) + 1) // 2
    warp = 32 * 64 // item
    warps = min(max(row // warp, 1), 32)
    rows = min(max(warp // row, 1), most)
    return [(rows, warps), (min(2 * rows, most), min(2 * warps, 32)), (rows, min(2 * warps, 32))]


def _mixed_rows(row: int, item: int) -> list[tuple[int, int]]:
    """(rows at once, warps) of a program that also sums down the columns, and keeps those sums in registers."""
    warp = 32 * 64 // item
    return [(max(warp // (2 * row), 1), min(max(row // warp, 1) * more, 32)) for more in (1, 4)]


def _lighter(x: int, warps: int, periodic: int) -> tuple[int, int]:
    """(rows or columns, warps) of which a thread computes PERIODS, if each takes so many, or near that: columns fill a
    line, or a sector at least."""
    while x * periodic > PERIODS * WARP * warps and (x > 8 or warps < 16):
        x, warps = (x // 2, warps) if x > 32 or warps == 16 else (x, 2 * warps)
    return x, warps


def _item(walk: _Walk) -> int:
    """Bytes of an element of what is accessed most."""
    return max(((iterations(position.axes()), size) for position, size in walk.accesses), default=(0, 4))[1]


def _staged(configs: tuple[Config, ...], kernel: Kernel, gpu: Gpu) -> tuple[Config, ...]:
    """``configs`` in which loads of the serial loops begin two iterations early, where shared memory holds them."""
    serial = [loop for loop in tree.walk_loops(kernel.body) if loop.kind is LoopKind.SERIAL]
    moving = [load for loop in serial for load in tree.loads_in(loop.body) if {loop.axis} < load.axes()]
    row = sum(load.dtype.itemsize for load in moving)
    stages = {c: 3 if 2 * row * prod(size for _, size in c.blocks) <= gpu.shared_bytes else 1 for c in configs}
    return tuple(replace(config, blocks=(*config.blocks, ("STAGES", n))) for config, n in stages.items())


def _whole_columns(row: int, points: int) -> list[tuple[int, int]]:
    """(columns, warps) of a program: a warp has 4,096 elements, to hide the time of loads; less if these are few."""
    wide = max(2048 // row, 64 if row <= 256 else 32)
    x = max(min(wide, power(points) // FEW_PROGRAMS), 8)
    warps = min(max(x * row // (4096 if x == wide else 256), 2), 8)
    return [(x, warps), (max(x // 2, 8), warps), (x, min(2 * warps, 8))]


def _looped_rows(row: int) -> list[tuple[int, int, int]]:
    """(rows, block of a row, warps). Few long rows are read at a time, so that a cache has them for a second read."""
    large = (16384, 32) if row > 1 << 15 else (8192, 8)
    return [(1, min(max(row, 16), block), warps) for block, warps in ((2048, 4), (4096, 16), large)]


def _looped_columns(row: int, points: int, *, again: bool) -> list[tuple[int, int, int]]:
    """(columns, block of them, warps). What is read ``again`` is little, so that the cache still has it. Of few
    columns, or few rows as partial sums are, a program takes fewer, so that there are more programs; it takes
    microseconds, in which no other shape can be told to be faster."""
    shapes = [(32, 128, 16), (64, 64, 8)] if again else [(64, 32, 8), (32, 128, 16), (32, 64, 4)]
    if points < 64 * FEW_PROGRAMS or row <= SHORT_COLUMN:
        many = points >= 128 * FEW_PROGRAMS
        shapes = [(32, 64, 4)] if many else [(16, 256, 8)] if points >= 32 * FEW_PROGRAMS else [(8, 1024, 16)]
    return [(min(x, power(points)), min(row, block), warps) for x, block, warps in shapes]


def _is_whole(axis: Axis, loops: tuple[Loop, ...], *, columns: bool) -> bool:
    length, again = at_most(axis.extent), _read_again(axis, loops)
    if length is None:
        return False
    if columns and not _sorts(loops):
        return power(length) <= (WHOLE_COLUMN_AGAIN if again else WHOLE_COLUMN)
    if _scans(loops):
        return length <= WHOLE_SCAN
    return power(length) * max(again, 1) <= (WHOLE_ROW if again else WHOLE_SUM)


def _read_again(axis: Axis, loops: tuple[Loop, ...]) -> int:
    """How many loads along the row several of its loops need."""
    readers = Counter(load for loop in loops for load in tree.loads_in(loop.body) if axis in load.axes())
    return sum(count > 1 for count in readers.values())


def _walks_columns(walk: _Walk, share: int = 1) -> bool:
    """Whether most bytes lie contiguously along the grid rather than along the rows, or more than one in ``share``.
    What a warp's neighbours along the grid read alike, as all coordinates do gradients of pairs, does not count.
    Results of a sixteenth of what is read, as of what is summed over all pairs, do not decide."""
    rows = grid = largest = 0
    for position, size in walk.accesses:
        weight = size * _reached(position)
        alike = any(steps_along(position, a) == {0} for a in walk.grid[-1:])
        largest = max(largest, weight)
        rows = max(rows, weight if not alike and any(contiguous(position, a) for a in walk.rows) else 0)
        grid = max(grid, weight if any(contiguous(position, a) for a in walk.grid[-1:]) else 0)
    return grid * share > rows and grid * 16 > largest


def _reached(position: Index) -> int:
    """How many places an access has, about."""
    last, count = upper(position), iterations(position.axes())
    return count if last is None else min(count, volume((last + 1,)))


def streamed(kernel: Kernel) -> set[Value]:
    """Values that reductions read once and a cache keeps little of: they need not push out what other kernels wrote.
    None where as much is written, which pushes that out anyway."""
    reduces = any(isinstance(stage, Update) for stage in tree.walk_stages(kernel.body))
    writes = any(param.written and bytes_of(param.value) >= STREAMED.start for param in kernel.params)
    if kernel.tiling is None or not reduces or writes:
        return set()
    read = {load.value for load in tree.loads_in(kernel.body)}
    return {v for v in read if bytes_of(v) in STREAMED and volume(v.shape) >= kernel.tiling.hint}


def _walk(kernel: Kernel) -> _Walk:
    loops = list(tree.walk_loops(kernel.body))
    lanes = [loop for loop in loops if loop.kind is LoopKind.LANES]
    rows = {loop.axis: tuple(other for other in lanes if other.axis is loop.axis) for loop in lanes}
    grid = tuple(loop.axis for loop in loops if loop.kind is LoopKind.PARALLEL)
    loads = [(load.index[0], load.dtype.itemsize) for load in tree.loads_in(kernel.body)]
    stores = [(s.index[0], s.value.dtype.itemsize) for s in tree.walk_stages(kernel.body) if isinstance(s, Store)]
    nodes = {node for expr in tree.walk_exprs(kernel.body) for node in expr.walk()}
    periodic = sum(isinstance(node, Op) and node.name in PERIODIC for node in nodes)
    return _Walk(grid, rows, (*loads, *stores), periodic)


def _sums(loop: Loop) -> int:
    """How many sums a loop keeps of as many loads of one value, as those of a window; 0 if under three."""
    sums, reads = sum(isinstance(s, Update) for s in loop.body), Counter(x.value for x in tree.loads_in(loop.body))
    return sums if 2 < sums <= max(reads.values(), default=0) else 0


def _scans(loops: tuple[Loop, ...]) -> bool:
    return any(isinstance(s, Update) and s.running for loop in loops for s in loop.body)


def _sorts(loops: tuple[Loop, ...]) -> bool:
    return any("sort" in carry.kind for loop in loops for carry in loop.carries)


def in_32_bits(tiling: Tiling, kernel: Kernel) -> Tiling:
    """``tiling`` with what positions need: 32 bits, 64, or 32 while bounds that sizes decide are small, as by hints."""
    indices = [*tree.indices_in(kernel.body)]
    found, known = [bounds_in_sizes(i) for i in indices], {size for i in indices for size in i.sizes()}
    every = {bound for bounds in found if bounds is not None for bound in bounds}
    divided = any(isinstance(a, FloorDiv) and not is_nonnegative(a.den - 1) for bound in every for a in bound.atoms())
    if None in found or divided or any(volume((b,)) >= WITHIN_32_BITS or not b.sizes() <= known for b in every):
        return replace(tiling, wide=True)
    largest = list[Index]()
    for bound in sorted(every, key=lambda bound: (-volume((bound,)), str(bound))):
        largest += [] if any(is_nonnegative(other - bound) for other in largest) else [bound]
    return replace(tiling, below=tuple(largest))
