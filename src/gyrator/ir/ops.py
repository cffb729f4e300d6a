"""The scalar operations: one row each, with everything the compiler needs to know about it. A row holds the arity, the
dtype rule, the reference (torch), the text for each target, and what it costs. A missing column fails at import. The
C++ names are functions of the kernel header, overloaded for scalars and vectors."""

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch


class Rule(enum.Enum):
    """How an op's argument and result dtypes are related."""

    SAME = "all arguments and the result have one dtype"
    FLOAT = "as SAME, and the dtype is floating"
    INTEGER = "as SAME, and the dtype is an integer or bool"
    COMPARE = "all arguments have one dtype, the result is bool"
    LOGICAL = "bool arguments, bool result"
    SELECT = "a bool, then two arguments of one dtype, which is the result's"
    CONVERT = "any argument, any result"


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One row. ``cost`` is in cheap instructions (an add is 1); ``element`` is what C++ is told of the dtype."""

    name: str
    arity: int
    rule: Rule
    reference: Callable[..., torch.Tensor]
    triton: str
    cost: int = 1
    element: str = ""

    @property
    def cpp(self) -> str:
        """The call in C++."""
        return f"gy::{self.name}{self.element}({_places(self.arity)})"


def _places(arity: int) -> str:
    return ", ".join(f"{{{i}}}" for i in range(arity))


def _lib(name: str, arity: int = 1) -> str:
    return f"libdevice.{name}({_places(arity)})"


def _dividing(op: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Division where a zero divisor gives 0 (torch raises on the CPU for integers); floats divide as torch does."""
    if x.dtype.is_floating_point:
        return op(x, y)
    return torch.where(y == 0, torch.zeros_like(x), op(x, torch.where(y == 0, torch.ones_like(y), y)))


S, F, B, C, L = Rule.SAME, Rule.FLOAT, Rule.INTEGER, Rule.COMPARE, Rule.LOGICAL
_FLOORED, _TRUNCATED = (partial(_dividing, partial(torch.div, rounding_mode=mode)) for mode in ("floor", "trunc"))

