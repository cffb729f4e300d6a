"""Reductions and scans: one nest each, and a pointwise nest after it where the result is divided or gets another dtype.

mean(x: bf16[R, C], dim=1)  →  v1[i0] = sum over r0<C of cast<f32>(x[i0, r0]);  v2[i0] = cast<bf16>(v1[i0] / C)"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gyrator.ir.build import axes_of, cast, compute_dtype, coords_of, like, op
from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import ONE, ZERO, Axis, Coords, Index, is_nonnegative, linear, product
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.program import Nest, Reduce, Scan
from gyrator.lowering.builder import Builder, Family, Meta, named_rows, rows
from gyrator.lowering.refs import Operand, TensorRef, whole
from gyrator.lowering.views import dimension, narrowed

MOST_SORTED = 512
"""Elements of a row that a kernel sorts: 16 for each thread of a warp; 1,024 take long to build and gain little."""
ALL = (True, True, True)
"""That all results of a reduction are wanted."""

Dims = int | Sequence[int] | None


def reduced_dims(dims: Dims, rank: int) -> frozenset[int]:
    """The dimensions to reduce; none named means all."""
    named = [dims] if isinstance(dims, int) else dims or range(rank)
    return frozenset(dimension(d, rank) for d in named) & frozenset(range(rank))


def reduce_several(
    b: Builder, out: Meta, shape: Coords, dims: frozenset[int], kind: str,
    bodies: Callable[[Coords], tuple[Expr, ...]], suffix: str = "", wanted: Sequence[bool] = ALL,
) -> list[TensorRef]:  # fmt: skip
    """Append a reduction over ``dims`` of ``shape``; ``wanted`` results have ``out``'s shape, which may keep them as 1.
    ``bodies`` gives the expressions at a point of ``shape``; their dtypes decide those of the results."""
    keeps = len(out.shape) == len(shape)

    def inside(outer: Coords, inner: Coords) -> tuple[Expr, ...]:
        within, around = iter(inner), iter([i for k, i in enumerate(outer) if not (keeps and k in dims)])
        return bodies(tuple([next(within) if k in dims else next(around) for k in range(len(shape))]))

    return reduction(b, out, tuple([shape[k] for k in sorted(dims)]), kind, inside, suffix, wanted)


def reduction(
    b: Builder, out: Meta, inner: Coords, kind: str,
    bodies: Callable[[Coords, Coords], tuple[Expr, ...]], suffix: str = "", wanted: Sequence[bool] = ALL,
) -> list[TensorRef]:  # fmt: skip
    """Append a reduction at each element of ``out`` over axes of extents ``inner``; ``bodies`` get both places."""
    axes, reduced = axes_of("i", out.shape), axes_of("r", inner)
    body = bodies(coords_of(axes), coords_of(reduced))
    dtypes = zip(REDUCTIONS[kind].dtypes(body[0].dtype), wanted, strict=False)
    values = [b.value(out.with_dtype(dtype), suffix) if use else None for dtype, use in dtypes]
    b.add(Nest(tuple(values), axes, Reduce(kind, reduced or (Axis("r0", ONE),), body)))
    return [whole(v) for v in values if v is not None]


def reduce_one(
    b: Builder, out: Meta, x: TensorRef, dims: frozenset[int], kind: str, dtype: torch.dtype, suffix: str = ""
) -> TensorRef:
    """A reduction of one tensor read as ``dtype``, cast to ``out``."""
    suffix = suffix or ("" if dtype == out.dtype else kind)
    (result,) = reduce_several(b, out, x.shape, dims, kind, lambda at: (cast(x.load(at), dtype),), suffix)
    return b.narrowed(result, out)


def summed(b: Builder, out: Meta, inner: Coords, body: Callable[[Coords, Coords], Expr]) -> TensorRef:
    """A sum in the compute dtype, cast to ``out``; no reduction at all where only one element is summed."""
    wide = out.with_dtype(compute_dtype(out.dtype))
    if all(extent is ONE for extent in inner):
        return b.pointwise(out, lambda at: body(at, (ZERO,) * len(inner)))
    (total,) = reduction(b, wide, inner, "sum", lambda at, r: (body(at, r),), "wide" * (wide.dtype != out.dtype))
    return b.narrowed(total, out)


def count(shape: Sequence[Index], dims: frozenset[int]) -> Index:
    """How many elements each result combines."""
    return product([shape[k] for k in sorted(dims)])


def _reduced(
    kind: str, boolean: str, b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False, **_: Any
) -> TensorRef:
    """sum and the like; of bools by the reduction ``boolean``."""
    chosen = boolean if out.dtype == torch.bool else kind
    return reduce_one(b, out, x, reduced_dims(dims, x.rank), chosen, compute_dtype(out.dtype))


def _mean(b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False, **_: Any) -> TensorRef:
    over, wide = reduced_dims(dims, x.rank), compute_dtype(out.dtype)
    total = reduce_one(b, out.with_dtype(wide), x, over, "sum", wide, "sum")
    return b.elementwise(out, (total, count(x.shape, over)), lambda t, n: op("div", t, n))


def _variance(
    b: Builder, out: Meta | tuple[Meta, Meta], x: TensorRef, dim: Dims = None, *,
    correction: Operand | None = None, keepdim: bool = False,
) -> Any:  # fmt: skip
    """Welford's sum of squares divided by ``max(n - correction, 0)``; with the mean where two results are wanted."""
    first, mean_out = out if isinstance(out, tuple) else (out, None)
    if not first.dtype.is_floating_point:
        return NotImplemented
    over, wide = reduced_dims(dim, x.rank), compute_dtype(first.dtype)
    wanted = (mean_out is not None, True, False)
    *mean, squares = reduce_several(
        b, first, x.shape, over, "welford", lambda at: (cast(x.load(at), wide),), "welford", wanted
    )
    n, less = count(x.shape, over), 1 if correction is None else correction
    result = b.elementwise(
        first, (squares, n, less), lambda m2, n, c: op("div", m2, op("maximum", op("sub", n, c), like(n, 0)))
    )
    return result if mean_out is None else [result, _mean_of(b, mean_out, mean[0], n)]


