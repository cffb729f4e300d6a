"""Attention on a GPU: what generated kernels call by the name ``attention``.

    scores = score(query @ keyᵀ * scale, b, h, i, j), -inf where not keep(b, h, i, j)
    out    = softmax(scores) @ value

No tensor holds the scores: a program walks the keys of its rows, or the rows of its keys, tile by tile (Dao,
"FlashAttention-2", 2023). Generated kernels define the functions ``score``, ``keep`` and ``slope`` (the gradient of
``score``; None: it is 1) of a tile; all take what they read of memory as the tuple ``reads``. A tensor of four
dimensions comes as (pointer, steps of batch, head, row, column), sums of rows as (pointer, steps of batch, head, row).
``lists`` say which blocks of SIDE_M rows and SIDE_N columns are walked: (counts, numbers, counts of whole ones, their
numbers), each with its steps. In whole ones everything is kept. PLAIN: there is no ``score``; OPEN: ``keep`` keeps all;
EVEN_M, EVEN_N: tiles end where rows or columns do; MOVED_N: the last one of columns begins earlier, to end there.
LOW, HIGH: what the column less the row of what ``keep`` keeps is at least and at most, ±FAR where nothing is known;
other tiles are not walked where there are no lists."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from gyrator.runtime import triton_ops as rt

LOG2_E, FAR = tl.constexpr(1.4426950408889634), tl.constexpr(1 << 30)
LOWEST = tl.constexpr(-2e38)  # of numbers that times LOG2_E are no infinity: where they hide all keys, all count alike


# -- memory ------------------------------------------------------------------------------------------------
@triton.jit
def window(tensor, b, h):
    """The first element of a matrix or a row among batches and heads."""
    return tensor[0] + (b.to(tl.int64) * tensor[1] + h.to(tl.int64) * tensor[2])


@triton.jit
def load_rows(
    base, tensor, start, length, ROWS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr
):
    """Rows from ``start`` on, [ROWS, SPAN], zeros where the matrix [length, WIDTH] ends."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, SPAN)[None, :]
    places = base + start.to(tl.int64) * tensor[3] + row * tensor[3] + column * tensor[4]
    if EVEN and WIDTH == SPAN:
        return tl.load(places)
    elif EVEN:
        return tl.load(places, column < WIDTH, 0)
    elif WIDTH == SPAN:
        return tl.load(places, row < length - start, 0)
    else:
        return tl.load(places, (row < length - start) & (column < WIDTH), 0)


@triton.jit
def store_rows(base, tensor, start, length, block, WIDTH: tl.constexpr, left=0, SOME_LEFT: tl.constexpr = False):
    """Store the rows of ``block`` from ``start`` on that lie in the matrix [length, WIDTH]; SOME_LEFT: but for the
    first ``left``."""
    row = tl.arange(0, block.shape[0])[:, None]
    column = tl.arange(0, block.shape[1])[None, :]
    places = base + start.to(tl.int64) * tensor[3] + row * tensor[3] + column * tensor[4]
    there = row < length - start
    if SOME_LEFT:
        there = there & (row >= left)
    tl.store(places, block.to(tensor[0].dtype.element_ty), there & (column < WIDTH))


