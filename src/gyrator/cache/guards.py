"""Facts about sizes that compiled code relies on: taken down while compiling, asked again when the code is reused.

A fact is kept as text of integer arithmetic and comparisons. It is read as a syntax tree and computed on the
symbolic sizes of the graph at hand, which makes torch guard it; nothing is evaluated as Python.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.ir.symbols import python_text
from gyrator.torch_compat import symbolic_numbers

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")

_OPERATORS: Mapping[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., object]] = {
    "max": torch.sym_max, "min": torch.sym_min, "abs": abs,
    "math.trunc": math.trunc, "math.floor": math.floor, "math.ceil": math.ceil,
}  # fmt: skip


def new_facts(shape_env: ShapeEnv, before: int, canonical: Mapping[str, str]) -> list[str]:
    """The guards that were added since there were `before` of them, as text over canonical names of symbols.

    Raises: ValueError if one has no text, or speaks of a symbol without a canonical name.
    """
    facts = []
    for guard in shape_env.guards[before:]:
        unknown = [s.name for s in guard.expr.free_symbols if s.name not in canonical]
        if unknown:
            raise ValueError(f"{guard.expr} speaks of {unknown[0]}")
        text = python_text(guard.expr)
        facts.append(_NAME.sub(lambda match: canonical.get(match.group(), match.group()), text))
    return facts


def holds(fact: str, sizes: Mapping[str, object]) -> bool:
    """Whether a fact is true of these sizes; if they are symbolic, torch guards it from now on.

    Raises: ValueError for a text that is no arithmetic on known sizes.
    """
    return bool(_value(ast.parse(fact, mode="eval").body, sizes))


def all_hold(facts: Iterable[object], symbols: Mapping[str, str], inputs: Sequence[object]) -> bool:
    """Whether every fact is true of a graph's inputs; False also for a text that cannot be read.

    `symbols` gives for the names in the facts the inputs' own.
    """
    known = {n.node.expr.name: n for n in symbolic_numbers(inputs) if n.node.expr.is_symbol}
    sizes = {new: known[old] for new, old in symbols.items() if old in known}
    try:
        return all(holds(str(fact), sizes) for fact in facts)
    except (ValueError, SyntaxError, TypeError, ZeroDivisionError):
        return False


def _value(node: ast.expr, sizes: Mapping[str, object]) -> object:
    match node:
        case ast.Constant(bool() | int() | float()):
            return node.value
        case ast.Name(name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op, inner) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(inner, sizes))
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.BoolOp(ast.And(), values):
            return all(bool(_value(v, sizes)) for v in values)
        case ast.BoolOp(ast.Or(), values):
            return any(bool(_value(v, sizes)) for v in values)
        case ast.Call(func, args, []) if ast.unparse(func) in _CALLS:
            return _CALLS[ast.unparse(func)](*(_value(a, sizes) for a in args))
    raise ValueError(f"{ast.unparse(node)} is no fact about sizes")
