"""Complex numbers: values are pairs of reals, on which these operators compute. Others are calls of the library's.

a * b: complex64   →   v[i0, i1] = where(i1 < 1, a₀·b₀ − a₁·b₁, a₀·b₁ + a₁·b₀): f32 with a₀ = a[i0, 0], a₁ = a[i0, 1], …
view_as_real, view_as_complex and what views either are index maps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from gyrator.autograd import ops
from gyrator.autograd.builder import flatten, mapped
from gyrator.ir.build import compute_dtype, constant, op
from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import ONE, Coords
from gyrator.lowering import gathers, joins, pointwise, reductions, scatters
from gyrator.lowering.builder import Builder, Family, Lowering, Meta, named_rows, rows
from gyrator.lowering.refs import TWO, Operand, TensorRef, element, promoting_like, reals, view_coords, whole
from gyrator.lowering.views import dimension

aten, prims = torch.ops.aten, torch.ops.prims

Pair = tuple[Expr, Expr]
Number = Operand | complex

_OF_REALS: Family = {
    **gathers.LOWERINGS, **joins.LOWERINGS, **pointwise.LOWERINGS, **reductions.LOWERINGS, **scatters.LOWERINGS
}  # fmt: skip


def _pair(x: Number, at: Coords, dtype: torch.dtype) -> Pair:
    """Real and imaginary part of an operand at ``at``; ±∞ and NaN times a real one are eager's if it has a 0."""
    if isinstance(x, TensorRef) and x.dtype.is_complex:
        pairs = reals(x)
        return element(pairs, (*at, TWO * 0), dtype), element(pairs, (*at, ONE), dtype)
    if isinstance(x, complex):
        return constant(x.real, dtype), constant(x.imag, dtype)
    return element(x, at, dtype), constant(0, dtype)


