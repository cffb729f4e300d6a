"""Matrix products on a GPU: what generated kernels call by the name ``gemm``.

A function here fills one tile of ``left @ right`` in registers; what follows (scaling, bias, what else is fused) and
the stores are printed into the kernel. Only generated kernels import this module."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from gyrator.runtime import triton_ops as rt


@triton.jit
def place(pid, rows, columns, GROUP_M: tl.constexpr):
    """The tile of program ``pid``: ``GROUP_M`` rows of tiles are walked column by column, so that programs that run
    at the same time share operands."""
    span = GROUP_M * columns
    first = pid // span * GROUP_M
    height = tl.minimum(rows - first, GROUP_M)
    within = pid % span
    return first + within % height, within // height


@triton.constexpr_function
def rough(dtype, fast, depth):
    """How many products tensor cores may sum by themselves; None for as many as they like."""
    return min(depth, 128) if dtype.is_fp8() and not fast else None


@triton.jit
def tiled(
    left, right, row, column, m, n, k, left_m, left_k, right_k, right_n, first, last,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr, ALLOW_TF32: tl.constexpr,
    FAST: tl.constexpr = False,
):  # fmt: skip
    """The sums over ``first <= k < last`` for the rows [M, 1] and columns [1, N]. Rows and columns outside of the
    matrices are read from the start: the caller does not store them. Unless ``FAST``, tensor cores, which sum products
    of 8-bit floats in fewer bits than float32 has, do so for at most 128 of them."""
    BLOCK_M: tl.constexpr = row.shape[0]
    BLOCK_N: tl.constexpr = column.shape[1]
    TYPE: tl.constexpr = tl.int32 if left.dtype.element_ty.is_int() else tl.float32
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    ROUGH: tl.constexpr = rough(left.dtype.element_ty, FAST, BLOCK_K)
    if not EVEN_M:
        row = row % m
    if not EVEN_N:
        column = column % n
    inner = tl.arange(0, BLOCK_K).to(row.dtype)
    lefts = left + (row * left_m + (first + inner)[None, :] * left_k)
    rights = right + ((first + inner)[:, None] * right_k + column * right_n)
    total = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for start in range(first, last, BLOCK_K):
        if EVEN_K:
            a = tl.load(lefts)
            b = tl.load(rights)
        else:
            a = tl.load(lefts, inner[None, :] < last - start, 0.0)
            b = tl.load(rights, inner[:, None] < last - start, 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=TYPE, max_num_imprecise_acc=ROUGH)
        lefts += BLOCK_K * left_k
        rights += BLOCK_K * right_k
    return total


# -- operands that are computed ------------------------------------------------------------------------------
@triton.jit
def computed(
    left, right, reads, batch, row, column, m, n, first, last,
    EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr, ALLOW_TF32: tl.constexpr, TYPE: tl.constexpr,
    FAST: tl.constexpr = False,
):  # fmt: skip
    """As `tiled`, of operands that functions give: ``left(batch, row, inner, row_ok, inner_ok, reads)`` the elements of
    a tile [M, K], of which those that are not within the matrix may be anything, and ``right`` likewise."""
    BLOCK_M: tl.constexpr = row.shape[0]
    BLOCK_N: tl.constexpr = column.shape[1]
    PRECISION: tl.constexpr = "tf32" if ALLOW_TF32 else "ieee"
    total = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for start in range(first, last, BLOCK_K):
        inner = (start + tl.arange(0, BLOCK_K)).to(row.dtype)
        ok = inner < last
        a = left(batch, row, inner[None, :], row < m, ok[None, :], reads)
        b = right(batch, inner[:, None], column, ok[:, None], column < n, reads)
        a = tl.broadcast_to(a, (BLOCK_M, BLOCK_K))
        b = tl.broadcast_to(b, (BLOCK_K, BLOCK_N))
        if not EVEN_K:
            a = tl.where(ok[None, :], a, tl.zeros_like(a))
            b = tl.where(ok[:, None], b, tl.zeros_like(b))
        ROUGH: tl.constexpr = rough(a.dtype, FAST, BLOCK_K)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=TYPE, max_num_imprecise_acc=ROUGH)
    return total


# -- groups --------------------------------------------------------------------------------------------------
@triton.jit
def span_of_group(ends, step, groups, most, group):
    """Where a group begins and ends, neither beyond ``most``; in 64 bits, as they are multiplied by steps."""
    first = tl.load(ends + (group - 1) * step, group > 0, 0).to(tl.int64)
    return tl.maximum(first, 0), tl.minimum(tl.load(ends + group * step).to(tl.int64), most)


@triton.jit
def spans(ends, step, groups: tl.constexpr, most, BLOCK_M: tl.constexpr):
    """Where all groups begin and end, and how many tiles of rows each has."""
    group = tl.arange(0, triton.next_power_of_2(groups))
    last = tl.minimum(tl.load(ends + group * step, group < groups, 0), most)
    first = tl.maximum(tl.load(ends + (group - 1) * step, (group > 0) & (group < groups), 0), 0)
    return group, first, last, tl.maximum(tl.cdiv(last - first, BLOCK_M), 0)


@triton.jit
def tiles_of_groups(ends, step, groups: tl.constexpr, most, BLOCK_M: tl.constexpr):
    """How many tiles of rows all groups have; none has rows of two."""
    return tl.sum(spans(ends, step, groups, most, BLOCK_M)[3])


@triton.jit
def rows_of_group(ends, step, groups: tl.constexpr, most, tile, BLOCK_M: tl.constexpr):
    """The group of a tile, the tile's first row, and where the group's rows end."""
    group, first, last, tiles = spans(ends, step, groups, most, BLOCK_M)
    after = tl.cumsum(tiles)
    here = (after > tile) & (after - tiles <= tile)
    row = tl.sum(tl.where(here, first + (tile - after + tiles) * BLOCK_M, 0))
    return tl.sum(tl.where(here, group, 0)), row, tl.sum(tl.where(here, last, 0))


# -- with tensor descriptors ---------------------------------------------------------------------------------
@triton.jit
def describe(
    base, batches, rows, columns, batch_step, row_step, column_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """A descriptor of matrices, of their transposes if their columns are contiguous; the blocks that it loads. Without
    ``batches`` it is one matrix."""
    if column_step == 1:
        if batches is None:
            return tl.make_tensor_descriptor(base, [rows, columns], [row_step, 1], [ROWS, COLUMNS])
        else:
            sides = [batches, rows, columns]
            return tl.make_tensor_descriptor(base, sides, [batch_step, row_step, 1], [1, ROWS, COLUMNS])
    else:
        return describe(base, batches, columns, rows, batch_step, column_step, row_step, COLUMNS, ROWS)


@triton.jit
def block_of(matrices, batch, row, column):
    """A block of a described matrix; descriptors take numbers of 32 bits."""
    row, column = tl.cast(row, tl.int32), tl.cast(column, tl.int32)
    if batch is None:
        return matrices.load([row, column])
    else:
        block = matrices.load([tl.cast(batch, tl.int32), row, column])
        return block.reshape(block.shape[1], block.shape[2])


@triton.jit
def described(
    left, right, left_batch, right_batch, row, column, k, LEFT_ROWS: tl.constexpr, RIGHT_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FAST: tl.constexpr = False,
):  # fmt: skip
    """The tile of these matrices of batches that begins at ``row`` and ``column``. ``LEFT_ROWS``: the rows of ``left``
    are contiguous, and so on."""
    ROUGH: tl.constexpr = rough(left.dtype, FAST, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        if LEFT_ROWS:
            a = block_of(left, left_batch, row, start)
        else:
            a = block_of(left, left_batch, start, row).T
        if RIGHT_ROWS:
            b = block_of(right, right_batch, start, column)
        else:
            b = block_of(right, right_batch, column, start).T
        total = tl.dot(a, b, total, max_num_imprecise_acc=ROUGH)
    return total


# -- split along k -------------------------------------------------------------------------------------------
@triton.jit
def part_of(k, part, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):
    """Where one of ``SPLIT_K`` parts of k begins and ends; all but the last have equally many whole blocks."""
    length = tl.cdiv(k, BLOCK_K * SPLIT_K) * BLOCK_K
    return part * length, tl.minimum((part + 1) * length, k)


@triton.jit
def arrive(total, space, counters, tile, part, SPLIT_K: tl.constexpr):
    """Store the total of a part, and count it: the ticket to wait with for the other parts of the tile."""
    ROWS: tl.constexpr = total.shape[0]
    COLUMNS: tl.constexpr = total.shape[1]
    here = space.to(tl.pointer_type(total.dtype), bitcast=True) + (tile * SPLIT_K + part) * (ROWS * COLUMNS)
    tl.store(here + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], total)
    return rt.arrive(counters, tile, part, SPLIT_K)


@triton.jit
def gathered(
    space, tile, part, TYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT_K: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """The sums of ``SHARE`` rows over all parts of a tile, always in the same order; ``part`` says which rows."""
    AREA: tl.constexpr = SHARE * COLUMNS
    MOST: tl.constexpr = triton.next_power_of_2(SPLIT_K)
    AT_ONCE: tl.constexpr = max(1, min(MOST, 8192 // AREA))
    parts = tl.arange(0, AT_ONCE)[:, None]
    space = space.to(tl.pointer_type(TYPE), bitcast=True) + tile * SPLIT_K * (ROWS * COLUMNS)
    at = part * AREA + tl.arange(0, AREA)[None, :]
    total = tl.zeros((AREA,), TYPE)
    for first in tl.static_range(0, MOST, AT_ONCE):
        there = first + parts < SPLIT_K
        total += tl.sum(tl.load(space + (first + parts) * (ROWS * COLUMNS) + at, there, 0, cache_modifier=".cg"), 0)
    return tl.reshape(total, (SHARE, COLUMNS))
