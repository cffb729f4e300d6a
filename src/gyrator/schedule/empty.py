"""Nests without work: results without elements, and reductions of none."""

from dataclasses import replace

from gyrator.ir.expr import Const, Value
from gyrator.ir.index import ZERO, Axis
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Scatter, map_nests

STARTS = frozenset({"sum", "prod", "max", "min", "any", "all", "logaddexp"})
"""Reductions whose result is the value they start from where nothing is reduced."""


def fill_empty(program: Program) -> Program:
    """Replace nests that compute nothing by constants, so that later passes meet no loop of extent 0.

    Before: ``s = nest[i<3] reduce sum over r<0  x[i, r]``; after: ``s = nest[i<3] 0.0``.
    Scatters stay (they copy), and so do reductions without a single value to start from (Welford's).
    """
    return map_nests(program, _filled)


def _filled(nest: Nest) -> list[Node]:
    root, values = nest.root, [v for v in nest.out if v is not None]
    if isinstance(root, Scatter):
        return [nest]
    if any(ZERO in v.shape for v in values):
        return [_constant(nest, v, Const(identity("any", v.dtype), v.dtype)) for v in values]
    if isinstance(root, Reduce) and root.kind in STARTS and any(a.extent is ZERO for a in root.reduced):
        return [_constant(nest, v, Const(identity(root.kind, v.dtype), v.dtype)) for v in values]
    return [nest]


def _constant(nest: Nest, value: Value, body: Const) -> Nest:
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(value.shape))
    return replace(nest, out=(value,), axes=axes, root=Pointwise(body))