def _mean_of(b: Builder, out: Meta, raw: TensorRef, n: Index) -> TensorRef:
    """Welford's mean as ``out``; that of no elements is NaN."""
    if is_nonnegative(n - 1):
        return b.narrowed(raw, out, "mean")
    return b.elementwise(out, (raw, n), lambda m, k: op("where", op("eq", k, like(k, 0)), like(m, math.nan), m), "mean")


def _any_all(kind: str, b: Builder, out: Meta, x: TensorRef, dims: Dims = None, keepdim: bool = False) -> TensorRef:
    return reduce_one(b, out, x, frozenset[int]() if dims == [] else reduced_dims(dims, x.rank), kind, torch.bool)


def _position(kind: str, b: Builder, out: Meta, x: TensorRef, dim: Dims = None, keepdim: bool = False) -> TensorRef:
    return _extreme(b, out, x, dim, kind, (False, True))[0]


def _extreme_and_position(
    name: str, b: Builder, out: Meta | tuple[Meta, Meta], x: TensorRef, dim: Dims = None, keepdim: bool = False
) -> Any:
    """max and min, of all elements without the position; the library refuses to choose among none."""
    if not is_nonnegative(count(x.shape, reduced_dims(dim, x.rank)) - 1):
        return NotImplemented
    if isinstance(out, Meta):
        return _reduced(name, "any" if name == "max" else "all", b, out, x)
    best, index = _extreme(b, out[0], x, dim, f"arg{name}", ALL)
    return [b.narrowed(best, out[0]), index]


