"""Nests without work: results without elements, and reductions of none."""

from dataclasses import replace

from gyrator.ir.expr import Const
from gyrator.ir.index import ZERO
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Pointwise, Program, Reduce, Scatter, defines, map_nests
from gyrator.lowering.refs import axes_of

STARTS = frozenset({"sum", "prod", "max", "min", "any", "all", "logaddexp"})
"""Reductions whose result is the value they start from where nothing is reduced."""


def fill_empty(program: Program) -> Program:
    """Replace nests that compute nothing by constants, so that later passes meet no loop of extent 0.

    Before: ``s = nest[i<3] reduce sum over r<0  x[i, r]``; after: ``s = nest[i<3] 0.0``.
    Scatters stay (they copy), and so do reductions without a single value to start from (Welford's).
    """
    return map_nests(program, _filled)


def _filled(nest: Nest) -> list[Nest]:
    root, values = nest.root, defines(nest)
    if not isinstance(root, Scatter) and any(ZERO in v.shape for v in values):
        kind = "any"
    elif isinstance(root, Reduce) and root.kind in STARTS and any(a.extent is ZERO for a in root.reduced):
        kind = root.kind
    else:
        return [nest]
    filled = [(v, Pointwise(Const(identity(kind, v.dtype), v.dtype))) for v in values]
    return [replace(nest, out=(v,), axes=axes_of("i", v.shape), root=root) for v, root in filled]
