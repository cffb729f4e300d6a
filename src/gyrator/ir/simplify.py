"""Local rules on expressions: what can be said shorter without changing any value."""

import math
import operator
from collections.abc import Callable, Mapping

import torch

from gyrator.ir.build import cast
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Masked, Op
from gyrator.ir.index import Index, const, is_less, is_nonnegative, maximum, minimum
from gyrator.ir.ops import OPS
from gyrator.ir.program import Program, map_nests

Rule = Callable[[Expr], "Expr | None"]

_TRUE, _FALSE = Const(True, torch.bool), Const(False, torch.bool)
_HALF = (torch.bfloat16, torch.float16)
_BYTES, _EXACT = (torch.int8, torch.uint8), (*_HALF, torch.float32, torch.float64)
_HUGE = 1 << 32
"""A factor for which numbers are no places: of a hash, say, whose int64 wraps around, as no index does; powers too."""


def simplifier(*, exact_rounding: bool) -> Rule:
    """The rule that rewrites one node whose children are simple already, or None to leave it. With ``exact_rounding``
    an intermediate that eager would round to bf16 or fp16 is rounded; without it, a conversion down and up again
    disappears (the result is closer to the exact one)."""

    def rule(expr: Expr) -> Expr | None:
        match expr:
            case Op("cast", (arg,), dtype):
                return _cast(arg, dtype, exact_rounding)
            case Op(_, args) if all(isinstance(a, Const) for a in args):
                return _folded(expr)
            case Op(name, (IndexValue() | Const(int()) as a, IndexValue() | Const(int()) as b)) if (
                a.dtype == b.dtype == torch.int64
            ):
                return _on_indices(name, index_of(a), index_of(b))
            case Op("abs", (IndexValue(index),)):
                return IndexValue(maximum(index, -index))
            case Op("neg", (IndexValue(index),)):
                return IndexValue(-index)
            case Op("logical_and" | "logical_or" as name, (a, b)):
                neutral, decides = (_TRUE, _FALSE) if name == "logical_and" else (_FALSE, _TRUE)
                return decides if decides in (a, b) else b if a is neutral else a if b is neutral or a is b else None
            case Op("where", (mask, a, b)):
                if mask in (_TRUE, _FALSE) or a is b:
                    return b if mask is _FALSE else a
                simple = _within(expr, frozenset())
                return None if simple is expr else simple
            case Op("mul" | "div", (a, Const(value))) | Op("mul", (Const(value), a)) if value == 1:
                return a
            case Op("mul" | "div", (Op("cast", (mask,)), Const() as c), dtype) if (
                mask.dtype == torch.bool and dtype in (torch.float32, torch.float64)
            ):  # dropout's mask / 0.9  →  where(mask, 1.11, 0.0)
                yes, no = (_folded(Op(expr.name, (Const(value, dtype), c), dtype)) for value in (1.0, 0.0))
                return None if yes is None or no is None else Op("where", (mask, yes, no), dtype)
            case Op("add" | "sub", (a, Const(value))) if value == 0 and not expr.dtype.is_floating_point:
                return a
            case Op("minimum" | "maximum" as name, (arg, Const(limit))) if not expr.dtype.is_floating_point:
                return arg if _is_within(arg, name, limit) else None
            case Op("neg" | "bitwise_not" as name, (Op(inner, (arg,)),)) if inner == name:
                return arg
            case Masked(mask, body, other):
                return body if mask is _TRUE else other if mask is _FALSE else None
            case IndexValue(index) if index.value is not None:
                return Const(index.value, torch.int64)
            case Checked(IndexValue(index), size) if is_nonnegative(index) and is_less(index, size):
                return IndexValue(index)
            case Checked(Const(int(value)), size) if size.value is not None and -size.value <= value < size.value:
                return Const(value % size.value, torch.int64)
        return None

    return rule


def _is_within(expr: Expr, name: str, limit: float) -> bool:
    """Whether an integer that was clamped before is at most ``limit`` (``name`` is minimum) or at least (maximum)."""
    if isinstance(expr, Const):
        return expr.value <= limit if name == "minimum" else expr.value >= limit
    if not isinstance(expr, Op) or expr.name not in ("minimum", "maximum"):
        return False
    return (any if expr.name == name else all)([_is_within(arg, name, limit) for arg in expr.args])


def _within(expr: Expr, holds: frozenset[Expr]) -> Expr:
    """``expr`` where these masks hold: within branches of a choice, as of a concatenation's parts, none is asked again.

    ``where(i < 2, a, where(i >= 2 and i < 4, b, c))``  →  ``where(i < 2, a, where(i < 4, b, c))``"""
    if not isinstance(expr, Op) or expr.name != "where":
        return expr
    mask, a, b = expr.args
    parts = mask.args if isinstance(mask, Op) and mask.name == "logical_and" else (mask,)
    asked = [m for m in parts if m not in holds]
    if any(_opposite(m) in holds for m in asked):
        return _within(b, holds)
    if not asked:
        return _within(a, holds)
    mask, other = (asked[0], {_opposite(asked[0])}) if len(asked) == 1 else (mask, set[Expr]())
    return Op("where", (mask, _within(a, holds | {*parts}), _within(b, holds | other)), expr.dtype)


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _opposite(mask: Expr) -> Expr:
    if not isinstance(mask, Op) or mask.name not in _OPPOSITE or mask.args[0].dtype.is_floating_point:
        return Op("logical_not", (mask,), torch.bool)
    return Op(_OPPOSITE[mask.name], mask.args, torch.bool)


