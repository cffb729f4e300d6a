"""Ops that compute each element from the elements at the same place: arithmetic, comparison, logic, casts."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gyrator.autograd import ops
from gyrator.ir.build import HALF, cast, compute_dtype, like, op
from gyrator.ir.expr import Const, Expr, Scalar
from gyrator.ir.index import Coords
from gyrator.lowering.builder import Builder, Family, Lowering, Meta, named_rows, rows
from gyrator.lowering.refs import Operand, TensorRef, element, promoting_like

aten, prims = torch.ops.aten, torch.ops.prims

_WHOLE: Mapping[str, str] = dict.fromkeys(("floor", "ceil", "trunc", "round"), "")
_ON_BOOLS: Mapping[str, str] = {
    "mul": "logical_and", "minimum": "logical_and", "fmin": "logical_and", "bitwise_and": "logical_and",
    "maximum": "logical_or", "fmax": "logical_or", "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor", "bitwise_not": "logical_not", "abs": "", "sign": "", **_WHOLE,
}  # fmt: skip
_ON_INTEGERS: Mapping[str, str] = {"fmax": "maximum", "fmin": "minimum", "div": "truncdiv", **_WHOLE}
"""Ops whose results of that kind another op of the table says; "" leaves the operand as it is."""


def _elementwise(name: str, b: Builder, out: Meta, *operands: Operand, **_: Any) -> TensorRef:
    """An op of the table of the same meaning, in the result's compute dtype."""
    if not out.dtype.is_floating_point:
        name = (_ON_BOOLS if out.dtype == torch.bool else _ON_INTEGERS).get(name, name)
    return b.elementwise(out, operands, lambda *args: op(name, *args) if name else args[0])


def _of_rounded(name: str, b: Builder, out: Meta, *operands: Operand) -> TensorRef:
    """The same of operands rounded to the result's dtype first, as in eager: ``x % 0.1`` is by the half next to 0.1."""
    wide = compute_dtype(out.dtype)
    return b.pointwise(out, lambda at: op(name, *[cast(element(o, at, out.dtype), wide) for o in operands]))


def _nextafter(b: Builder, out: Meta, x: TensorRef, y: TensorRef) -> Any:
    """Its steps are those of the dtype itself, so half precision is left to the library."""
    return NotImplemented if compute_dtype(out.dtype) != out.dtype else _elementwise("nextafter", b, out, x, y)


def _comparison(name: str, b: Builder, out: Meta, x: Operand, y: Operand) -> TensorRef:
    """Comparison in the dtype that both sides promote to; numbers are rounded to it first, as in eager. Half types are
    compared as they are: float32 would keep digits that eager rounds away, and ``x == x.amax()`` could hold nowhere."""
    common = torch.result_type(promoting_like(x), promoting_like(y))
    wide = common if common in HALF else compute_dtype(common)

    def side(operand: Operand, at: Coords) -> Expr:
        return cast(element(operand, at, wide if isinstance(operand, TensorRef) else common), wide)

    return b.pointwise(out, lambda at: op(name, side(x, at), side(y, at)))


def _scaled(y: Expr, alpha: Operand) -> Expr:
    return y if alpha == 1 else op("mul", y, element(alpha, (), y.dtype))


def _sum(name: str, b: Builder, out: Meta, x: Operand, y: Operand, alpha: Operand = 1) -> Any:
    """add and sub: x ± alpha·y; of bools either one."""
    if out.dtype == torch.bool:
        return b.elementwise(out, (x, y), lambda p, q: op("logical_or", p, q if alpha else like(q, False)))
    return b.elementwise(out, (x, y), lambda p, q: op(name, p, _scaled(q, alpha)))


def _addc(name: str, b: Builder, out: Meta, x: TensorRef, s: TensorRef, t: TensorRef, value: Operand = 1) -> TensorRef:
    """addcmul and addcdiv: x + value·s·t, x + value·s/t."""
    return b.elementwise(out, (x, s, t), lambda p, q, r: op("add", p, op(name, _scaled(q, value), r)))


def _lerp(b: Builder, out: Meta, start: TensorRef, end: TensorRef, weight: Operand) -> TensorRef:
    """start + w·(end − start) for |w| < ½, else end − (1 − w)·(end − start), which is exact at both ends."""

    def body(s: Expr, e: Expr, w: Expr) -> Expr:
        span = op("sub", e, s)
        low = op("add", s, op("mul", w, span))
        high = op("sub", e, op("mul", op("sub", like(w, 1), w), span))
        return op("where", op("lt", op("abs", w), like(w, 0.5)), low, high)

    return b.elementwise(out, (start, end, weight), body)


def _pow(b: Builder, out: Meta, x: Operand, exponent: Operand) -> Any:
    if isinstance(exponent, (bool, int, float)):
        if exponent < 0 and not out.dtype.is_floating_point:
            return NotImplemented  # the library refuses
        return b.elementwise(out, (x,), lambda a: power(a, exponent))
    if isinstance(x, (int, float)) and x == 2 and out.dtype.is_floating_point:
        return _elementwise("exp2", b, out, exponent)
    return _elementwise("pow", b, out, x, exponent)


