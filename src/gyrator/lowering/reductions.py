"""Reductions: one nest each, and a pointwise nest after it where the result needs a division or a narrower
dtype.

mean(x: bf16[R, C], dim=1)  →  v1[i0] = sum over r0<C of cast<f32>(x[i0, r0]);  v2[i0] = cast<bf16>(v1[i0] /
C)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Axis, Index, contiguous_strides, dot, is_nonnegative, product
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.program import Reduce
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.refs import Coords, TensorRef, axes_of, coords_of, whole
from gyrator.lowering.typed import Operand, cast, compute_dtype, like, op
from gyrator.lowering.views import dimension

aten = torch.ops.aten
Dims: TypeAlias = "int | Sequence[int] | None"


# -- the frame ---------------------------------------------------------------------------------------------
def reduced_dims(dims: Dims, rank: int) -> frozenset[int]:
    """The dimensions to reduce; none named means all."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return frozenset(range(rank))
    return frozenset(dimension(d, rank) for d in ([dims] if isinstance(dims, int) else dims)) & frozenset(range(rank))


def reduce_several(
    b: Builder,
    out: Meta,
    shape: Sequence[Index],
    dims: frozenset[int],
    kind: str,
    bodies: Callable[[Coords], tuple[Expr, ...]],
    wanted: Sequence[bool],
    suffix: str = "",
) -> list[TensorRef | None]:
    """Append a reduction over ``dims`` of ``shape``; results have ``out``'s shape, which may keep reduced
    dimensions as 1.

    ``bodies`` gives the expressions at a point of ``shape``; their dtypes decide those of the results.
    """
    axes = axes_of("i", out.shape)
    reduced = [Axis(f"r{j}", shape[k]) for j, k in enumerate(sorted(dims))]
    inner = iter(coords_of(tuple(reduced)))
    keeps = len(out.shape) == len(shape)
    outer = iter([i for k, i in enumerate(coords_of(axes)) if not (keeps and k in dims)])
    at = tuple([next(inner) if k in dims else next(outer) for k in range(len(shape))])
    body = bodies(at)
    dtypes = [d or body[min(k, len(body) - 1)].dtype for k, d in enumerate(REDUCTIONS[kind].results)]
    values = [b.value(out.with_dtype(d), suffix) if use else None for d, use in zip(dtypes, wanted, strict=True)]
    b.nest(values, axes, Reduce(kind, tuple(reduced) or (Axis("r0", ONE),), body))
    return [None if v is None else whole(v) for v in values]


def reduce(
    b: Builder,
    out: Meta,
    shape: Sequence[Index],
    dims: frozenset[int],
    kind: str,
    body: Callable[[Coords], Expr],
    suffix: str = "",
) -> TensorRef:
    """The same for a reduction of one expression with one result."""
    (result,) = reduce_several(b, out, shape, dims, kind, lambda at: (body(at),), (True,), suffix)
    assert result is not None
    return result


def reduce_one(b: Builder, out: Meta, x: TensorRef, dims: frozenset[int], kind: str, dtype: torch.dtype) -> TensorRef:
    """A reduction of one tensor read as ``dtype``, cast to ``out``."""
    suffix = "" if dtype == out.dtype else kind
    result = reduce(b, out, x.shape, dims, kind, lambda at: cast(x.load(at), dtype), suffix)
    return result if result.dtype == out.dtype else b.copy(result, out)


def count(shape: Sequence[Index], dims: frozenset[int]) -> Index:
    """How many elements each result combines."""
    return product([shape[k] for k in sorted(dims)])


# -- sums --------------------------------------------------------------------------------------------------
def _sum(b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False, **_: Any) -> TensorRef:
    return reduce_one(b, out, x, reduced_dims(dims, x.rank), "sum", compute_dtype(out.dtype))


def _prod(b: Builder, out: Meta, x: TensorRef, dim: Dims = None, keepdim: bool = False, **_: Any) -> TensorRef:
    kind = "all" if out.dtype == torch.bool else "prod"
    return reduce_one(b, out, x, reduced_dims(dim, x.rank), kind, compute_dtype(out.dtype))


def _mean(b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False, **_: Any) -> TensorRef:
    over, wide = reduced_dims(dims, x.rank), compute_dtype(out.dtype)
    total = reduce(b, out, x.shape, over, "sum", lambda at: cast(x.load(at), wide), "sum")
    return b.elementwise(out, (total, count(x.shape, over)), lambda t, n: op("div", t, n))


