"""Calls that do more than compute: items read into Python, assertions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload

from gyrator.errors import UnsupportedOperator
from gyrator.ir.expr import Expr
from gyrator.ir.index import Index
from gyrator.ir.program import Extern
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.extern import Result
from gyrator.lowering.refs import TensorRef
from gyrator.lowering.symbolic import item, number_of
from gyrator.lowering.typed import number
from gyrator.lowering.views import reshape
from gyrator.origin import in_context, origin_of

aten = torch.ops.aten
Special: TypeAlias = "Callable[[Builder, fx.Node, Sequence[Result], Mapping[str, Result]], Result]"


def read_number(b: Builder, node: fx.Node, args: Sequence[Result]) -> Expr:
    """An op that gives a float or bool to Python: ``item`` becomes a load wherever the number is used.

    Raises: UnsupportedOperator for any other op.
    """
    source = args[0] if args else None
    if isinstance(source, TensorRef) and node.target in (aten._local_scalar_dense.default, aten.item.default):
        return item(reshape(source, ()))
    found = number_of(node.target, args)
    if found is None:
        problem = "it returns a float or bool that only a call can know"
        raise UnsupportedOperator(str(node.target), problem, where=origin_of(node), node=in_context(node))
    return found


# -- assertions --------------------------------------------------------------------------------------------
def _assert_scalar(b: Builder, node: fx.Node, args: Sequence[Result], kwargs: Mapping[str, Result]) -> Result:
    """``_assert_scalar(condition, message)`` → ``_assert_async(tensor of the condition, message)``."""
    condition, message = args[0], args[1]
    assert isinstance(condition, (Expr, Index, bool, int, float)) and isinstance(message, str)
    if isinstance(condition, (bool, int)) and condition:
        return None
    scalar = Meta((), torch.bool, (), torch.device("cpu"))
    tensor = b.pointwise(scalar, lambda at: number(condition, torch.bool), "condition")
    b.add(Extern((), "aten._assert_async.msg", (b.as_view(tensor), message), effects=True))
    return None


def _nothing(b: Builder, node: fx.Node, args: Sequence[Result], kwargs: Mapping[str, Result]) -> Result:
    """Facts that the symbols' bounds already hold."""
    return None


LOWERINGS: Mapping[OpOverload, Special] = MappingProxyType(
    {
        aten._assert_scalar.default: _assert_scalar,
        aten.sym_constrain_range.default: _nothing,
        aten.sym_constrain_range_for_size.default: _nothing,
    }
)