_row = ScalarOp
ROWS = (
    # arithmetic
    _row("add", 2, S, torch.add, "{0} + {1}"),
    _row("sub", 2, S, torch.sub, "{0} - {1}"),
    _row("mul", 2, S, torch.mul, "{0} * {1}"),
    _row("div", 2, F, torch.true_divide, "({0} / {1})", cost=4),
    _row("floordiv", 2, S, _FLOORED, "rt.floordiv({0}, {1})", cost=8),
    _row("truncdiv", 2, S, _TRUNCATED, "rt.truncdiv({0}, {1})", cost=8),
    _row("remainder", 2, S, partial(_dividing, torch.remainder), "rt.remainder({0}, {1})", cost=10),
    _row("fmod", 2, S, partial(_dividing, torch.fmod), "rt.fmod({0}, {1})", cost=10),
    _row("fma", 3, F, lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype), "tl.fma({0}, {1}, {2})"),
    _row("neg", 1, S, torch.neg, "rt.neg({0})"),
    _row("abs", 1, S, torch.abs, "tl.abs({0})"),
    _row("sign", 1, S, torch.sign, "rt.sign({0})", cost=2),
    _row("reciprocal", 1, F, torch.reciprocal, "(1.0 / {0})", cost=4),
    _row("maximum", 2, S, torch.maximum, "rt.maximum({0}, {1})"),
    _row("minimum", 2, S, torch.minimum, "rt.minimum({0}, {1})"),
    _row("fmax", 2, F, torch.fmax, "tl.maximum({0}, {1})"),
    _row("fmin", 2, F, torch.fmin, "tl.minimum({0}, {1})"),
    _row("pow", 2, S, torch.pow, "rt.pow({0}, {1})", cost=30),
    _row("sqrt", 1, F, torch.sqrt, "rt.sqrt({0})", cost=5),
    _row("rsqrt", 1, F, torch.rsqrt, "tl.rsqrt({0})", cost=6),
    # rounding
    _row("floor", 1, F, torch.floor, "tl.floor({0})"),
    _row("ceil", 1, F, torch.ceil, "tl.ceil({0})"),
    _row("round", 1, F, torch.round, _lib("nearbyint")),
    _row("trunc", 1, F, torch.trunc, _lib("trunc")),
    # transcendental
    _row("exp", 1, F, torch.exp, "tl.exp({0})", cost=12),
    _row("exp2", 1, F, torch.exp2, "tl.exp2({0})", cost=12),
    _row("expm1", 1, F, torch.expm1, _lib("expm1"), cost=16),
    _row("log", 1, F, torch.log, "tl.log({0})", cost=14),
    _row("log2", 1, F, torch.log2, "tl.log2({0})", cost=14),
    _row("log10", 1, F, torch.log10, _lib("log10"), cost=14),
    _row("log1p", 1, F, torch.log1p, _lib("log1p"), cost=16),
    _row("sin", 1, F, torch.sin, "tl.sin({0})", cost=16),
    _row("cos", 1, F, torch.cos, "tl.cos({0})", cost=16),
    _row("tan", 1, F, torch.tan, _lib("tan"), cost=24),
    _row("asin", 1, F, torch.asin, _lib("asin"), cost=20),
    _row("acos", 1, F, torch.acos, _lib("acos"), cost=20),
    _row("atan", 1, F, torch.atan, _lib("atan"), cost=20),
    _row("atan2", 2, F, torch.atan2, _lib("atan2", 2), cost=26),
    _row("sinh", 1, F, torch.sinh, _lib("sinh"), cost=20),
    _row("cosh", 1, F, torch.cosh, _lib("cosh"), cost=20),
    _row("tanh", 1, F, torch.tanh, _lib("tanh"), cost=16),
    _row("asinh", 1, F, torch.asinh, _lib("asinh"), cost=24),
    _row("acosh", 1, F, torch.acosh, _lib("acosh"), cost=24),
    _row("atanh", 1, F, torch.atanh, _lib("atanh"), cost=24),
    _row("sigmoid", 1, F, torch.sigmoid, "tl.sigmoid({0})", cost=16),
    _row("erf", 1, F, torch.erf, "tl.erf({0})", cost=20),
    _row("erfc", 1, F, torch.erfc, _lib("erfc"), cost=24),
    _row("erfinv", 1, F, torch.erfinv, _lib("erfinv"), cost=30),
    _row("lgamma", 1, F, torch.lgamma, _lib("lgamma"), cost=60),
    _row("digamma", 1, F, torch.digamma, "rt.digamma({0})", cost=60),
    _row("hypot", 2, F, torch.hypot, _lib("hypot", 2), cost=8),
    _row("copysign", 2, F, torch.copysign, _lib("copysign", 2)),
    _row("nextafter", 2, F, torch.nextafter, _lib("nextafter", 2), cost=6),
    # comparison and logic
    _row("eq", 2, C, torch.eq, "({0} == {1})"),
    _row("ne", 2, C, torch.ne, "({0} != {1})"),
    _row("lt", 2, C, torch.lt, "({0} < {1})"),
    _row("le", 2, C, torch.le, "({0} <= {1})"),
    _row("gt", 2, C, torch.gt, "({0} > {1})"),
    _row("ge", 2, C, torch.ge, "({0} >= {1})"),
    _row("isnan", 1, C, torch.isnan, "({0} != {0})"),
    _row("isinf", 1, C, torch.isinf, "rt.isinf({0})"),
    _row("signbit", 1, C, torch.signbit, _lib("signbit")),
    _row("logical_and", 2, L, torch.logical_and, "({0} & {1})"),
    _row("logical_or", 2, L, torch.logical_or, "({0} | {1})"),
    _row("logical_xor", 2, L, torch.logical_xor, "({0} ^ {1})"),
    _row("logical_not", 1, L, torch.logical_not, "({0} == 0)"),
    _row("bitwise_and", 2, B, torch.bitwise_and, "({0} & {1})"),
    _row("bitwise_or", 2, B, torch.bitwise_or, "({0} | {1})"),
    _row("bitwise_xor", 2, B, torch.bitwise_xor, "({0} ^ {1})"),
    _row("bitwise_not", 1, B, torch.bitwise_not, "(~{0})"),
    _row("lshift", 2, B, torch.bitwise_left_shift, "rt.lshift({0}, {1})"),
    _row("rshift", 2, B, torch.bitwise_right_shift, "rt.rshift({0}, {1})"),
    _row("where", 3, Rule.SELECT, torch.where, "tl.where({0}, {1}, {2})"),
    # conversion: the target dtype is the node's
    _row("cast", 1, Rule.CONVERT, torch.Tensor.to, "{0}.to({dtype})", element="<{dtype}>"),
    _row("bitcast", 1, Rule.CONVERT, torch.Tensor.view, "{0}.to({dtype}, bitcast=True)", element="<{dtype}>"),
)

