"""Python numbers that a graph computes from sizes and items: what is not an integer becomes a scalar expression.

Symbolic integers are indices through their traced meaning (``b.symbols``), so only floats and bools need the op
itself: ``s0 >= 3`` → ``ge(index(s0), 3)``, ``s0 / 2`` → ``div(cast<f64>(index(s0)), 2.0)``.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import fx

from gyrator.ir.expr import Expr, Scalar
from gyrator.ir.index import Index
from gyrator.lowering.extern import refused
from gyrator.lowering.refs import TensorRef
from gyrator.lowering.typed import number, op
from gyrator.lowering.views import reshape
from gyrator.torch_compat import functions_of_numbers

aten = torch.ops.aten
Number: TypeAlias = "Expr | Index | Scalar"
Rule: TypeAlias = Callable[[Sequence[Number]], Expr]


def number_of(target: object, args: Sequence[object]) -> Expr | None:
    """The float or bool that ``target`` computes from numbers; None if ``target`` is no such function."""
    numbers = [a for a in args if isinstance(a, (Expr, Index, bool, int, float))]
    rule = _RULES.get(target)
    return None if rule is None or len(numbers) != len(args) else rule(numbers)


def read_number(node: fx.Node, args: Sequence[object]) -> Expr:
    """An op that gives a float or bool to Python: ``item`` becomes a load wherever the number is used.

    Raises: UnsupportedOperator for any other op.
    """
    source = args[0] if args else None
    if isinstance(source, TensorRef) and node.target in (aten._local_scalar_dense.default, aten.item.default):
        return reshape(source, ()).load(())
    found = number_of(node.target, args)
    if found is None:
        raise refused(node.target, node, "it returns a float or bool that only a call can know")
    return found


def _common(values: Sequence[Number]) -> torch.dtype:
    """float64 if any number is a float, bool if all are bools, else int64."""
    kinds = [v.dtype if isinstance(v, Expr) else _KINDS.get(type(v), torch.int64) for v in values]
    floats = any(kind.is_floating_point for kind in kinds)
    return torch.float64 if floats else torch.bool if set(kinds) == {torch.bool} else torch.int64


_KINDS: Mapping[type, torch.dtype] = {float: torch.float64, bool: torch.bool}


def _same(name: str, on_bools: str = "") -> Rule:
    """An op whose arguments are widened to one dtype, bools to integers unless an op is given for them."""

    def rule(values: Sequence[Number]) -> Expr:
        dtype = _common(values if on_bools else (*values, 0))
        return op(on_bools if dtype == torch.bool else name, *[number(v, dtype) for v in values])

    return rule


def _float(name: str) -> Rule:
    return lambda values: op(name, *[number(v, torch.float64) for v in values])


def _ite(values: Sequence[Number]) -> Expr:
    condition, *results = values
    dtype = _common(results)
    return op("where", number(condition, torch.bool), *[number(v, dtype) for v in results])


_RULES: Mapping[object, Rule] = {
    **{getattr(operator, name): _same(name) for name in "add sub mul floordiv neg abs eq ne lt le gt ge".split()},
    operator.truediv: _float("div"), operator.mod: _same("remainder"), operator.pow: _float("pow"),
    operator.and_: _same("bitwise_and", "logical_and"), operator.or_: _same("bitwise_or", "logical_or"),
    **dict.fromkeys((operator.not_, torch.sym_not), lambda v: op("logical_not", number(v[0], torch.bool))),
    torch.sym_float: lambda v: number(v[0], torch.float64),
    torch.sym_max: _same("maximum"), torch.sym_min: _same("minimum"), torch.sym_ite: _ite,
    **{function: _float(name) for name, function in functions_of_numbers().items()},
    **{getattr(math, name): _float(name) for name in "sqrt exp log floor ceil".split()},
}  # fmt: skip
