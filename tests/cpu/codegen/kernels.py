"""Typical kernels as loop trees, as a scheduler would build them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gyrator.ir.expr import Checked, Expr, IndexValue
from gyrator.ir.index import Axis, Index, IndexLike, Indirect, as_index, maximum, minimum
from gyrator.ir.tree import Carry, Kernel, Let, Update
from tests.cpu.codegen.harness import (
    BF16,
    F32,
    I64,
    axis,
    cast,
    kernel,
    lanes,
    load,
    op,
    parallel,
    ref,
    serial,
    size,
    store,
    tensor,
)  # fmt: skip

BLOCK = 1024


def gelu_bias(rows: IndexLike, columns: IndexLike, dtype: torch.dtype = BF16) -> Kernel:
    """y = gelu(x + b) in float32, stored as ``dtype``."""
    x, b, y = (
        tensor("x", rows, columns, dtype=dtype),
        tensor("b", columns, dtype=dtype),
        tensor("y", rows, columns, dtype=dtype),
    )
    i, j = axis("i", rows), axis("j", columns)
    h = op("add", cast(load(x, i, j), F32), cast(load(b, j), F32))
    erf = op("erf", op("mul", h, 0.7071067811865476))
    gelu = op("mul", op("mul", h, 0.5), op("add", erf, 1.0))
    return kernel("gelu_bias", [x, b], [y], parallel(i, lanes(j, store(y, (i, j), cast(gelu, dtype)))))


def softmax(rows: IndexLike, columns: IndexLike, width: int = 16) -> Kernel:
    """Three passes over a row; the exponentials wait in a scratch row."""
    x, y, row = tensor("x", rows, columns), tensor("y", rows, columns), tensor("row", columns)
    i, j = axis("i", rows), axis("j", columns)
    m, d, e = ref("m", i), ref("d", i), ref("e", i, j)
    return kernel(
        "softmax", [x], [y],
        parallel(
            i,
            lanes(j, Update("m", (load(x, i, j),)), carries=(Carry("m", "max", (m,)),), width=width),
            lanes(
                j,
                Let(e, op("exp", op("sub", load(x, i, j), m))),
                store(row, (j,), e),
                Update("d", (e,)),
                carries=(Carry("d", "sum", (d,)),), width=width,
            ),
            lanes(j, store(y, (i, j), op("div", load(row, j), d)), width=width),
        ),
        scratch=[row],
    )  # fmt: skip


def layer_norm(rows: IndexLike, columns: IndexLike) -> Kernel:
    """Welford, then normalise with weight and bias."""
    x, w, b, y = (
        tensor(n, *s) for n, s in (("x", (rows, columns)), ("w", (columns,)), ("b", (columns,)), ("y", (rows, columns)))
    )
    i, j = axis("i", rows), axis("j", columns)
    mean, m2, rstd = ref("mean", i), ref("m2", i), ref("rstd", i)
    count = cast(IndexValue(as_index(columns)), F32)
    out = op("add", op("mul", op("mul", op("sub", load(x, i, j), mean), rstd), load(w, j)), load(b, j))
    moments = Carry("moments", "welford", (mean, m2, None))
    return kernel(
        "layer_norm", [x, w, b], [y],
        parallel(
            i,
            lanes(j, Update("moments", (load(x, i, j),)), carries=(moments,)),
            Let(rstd, op("rsqrt", op("add", op("div", m2, count), 1e-5))),
            lanes(j, store(y, (i, j), out)),
        ),
    )  # fmt: skip


def column_sum(rows: IndexLike, columns: IndexLike) -> Kernel:
    """The vectors lie along the columns; each lane sums its own. Threads share blocks of columns."""
    x, y = tensor("x", rows, columns), tensor("y", columns)
    (jb, jt, j), r = blocked("j", columns), axis("r", rows)
    total = ref("total", jb, jt)
    tree = lanes(
        jt,
        serial(r, Update("total", (load(x, r, j),)), carries=(Carry("total", "sum", (total,)),)),
        store(y, (j,), total),
    )
    return kernel("column_sum", [x], [y], parallel(jb, tree))


def full_sum(count: IndexLike) -> Kernel:
    """One number; each thread sums its share of blocks."""
    x, y, (jb, jt, j), total = tensor("x", count), tensor("y"), blocked("j", count), ref("total")
    tree = lanes(jt, Update("total", (load(x, j),)))
    return kernel(
        "full_sum", [x], [y],
        parallel(jb, tree, carries=(Carry("total", "sum", (total,)),), grain=2 * BLOCK),
        store(y, (), total),
    )  # fmt: skip


def blocked(name: str, extent: IndexLike) -> tuple[Axis, Axis, Index]:
    """An axis of blocks, the one within a block, and where they are together."""
    block = axis(f"{name}b", (as_index(extent) + BLOCK - 1) // BLOCK)
    start = block.index() * BLOCK
    inner = axis(f"{name}t", minimum(as_index(BLOCK), as_index(extent) - start))
    return block, inner, start + inner.index()


def cumsum(rows: IndexLike, columns: IndexLike) -> Kernel:
    """A scan along the lanes: its iterations stay in order."""
    x, y = tensor("x", rows, columns), tensor("y", rows, columns)
    i, j = axis("i", rows), axis("j", columns)
    running = ref("running", i, j)
    return kernel(
        "cumsum", [x], [y],
        parallel(
            i,
            lanes(
                j,
                Update("total", (load(x, i, j),), (running,)),
                store(y, (i, j), running),
                carries=(Carry("total", "sum", (None,)),),
            ),
        ),
    )  # fmt: skip


def argmax(rows: IndexLike, columns: IndexLike) -> Kernel:
    x, y = tensor("x", rows, columns), tensor("y", rows, dtype=I64)
    i, j = axis("i", rows), axis("j", columns)
    where = ref("where", i, dtype=I64)
    best = Carry("best", "argmax", (None, where))
    return kernel(
        "argmax", [x], [y],
        parallel(
            i,
            lanes(j, Update("best", (load(x, i, j), IndexValue(j.index()))), carries=(best,)),
            store(y, (i,), where),
        ),
    )  # fmt: skip


def checked(value: Expr, extent: IndexLike, mask: Expr | None = None) -> Indirect:
    return Indirect(Checked(value, as_index(extent), mask), as_index(extent))


def embedding(rows: IndexLike, columns: IndexLike, vocabulary: int) -> Kernel:
    table, idx, y = (tensor("table", vocabulary, columns), tensor("idx", rows, dtype=I64), tensor("y", rows, columns))
    i, j = axis("i", rows), axis("j", columns)
    at = checked(load(idx, i), vocabulary).index()
    return kernel("embedding", [table, idx], [y], parallel(i, lanes(j, store(y, (i, j), load(table, at, j)))))


def repeated(rows: IndexLike, columns: int, times: int, step: int, dtype: torch.dtype) -> Kernel:
    """``y[i, j] = x[i, j // times * step]`` where ``j % times < 1``, elsewhere ``j // times`` less that; ``z[j]`` is
    ``x[rows - 1, j // times * step]`` where ``2 <= j < columns - 3``, else 1.
    """
    x = tensor("x", rows, (-(-columns // times) - 1) * step + 1, dtype=dtype)
    y = tensor("y", rows, columns, dtype=dtype)
    i, j = axis("i", rows), axis("j", columns)
    found, first = load(x, i, j.index() // times * step), op("lt", IndexValue(j.index() % times), 1)
    value = op("where", first, found, op("sub", cast(IndexValue(j.index() // times), dtype), found))
    z, number = tensor("z", columns, dtype=dtype), IndexValue(j.index())
    inside = op("logical_and", op("ge", number, 2), op("lt", number, columns - 3))
    some = load(x, rows - 1, j.index() // times * step, mask=inside, other=1.0 if dtype.is_floating_point else 1)
    rows_stage = parallel(i, lanes(j, store(y, (i, j), value)))
    return kernel("repeated", [x], [y, z], rows_stage, lanes(j, store(z, (j,), some)))


def runs(columns: int, length: int, apart: int, start: int, end: int, dtype: torch.dtype) -> Kernel:
    """``y[j] = x[j // length * apart + j % length]``, and ``z`` likewise where ``start <= j < end``, elsewhere 1."""
    x, j = tensor("x", -(-columns // length) * apart + length, dtype=dtype), axis("j", columns)
    y, z = tensor("y", columns, dtype=dtype), tensor("z", columns, dtype=dtype)
    at, number = j.index() // length * apart + j.index() % length, IndexValue(j.index())
    inside = op("logical_and", op("ge", number, start), op("lt", number, end))
    stages = (
        store(y, (j,), load(x, at)),
        store(z, (j,), load(x, at, mask=inside, other=1.0 if dtype.is_floating_point else 1)),
    )
    return kernel("runs", [x], [y, z], lanes(j, *stages))


def strided(columns: int, steps: Sequence[int], dtype: torch.dtype) -> Kernel:
    """For each step ``y[j] = x[j * step + 1]`` and ``z[j * step] = x[j] + x[j % 4]``, of booleans or."""
    x, j = tensor("x", columns * max(steps) + 2, dtype=dtype), axis("j", columns)
    either = "logical_or" if dtype == torch.bool else "add"
    outputs, stages = [], []
    for step in steps:
        y, z = tensor(f"y{step}", columns, dtype=dtype), tensor(f"z{step}", (columns - 1) * step + 1, dtype=dtype)
        outputs += [y, z]
        stages += [
            store(y, (j,), load(x, j.index() * step + 1)),
            store(z, (j.index() * step,), op(either, load(x, j), load(x, j.index() % 4))),
        ]
    return kernel("strided", [x], outputs, lanes(j, *stages))


def turned(columns: int, shift: int, dtype: torch.dtype) -> Kernel:
    """Positions that begin anew, are mirrored or clamped: ``x[(j + s) % n] + x[|j - s|] - x[clamp(s - j, 0, 3)]``."""
    x, y, j = tensor("x", columns, dtype=dtype), tensor("y", columns, dtype=dtype), axis("j", columns)
    at = j.index()
    mirrored = load(x, maximum(at - shift, shift - at))
    clamped = load(x, minimum(maximum(shift - at, as_index(0)), as_index(3)))
    value = op("sub", op("add", load(x, (at + shift) % columns), mirrored), clamped)
    return kernel("turned", [x], [y], lanes(j, store(y, (j,), value)))


def scatter_add(rows: IndexLike, columns: IndexLike, vocabulary: int, *, along: str = "j") -> Kernel:
    """``table[idx[i], j] += src[i, j]`` with the lanes along the columns or along the rows."""
    table, idx, src = (
        tensor("table", vocabulary, columns),
        tensor("idx", rows, dtype=I64),
        tensor("src", rows, columns),
    )
    i, j = axis("i", rows), axis("j", columns)
    at = checked(load(idx, i), vocabulary).index()
    add = store(table, (at, j), load(src, i, j), combine="add")
    tree = serial(i, lanes(j, add)) if along == "j" else serial(j, lanes(i, add))
    return kernel("scatter_add", [idx, src], [table], tree)


def transpose_add(rows: IndexLike, columns: IndexLike) -> Kernel:
    """y = x.t() + z"""
    x, z, y = tensor("x", columns, rows), tensor("z", rows, columns), tensor("y", rows, columns)
    i, j = axis("i", rows), axis("j", columns)
    out = op("add", load(x, j, i), load(z, i, j))
    return kernel("transpose_add", [x, z], [y], parallel(i, lanes(j, store(y, (i, j), out))))


def tiled_transpose_add(rows: IndexLike, columns: IndexLike, tile: int = 64) -> Kernel:
    """y = x.t() + z in squares: each square of x is copied transposed into a scratch square, then added
    row by row.
    """
    x, z, y, t = (
        tensor(n, *s)
        for n, s in (("x", (columns, rows)), ("z", (rows, columns)), ("y", (rows, columns)), ("t", (tile, tile)))
    )
    ib, jb = (axis("ib", (as_index(rows) + tile - 1) // tile), axis("jb", (as_index(columns) + tile - 1) // tile))
    height = minimum(as_index(tile), as_index(rows) - ib.index() * tile)
    width = minimum(as_index(tile), as_index(columns) - jb.index() * tile)
    i, j, ii, jj = axis("i", height), axis("j", width), axis("ii", height), axis("jj", width)
    row, column = ib.index() * tile, jb.index() * tile
    copy = serial(jj, lanes(ii, store(t, (ii, jj), load(x, column + jj.index(), row + ii.index()))))
    at = (row + i.index(), column + j.index())
    add = serial(i, lanes(j, store(y, at, op("add", load(t, i, j), load(z, *at)))))
    return kernel(
        "transpose_add", [x, z], [y], parallel(ib, parallel(jb, copy, add, grain=8000), grain=80_000), scratch=[t]
    )


S0, S1 = size("s0"), size("s1")