def _extreme(b: Builder, out: Meta, x: TensorRef, dim: Dims, kind: str, wanted: Sequence[bool]) -> list[TensorRef]:
    """The extreme value and its position in the reduced dimensions, counted in row-major order, if wanted."""
    dtype = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    over = sorted(reduced_dims(dim, x.rank))

    def bodies(at: Coords) -> tuple[Expr, ...]:
        position = linear(tuple([at[k] for k in over]), tuple([x.shape[k] for k in over]))
        return cast(x.load(at), dtype), IndexValue(position)

    return reduce_several(b, out, x.shape, frozenset(over), kind, bodies, kind, wanted)


def scan(b: Builder, out: Meta, dim: int, kind: str, bodies: Callable[[Coords], tuple[Expr, ...]]) -> list[TensorRef]:
    """Append a scan over ``dim`` of ``out``'s shape; the bodies' dtypes decide those of the results."""
    axes = axes_of("i", out.shape)
    body = bodies(coords_of(axes))
    values = [b.value(out.with_dtype(dtype), kind) for dtype in REDUCTIONS[kind].dtypes(body[0].dtype)]
    b.add(Nest(tuple(values), axes, Scan(kind, axes[dim], body)))
    return [whole(v) for v in values]


def _running(kind: str, b: Builder, out: Meta, x: TensorRef, dim: int, **_: Any) -> Any:
    if (x.rank and out.dtype == torch.bool) or (kind == "logaddexp" and not out.dtype.is_floating_point):
        return NotImplemented  # the library refuses it too, in its own words
    if x.rank == 0:
        return b.copy(x, out)
    wide = compute_dtype(out.dtype)
    (total,) = scan(b, out, dim, kind, lambda at: (cast(x.load(at), wide),))
    return b.narrowed(total, out)


def _running_extreme(kind: str, b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: int) -> Sequence[TensorRef]:
    values, indices = out
    if x.rank == 0:
        return b.copy(x, values), b.full(indices, 0)
    wide = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    best, where = scan(b, values, dim, kind, lambda at: (cast(x.load(at), wide), IndexValue(at[dim])))
    return b.narrowed(best, values), where


def _sort(b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    """Rows of a GPU that a warp keeps in its registers, of at most 32 bits; longer ones are the library's."""
    d, fits = dimension(dim, x.rank), x.dtype.itemsize <= 4 and x.dtype != torch.bool
    length = x.shape[d].value if x.rank and fits and out[0].device.type == "cuda" else None
    if length is None or not 2 <= length <= MOST_SORTED:
        return NotImplemented
    return scan(b, out[0], d, "sort_descending" if descending else "sort", lambda at: (x.load(at),))


def _topk(
    b: Builder, out: tuple[Meta, Meta], x: TensorRef, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    found = _sort(b, (out[0].with_shape(x.shape), out[1].with_shape(x.shape)), x, dim, largest)
    if found is NotImplemented:
        return found
    return [b.copy(narrowed(f, o.shape, dimension(dim, x.rank), ZERO), o) for f, o in zip(found, out, strict=True)]


LOWERINGS: Family = {
    **rows(partial(_reduced, "sum", "any"), "sum", "default dim_IntList"),
    **rows(partial(_reduced, "prod", "all"), "prod", "default dim_int"),
    **rows(_mean, "mean", "default dim"),
    **rows(_variance, "var var_mean", "correction"),
    **rows(partial(_reduced, "max", "any"), "amax"),
    **rows(partial(_reduced, "min", "all"), "amin"),
    **named_rows(_extreme_and_position, "max min", "dim default"),
    **named_rows(_position, "argmax argmin"),
    **named_rows(_any_all, "any all", "default dim dims"),
    **rows(partial(_running, "sum"), "cumsum"),
    **rows(partial(_running, "prod"), "cumprod"),
    **rows(partial(_running, "logaddexp"), "logcumsumexp"),
    **rows(partial(_running_extreme, "argmax"), "cummax"),
    **rows(partial(_running_extreme, "argmin"), "cummin"),
    **rows(_sort, "sort", "default stable"),
    **rows(_topk, "topk"),
}