def _numbers(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    """``view_as_complex(x)``: a view where ``x`` has all pairs of a value, else of a copy."""
    *coords, last = x.coords
    value, axis = x.value, view_coords(x.shape)[-1]
    apart = last is axis and not any(axis.axes() & c.axes() for c in coords)
    if not apart or value.shape[-1] is not TWO or value.strides[-1] is not ONE or value.dtype != x.dtype:
        value, coords = b.copy(x, out.reals()).value, [*view_coords(out.shape)]
    return TensorRef(value, out.shape, tuple(coords), out.dtype)


def _to_pairs(function: Callable[..., Pair], b: Builder, out: Meta, *operands: Number) -> TensorRef:
    meta = out.reals()
    dtype = compute_dtype(meta.dtype)

    def body(at: Coords) -> Expr:
        real, imaginary = function(*[_pair(x, at[:-1], dtype) for x in operands])
        return op("where", op("lt", IndexValue(at[-1]), constant(1, torch.int64)), real, imaginary)

    return whole(b.pointwise(meta, body).value, out.dtype)


def _to_reals(function: Callable[..., Expr], b: Builder, out: Meta, *operands: Number) -> TensorRef:
    dtype = torch.result_type(promoting_like(operands[0]), promoting_like(operands[-1])).to_real()
    return b.pointwise(out, lambda at: function(*[_pair(x, at, compute_dtype(dtype)) for x in operands]))


def _each(name: str, *pairs: Pair) -> Pair:
    first, second = ([pair[k] for pair in pairs] for k in (0, 1))
    return op(name, *first), op(name, *second)


def _sum(name: str, b: Builder, out: Meta, x: Number, y: Number, alpha: Number = 1) -> TensorRef:
    """add and sub: x ± alpha·y."""
    tensors = [reals(z) for z in (x, y) if isinstance(z, TensorRef) and z.dtype.is_complex]
    if len(tensors) == 2 and not isinstance(alpha, complex):
        return _numbers(b, out, _OF_REALS[getattr(aten, name).Tensor](b, out.reals(), *tensors, alpha=alpha))
    return _to_pairs(lambda p, q, a: _each(name, p, q if alpha == 1 else _product(a, q)), b, out, x, y, alpha)


def _product(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return op("sub", op("mul", a, c), op("mul", b, d)), op("add", op("mul", a, d), op("mul", b, c))


def _quotient(x: Pair, y: Pair) -> Pair:
    """x·conj(y)/|y|² by Smith, with y divided by its larger part: no square is taken, by 0 and by ∞ it is eager's."""
    c, d = y
    turn = op("lt", op("abs", c), op("abs", d))
    large, small = op("where", turn, d, c), op("where", turn, c, d)
    ratio = op("where", op("eq", large, constant(0, large.dtype)), large, op("div", small, large))
    one, scale = constant(1, ratio.dtype), op("reciprocal", op("add", large, op("mul", small, ratio)))
    real, imaginary = _product(x, (op("where", turn, ratio, one), op("neg", op("where", turn, one, ratio))))
    return op("mul", real, scale), op("mul", imaginary, scale)


def _turned(size: Expr, angle: Expr) -> Pair:
    return op("mul", size, op("cos", angle)), op("mul", size, op("sin", angle))


def _differ(x: Pair, y: Pair) -> Expr:
    return op("logical_or", *_each("ne", x, y))


def _converted(b: Builder, out: Meta, x: Any, *_: Any, **__: Any) -> Any:
    """A copy, of another type or in another order; the real part for a type of reals, for bools whether either is."""
    if isinstance(x, TensorRef) and x.device != out.device:
        return NotImplemented
    if out.dtype.is_complex:
        alike = isinstance(x, TensorRef) and x.dtype.is_complex
        return b.copy(x, out) if alike else _to_pairs(lambda pair: pair, b, out, x)
    return _to_reals(_differ, b, out, x, 0) if out.dtype == torch.bool else _to_reals(lambda pair: pair[0], b, out, x)


def _chosen(condition: Pair, x: Pair, y: Pair) -> Pair:
    holds = op("ne", condition[0], constant(0, condition[0].dtype))
    return _each("where", (holds, holds), x, y)


def _alike(dim: int | None, lowering: Lowering, b: Builder, out: Meta, *args: Any, **kwargs: Any) -> Any:
    """The same for both parts, on pairs. Argument ``dim``, after the data, counts dimensions; if None, 1 is indices."""

    def of_pairs(number: int, arg: Any) -> Any:
        if number == dim:
            return mapped(arg, lambda d: dimension(d, len(out.shape)))
        return mapped(arg, lambda leaf: reals(leaf) if isinstance(leaf, TensorRef) and leaf.dtype.is_complex else leaf)

    data = [x for x in flatten(args[:dim] if dim else (args[0], *args[2:])) if isinstance(x, TensorRef)]
    if (dim is not None and not data[0].rank) or not all(x.dtype.is_complex for x in data):
        return NotImplemented
    made = lowering(b, out.reals(), *[of_pairs(k, arg) for k, arg in enumerate(args)], **kwargs)
    return made if made is NotImplemented else _numbers(b, out, made)


def _reduced(lowering: Lowering, b: Builder, out: Meta, x: TensorRef, dims: Any = None, *args: Any, **_: Any) -> Any:
    if not (x.rank and x.dtype.is_complex and out.dtype.is_complex):
        return NotImplemented
    return _numbers(b, out, lowering(b, out.reals(), reals(x), sorted(reductions.reduced_dims(dims, x.rank)), *args))


def _from_reals(how: Callable[..., Any], *operators: OpOverload) -> Family:
    return {operator: partial(how, _OF_REALS[operator]) for operator in operators}


LOWERINGS: Family = {
    **rows(_numbers, "view_as_complex"),
    **rows(lambda b, out, x: reals(x), "view_as_real"),
    **rows(_converted, "clone lift_fresh_copy"),
    **rows(lambda b, out, into, x, *_: _converted(b, out, x), "copy"),
    **dict.fromkeys((ops.restride, prims.convert_element_type.default), _converted),
    **rows(partial(_to_pairs, lambda x: (x[0], op("neg", x[1]))), "_conj _conj_physical conj_physical"),
    **named_rows(_sum, "add sub", "Tensor Scalar"),
    **rows(partial(_to_pairs, _product), "mul", "Tensor Scalar"),
    **rows(partial(_to_pairs, _quotient), "div", "Tensor Scalar"),
    **rows(lambda b, out, x: _to_pairs(_quotient, b, out, 1, x), "reciprocal"),
    **rows(partial(_to_pairs, lambda x: _chosen((x[1], x[1]), _turned(e := op("exp", x[0]), x[1]), (e, x[1]))), "exp"),
    **rows(partial(_to_pairs, lambda size, angle: _turned(size[0], angle[0])), "polar"),
    **rows(partial(_to_pairs, lambda real, imaginary: (real[0], imaginary[0])), "complex"),
    **rows(lambda b, out, *given, **_: _to_pairs(lambda x: x, b, out, given[-1]), "full full_like scalar_tensor"),
    **rows(partial(_to_reals, lambda x: op("hypot", *x)), "abs"),
    **rows(partial(_to_reals, lambda x: op("atan2", x[1], x[0])), "angle"),
    **rows(partial(_to_reals, lambda x, y: op("logical_and", *_each("eq", x, y))), "eq", "Tensor Scalar"),
    **rows(partial(_to_reals, _differ), "ne", "Tensor Scalar"),
    **rows(partial(_to_pairs, _chosen), "where", "self ScalarSelf ScalarOther"),
    **_from_reals(_reduced, aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
    **_from_reals(partial(_alike, None), aten.neg.default, aten._neg_view.default, aten.index.Tensor),
    **_from_reals(partial(_alike, None), aten.index_put.default),
    **_from_reals(partial(_alike, 1), aten.cat.default, aten.flip.default, aten.index_select.default),
    **_from_reals(partial(_alike, 2), aten.select_scatter.default, aten.slice_scatter.default),
}
