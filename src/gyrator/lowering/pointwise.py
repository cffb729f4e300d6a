"""Ops that compute each element from the elements at the same place: arithmetic, comparison, logic, casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from gyrator.autograd import ops
from gyrator.ir.expr import Const, Expr, Scalar
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import HALF, Operand, cast, compute_dtype, element, like, op, result_type
from gyrator.lowering.views import dimension

aten, prims = torch.ops.aten, torch.ops.prims
Lowering = Callable[..., Any]


# -- families ----------------------------------------------------------------------------------------------
def _elementwise(name: str) -> Lowering:
    """An op of the table of the same meaning, in the result's compute dtype."""

    def lowering(b: Builder, out: Meta, *operands: Operand, **_: Any) -> TensorRef:
        return b.elementwise(out, operands, lambda *args: op(name, *args))

    return lowering


def _of_rounded(name: str) -> Lowering:
    """The same where an operand is rounded to the result's dtype first, as eager does: in half precision
    ``x % 0.1`` is a remainder by the nearest half number, which makes all the difference.
    """

    def lowering(b: Builder, out: Meta, *operands: Operand) -> TensorRef:
        wide = compute_dtype(out.dtype)

        def body(at: Coords) -> Expr:
            return op(name, *[cast(element(o, at, out.dtype), wide) for o in operands])

        return b.pointwise(out, body)

    return lowering


