"""Matrix products on a GPU: what generated kernels call by the name ``gemm``.

A function here fills one tile of ``left @ right`` in registers; what follows (scaling, bias, what else is fused) and
the stores are printed into the kernel. Only generated kernels import this module.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(pid, rows, columns, GROUP_M: tl.constexpr):
    """The tile of program ``pid``: ``GROUP_M`` rows of tiles are walked column by column, so that programs that run
    at the same time share operands."""
    span = GROUP_M * columns
    first = pid // span * GROUP_M
    height = tl.minimum(rows - first, GROUP_M)
    within = pid % span
    return first + within % height, within // height


@triton.jit
def tiled(
    left, right, row, column, m, n, k, left_m, left_k, right_k, right_n, first, last,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr, ALLOW_TF32: tl.constexpr,
):  # fmt: skip
    """The sums over ``first <= k < last`` for the rows [M, 1] and columns [1, N]. Rows and columns outside of the
    matrices are read from the start: the caller does not store them."""
    BLOCK_M: tl.constexpr = row.shape[0]
    BLOCK_N: tl.constexpr = column.shape[1]
    TYPE: tl.constexpr = tl.int32 if left.dtype.element_ty.is_int() else tl.float32
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    if not EVEN_M:
        row = row % m
    if not EVEN_N:
        column = column % n
    inner = tl.arange(0, BLOCK_K)
    lefts = left + (row * left_m + (first + inner)[None, :] * left_k)
    rights = right + ((first + inner)[:, None] * right_k + column * right_n)
    total = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for start in range(first, last, BLOCK_K):
        if EVEN_K:
            a = tl.load(lefts)
            b = tl.load(rights)
        else:
            a = tl.load(lefts, inner[None, :] < last - start, 0)
            b = tl.load(rights, inner[:, None] < last - start, 0)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=TYPE)
        lefts += BLOCK_K * left_k
        rights += BLOCK_K * right_k
    return total


# -- with tensor descriptors ---------------------------------------------------------------------------------
@triton.jit
def describe(base, rows, columns, row_step, column_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A descriptor of a matrix, of its transpose if its columns are contiguous; the blocks that it loads."""
    if column_step == 1:
        return tl.make_tensor_descriptor(base, [rows, columns], [row_step, 1], [ROWS, COLUMNS])
    else:
        return tl.make_tensor_descriptor(base, [columns, rows], [column_step, 1], [COLUMNS, ROWS])


@triton.jit
def described(
    left, right, row, column, k, LEFT_ROWS: tl.constexpr, RIGHT_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tile that begins at ``row`` and ``column``. ``LEFT_ROWS``: the rows of ``left`` are contiguous, and so on."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        if LEFT_ROWS:
            a = left.load([row, start])
        else:
            a = left.load([start, row]).T
        if RIGHT_ROWS:
            b = right.load([start, column])
        else:
            b = right.load([column, start]).T
        total = tl.dot(a, b, total)
    return total


# -- split along k -------------------------------------------------------------------------------------------
@triton.jit
def sliced(
    left, right, row, column, m, n, k, left_m, left_k, right_k, right_n, first, last,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr, ALLOW_TF32: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """As :func:`tiled`; each warp sums a slice of every block along k, since a small tile has work for one warp."""
    BLOCK_M: tl.constexpr = row.shape[0]
    BLOCK_N: tl.constexpr = column.shape[1]
    SLICE: tl.constexpr = BLOCK_K // SLICES
    TYPE: tl.constexpr = tl.int32 if left.dtype.element_ty.is_int() else tl.float32
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    if not EVEN_M:
        row = row % m
    if not EVEN_N:
        column = column % n
    start_of = tl.arange(0, SLICES)[:, None, None] * SLICE
    across = start_of + tl.arange(0, SLICE)[None, None, :]
    down = start_of + tl.arange(0, SLICE)[None, :, None]
    lefts = left + (row[None, :, :] * left_m + (first + across) * left_k)
    rights = right + ((first + down) * right_k + column[None, :, :] * right_n)
    total = tl.zeros((SLICES, BLOCK_M, BLOCK_N), TYPE)
    for start in range(first, last, BLOCK_K):
        if EVEN_K:
            a = tl.load(lefts)
            b = tl.load(rights)
        else:
            a = tl.load(lefts, across < last - start, 0)
            b = tl.load(rights, down < last - start, 0)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=TYPE)
        lefts += BLOCK_K * left_k
        rights += BLOCK_K * right_k
    return tl.sum(total, 0)


@triton.jit
def part_of(k, part, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):
    """Where one of ``SPLIT_K`` parts of k begins and ends; all but the last have equally many whole blocks."""
    length = tl.cdiv(k, BLOCK_K * SPLIT_K) * BLOCK_K
    return part * length, tl.minimum((part + 1) * length, k)


@triton.jit
def gathered(space, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MOST: tl.constexpr):
    """The sum of ``count`` tiles that lie in a row, always in the same order."""
    AREA: tl.constexpr = ROWS * COLUMNS
    AT_ONCE: tl.constexpr = max(1, min(MOST, 8192 // AREA))
    part = tl.arange(0, AT_ONCE)[:, None]
    at = tl.arange(0, AREA)[None, :]
    total = tl.zeros((AREA,), space.dtype.element_ty)
    for first in tl.static_range(0, MOST, AT_ONCE):
        parts = tl.load(space + (first + part) * AREA + at, first + part < count, 0, cache_modifier=".cg")
        total += tl.sum(parts, 0)
    return tl.reshape(total, (ROWS, COLUMNS))


@triton.jit
def arrive(space, counter, total, count):
    """Store a tile, and tell whether it was the last of ``count``; the counter is 0 again then."""
    ROWS: tl.constexpr = total.shape[0]
    COLUMNS: tl.constexpr = total.shape[1]
    tl.store(space + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], total)
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def combined(total, space, counters, tile, tiles, part, SPLIT_K: tl.constexpr, FAN: tl.constexpr):
    """The sum of the totals of ``SPLIT_K`` programs, in the one that comes last, and whether this is it.

    Each ``FAN`` of them are summed by their last one first. ``counters`` has, for each tile, one for each such group
    and one for all; ``space`` room for their totals, those of the groups after the others.
    """
    ROWS: tl.constexpr = total.shape[0]
    COLUMNS: tl.constexpr = total.shape[1]
    GROUPS: tl.constexpr = (SPLIT_K + FAN - 1) // FAN
    space = space.to(tl.pointer_type(total.dtype), bitcast=True)
    counter = counters.to(tl.pointer_type(tl.int32), bitcast=True) + tile * (GROUPS + 1)
    group = part // FAN
    count = tl.minimum(SPLIT_K - group * FAN, FAN)
    here = space + (tile * SPLIT_K + group * FAN) * (ROWS * COLUMNS)
    done = arrive(here + part % FAN * (ROWS * COLUMNS), counter + group, total, count)
    if done:
        total = gathered(here, count, ROWS, COLUMNS, FAN)
        if GROUPS > 1:
            here = space + (tiles * SPLIT_K + tile * GROUPS) * (ROWS * COLUMNS)
            done = arrive(here + group * (ROWS * COLUMNS), counter + GROUPS, total, GROUPS)
            if done:
                total = gathered(here, GROUPS, ROWS, COLUMNS, triton.next_power_of_2(GROUPS))
    return total, done