# -- variance ----------------------------------------------------------------------------------------------
def _var(b: Builder, out: Meta, x: TensorRef, dim: Dims = None, **options: Any) -> TensorRef:
    return _variance(b, out, None, x, dim, **options)[0]


def _var_mean(b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: Dims = None, **options: Any) -> Any:
    return _variance(b, out[0], out[1], x, dim, **options)


def _std(b: Builder, out: Meta, x: TensorRef, dim: Dims = None, **options: Any) -> TensorRef:
    return _variance(b, out, None, x, dim, root=True, **options)[0]


def _std_mean(b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: Dims = None, **options: Any) -> Any:
    return _variance(b, out[0], out[1], x, dim, root=True, **options)


def _variance(
    b: Builder,
    out: Meta,
    mean_out: Meta | None,
    x: TensorRef,
    dim: Dims,
    *,
    correction: Operand | None = None,
    keepdim: bool = False,
    root: bool = False,
) -> list[TensorRef]:
    """Welford's mean and sum of squares, then the division by ``max(n - correction, 0)``; ``root`` for the
    deviation.
    """
    over, wide = reduced_dims(dim, x.rank), compute_dtype(out.dtype)
    wanted = (mean_out is not None, True, False)
    mean, squares, _ = reduce_several(
        b, out, x.shape, over, "welford", lambda at: (cast(x.load(at), wide),), wanted, "welford"
    )
    assert squares is not None
    less = 1 if correction is None else correction

    def divide(m2: Expr, n: Expr, c: Expr) -> Expr:
        variance = op("div", m2, op("maximum", op("sub", n, c), like(n, 0)))
        return op("sqrt", variance) if root else variance

    results = [b.elementwise(out, (squares, count(x.shape, over), less), divide)]
    if mean is not None and mean_out is not None:
        results.append(_mean_of(b, mean_out, mean, count(x.shape, over)))
    return results


def _mean_of(b: Builder, out: Meta, mean: TensorRef, n: Index) -> TensorRef:
    """Welford's mean as ``out``; that of no elements is NaN."""
    if not is_nonnegative(n - 1):
        return b.elementwise(
            out, (mean, n), lambda m, k: op("where", op("eq", k, like(k, 0)), like(m, math.nan), m), suffix="mean"
        )
    return mean if mean.dtype == out.dtype else b.copy(mean, out, "mean")


# -- extremes ----------------------------------------------------------------------------------------------
def _extreme(kind: str, boolean: str) -> Callable[..., TensorRef]:
    def lowering(b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False) -> TensorRef:
        over = reduced_dims(dims, x.rank)
        chosen = boolean if x.dtype == torch.bool else kind
        return reduce_one(b, out, x, over, chosen, compute_dtype(x.dtype))

    return lowering


def _any_all(kind: str) -> Callable[..., TensorRef]:
    def lowering(b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False) -> TensorRef:
        over = frozenset[int]() if dims == [] and isinstance(dims, list) else reduced_dims(dims, x.rank)
        return reduce_one(b, out, x, over, kind, torch.bool)

    return lowering


def _arg_extreme(kind: str) -> Callable[..., TensorRef]:
    def lowering(b: Builder, out: Meta, x: TensorRef, dim: int | None = None, keepdim: bool = False) -> TensorRef:
        results = arg_reduce(b, out, x, reduced_dims(dim, x.rank), kind, (False, True))
        assert results[1] is not None
        return results[1]

    return lowering


def _extreme_with_index(kind: str) -> Callable[..., list[TensorRef]]:
    def lowering(b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: int, keepdim: bool = False) -> list[TensorRef]:
        best, index = arg_reduce(b, out[0], x, reduced_dims(dim, x.rank), kind, (True, True))
        assert best is not None and index is not None
        return [best if best.dtype == out[0].dtype else b.copy(best, out[0]), index]

    return lowering


def arg_reduce(
    b: Builder, out: Meta, x: TensorRef, dims: frozenset[int], kind: str, wanted: Sequence[bool]
) -> list[TensorRef | None]:
    """The extreme value and its position in the reduced dimensions, counted in row-major order."""
    dtype = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    strides = contiguous_strides(tuple([x.shape[k] if k in dims else ONE for k in range(x.rank)]))

    def bodies(at: Coords) -> tuple[Expr, ...]:
        position = dot(tuple([i if k in dims else ZERO for k, i in enumerate(at)]), strides)
        return cast(x.load(at), dtype), IndexValue(position)

    return reduce_several(b, out, x.shape, dims, kind, bodies, wanted, kind)