@triton.jit
def load_sums(base, tensor, start, length, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """A number for each row from ``start`` on, 0 where there is none or the row has no scores."""
    row = start + tl.arange(0, ROWS)
    if EVEN:
        found = tl.load(base + row * tensor[3])
    else:
        found = tl.load(base + row * tensor[3], row < length, 0.0)
    return tl.where(found == float("-inf"), 0.0, found)


@triton.jit
def spot(pid, tiles, planes):
    """The tile of number ``pid`` and its batch and head, of which eight go together, so that few operands are in use;
    the tiles whose way is longest in a causal mask come first."""
    first = pid // (8 * tiles) * 8
    several = tl.minimum(planes - first, 8)
    within = pid % (8 * tiles)
    return within // several, first + within % several


@triton.jit
def tiles_in_all(sizes, BLOCK_M: tl.constexpr):
    """How many tiles of rows all batches and heads have."""
    batch, heads, m, _n = sizes
    return tl.cdiv(m, BLOCK_M) * batch * heads


@triton.jit
def rows_of(pid, sizes, BLOCK_M: tl.constexpr):
    """Batch, head and first row of the tile of number ``pid``."""
    batch, heads, m, _n = sizes
    tiles = tl.cdiv(m, BLOCK_M)
    tile, plane = spot(pid, tiles, batch * heads)
    return plane // heads, plane % heads, (tiles - 1 - tile) * BLOCK_M


@triton.jit
def set_apart(numbers):
    """The same numbers, [ROWS, 1] or [1, COLUMNS]. Where they have less than four bytes, Triton 3.6 would else compute
    the whole tile in the layout in which they were loaded, and spill."""
    if numbers.shape[0] == 1:
        return tl.reshape(numbers, [numbers.shape[1]])[None, :]
    else:
        return tl.reshape(numbers, [numbers.shape[0]])[:, None]


# -- which blocks are walked ---------------------------------------------------------------------------------
@triton.jit
def listed(counts, numbers, b, h, block):
    """How many blocks are listed for a block; where their numbers are, and the step between them."""
    count = tl.load(window(counts, b, h) + block * counts[3])
    return count, (window(numbers, b, h) + block * numbers[3], numbers[4])


@triton.jit
def seen(start, length, BLOCK: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Where the columns begin and end, of ``length``, that BLOCK rows from ``start`` on see."""
    begin, end = 0, length
    if LOW > -FAR:
        begin = tl.maximum(start + LOW, 0)
    if HIGH < FAR:
        end = tl.minimum(start + BLOCK + HIGH, length)
    return begin, end


@triton.jit
def reach(count, begin, end, SIDE: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """The numbers of the first tile of BLOCK, and behind the last, in ``count`` blocks of SIDE; if there are no lists,
    from ``begin`` to ``end``."""
    if LISTED:
        return 0, count * (SIDE // BLOCK)
    else:
        return begin // BLOCK, tl.cdiv(end, BLOCK)


@triton.jit
def place(t, numbers, SIDE: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """Where tile ``t`` of the walk begins."""
    if LISTED:
        return tl.load(numbers[0] + t // (SIDE // BLOCK) * numbers[1]) * SIDE + t % (SIDE // BLOCK) * BLOCK
    else:
        return t * BLOCK


@triton.jit
def moved(start, length, BLOCK: tl.constexpr, MOVED: tl.constexpr):
    """Where the tile that begins at ``start`` is read instead, so that there is all of it."""
    if MOVED:
        return tl.minimum(start, length - BLOCK)
    else:
        return start


# -- one tile of scores --------------------------------------------------------------------------------------
@triton.jit
def within(j, n, WHOLE: tl.constexpr):
    """Columns that can be read. WHOLE: they are there, and the compiler sees that they are neighbours in memory."""
    if WHOLE:
        return j
    else:
        return tl.minimum(j, n - 1)


@triton.jit
def scored(
    raw, b, h, i, j, m, n, scale, score, keep, reads,
    KEPT: tl.constexpr, WITHIN: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """The scores of a tile, in the units that ``unit`` says, and the products as ``score`` got them. WITHIN: there are
    all columns of it."""
    at_i, at_j = tl.minimum(i, m - 1), within(j, n, WITHIN)
    scores = raw
    if not PLAIN:
        raw = raw * scale
        scores = tl.broadcast_to(score(raw, b, h, at_i, at_j, reads).to(tl.float32), raw.shape)
        scores = tl.where((scores < LOWEST) & (scores > float("-inf")), LOWEST, scores)
    if not KEPT:
        scores = tl.where(keep(b, h, at_i, at_j, reads), scores, float("-inf"))
    if not EVEN_N:
        scores = tl.where(j < n, scores, float("-inf"))
    if not EVEN_M:
        scores = tl.where(i < m, scores, float("-inf"))
    return scores, raw


@triton.jit
def unit(scale, PLAIN: tl.constexpr):
    """The factor that makes powers of two of scores."""
    if PLAIN:
        return scale * LOG2_E
    else:
        return LOG2_E


# -- forward -------------------------------------------------------------------------------------------------
@triton.jit
def no_keys(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The state of rows before any key: their greatest scores, sums of powers and sums of values."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    return top, tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)


@triton.jit
def walk(
    state, q, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers, scale, score, keep, reads,
    E: tl.constexpr, V: tl.constexpr, SIDE: tl.constexpr, BLOCK_N: tl.constexpr, LISTED: tl.constexpr,
    KEPT: tl.constexpr, EVEN_N: tl.constexpr, MOVED_N: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
    part, PARTS: tl.constexpr,
):  # fmt: skip
    """Adds tiles of keys to the state: the greatest score of each row, the sum of the powers, the sum of values. Of all
    tiles, one of PARTS shares."""
    WHOLE: tl.constexpr = EVEN_N or MOVED_N
    top, total, acc = state
    factor = unit(scale, PLAIN)
    since, until = reach(count, begin, end, SIDE, BLOCK_N, LISTED)
    tiles = until - since
    for t in range(since + part * tiles // PARTS, since + (part + 1) * tiles // PARTS):
        first = place(t, numbers, SIDE, BLOCK_N, LISTED)
        start = moved(first, n, BLOCK_N, MOVED_N)
        k = load_rows(keys, key, start, n, BLOCK_N, E, q.shape[1], WHOLE)
        raw = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        j = start + tl.arange(0, BLOCK_N)[None, :]
        scores, raw = scored(raw, b, h, i, j, m, n, scale, score, keep, reads, KEPT, WHOLE, True, WHOLE, PLAIN)
        if MOVED_N:
            scores = tl.where(j >= first, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1) * factor)
        safe = new
        if not (KEPT and PLAIN and (EVEN_N or PARTS == 1)):  # a share may begin behind the last key, in a large block
            safe = tl.where(new == float("-inf"), 0.0, new)
        power = tl.math.exp2(scores * factor - safe[:, None])
        shrink = tl.math.exp2(top - safe)
        total = total * shrink + tl.sum(power, 1)
        v = load_rows(values, value, start, n, BLOCK_N, V, acc.shape[1], WHOLE)
        acc = tl.dot(power.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new
    return top, total, acc


@triton.jit
def walk_all(
    state, q, key, value, keys, values, b, plane, h, i, m, n, begin, end, lists, block, scale, score, keep, reads,
    E: tl.constexpr, V: tl.constexpr, SIDE: tl.constexpr, BLOCK_N: tl.constexpr,
    OPEN: tl.constexpr, EVEN_N: tl.constexpr, MOVED_N: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
    part, PARTS: tl.constexpr,
):  # fmt: skip
    """Walks what the lists of head ``plane`` say of a block of rows, or all keys; whole blocks first."""
    if len(lists) > 2:
        count, numbers = listed(lists[2], lists[3], b, plane, block)
        state = walk(
            state, q, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers, scale, score, keep, reads,
            E, V, SIDE, BLOCK_N, True, True, EVEN_N, MOVED_N, PLAIN, PRECISION, part, PARTS,
        )  # fmt: skip
    count, numbers = 0, 0
    if len(lists) > 0:
        count, numbers = listed(lists[0], lists[1], b, plane, block)
    return walk(
        state, q, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers, scale, score, keep, reads,
        E, V, SIDE, BLOCK_N, len(lists) > 0, OPEN, EVEN_N, MOVED_N, PLAIN, PRECISION, part, PARTS,
    )  # fmt: skip


@triton.jit
def forward_tile(
    pid, operands, lists, results, sizes, scale, score, keep, reads, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    MOVED_N: tl.constexpr, PLAIN: tl.constexpr, OPEN: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    E: tl.constexpr, V: tl.constexpr, GROUPS: tl.constexpr, SIDE_M: tl.constexpr, SIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALLOW_TF32: tl.constexpr,
):  # fmt: skip
    """What tile ``pid`` has of the results."""
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    SPAN_E: tl.constexpr = max(16, triton.next_power_of_2(E))
    SPAN_V: tl.constexpr = max(16, triton.next_power_of_2(V))
    query, key, value = operands
    out, sums, maxima = results
    _batch, _heads, m, n = sizes
    b, h, start = rows_of(pid, sizes, BLOCK_M)
    i = start + tl.arange(0, BLOCK_M)[:, None]
    q = load_rows(window(query, b, h), query, start, m, BLOCK_M, E, SPAN_E, EVEN_M)
    keys = window(key, b, h // GROUPS)
    values = window(value, b, h // GROUPS)
    state = no_keys(BLOCK_M, SPAN_V)
    begin, end = seen(start, n, BLOCK_M, LOW, HIGH)
    state = walk_all(
        state, q, key, value, keys, values, b, h, h, i, m, n, begin, end, lists, start // SIDE_M,
        scale, score, keep, reads,
        E, V, SIDE_N, BLOCK_N, OPEN, EVEN_N, MOVED_N, PLAIN, PRECISION, 0, 1,
    )  # fmt: skip
    top, total, acc = state
    empty = total == 0.0
    if out is not None:
        store_rows(window(out, b, h), out, start, m, acc / tl.where(empty, 1.0, total)[:, None], V)
    row = start + tl.arange(0, BLOCK_M)
    if sums is not None:
        logarithm = tl.where(empty, float("-inf"), top + tl.math.log2(total))
        tl.store(window(sums, b, h) + row * sums[3], logarithm, row < m)
    if maxima is not None:
        tl.store(window(maxima, b, h) + row * maxima[3], top, row < m)


@triton.jit
def forward(
    operands, lists, results, sizes, scale, score, keep, slope, reads, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    MOVED_N: tl.constexpr, PLAIN: tl.constexpr, OPEN: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    E: tl.constexpr, V: tl.constexpr, GROUPS: tl.constexpr, SIDE_M: tl.constexpr, SIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALLOW_TF32: tl.constexpr,
    PROGRAMS: tl.constexpr = 0, counters=None,
):  # fmt: skip
    """Rows of the result, the logarithm of their sums and their greatest score, both base 2: a program's tile of them,
    or those of every PROGRAMS-th tile."""
    if PROGRAMS > 0:
        for pid in range(tl.program_id(0), tiles_in_all(sizes, BLOCK_M), PROGRAMS):
            forward_tile(
                pid, operands, lists, results, sizes, scale, score, keep, reads, EVEN_M, EVEN_N, MOVED_N, PLAIN, OPEN,
                LOW, HIGH, E, V, GROUPS, SIDE_M, SIDE_N, BLOCK_M, BLOCK_N, ALLOW_TF32,
            )  # fmt: skip
    else:
        forward_tile(
            tl.program_id(0), operands, lists, results, sizes, scale, score, keep, reads, EVEN_M, EVEN_N, MOVED_N,
            PLAIN, OPEN, LOW, HIGH, E, V, GROUPS, SIDE_M, SIDE_N, BLOCK_M, BLOCK_N, ALLOW_TF32,
        )  # fmt: skip


@triton.jit
def decode(
    operands, lists, results, sizes, scale, score, keep, slope, reads, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    MOVED_N: tl.constexpr, PLAIN: tl.constexpr, OPEN: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    E: tl.constexpr, V: tl.constexpr, GROUPS: tl.constexpr, SIDE_M: tl.constexpr, SIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALLOW_TF32: tl.constexpr, SPLIT: tl.constexpr, space, counters,
):  # fmt: skip
    """As forward for few rows: those of all heads that share keys are a tile, whose keys SPLIT programs walk; the last
    one that is done adds up what they found."""
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    SPAN_E: tl.constexpr = max(16, triton.next_power_of_2(E))
    SPAN_V: tl.constexpr = max(16, triton.next_power_of_2(V))
    query, key, value = operands
    _batch, heads, m, n = sizes
    part = tl.program_id(0) % SPLIT
    plane = tl.program_id(0) // SPLIT
    b = plane // (heads // GROUPS)
    group = plane % (heads // GROUPS)
    row = tl.arange(0, BLOCK_M)
    there = row < GROUPS * m
    h = group * GROUPS + tl.minimum(row // m, GROUPS - 1)
    i = row % m
    column = tl.arange(0, SPAN_E)[None, :]
    places = (query[0] + b.to(tl.int64) * query[1] + h.to(tl.int64) * query[2] + i * query[3])[:, None]
    q = tl.load(places + column * query[4], there[:, None] & (column < E), 0)
    keys = window(key, b, group)
    values = window(value, b, group)
    state = no_keys(BLOCK_M, SPAN_V)
    begin, end = seen(0, n, m, LOW, HIGH)
    state = walk_all(
        state, q, key, value, keys, values, b, group, h[:, None], i[:, None], m, n, begin, end, lists, 0,
        scale, score, keep, reads,
        E, V, SIDE_N, BLOCK_N, OPEN, EVEN_N, MOVED_N, PLAIN, PRECISION, part, SPLIT,
    )  # fmt: skip
    if SPLIT > 1:
        if hand_over(state, space, counters, plane, part, SPLIT):
            write(taken_over(space, plane, BLOCK_M, SPAN_V, SPLIT), results, b, h, i, there, V)
    else:
        write(state, results, b, h, i, there, V)


@triton.jit
def write(state, results, b, h, i, there, V: tl.constexpr):
    """Store the results of the rows ``i`` of heads ``h`` that are ``there``."""
    top, total, acc = state
    out, sums, maxima = results
    empty = total == 0.0
    b, h = b.to(tl.int64), h.to(tl.int64)
    if out is not None:
        column = tl.arange(0, acc.shape[1])[None, :]
        places = (out[0] + b * out[1] + h * out[2] + i * out[3])[:, None] + column * out[4]
        found = (acc / tl.where(empty, 1.0, total)[:, None]).to(out[0].dtype.element_ty)
        tl.store(places, found, there[:, None] & (column < V))
    if sums is not None:
        logarithm = tl.where(empty, float("-inf"), top + tl.math.log2(total))
        tl.store(sums[0] + b * sums[1] + h * sums[2] + i * sums[3], logarithm, there)
    if maxima is not None:
        tl.store(maxima[0] + b * maxima[1] + h * maxima[2] + i * maxima[3], top, there)


@triton.jit
def hand_over(state, space, counters, plane, part, SPLIT: tl.constexpr):
    """Store what a part found; whether all others did."""
    top, total, acc = state
    ROWS: tl.constexpr = acc.shape[0]
    WIDTH: tl.constexpr = acc.shape[1]
    row = tl.arange(0, ROWS)
    here = space.to(tl.pointer_type(tl.float32), bitcast=True) + (plane * SPLIT + part) * (ROWS * (WIDTH + 2))
    tl.store(here + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], acc)
    tl.store(here + ROWS * WIDTH + row, top)
    tl.store(here + ROWS * (WIDTH + 1) + row, total)
    return rt.arrived_last(counters, plane, part, SPLIT)


@triton.jit
def taken_over(space, plane, ROWS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    """The state of a tile from those of its parts, always in their order."""
    row = tl.arange(0, ROWS)
    here = space.to(tl.pointer_type(tl.float32), bitcast=True) + plane * (SPLIT * ROWS * (WIDTH + 2))
    top, total, acc = no_keys(ROWS, WIDTH)
    for _ in range(SPLIT):
        other = tl.load(here + ROWS * WIDTH + row, cache_modifier=".cg")
        new = tl.maximum(top, other)
        safe = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.math.exp2(top - safe)
        factor = tl.math.exp2(other - safe)
        total = total * shrink + tl.load(here + ROWS * (WIDTH + 1) + row, cache_modifier=".cg") * factor
        found = tl.load(here + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], cache_modifier=".cg")
        acc = acc * shrink[:, None] + found * factor[:, None]
        top = new
        here += ROWS * (WIDTH + 2)
    return top, total, acc


# -- gradients -----------------------------------------------------------------------------------------------
@triton.jit
def of_scores(d_scores, scores, ALL: tl.constexpr):
    """The gradients of products that are scores, 0 of others: what ``slope`` makes of these, as of products with rows
    that are not there, may be no number. ALL: all are."""
    if ALL:
        return d_scores
    else:
        return tl.where(scores == float("-inf"), 0.0, d_scores)


@triton.jit
def walk_columns(
    acc, q, d_out, sums, delta, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers,
    scale, score, keep, slope, reads, E: tl.constexpr, V: tl.constexpr,
    SIDE: tl.constexpr, BLOCK_N: tl.constexpr, LISTED: tl.constexpr,
    KEPT: tl.constexpr, EVEN_N: tl.constexpr, MOVED_N: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles of keys to the gradient of rows of queries."""
    WHOLE: tl.constexpr = EVEN_N or MOVED_N
    factor = unit(scale, PLAIN)
    since, until = reach(count, begin, end, SIDE, BLOCK_N, LISTED)
    for t in range(since, until):
        first = place(t, numbers, SIDE, BLOCK_N, LISTED)
        start = moved(first, n, BLOCK_N, MOVED_N)
        k = load_rows(keys, key, start, n, BLOCK_N, E, q.shape[1], WHOLE)
        v = load_rows(values, value, start, n, BLOCK_N, V, d_out.shape[1], WHOLE)
        raw = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        j = start + tl.arange(0, BLOCK_N)[None, :]
        scores, raw = scored(raw, b, h, i, j, m, n, scale, score, keep, reads, KEPT, WHOLE, True, WHOLE, PLAIN)
        if MOVED_N:
            scores = tl.where(j >= first, scores, float("-inf"))
        weights = tl.math.exp2(scores * factor - sums[:, None])
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        d_scores = weights * (d_weights - delta[:, None])
        if slope is not None:
            d_scores = slope(raw, d_scores, b, h, tl.minimum(i, m - 1), within(j, n, WHOLE), reads)
            d_scores = of_scores(d_scores, scores, KEPT and EVEN_N)
        acc = tl.dot(d_scores.to(k.dtype), k, acc, input_precision=PRECISION)
    return acc


@triton.jit
def rows(
    operands, lists, results, sizes, scale, score, keep, slope, reads, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    MOVED_N: tl.constexpr, PLAIN: tl.constexpr, OPEN: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    E: tl.constexpr, V: tl.constexpr, GROUPS: tl.constexpr, SIDE_M: tl.constexpr, SIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALLOW_TF32: tl.constexpr,
):  # fmt: skip
    """The gradient of a program's rows of queries."""
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    SPAN_E: tl.constexpr = max(16, triton.next_power_of_2(E))
    SPAN_V: tl.constexpr = max(16, triton.next_power_of_2(V))
    query, key, value, grad, sums, delta = operands
    _batch, _heads, m, n = sizes
    b, h, start = rows_of(tl.program_id(0), sizes, BLOCK_M)
    i = start + tl.arange(0, BLOCK_M)[:, None]
    q = load_rows(window(query, b, h), query, start, m, BLOCK_M, E, SPAN_E, EVEN_M)
    d_out = load_rows(window(grad, b, h), grad, start, m, BLOCK_M, V, SPAN_V, EVEN_M)
    sum_ = load_sums(window(sums, b, h), sums, start, m, BLOCK_M, EVEN_M)
    minus = load_sums(window(delta, b, h), delta, start, m, BLOCK_M, EVEN_M)
    keys = window(key, b, h // GROUPS)
    values = window(value, b, h // GROUPS)
    acc = tl.zeros((BLOCK_M, SPAN_E), tl.float32)
    begin, end = seen(start, n, BLOCK_M, LOW, HIGH)
    if len(lists) > 2:
        count, numbers = listed(lists[2], lists[3], b, h, start // SIDE_M)
        acc = walk_columns(
            acc, q, d_out, sum_, minus, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers,
            scale, score, keep, slope, reads, E, V, SIDE_N, BLOCK_N, True, True, EVEN_N, MOVED_N, PLAIN, PRECISION,
        )  # fmt: skip
    count, numbers = 0, 0
    if len(lists) > 0:
        count, numbers = listed(lists[0], lists[1], b, h, start // SIDE_M)
    acc = walk_columns(
        acc, q, d_out, sum_, minus, key, value, keys, values, b, h, i, m, n, begin, end, count, numbers, scale,
        score, keep, slope, reads, E, V, SIDE_N, BLOCK_N, len(lists) > 0, OPEN, EVEN_N, MOVED_N, PLAIN, PRECISION,
    )  # fmt: skip
    store_rows(window(results[0], b, h), results[0], start, m, acc * scale, E)


@triton.jit
def walk_rows(
    state, k, v, query, grad, sums, delta, b, h, j, m, n, begin, end, count, numbers,
    scale, score, keep, slope, reads, E: tl.constexpr, V: tl.constexpr,
    SIDE: tl.constexpr, BLOCK_M: tl.constexpr, LISTED: tl.constexpr,
    KEPT: tl.constexpr, EVEN_M: tl.constexpr, WHOLE: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds tiles of rows to the gradients of keys and values; tiles of scores are transposed. WHOLE: there are all
    columns of them."""
    factor = unit(scale, PLAIN)
    d_key, d_value = state
    queries = window(query, b, h)
    grads = window(grad, b, h)
    sums_of = window(sums, b, h)
    delta_of = window(delta, b, h)
    since, until = reach(count, begin, end, SIDE, BLOCK_M, LISTED)
    for t in range(since, until):
        start = place(t, numbers, SIDE, BLOCK_M, LISTED)
        q = load_rows(queries, query, start, m, BLOCK_M, E, k.shape[1], EVEN_M)
        raw = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        sum_ = load_sums(sums_of, sums, start, m, BLOCK_M, EVEN_M)
        i = start + tl.arange(0, BLOCK_M)[None, :]
        scores, raw = scored(raw, b, h, i, j, m, n, scale, score, keep, reads, KEPT, WHOLE, EVEN_M, True, PLAIN)
        weights = tl.math.exp2(scores * factor - sum_[None, :])
        d_out = load_rows(grads, grad, start, m, BLOCK_M, V, v.shape[1], EVEN_M)
        d_value = tl.dot(weights.to(d_out.dtype), d_out, d_value, input_precision=PRECISION)
        minus = load_sums(delta_of, delta, start, m, BLOCK_M, EVEN_M)
        d_weights = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)
        d_scores = weights * (d_weights - minus[None, :])
        if slope is not None:
            d_scores = slope(raw, d_scores, b, h, tl.minimum(i, m - 1), within(j, n, WHOLE), reads)
            d_scores = of_scores(d_scores, scores, KEPT and EVEN_M)
        d_key = tl.dot(d_scores.to(q.dtype), q, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit
def columns(
    operands, lists, results, sizes, scale, score, keep, slope, reads, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    MOVED_N: tl.constexpr, PLAIN: tl.constexpr, OPEN: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    E: tl.constexpr, V: tl.constexpr, GROUPS: tl.constexpr, SIDE_M: tl.constexpr, SIDE_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALLOW_TF32: tl.constexpr,
):  # fmt: skip
    """The gradients of a program's rows of keys and values, over all heads of queries that share them."""
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    SPAN_E: tl.constexpr = max(16, triton.next_power_of_2(E))
    SPAN_V: tl.constexpr = max(16, triton.next_power_of_2(V))
    query, key, value, grad, sums, delta = operands
    WHOLE: tl.constexpr = EVEN_N or MOVED_N
    d_key, d_value = results
    batch, heads, m, n = sizes
    tiles = tl.cdiv(n, BLOCK_N)
    tile, plane = spot(tl.program_id(0), tiles, batch * (heads // GROUPS))
    b = plane // (heads // GROUPS)
    kind = plane % (heads // GROUPS)
    first = tile * BLOCK_N
    start = moved(first, n, BLOCK_N, MOVED_N)  # what is before the first column is not stored
    j = start + tl.arange(0, BLOCK_N)[:, None]
    k = load_rows(window(key, b, kind), key, start, n, BLOCK_N, E, SPAN_E, WHOLE)
    v = load_rows(window(value, b, kind), value, start, n, BLOCK_N, V, SPAN_V, WHOLE)
    state = (tl.zeros((BLOCK_N, SPAN_E), tl.float32), tl.zeros((BLOCK_N, SPAN_V), tl.float32))
    begin, end = seen(first, m, BLOCK_N, -HIGH, -LOW)
    for g in range(GROUPS):
        head = kind * GROUPS + g
        if len(lists) > 2:
            count, numbers = listed(lists[2], lists[3], b, head, first // SIDE_N)
            state = walk_rows(
                state, k, v, query, grad, sums, delta, b, head, j, m, n, begin, end, count, numbers,
                scale, score, keep, slope, reads, E, V, SIDE_M, BLOCK_M, True, True, EVEN_M, WHOLE, PLAIN, PRECISION,
            )  # fmt: skip
        count, numbers = 0, 0
        if len(lists) > 0:
            count, numbers = listed(lists[0], lists[1], b, head, first // SIDE_N)
        state = walk_rows(
            state, k, v, query, grad, sums, delta, b, head, j, m, n, begin, end, count, numbers, scale,
            score, keep, slope, reads, E, V, SIDE_M, BLOCK_M, len(lists) > 0, OPEN, EVEN_M, WHOLE, PLAIN, PRECISION,
        )  # fmt: skip
    if d_key is not None:
        store_rows(window(d_key, b, kind), d_key, start, n, state[0] * scale, E, first - start, MOVED_N)
    if d_value is not None:
        store_rows(window(d_value, b, kind), d_value, start, n, state[1], V, first - start, MOVED_N)
