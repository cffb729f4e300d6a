"""The worked examples of the loop IR, written by hand: what lowering would make of small programs.

Each is checked, printed (golden file) and interpreted against torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Masked, Op, Scalar, Value
from gyrator.ir.index import ZERO, Axis, Index, IndexLike, Indirect, Size, as_index, contiguous_strides
from gyrator.ir.ops import OPS, Rule
from gyrator.ir.program import Input, Nest, Node, Pointwise, Program, Reduce, Root, Scan, Scatter, Update, View
from gyrator.origin import Origin

# -- building ------------------------------------------------------------------------------------------------


def value(name: str, *shape: IndexLike, dtype: torch.dtype = torch.float32) -> Value:
    extents = tuple(as_index(s) for s in shape)
    return Value(name, extents, dtype, contiguous_strides(extents))


def whole(v: Value) -> View:
    return View(v, v.shape, v.strides, ZERO)


def axis(name: str, extent: IndexLike) -> Axis:
    return Axis(name, as_index(extent))


def load(v: Value, *index: Axis | IndexLike) -> Load:
    return Load(v, tuple(i.index() if isinstance(i, Axis) else as_index(i) for i in index))


def const(value: Scalar, dtype: torch.dtype = torch.float32) -> Const:
    return Const(value, dtype)


def op(name: str, *args: Expr) -> Op:
    """An op whose result dtype follows from its row."""
    boolean = OPS[name].rule in (Rule.COMPARE, Rule.LOGICAL)
    return Op(name, args, torch.bool if boolean else args[-1].dtype)


def cast(arg: Expr, dtype: torch.dtype) -> Expr:
    return Op("cast", (arg,), dtype)


def between(low: IndexLike, x: Index, high: IndexLike) -> Expr:
    """``low <= x < high``."""
    at = IndexValue(x)
    return op("logical_and", op("ge", at, IndexValue(as_index(low))), op("lt", at, IndexValue(as_index(high))))


def nest(out: Value | tuple[Value | None, ...], axes: tuple[Axis, ...], root: Root, line: int = 1) -> Nest:
    origin = Origin("model.py", line, "forward", type(root).__name__.lower())
    return Nest(out if isinstance(out, tuple) else (out,), axes, root, (origin,))


@dataclass(frozen=True)
class Example:
    """A program, arguments for its inputs, and what torch gives: outputs, then updated inputs."""

    program: Program
    arguments: Callable[[], tuple[Tensor | int, ...]]
    reference: Callable[..., tuple[Tensor, ...]]


def _program(
    name: str, inputs: tuple[Value | Size, ...], nodes: tuple[Node, ...], *outputs: Value, **updates: View
) -> Program:
    declared = tuple(Input(value=i) if isinstance(i, Value) else Input(size=i) for i in inputs)
    targets = {i.name: i for i in inputs}
    return Program(
        name,
        declared,
        nodes,
        tuple(whole(o) for o in outputs),
        tuple(Update(target, v) for n, v in updates.items() if isinstance(target := targets[n], Value)),
    )


# -- softmax -------------------------------------------------------------------------------------------------


def softmax() -> Example:
    b, n = Size("B", 1), Size("N", 1)
    rows, columns = b.index(), n.index()
    i, j, r = axis("i0", rows), axis("i1", columns), axis("r0", columns)
    x, s, y = value("x", rows, columns), value("s"), value("y", rows, columns)
    scaled, top = value("scaled", rows, columns), value("top", rows)
    e, total = value("e", rows, columns), value("total", rows)
    nodes = (
        nest(scaled, (i, j), Pointwise(op("mul", load(x, i, j), load(s))), 1),
        nest(top, (i,), Reduce("max", (r,), (load(scaled, i, r),)), 2),
        nest(e, (i, j), Pointwise(op("exp", op("sub", load(scaled, i, j), load(top, i)))), 2),
        nest(total, (i,), Reduce("sum", (r,), (load(e, i, r),)), 2),
        nest(y, (i, j), Pointwise(op("div", load(e, i, j), load(total, i))), 2),
    )
    return Example(
        _program("softmax", (b, n, x, s), nodes, y),
        lambda: (3, 7, torch.randn(3, 7), torch.tensor(0.5)),
        lambda b, n, x, s: (torch.softmax(x * s, 1),),
    )


# -- layer norm ----------------------------------------------------------------------------------------------


def layer_norm() -> Example:
    n, c = 5, 16
    i, j, r = axis("i0", n), axis("i1", c), axis("r0", c)
    x, w, b = value("x", n, c), value("w", c), value("b", c)
    mean, m2, rstd, y = value("mean", n), value("m2", n), value("rstd", n), value("y", n, c)
    variance = op("div", load(m2, i), const(float(c)))
    centred = op("sub", load(x, i, j), load(mean, i))
    scaled = op("mul", op("mul", centred, load(rstd, i)), load(w, j))
    nodes = (
        nest((mean, m2, None), (i,), Reduce("welford", (r,), (load(x, i, r),))),
        nest(rstd, (i,), Pointwise(op("rsqrt", op("add", variance, const(1e-5))))),
        nest(y, (i, j), Pointwise(op("add", scaled, load(b, j)))),
    )
    return Example(
        _program("layer_norm", (x, w, b), nodes, y, mean, rstd),
        lambda: (torch.randn(n, c), torch.randn(c), torch.randn(c)),
        lambda x, w, b: _layer_norm_outputs(x, w, b),
    )


def _layer_norm_outputs(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    y, mean, rstd = torch.native_layer_norm(x, (x.shape[1],), w, b, 1e-5)
    return y, mean.squeeze(1), rstd.squeeze(1)


def layer_norm_backward() -> Example:
    """Reductions over both axes of the same inputs: rows for dx, columns for dw and db."""
    n, c = 5, 16
    i, j, r = axis("i0", n), axis("i1", c), axis("r0", c)
    k, q = axis("i0", c), axis("r0", n)
    g, x, w = value("g", n, c), value("x", n, c), value("w", c)
    mean, rstd = value("mean", n), value("rstd", n)
    h, gw, gwh, s1, s2 = (value("h", n, c), value("gw", n, c), value("gwh", n, c), value("s1", n), value("s2", n))
    dx, dw, db = value("dx", n, c), value("dw", c), value("db", c)
    inner = op("sub", load(gw, i, j), op("div", load(s1, i), const(float(c))))
    outer = op("div", op("mul", load(h, i, j), load(s2, i)), const(float(c)))
    nodes = (
        nest(h, (i, j), Pointwise(op("mul", op("sub", load(x, i, j), load(mean, i)), load(rstd, i)))),
        nest(gw, (i, j), Pointwise(op("mul", load(g, i, j), load(w, j)))),
        nest(gwh, (i, j), Pointwise(op("mul", load(gw, i, j), load(h, i, j)))),
        nest(s1, (i,), Reduce("sum", (r,), (load(gw, i, r),))),
        nest(s2, (i,), Reduce("sum", (r,), (load(gwh, i, r),))),
        nest(dx, (i, j), Pointwise(op("mul", op("sub", inner, outer), load(rstd, i)))),
        nest(dw, (k,), Reduce("sum", (q,), (op("mul", load(g, q, k), load(h, q, k)),))),
        nest(db, (k,), Reduce("sum", (q,), (load(g, q, k),))),
    )

    def arguments() -> tuple[Tensor, ...]:
        x = torch.randn(n, c)
        return torch.randn(n, c), x, torch.randn(c), x.mean(1), torch.rsqrt(x.var(1, unbiased=False) + 1e-5)

    def reference(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
        saved = mean[:, None], rstd[:, None]
        return torch.ops.aten.native_layer_norm_backward(g, x, (c,), *saved, w, w, [True, True, True])

    return Example(_program("layer_norm_backward", (g, x, w, mean, rstd), nodes, dx, dw, db), arguments, reference)


# -- pad, cat ------------------------------------------------------------------------------------------------


def pad_cat() -> Example:
    """``cat([pad(x, 1), z])``: x is read inside one mask only, the padded value inside another."""
    n, m = 6, 4
    i, k = axis("i0", n + 2), axis("i0", n + 2 + m)
    x, z, padded, y = value("x", n), value("z", m), value("padded", n + 2), value("y", n + 2 + m)
    before, at = i.index() - 1, k.index()
    first = op("lt", IndexValue(at), const(n + 2, torch.int64))
    second = Masked(op("logical_not", first), load(z, at - (n + 2)), const(0.0))
    nodes = (
        nest(padded, (i,), Pointwise(Masked(between(0, before, n), load(x, before), const(0.0)))),
        nest(y, (k,), Pointwise(op("where", first, Masked(first, load(padded, k), const(0.0)), second))),
    )
    return Example(
        _program("pad_cat", (x, z), nodes, y),
        lambda: (torch.randn(n), torch.randn(m)),
        lambda x, z: (torch.cat([F.pad(x, (1, 1)), z]),),
    )


# -- index_put -----------------------------------------------------------------------------------------------


def index_put() -> Example:
    """``x.index_put([None, idx], src, accumulate=True)`` with negative indices."""
    rows, columns, k = 3, 8, 5
    i, p = axis("i0", rows), axis("i1", k)
    x, idx, src = value("x", rows, columns), value("idx", k, dtype=torch.int64), value("src", rows, k)
    y = value("y", rows, columns)
    at = Indirect(Checked(load(idx, p), as_index(columns)), as_index(columns)).index()
    nodes = (nest(y, (i, p), Scatter(x, (i.index(), at), load(src, i, p), "add")),)
    return Example(
        _program("index_put", (x, idx, src), nodes, y),
        lambda: (torch.randn(rows, columns), torch.tensor([1, -1, 3, 1, -8]), torch.randn(rows, k)),
        lambda x, idx, src: (x.index_put((torch.arange(rows)[:, None], idx[None]), src, accumulate=True),),
    )


# -- argmax --------------------------------------------------------------------------------------------------


def argmax() -> Example:
    """Both results of a two-valued reduction; NaN is the maximum, the first of equals wins."""
    n, c = 4, 9
    i, r = axis("i0", n), axis("r0", c)
    x, best, at = value("x", n, c), value("best", n), value("at", n, dtype=torch.int64)
    body = (load(x, i, r), IndexValue(r.index()))
    nodes = (nest((best, at), (i,), Reduce("argmax", (r,), body)),)

    def arguments() -> tuple[Tensor, ...]:
        x = torch.randint(-3, 4, (n, c)).float()
        x[2, 5] = torch.nan
        return (x,)

    return Example(_program("argmax", (x,), nodes, best, at), arguments, lambda x: (x.amax(1), x.argmax(1)))


# -- attention mask ------------------------------------------------------------------------------------------


def attention_mask() -> Example:
    """Causal scores with symbolic S: ``where(k <= q, scores, -inf)``, heads split from one dimension.

    The scores lie as [b, S, h*S]; reading them as [b, h, S, S] divides an index by S.
    """
    b, s, heads = Size("b", 1), Size("S", 2), 3
    length = s.index()
    i, h, q, k = axis("i0", b.index()), axis("i1", heads), axis("i2", length), axis("i3", length)
    flat = h.index() * length + k.index()
    x, y = value("x", b.index(), length, heads * length), value("y", b.index(), heads, length, length)
    allowed = op("le", IndexValue(k.index()), IndexValue(flat * 0 + q.index()))
    score = load(x, i, q, (flat // length) * length + flat % length)
    nodes = (nest(y, (i, h, q, k), Pointwise(op("where", allowed, score, const(float("-inf"))))),)

    def reference(b: int, s: int, x: Tensor) -> tuple[Tensor, ...]:
        split = x.reshape(b, s, heads, s).permute(0, 2, 1, 3)
        return (torch.where(torch.ones(s, s).tril().bool(), split, float("-inf")),)

    return Example(
        _program("attention_mask", (b, s, x), nodes, y), lambda: (2, 5, torch.randn(2, 5, heads * 5)), reference
    )


# -- cumsum --------------------------------------------------------------------------------------------------


def cumsum() -> Example:
    """A running sum of a half-precision row, and its running maximum with index."""
    n, c = 3, 17
    i, j = axis("i0", n), axis("i1", c)
    x = value("x", n, c, dtype=torch.bfloat16)
    total, y = value("total", n, c), value("y", n, c, dtype=torch.bfloat16)
    top, at = value("top", n, c, dtype=torch.bfloat16), value("at", n, c, dtype=torch.int64)
    body = (load(x, i, j), IndexValue(j.index()))
    nodes = (
        nest(total, (i, j), Scan("sum", j, (cast(load(x, i, j), torch.float32),))),
        nest(y, (i, j), Pointwise(cast(load(total, i, j), torch.bfloat16))),
        nest((top, at), (i, j), Scan("argmax", j, body)),
    )

    def reference(x: Tensor) -> tuple[Tensor, ...]:
        return x.float().cumsum(1).bfloat16(), *x.cummax(1)

    return Example(_program("cumsum", (x,), nodes, y, top, at), lambda: (torch.randn(n, c).bfloat16(),), reference)


# -- mutation and scatter ------------------------------------------------------------------------------------


def mutation_scatter() -> Example:
    """``y = x + 1; x.mul_(2); z = x + 1; table.index_add_(0, idx, src)``."""
    n, rows, d, k = 6, 5, 4, 3
    i, p, c = axis("i0", n), axis("i0", k), axis("i1", d)
    x, table = value("x", n), value("table", rows, d)
    idx, src = value("idx", k, dtype=torch.int64), value("src", k, d)
    y, x1, z, table1 = value("y", n), value("x@1", n), value("z", n), value("table@1", rows, d)
    at = Indirect(Checked(load(idx, p), as_index(rows)), as_index(rows)).index()
    nodes = (
        nest(y, (i,), Pointwise(op("add", load(x, i), const(1.0))), 1),
        nest(x1, (i,), Pointwise(op("mul", load(x, i), const(2.0))), 2),
        nest(z, (i,), Pointwise(op("add", load(x1, i), const(1.0))), 3),
        nest(table1, (p, c), Scatter(table, (at, c.index()), load(src, p, c), "add"), 4),
    )
    return Example(
        _program("mutation_scatter", (x, table, idx, src), nodes, y, z, x=whole(x1), table=whole(table1)),
        lambda: (torch.randn(n), torch.randn(rows, d), torch.tensor([4, 0, 4]), torch.randn(k, d)),
        lambda x, table, idx, src: (x + 1, x * 2 + 1, x * 2, table.index_add(0, idx, src)),
    )


EXAMPLES: tuple[Callable[[], Example], ...] = (
    softmax,
    layer_norm,
    layer_norm_backward,
    pad_cat,
    index_put,
    argmax,
    attention_mask,
    cumsum,
    mutation_scatter,
)