OPS: Mapping[str, ScalarOp] = {row.name: row for row in ROWS}
"""Name → row."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A way to combine elements. ``inputs`` per element; ``results`` are the dtypes of what comes out (None: the
    input's). ``cpp`` is its class in C++, ``fields`` are the members of what that gives, if there are several.

    ``argmax``/``argmin`` take (value, int64 index) and give (value, index): NaN is extreme, the lowest index wins.
    ``welford`` takes a value and gives (mean, sum of squared deviations, count); ``softmax`` takes a value and gives
    (maximum, sum of exp(value - maximum))."""

    name: str
    inputs: int
    results: tuple[torch.dtype | None, ...]
    scan: bool
    cpp: str
    fields: tuple[str, ...] = ()

    def dtypes(self, element: torch.dtype) -> tuple[torch.dtype, ...]:
        """Those of the results, where the (first) value of an element has this one."""
        return tuple(element if dtype is None else dtype for dtype in self.results)


_REDUCTIONS = (
    Reduction("sum", 1, (None,), True, "Sum"),
    Reduction("prod", 1, (None,), True, "Prod"),
    Reduction("max", 1, (None,), True, "Max"),
    Reduction("min", 1, (None,), True, "Min"),
    Reduction("any", 1, (torch.bool,), False, "Any"),
    Reduction("all", 1, (torch.bool,), False, "All"),
    Reduction("argmax", 2, (None, torch.int64), True, "ArgMax", ("value", "index")),
    Reduction("argmin", 2, (None, torch.int64), True, "ArgMin", ("value", "index")),
    Reduction("welford", 1, (None, None, None), False, "Welford", ("mean", "m2", "count")),
    Reduction("softmax", 1, (None, None), False, "OnlineSoftmax", ("max", "sum")),
    Reduction("logaddexp", 1, (None,), True, "LogAddExp"),
    Reduction("sort", 1, (None, torch.int64), True, ""),
    Reduction("sort_descending", 1, (None, torch.int64), True, ""),
)
REDUCTIONS: Mapping[str, Reduction] = {r.name: r for r in _REDUCTIONS}
"""Name → reduction; those with ``scan`` may be the root of a scan (cummax: argmax with the last index on ties).
``sort`` is one on GPUs alone: element k of a row is its k-th in order, and where it was; equal ones stay in order."""

STEP_OF: Mapping[str, str] = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""What a scatter or a store combines by → the reduction that it is a step of."""


def identity(kind: str, dtype: torch.dtype) -> bool | int | float:
    """What the first result of a reduction starts from; sorts have no such value."""
    if kind in ("max", "argmax", "softmax", "logaddexp", "min", "argmin"):
        low = kind not in ("min", "argmin")
        if dtype.is_floating_point:
            return -math.inf if low else math.inf
        if dtype == torch.bool:
            return not low
        return torch.iinfo(dtype).min if low else torch.iinfo(dtype).max
    start = {"sum": 0, "welford": 0, "prod": 1, "any": 0, "all": 1}[kind]
    return float(start) if dtype.is_floating_point else bool(start) if dtype == torch.bool else start