# -- softmax -----------------------------------------------------------------------------------------------
def _softmax(b: Builder, out: Meta, x: TensorRef, dim: int, half_to_float: bool = False) -> TensorRef:
    _, exponents, total = _shifted_sum(b, out, x, dim)
    return b.elementwise(out, (exponents, total), lambda e, t: op("div", e, t))


def _log_softmax(b: Builder, out: Meta, x: TensorRef, dim: int, half_to_float: bool = False) -> TensorRef:
    shifted, _, total = _shifted_sum(b, out, x, dim)
    return b.elementwise(out, (shifted, total), lambda s, t: op("sub", s, op("log", t)))


def _shifted_sum(b: Builder, out: Meta, x: TensorRef, dim: int) -> tuple[TensorRef, TensorRef, TensorRef]:
    """``x - max``, its exponential, and the sum of the exponentials (reduced dimension kept as 1)."""
    wide = compute_dtype(out.dtype)
    over = reduced_dims(dim, x.rank)
    kept = out.with_shape(tuple([ONE if k in over else s for k, s in enumerate(x.shape)])).with_dtype(wide)
    full = out.with_dtype(wide)
    top = reduce(b, kept, x.shape, over, "max", lambda at: cast(x.load(at), wide), "max")
    shifted = b.elementwise(full, (x, top), lambda a, m: op("sub", a, m), suffix="shifted")
    exponents = b.elementwise(full, (shifted,), lambda a: op("exp", a), suffix="exp")
    total = reduce(b, kept, x.shape, over, "sum", exponents.load, "sum")
    return shifted, exponents, total


def _softmax_backward(
    b: Builder, out: Meta, grad: TensorRef, y: TensorRef, dim: int, input_dtype: torch.dtype
) -> TensorRef:
    """``y·(g − Σ g·y)``."""
    total = _row_sum(b, out, y, dim, lambda at, wide: op("mul", cast(grad.load(at), wide), cast(y.load(at), wide)))
    return b.elementwise(out, (grad, y, total), lambda g, p, t: op("mul", p, op("sub", g, t)))


def _log_softmax_backward(
    b: Builder, out: Meta, grad: TensorRef, y: TensorRef, dim: int, input_dtype: torch.dtype
) -> TensorRef:
    """``g − exp(y)·Σ g``."""
    total = _row_sum(b, out, y, dim, lambda at, wide: cast(grad.load(at), wide))
    return b.elementwise(out, (grad, y, total), lambda g, p, t: op("sub", g, op("mul", op("exp", p), t)))


def _row_sum(b: Builder, out: Meta, y: TensorRef, dim: int, body: Callable[[Coords, torch.dtype], Expr]) -> TensorRef:
    wide = compute_dtype(out.dtype)
    over = reduced_dims(dim, y.rank)
    kept = out.with_shape(tuple([ONE if k in over else s for k, s in enumerate(y.shape)])).with_dtype(wide)
    return reduce(b, kept, y.shape, over, "sum", lambda at: body(at, wide), "sum")


def _rows(packet: str, overloads: str, lowering: Callable[..., Any]) -> dict[OpOverload, Callable[..., Any]]:
    return {getattr(getattr(aten, packet), o): lowering for o in overloads.split()}


LOWERINGS: Mapping[OpOverload, Callable[..., Any]] = {
    **_rows("sum", "default dim_IntList", _sum),
    **_rows("prod", "default dim_int", _prod),
    **_rows("mean", "default dim", _mean),
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.std.correction: _std,
    aten.std_mean.correction: _std_mean,
    aten.amax.default: _extreme("max", "any"),
    aten.amin.default: _extreme("min", "all"),
    aten.max.default: _extreme("max", "any"),
    aten.min.default: _extreme("min", "all"),
    aten.max.dim: _extreme_with_index("argmax"),
    aten.min.dim: _extreme_with_index("argmin"),
    aten.argmax.default: _arg_extreme("argmax"),
    aten.argmin.default: _arg_extreme("argmin"),
    **_rows("any", "default dim dims", _any_all("any")),
    **_rows("all", "default dim dims", _any_all("all")),
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
}
