"""Attention on GPUs of capability 9: warps with roles of their own. Generated kernels call it by the name ``hopper``.

Four warps copy tiles of keys and values into shared memory. Twice four each own half of a program's rows: while tensor
cores multiply the powers of one tile with its values, and the next tile's keys with the rows, they compute powers (Shah
et al., "FlashAttention-3", 2024). A program takes tiles of rows one after the other, from a counter that all programs
share: the first copies for the next one come while the last sums are stored. What is computed, and what arguments mean,
says `attention`."""

# mypy: ignore-errors
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from gyrator.templates.attention import FAR, listed, rows_of, scored, seen, tiles_in_all, unit, window

ONE_EACH = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
"""Of one number, which all threads of four warps have."""


@gluon.jit
def tiles_of(tensor, COUNT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for COUNT tiles of a matrix."""
    ELEMENT: gl.constexpr = tensor[0].dtype.element_ty
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], ELEMENT)
    return gl.allocate_shared_memory(ELEMENT, [COUNT, ROWS, WIDTH], LAYOUT)


@gluon.jit
def matrix(tensor, b, h, rows, tiles):
    """How one matrix lies in memory, for copies into ``tiles``; past its end are zeros."""
    WIDTH: gl.constexpr = tiles.shape[2]
    SHAPE: gl.constexpr = [tiles.shape[1], WIDTH]
    return tma.make_tensor_descriptor(window(tensor, b, h), [rows, WIDTH], [tensor[3], 1], SHAPE, tiles.layout)


@gluon.jit
def where_tile(t, some, partial, whole, SIDE: gl.constexpr, BLOCK: gl.constexpr, LISTED: gl.constexpr):
    """Where tile ``t`` of a walk begins: first come ``some`` of the listed blocks, then whole ones."""
    if LISTED:
        steps: gl.constexpr = SIDE // BLOCK
        numbers, step, at = partial[0], partial[1], t
        if t >= some:
            numbers, step, at = whole[0], whole[1], t - some
        return gl.load(numbers + at // steps * step) * SIDE + at % steps * BLOCK
    else:
        return (partial[0] + t) * BLOCK


@gluon.jit
def task(
    pid, lists, sizes, LOW: gl.constexpr, HIGH: gl.constexpr,
    SIDE_M: gl.constexpr, SIDE_N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Batch, head and first row of a program's tile; how many tiles of keys it has, how many of them come first, and
    where the numbers of their blocks are, and of the whole ones; without lists the number of the first tile."""
    _batch, _heads, _m, n = sizes
    b, h, start = rows_of(pid, sizes, BLOCK_M)
    begin, end = seen(start, n, BLOCK_M, LOW, HIGH)
    first = begin // BLOCK_N
    tiles = gl.cdiv(end, BLOCK_N)
    if LOW > -FAR or HIGH < FAR:
        tiles = gl.maximum(tiles - first, 0)
    some, partial, whole = tiles, (first, 0), (0, 0)
    if len(lists) > 0:
        number, partial = listed(lists[0], lists[1], b, h, start // SIDE_M)
        some = number * (SIDE_N // BLOCK_N)
        tiles, whole = some, partial
    if len(lists) > 2:
        number, whole = listed(lists[2], lists[3], b, h, start // SIDE_M)
        tiles += number * (SIDE_N // BLOCK_N)
    return b, h, start, tiles, some, partial, whole


# -- who copies ----------------------------------------------------------------------------------------------
@gluon.jit
def copy(
    query, key, value, lists, sizes, q, k, v, next_pid, bars, counters,
    LOW: gl.constexpr, HIGH: gl.constexpr, GROUPS: gl.constexpr, SIDE_M: gl.constexpr, SIDE_N: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Fill q, then k and v tile by tile as soon as both owners of rows are done with what is there; then say which
    tile of rows is next."""
    q_full, q_free, k_full, k_free, v_full, v_free, next_full, next_free = bars
    STAGES: gl.constexpr = k.shape[0]
    HALF: gl.constexpr = q.shape[1]
    BLOCK_N: gl.constexpr = k.shape[1]
    LISTED: gl.constexpr = len(lists) > 0
    counter = counters.to(gl.pointer_type(gl.int32), bitcast=True)
    everything = tiles_in_all(sizes, 2 * HALF)
    _batch, _heads, m, n = sizes
    pid, turn, done = gl.program_id(0), 0, 0
    while pid < everything:
        b, h, start, tiles, some, partial, whole = task(pid, lists, sizes, LOW, HIGH, SIDE_M, SIDE_N, 2 * HALF, BLOCK_N)
        queries = matrix(query, b, h, m, q)
        keys, values = matrix(key, b, h // GROUPS, n, k), matrix(value, b, h // GROUPS, n, v)
        for c in gl.static_range(2):
            mbarrier.wait(q_free.index(c), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(c), HALF * q.shape[2] * 2)
            tma.async_copy_global_to_shared(queries, [start + c * HALF, 0], q_full.index(c), q.index(c))
        for t in range(tiles):
            at = where_tile(t, some, partial, whole, SIDE_N, BLOCK_N, LISTED)
            s = (done + t) % STAGES
            phase = ((done + t) // STAGES & 1) ^ 1
            mbarrier.wait(k_free.index(s), phase)
            mbarrier.expect(k_full.index(s), BLOCK_N * k.shape[2] * 2)
            tma.async_copy_global_to_shared(keys, [at, 0], k_full.index(s), k.index(s))
            mbarrier.wait(v_free.index(s), phase)
            mbarrier.expect(v_full.index(s), BLOCK_N * v.shape[2] * 2)
            tma.async_copy_global_to_shared(values, [at, 0], v_full.index(s), v.index(s))
        ticket = gl.atomic_add(counter, 1)
        if ticket == everything - 1:  # the last that any program takes
            gl.store(counter, 0)
        pid = ticket + PROGRAMS
        mbarrier.wait(next_free, (turn & 1) ^ 1)
        next_pid.store(gl.full((1,), pid, gl.int32, ONE_EACH))
        mbarrier.arrive(next_full, count=1)
        # The next descriptions of matrices lie where these do: copies must not need them any more.
        for c in gl.static_range(2):
            mbarrier.wait(q_full.index(c), turn & 1)
        for back in gl.static_range(STAGES):
            last = done + tiles - 1 - back
            if back < tiles:
                mbarrier.wait(k_full.index(last % STAGES), last // STAGES & 1)
                mbarrier.wait(v_full.index(last % STAGES), last // STAGES & 1)
        done += tiles
        turn += 1


# -- who computes --------------------------------------------------------------------------------------------
@gluon.jit
def powers(
    raw, top, total, b, h, i, j, masked, m, n, scale, score, keep, reads,
    OPEN: gl.constexpr, EVEN_N: gl.constexpr, PLAIN: gl.constexpr,
):  # fmt: skip
    """The powers of a tile of scores; the greatest scores and sums with them, and what the old sums shrink by."""
    factor = unit(scale, PLAIN)
    i, j = i[:, None], j[None, :]
    scores, raw = scored(raw, b, h, i, j, m, n, scale, score, keep, reads, True, False, True, EVEN_N, PLAIN)
    if not OPEN:  # noqa: SIM102 - decided when it is compiled
        if masked:
            kept = keep(b, h, gl.minimum(i, m - 1), gl.minimum(j, n - 1), reads)
            scores = gl.where(kept, scores, float("-inf"))
    new = gl.maximum(top, gl.max(scores, 1) * factor)
    safe = new
    if not (OPEN and PLAIN):
        safe = gl.where(new == float("-inf"), 0.0, new)
    power = gl.exp2(scores * factor - safe[:, None])
    shrink = gl.exp2(top - safe)
    return power, new, total * shrink + gl.sum(power, 1), shrink


@gluon.jit
def step(
    t, p, top, total, acc, q, k, v, bars, b, h, i, j, masked, m, n, scale, score, keep, reads,
    OPEN: gl.constexpr, EVEN_N: gl.constexpr, PLAIN: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """Begin the scores of tile ``t`` of all and the values of the tile before it; then the powers of ``t``."""
    _q_full, _q_free, k_full, k_free, v_full, v_free, _next_full, _next_free = bars
    STAGES: gl.constexpr = k.shape[0]
    s, before = t % STAGES, (t - 1) % STAGES
    mbarrier.wait(k_full.index(s), t // STAGES & 1)
    empty = gl.full((q.shape[0], k.shape[1]), 0.0, gl.float32, SCORES)
    raw = hopper.warpgroup_mma(q, k.index(s).permute((1, 0)), empty, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), (t - 1) // STAGES & 1)
    acc = hopper.warpgroup_mma(p, v.index(before), acc, is_async=True)
    raw = hopper.warpgroup_mma_wait(1, deps=[raw])
    mbarrier.arrive(k_free.index(s), count=1)
    power, top, total, shrink = powers(
        raw, top, total, b, h, i, j, masked, m, n, scale, score, keep, reads, OPEN, EVEN_N, PLAIN
    )
    acc = hopper.warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_free.index(before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    return gl.convert_layout(power.to(q.dtype), p.type.layout), top, total, acc


@gluon.jit
def own(
    queries, k, v, next_pid, bars, lists, sizes, results, scale, score, keep, reads,
    EVEN_N: gl.constexpr, PLAIN: gl.constexpr, OPEN: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr,
    V: gl.constexpr, SIDE_M: gl.constexpr, SIDE_N: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """The results of half ``C`` of the rows of each tile."""
    q_full, q_free, k_full, k_free, v_full, v_free, next_full, next_free = bars
    q = queries.index(C)
    STAGES: gl.constexpr = k.shape[0]
    ROWS: gl.constexpr = q.shape[0]
    COLUMNS: gl.constexpr = k.shape[1]
    LISTED: gl.constexpr = len(lists) > 0
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, SCORES))
    everything = tiles_in_all(sizes, 2 * ROWS)
    _batch, _heads, m, n = sizes
    pid, turn, done = gl.program_id(0), 0, 0
    while pid < everything:
        b, h, start, tiles, some, partial, whole = task(pid, lists, sizes, LOW, HIGH, SIDE_M, SIDE_N, 2 * ROWS, COLUMNS)
        i = start + C * ROWS + gl.arange(0, ROWS, ROW)
        top = gl.full((ROWS,), float("-inf"), gl.float32, ROW)
        total = gl.full((ROWS,), 0.0, gl.float32, ROW)
        acc = gl.full((ROWS, V), 0.0, gl.float32, SUMS)
        mbarrier.wait(q_full.index(C), turn & 1)
        if tiles > 0:
            mbarrier.wait(k_full.index(done % STAGES), done // STAGES & 1)
            raw = gl.full((ROWS, COLUMNS), 0.0, gl.float32, SCORES)
            raw = hopper.warpgroup_mma(q, k.index(done % STAGES).permute((1, 0)), raw, use_acc=False, is_async=True)
            raw = hopper.warpgroup_mma_wait(0, deps=[raw])
            mbarrier.arrive(k_free.index(done % STAGES), count=1)
            j = where_tile(0, some, partial, whole, SIDE_N, COLUMNS, LISTED) + column
            power, top, total, _shrink = powers(
                raw, top, total, b, h, i, j, some > 0, m, n, scale, score, keep, reads, OPEN, EVEN_N, PLAIN
            )
            p = gl.convert_layout(power.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
            for t in range(1, tiles):
                j = where_tile(t, some, partial, whole, SIDE_N, COLUMNS, LISTED) + column
                p, top, total, acc = step(
                    done + t, p, top, total, acc, q, k, v, bars, b, h, i, j, t < some, m, n, scale, score, keep, reads,
                    OPEN, EVEN_N, PLAIN, SCORES,
                )  # fmt: skip
            last = done + tiles - 1
            mbarrier.wait(v_full.index(last % STAGES), last // STAGES & 1)
            acc = hopper.warpgroup_mma(p, v.index(last % STAGES), acc, is_async=True)
            acc = hopper.warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_free.index(last % STAGES), count=1)
        mbarrier.arrive(q_free.index(C), count=1)
        store(results, acc, top, total, b, h, i, m)
        mbarrier.wait(next_full, turn & 1)
        pid = gl.max(next_pid.load(ONE_EACH), 0)
        mbarrier.arrive(next_free, count=1)
        done += tiles
        turn += 1


@gluon.jit
def store(results, acc, top, total, b, h, i, m):
    """Store means, logarithms of sums and greatest scores of the rows ``i`` that there are."""
    out, sums, maxima = results
    SUMS: gl.constexpr = acc.type.layout
    empty = total == 0.0
    if out is not None:
        row = gl.convert_layout(i, gl.SliceLayout(1, SUMS))
        column = gl.arange(0, acc.shape[1], gl.SliceLayout(0, SUMS))
        places = window(out, b, h) + row[:, None] * out[3] + column[None, :] * out[4]
        divisor = gl.convert_layout(gl.where(empty, 1.0, total), gl.SliceLayout(1, SUMS))
        gl.store(places, (acc / divisor[:, None]).to(out[0].dtype.element_ty), (row < m)[:, None])
    if sums is not None:
        logarithm = gl.where(empty, float("-inf"), top + gl.log2(total))
        gl.store(window(sums, b, h) + i * sums[3], logarithm, i < m)
    if maxima is not None:
        gl.store(window(maxima, b, h) + i * maxima[3], top, i < m)


# -- a program -----------------------------------------------------------------------------------------------
@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers in shared memory, each for so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(COUNT):
        mbarrier.init(made.index(s), count=ARRIVALS)
    return made


@gluon.jit
def forward(
    operands, lists, results, sizes, scale, score, keep, slope, reads, EVEN_M: gl.constexpr, EVEN_N: gl.constexpr,
    MOVED_N: gl.constexpr, PLAIN: gl.constexpr, OPEN: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr,
    E: gl.constexpr, V: gl.constexpr, GROUPS: gl.constexpr, SIDE_M: gl.constexpr, SIDE_N: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ALLOW_TF32: gl.constexpr, PROGRAMS: gl.constexpr, counters,
):  # fmt: skip
    """As `attention.forward`, for widths that are powers of two, rows of whole 16 bytes, and elements of 16 bits."""
    query, key, value = operands
    batch, heads, m, n = sizes  # fit into 32 bits, as places in tensors need not
    sizes = (gl.cast(batch, gl.int32), gl.cast(heads, gl.int32), gl.cast(m, gl.int32), gl.cast(n, gl.int32))
    HALF: gl.constexpr = BLOCK_M // 2
    STAGES: gl.constexpr = min(4, 65536 // (BLOCK_N * (E + V)))
    q, k, v = tiles_of(query, 2, HALF, E), tiles_of(key, STAGES, BLOCK_N, E), tiles_of(value, STAGES, BLOCK_N, V)
    next_pid = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = (
        barriers(2, 1), barriers(2, 1),
        barriers(STAGES, 1), barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, 2),
        barriers(1, 1).index(0), barriers(1, 2).index(0),
    )  # fmt: skip
    hopper.fence_async_shared()
    gl.warp_specialize(
        [
            (own, (
                q, k, v, next_pid, bars, lists, sizes, results, scale, gl.constexpr(score), gl.constexpr(keep), reads,
                EVEN_N, PLAIN, OPEN, LOW, HIGH, V, SIDE_M, SIDE_N, 0,
            )),
            (own, (
                q, k, v, next_pid, bars, lists, sizes, results, scale, gl.constexpr(score), gl.constexpr(keep), reads,
                EVEN_N, PLAIN, OPEN, LOW, HIGH, V, SIDE_M, SIDE_N, 1,
            )),
            (copy, (
                query, key, value, lists, sizes, q, k, v, next_pid, bars, counters, LOW, HIGH, GROUPS, SIDE_M, SIDE_N,
                PROGRAMS,
            )),
        ],
        [4, 4],
        [240, 24],
    )  # fmt: skip