def _rounding(name: str) -> Lowering:
    """floor and the like, which leave integers alone."""

    def lowering(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
        if not out.dtype.is_floating_point:
            return b.copy(x, out)
        return b.elementwise(out, (x,), lambda a: op(name, a))

    return lowering


def _boolean(name: str, boolean: str) -> Lowering:
    """An op that has a logical meaning of its own on bools: ``add`` is ``or``, ``mul`` is ``and``."""

    def lowering(b: Builder, out: Meta, *operands: Operand) -> TensorRef:
        chosen = boolean if out.dtype == torch.bool else name
        return b.elementwise(out, operands, lambda *args: op(chosen, *args))

    return lowering


def _nan_ignoring(name: str, integer: str) -> Lowering:
    """fmax and fmin, which are plain maximum and minimum of integers."""

    def lowering(b: Builder, out: Meta, x: TensorRef, y: TensorRef) -> TensorRef:
        if not out.dtype.is_floating_point:
            return LOWERINGS[getattr(aten, integer).default](b, out, x, y)
        return b.elementwise(out, (x, y), lambda p, q: op(name, p, q))

    return lowering


def _nextafter(b: Builder, out: Meta, x: TensorRef, y: TensorRef) -> Any:
    """Its steps are those of the dtype itself, so half precision is left to the library."""
    if compute_dtype(out.dtype) != out.dtype:
        return NotImplemented
    return b.elementwise(out, (x, y), lambda p, q: op("nextafter", p, q))


def _comparison(name: str) -> Lowering:
    """Comparison in the dtype that both sides promote to; numbers are rounded to it first, as in eager.

    Half types are compared as they are: in float32 an intermediate would keep digits that eager rounds away,
    and ``x == x.amax()`` could hold nowhere.
    """

    def lowering(b: Builder, out: Meta, x: Operand, y: Operand) -> TensorRef:
        common = result_type((x, y))
        wide = common if common in HALF else compute_dtype(common)

        def side(operand: Operand, at: Coords) -> Expr:
            return cast(element(operand, at, wide if isinstance(operand, TensorRef) else common), wide)

        return b.pointwise(out, lambda at: op(name, side(x, at), side(y, at)))

    return lowering


def _logical(name: str) -> Lowering:
    def lowering(b: Builder, out: Meta, *operands: Operand) -> TensorRef:
        return b.elementwise(out, operands, lambda *args: op(name, *args), compute=torch.bool)

    return lowering


# -- arithmetic --------------------------------------------------------------------------------------------
def _scaled(y: Expr, alpha: Operand) -> Expr:
    return y if alpha == 1 else op("mul", y, element(alpha, (), y.dtype))


def _add(b: Builder, out: Meta, x: Operand, y: Operand, alpha: Operand = 1) -> TensorRef:
    if out.dtype == torch.bool:
        return b.elementwise(out, (x, y), lambda p, q: op("logical_or", p, q if alpha else like(q, False)))
    return b.elementwise(out, (x, y), lambda p, q: op("add", p, _scaled(q, alpha)))


def _sub(b: Builder, out: Meta, x: Operand, y: Operand, alpha: Operand = 1) -> TensorRef:
    return b.elementwise(out, (x, y), lambda p, q: op("sub", p, _scaled(q, alpha)))


def _rsub(b: Builder, out: Meta, x: Operand, y: Operand, alpha: Operand = 1) -> TensorRef:
    return _sub(b, out, y, x, alpha)


def _div_mode(b: Builder, out: Meta, x: Operand, y: Operand, *, rounding_mode: str | None) -> TensorRef:
    name = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return b.elementwise(out, (x, y), lambda p, q: op(name, p, q))


def _prims_div(b: Builder, out: Meta, x: Operand, y: Operand) -> TensorRef:
    return _div_mode(b, out, x, y, rounding_mode=None if out.dtype.is_floating_point else "trunc")


def _abs(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    return b.copy(x, out) if out.dtype == torch.bool else b.elementwise(out, (x,), lambda a: op("abs", a))


def _sign(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    return b.copy(x, out) if out.dtype == torch.bool else b.elementwise(out, (x,), lambda a: op("sign", a))


def _relu(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    return b.elementwise(out, (x,), lambda a: op("maximum", a, like(a, 0)))


def _round_decimals(b: Builder, out: Meta, x: TensorRef, *, decimals: int = 0) -> TensorRef:
    if not out.dtype.is_floating_point:
        return b.copy(x, out)
    scale = 10.0 ** abs(decimals)
    first, second = ("mul", "div") if decimals >= 0 else ("div", "mul")

    def body(a: Expr) -> Expr:
        return op(second, op("round", op(first, a, like(a, scale))), like(a, scale))

    return b.elementwise(out, (x,), body if decimals else lambda a: op("round", a))


def _addcmul(b: Builder, out: Meta, x: TensorRef, s: TensorRef, t: TensorRef, *, value: Operand = 1) -> TensorRef:
    return b.elementwise(out, (x, s, t), lambda p, q, r: op("add", p, op("mul", _scaled(q, value), r)))


def _addcdiv(b: Builder, out: Meta, x: TensorRef, s: TensorRef, t: TensorRef, *, value: Operand = 1) -> TensorRef:
    return b.elementwise(out, (x, s, t), lambda p, q, r: op("add", p, op("div", _scaled(q, value), r)))


def _fma(b: Builder, out: Meta, x: TensorRef, y: Operand, z: Operand) -> TensorRef:
    """x·y + z, rounded once."""
    return b.elementwise(out, (x, y, z), lambda p, q, r: op("fma", p, q, r))


def _lerp(b: Builder, out: Meta, start: TensorRef, end: TensorRef, weight: Operand) -> TensorRef:
    """start + w·(end − start) for |w| < ½, else end − (1 − w)·(end − start), which is exact at both ends."""

    def body(s: Expr, e: Expr, w: Expr) -> Expr:
        span = op("sub", e, s)
        low = op("add", s, op("mul", w, span))
        high = op("sub", e, op("mul", op("sub", like(w, 1), w), span))
        return op("where", op("lt", op("abs", w), like(w, 0.5)), low, high)

    return b.elementwise(out, (start, end, weight), body)


# -- powers ------------------------------------------------------------------------------------------------
def _pow(b: Builder, out: Meta, x: Operand, exponent: Operand) -> TensorRef:
    if isinstance(exponent, (bool, int, float)):
        return b.elementwise(out, (x,), lambda a: power(a, exponent))
    if isinstance(x, (int, float)) and x == 2 and out.dtype.is_floating_point:
        return b.elementwise(out, (exponent,), lambda a: op("exp2", a))
    return b.elementwise(out, (x, exponent), lambda a, e: op("pow", a, e))


def power(x: Expr, exponent: Scalar) -> Expr:
    """``x`` to a known power: small ones by multiplication, ±½ by the square root as eager does, others by ``pow``."""
    if exponent == 0:
        return like(x, 1)
    if exponent in (0.5, -0.5) and x.dtype.is_floating_point:
        return op("sqrt", x) if exponent > 0 else op("rsqrt", x)
    whole = math.isfinite(exponent) and int(exponent) == exponent
    count = int(exponent) if whole else 0
    if whole and 0 < count <= (3 if x.dtype.is_floating_point else 64) and x.dtype != torch.bool:
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


# -- special functions ---------------------------------------------------------------------------------------
def _polygamma(b: Builder, out: Meta, n: int, x: TensorRef) -> Any:
    """The digamma function and its first derivative; higher ones need the zeta function, a library call."""
    if n not in (0, 1):
        return NotImplemented
    return b.elementwise(out, (x,), _trigamma if n else lambda a: op("digamma", a))


def _trigamma(x: Expr) -> Expr:
    """Reflected at ½, raised by six steps of ``ψ'(x) = ψ'(x + 1) + 1/x²``, then four terms of its series in
    1/x (Abramowitz and Stegun 6.4.6, 6.4.7 and 6.4.12).
    """
    small = op("lt", x, like(x, 0.5))
    sine = op("sin", op("mul", x, like(x, math.pi)))
    reflected = op("div", like(x, math.pi**2), op("mul", sine, sine))
    y = op("where", small, op("sub", like(x, 1), x), x)
    total: Expr = like(x, 0)
    for _ in range(6):
        total = op("add", total, op("reciprocal", op("mul", y, y)))
        y = op("add", y, like(x, 1))
    square = op("reciprocal", op("mul", y, y))
    series: Expr = like(x, 1 / 42)
    for divisor in (30, 6):
        series = op("sub", like(x, 1 / divisor), op("mul", square, series))
    series = op("add", op("add", like(x, 1), op("div", like(x, 0.5), y)), op("mul", square, series))
    total = op("add", total, op("div", series, y))
    return op("where", small, op("sub", reflected, total), total)


def _angle(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    """π of negative numbers, else 0; NaN stays."""

    def body(a: Expr) -> Expr:
        half_turn = op("where", op("lt", a, like(a, 0)), like(a, math.pi), like(a, 0))
        return op("where", op("ne", a, a), a, half_turn)

    return b.elementwise(out, (x,), body)


def _glu(b: Builder, out: Meta, x: TensorRef, dim: int = -1) -> TensorRef:
    """The first half along ``dim`` times the sigmoid of the second."""
    d, wide = dimension(dim, x.rank), compute_dtype(out.dtype)

    def body(at: Coords) -> Expr:
        gate = x.load((*at[:d], at[d] + out.shape[d], *at[d + 1 :]))
        return op("mul", cast(x.load(at), wide), op("sigmoid", cast(gate, wide)))

    return b.pointwise(out, body)


# -- selection ---------------------------------------------------------------------------------------------
def _where(b: Builder, out: Meta, condition: TensorRef, x: Operand, y: Operand) -> TensorRef:
    """Selection keeps the bits, so half precision is not widened."""
    dtype = out.dtype
    return b.pointwise(
        out, lambda at: op("where", element(condition, at, torch.bool), element(x, at, dtype), element(y, at, dtype))
    )


def _masked_fill(b: Builder, out: Meta, x: TensorRef, mask: TensorRef, value: Operand) -> TensorRef:
    return _where(b, out, mask, value, x)


def _clamp(b: Builder, out: Meta, x: TensorRef, low: Operand | None = None, high: Operand | None = None) -> TensorRef:
    bounds = [("maximum", low)] * (low is not None) + [("minimum", high)] * (high is not None)

    def body(a: Expr, *limits: Expr) -> Expr:
        for (name, _), limit in zip(bounds, limits, strict=True):
            a = op(name, a, limit)
        return a

    return b.elementwise(out, (x, *[limit for _, limit in bounds if limit is not None]), body)


def _clamp_max(b: Builder, out: Meta, x: TensorRef, high: Operand) -> TensorRef:
    return _clamp(b, out, x, None, high)


# -- tests of one number -----------------------------------------------------------------------------------
def _float_test(name: str) -> Lowering:
    """isnan and the like: false for integers."""

    def lowering(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
        if not x.dtype.is_floating_point:
            return b.full(out, Const(False, torch.bool))
        return b.elementwise(out, (x,), lambda a: op(name, a), compute=compute_dtype(x.dtype))

    return lowering


def _signbit(b: Builder, out: Meta, x: TensorRef) -> TensorRef:
    if x.dtype == torch.bool:
        return b.full(out, Const(False, torch.bool))
    if x.dtype.is_floating_point:
        return b.elementwise(out, (x,), lambda a: op("signbit", a), compute=compute_dtype(x.dtype))
    return b.elementwise(out, (x,), lambda a: op("lt", a, like(a, 0)), compute=x.dtype)


# -- copies and casts --------------------------------------------------------------------------------------
def _clone(b: Builder, out: Meta, x: TensorRef, *_: Any, **__: Any) -> TensorRef:
    return b.copy(x, out)


def _to_copy(b: Builder, out: Meta, x: TensorRef, *_: Any, **__: Any) -> Any:
    return b.copy(x, out) if x.device == out.device else NotImplemented


def _copy(b: Builder, out: Meta, into: TensorRef, x: Operand, *_: Any) -> Any:
    """The functional form of ``into.copy_(x)``."""
    if isinstance(x, TensorRef) and x.device != out.device:
        return NotImplemented
    return b.pointwise(out, lambda at: element(x, at, out.dtype))


def _fill(b: Builder, out: Meta, x: TensorRef, value: Operand) -> TensorRef:
    return b.pointwise(out, lambda at: element(value, at, out.dtype))


# -- activations that decompositions may leave -------------------------------------------------------------
def _threshold_backward(b: Builder, out: Meta, grad: TensorRef, x: TensorRef, threshold: Scalar) -> TensorRef:
    return b.elementwise(out, (grad, x), lambda g, a: op("where", op("le", a, like(a, threshold)), like(g, 0), g))


def _bitwise(name: str) -> Mapping[OpOverload, Lowering]:
    packet = getattr(aten, f"bitwise_{name}")
    lowering = _boolean(f"bitwise_{name}", f"logical_{name}")
    return {getattr(packet, overload): lowering for overload in ("Tensor", "Scalar", "Scalar_Tensor")}


def _rows(names: str, overloads: str, family: Callable[[str], Lowering]) -> dict[OpOverload, Lowering]:
    """One row per name and existing overload."""
    rows: dict[OpOverload, Lowering] = {}
    for name in names.split():
        packet = getattr(aten, name)
        for overload in overloads.split():
            if overload in packet.overloads():
                rows[getattr(packet, overload)] = family(name)
    return rows


_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid"
    " erf erfc erfinv lgamma digamma sqrt rsqrt reciprocal neg"
)
_SHIFTS = "Tensor Scalar Tensor_Scalar Scalar_Tensor"
_BINARY = "atan2 hypot copysign fmod remainder"
_PRIMS = {"mul": "mul", "sub": "sub", "maximum": "maximum", "minimum": "minimum", "pow": "pow", "neg": "neg"}

REGISTERED_LATE: Mapping[str, Lowering] = {"prims.fma.default": _fma}
"""Operators that torch registers when its capture first writes them (`addcmul_` of an optimizer), by name."""

LOWERINGS: Mapping[OpOverload, Lowering] = {
    **_rows(_UNARY, "default", _elementwise),
    **_rows(_BINARY, "default Tensor Scalar", _of_rounded),
    **_rows("floor_divide", "default Tensor Scalar", lambda _: _elementwise("floordiv")),
    **_rows("floor ceil trunc", "default", _rounding),
    **_rows("mul", "Tensor Scalar", lambda _: _boolean("mul", "logical_and")),
    **_rows("maximum", "default", lambda _: _boolean("maximum", "logical_or")),
    **_rows("minimum", "default", lambda _: _boolean("minimum", "logical_and")),
    **_rows("eq ne lt le gt ge", "Tensor Scalar", _comparison),
    **_rows("logical_and logical_or logical_xor logical_not", "default", _logical),
    **_rows("isnan isinf", "default", _float_test),
    **_bitwise("and"), **_bitwise("or"), **_bitwise("xor"),
    **_rows("bitwise_not", "default", lambda _: _boolean("bitwise_not", "logical_not")),
    **_rows("bitwise_left_shift __lshift__", _SHIFTS, lambda _: _elementwise("lshift")),
    **_rows("bitwise_right_shift __rshift__", _SHIFTS, lambda _: _elementwise("rshift")),
    **_rows("add", "Tensor Scalar", lambda _: _add),
    **_rows("sub", "Tensor Scalar", lambda _: _sub),
    **_rows("rsub", "Tensor Scalar", lambda _: _rsub),
    **_rows("div", "Tensor Scalar", lambda _: _elementwise("div")),
    **_rows("div", "Tensor_mode Scalar_mode", lambda _: _div_mode),
    **_rows("pow", "Tensor_Tensor Tensor_Scalar Scalar", lambda _: _pow),
    **_rows("clamp", "default Tensor", lambda _: _clamp),
    **_rows("clamp_min", "default Tensor", lambda _: _clamp),
    **_rows("clamp_max", "default Tensor", lambda _: _clamp_max),
    **_rows("lerp", "Tensor Scalar", lambda _: _lerp),
    **_rows("where", "self ScalarSelf ScalarOther Scalar", lambda _: _where),
    **_rows("masked_fill", "Tensor Scalar", lambda _: _masked_fill),
    **_rows("fill", "Tensor Scalar", lambda _: _fill),
    **_rows("fmax", "default", lambda _: _nan_ignoring("fmax", "maximum")),
    **_rows("fmin", "default", lambda _: _nan_ignoring("fmin", "minimum")),
    aten.nextafter.default: _nextafter,
    aten.abs.default: _abs,
    aten.sign.default: _sign,
    aten.sgn.default: _sign,
    aten.relu.default: _relu,
    aten.round.default: _rounding("round"),
    aten.round.decimals: _round_decimals,
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.signbit.default: _signbit,
    aten.polygamma.default: _polygamma,
    aten.angle.default: _angle,
    aten.glu.default: _glu,
    aten.threshold_backward.default: _threshold_backward,
    aten.clone.default: _clone,
    aten.lift_fresh_copy.default: _clone,
    ops.restride: _clone,
    aten._to_copy.default: _to_copy,
    aten.copy.default: _copy,
    prims.convert_element_type.default: _clone,
    prims.add.default: _add,
    prims.div.default: _prims_div,
    prims.where.default: _where,
    **{getattr(prims, name).default: _elementwise(row) for name, row in _PRIMS.items()},
}  # fmt: skip
"""Pointwise lowerings by overload. ATen ops with a fake kernel that promotes integers to floats need nothing more: the
result's dtype says it."""