def _folded(op: Op) -> Const | None:
    args = [torch.tensor(a.value, dtype=a.dtype) for a in op.args if isinstance(a, Const)]
    result = OPS[op.name].reference(*args, *([op.dtype] if op.name == "bitcast" else []))
    value = result.item()
    return Const(value, op.dtype) if result.dtype == op.dtype and isinstance(value, bool | int | float) else None


def index_of(expr: IndexValue | Const) -> Index:
    """The index that an expression of integers is."""
    return expr.index if isinstance(expr, IndexValue) else const(int(expr.value))


_ON_INDICES: Mapping[str, Callable[[Index, Index], Index]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "minimum": minimum, "maximum": maximum,
}  # fmt: skip


def _on_indices(name: str, a: Index, b: Index) -> Expr | None:
    if name in _ON_INDICES:
        index = _ON_INDICES[name](a, b)
        return IndexValue(index) if all(abs(c) < _HUGE and len({*m}) == len(m) for m, c in index.terms) else None
    if name in ("floordiv", "remainder", "truncdiv", "fmod"):
        alike = is_nonnegative(b - 1) and (name in ("floordiv", "remainder") or is_nonnegative(a))
        return IndexValue(a // b if name.endswith("div") else a % b) if alike else None
    if name in ("gt", "le"):  # a > b is b < a, and a <= b is not b < a
        a, b = b, a
    if name in ("lt", "gt", "le", "ge"):
        less = True if is_less(a, b) else False if is_nonnegative(a - b) else None
        return None if less is None else Const(less == (name in ("lt", "gt")), torch.bool)
    if name in ("eq", "ne"):
        same = True if a is b else False if is_less(a, b) or is_less(b, a) else None
        return None if same is None else Const(same == (name == "eq"), torch.bool)
    return None


def _cast(arg: Expr, dtype: torch.dtype, exact_rounding: bool) -> Expr | None:
    if arg.dtype == dtype:
        return arg
    if isinstance(arg, Const):
        if not math.isfinite(arg.value) and not dtype.is_floating_point and dtype != torch.bool:
            return None  # what becomes of it depends on the machine
        return cast(arg, dtype)
    if isinstance(arg, Op) and arg.name == "where" and all(isinstance(a, Const) for a in arg.args[1:]):
        yes, no = (_cast(a, dtype, exact_rounding) for a in arg.args[1:])
        return None if yes is None or no is None else Op("where", (arg.args[0], yes, no), dtype)
    if isinstance(arg, Op) and arg.name == "cast":
        inner = arg.args[0]
        if arg.dtype in _HALF and inner.dtype == dtype == torch.float32 and not exact_rounding:
            return inner
        bytes_to_floats = inner.dtype in _BYTES and arg.dtype in _EXACT and dtype in _EXACT
        if arg.dtype == torch.int64 and inner.dtype == dtype == torch.float32 and _is_place(inner):
            return Op("add", (Op("trunc", (inner,), dtype), Const(0.0, dtype)), dtype)  # -0.5 becomes 0.0, not -0.0
        if bytes_to_floats or _holds_exactly(inner.dtype, arg.dtype):
            return inner if inner.dtype == dtype else Op("cast", (inner,), dtype)
    return None


def _is_place(expr: Expr) -> bool:
    """Whether a float is a place, moved and scaled by numbers, as between pixels: no NaN, nor too large for int64."""
    match expr:
        case Op("cast" | "floor" | "ceil" | "round" | "trunc", (place,)):
            return _is_place(place)
        case Op("maximum" | "minimum", (Const(limit), place)):
            return abs(limit) < _HUGE and _is_place(place)
        case Op("add" | "sub" | "mul" | "maximum" | "minimum", (place, by)) if not (by.axes() or by.loads()):
            return _is_place(place) and all(abs(e.value) < _HUGE for e in by.walk() if isinstance(e, Const))
    return isinstance(expr, IndexValue)


def _holds_exactly(small: torch.dtype, wide: torch.dtype) -> bool:
    """Whether every value of ``small`` survives a trip through ``wide``, for any conversion that follows."""
    if small == torch.bool:
        return wide != torch.bool
    return small in _EXACT and wide in _EXACT and torch.promote_types(small, wide) == wide != small


def simplify(program: Program, rule: Rule) -> Program:
    """Apply the local rules everywhere."""
    return map_nests(program, lambda nest: (nest.rewritten(rule),))