def power(x: Expr, exponent: Scalar) -> Expr:
    """``x`` to a known power: small ones by multiplication, ±½ (as eager does) and ±1½ by roots, others by ``pow``."""
    if exponent == 0:
        return like(x, 1)
    if exponent in (0.5, -0.5) and x.dtype.is_floating_point:
        return op("sqrt", x) if exponent > 0 else op("rsqrt", x)
    if exponent in (1.5, -1.5) and x.dtype.is_floating_point:
        rest, limit = (x, math.inf) if exponent > 0 else (op("reciprocal", x), 0)
        return op("where", op("eq", x, like(x, -math.inf)), like(x, limit), op("mul", rest, power(x, exponent / 3)))
    whole = math.isfinite(exponent) and int(exponent) == exponent
    count = int(exponent) if whole else 0
    if whole and 0 < count <= (8 if x.dtype.is_floating_point else 64) and x.dtype != torch.bool:
        return _repeated_product(x, count)
    if whole and -2 <= count < 0 and x.dtype.is_floating_point:
        return op("reciprocal", _repeated_product(x, -count))
    return op("pow", x, like(x, exponent))


def _repeated_product(x: Expr, count: int) -> Expr:
    if count == 1:
        return x
    half = _repeated_product(x, count // 2)
    square = op("mul", half, half)
    return op("mul", square, x) if count % 2 else square


def _where(b: Builder, out: Meta, condition: TensorRef, x: Operand, y: Operand) -> TensorRef:
    """Selection keeps the bits, so half precision is not widened."""
    operands = ((condition, torch.bool), (x, out.dtype), (y, out.dtype))
    return b.pointwise(out, lambda at: op("where", *[element(of, at, dtype) for of, dtype in operands]))


def _clamp(b: Builder, out: Meta, x: TensorRef, low: Operand | None = None, high: Operand | None = None) -> TensorRef:
    given = {name: limit for name, limit in (("maximum", low), ("minimum", high)) if limit is not None}

    def body(a: Expr, *limits: Expr) -> Expr:
        for name, limit in zip(given, limits, strict=True):
            first = isinstance(limit, Const) and a.dtype.is_floating_point  # of two zeros the second stays: eager's
            a = op(name, limit, a) if first else op(name, a, limit)
        return a

    return b.elementwise(out, (x, *given.values()), body)


def _float_test(name: str, b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    """isnan and the like; of integers as floats, which keep their sign."""
    dtype = compute_dtype(x.dtype) if x.dtype.is_floating_point else torch.float32
    return b.pointwise(out, lambda at: op(name, cast(x.load(at), dtype)))


def _copy(b: Builder, out: Meta, into: TensorRef, x: Operand, *_: Any) -> Any:
    """The functional form of ``into.copy_(x)``, also for a number."""
    if isinstance(x, TensorRef) and x.device != out.device:
        return NotImplemented
    return b.pointwise(out, lambda at: element(x, at, out.dtype))


_PLAIN = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid"
    " erf erfc erfinv lgamma digamma sqrt rsqrt reciprocal neg floor ceil trunc round abs sign bitwise_not"
    " logical_and logical_or logical_xor logical_not maximum minimum fmax fmin"
)
_COPIES = (aten.clone.default, aten.lift_fresh_copy.default, ops.restride, prims.convert_element_type.default)
_BITS = "Tensor Scalar Tensor_Scalar Scalar_Tensor"
_BY_MODE: Mapping[str | None, str] = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}

REGISTERED_LATE: Mapping[str, Lowering] = {"prims.fma.default": partial(_elementwise, "fma")}
"""Operators that torch registers when its capture first writes them (`addcmul_` of an optimizer), by name."""

LOWERINGS: Family = {
    **named_rows(_elementwise, _PLAIN),
    **named_rows(_of_rounded, "atan2 hypot copysign fmod remainder", "default Tensor Scalar"),
    **named_rows(_comparison, "eq ne lt le gt ge", "Tensor Scalar"),
    **named_rows(_float_test, "isnan isinf signbit"),
    **rows(partial(_elementwise, "lshift"), "bitwise_left_shift __lshift__", _BITS),
    **rows(partial(_elementwise, "rshift"), "bitwise_right_shift __rshift__", _BITS),
    **named_rows(_elementwise, "mul div", "Tensor Scalar"),
    **named_rows(_elementwise, "bitwise_and bitwise_or bitwise_xor", _BITS),
    **rows(partial(_addc, "mul"), "addcmul"),
    **rows(partial(_addc, "div"), "addcdiv"),
    **named_rows(_sum, "add sub", "Tensor Scalar"),
    **rows(lambda *args, rounding_mode: _elementwise(_BY_MODE[rounding_mode], *args), "div", "Tensor_mode Scalar_mode"),
    **rows(_pow, "pow", "Tensor_Tensor Tensor_Scalar Scalar"),
    **rows(_clamp, "clamp clamp_min", "default Tensor"),
    **rows(lambda b, out, x, high: _clamp(b, out, x, None, high), "clamp_max", "default Tensor"),
    **rows(_lerp, "lerp", "Tensor Scalar"),
    **rows(_where, "where", "self ScalarSelf ScalarOther Scalar"),
    aten.nextafter.default: _nextafter,
    aten.relu.default: lambda b, out, x: _clamp(b, out, x, 0),
    **rows(partial(_elementwise, "neg"), "_neg_view"),
    **dict.fromkeys(_COPIES, lambda b, out, x, *_, **__: b.copy(x, out)),
    aten.copy.default: _copy,
    prims.add.default: partial(_sum, "add"),
    prims.where.default: _where,
    **{getattr(prims, n).default: partial(_elementwise, n) for n in "mul sub div maximum minimum pow neg".split()},
}  # fmt: skip
"""Pointwise lowerings by overload. Where a fake kernel promotes integers to floats, the result's dtype says it."""
