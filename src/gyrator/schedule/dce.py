"""What need not be computed: nodes whose results nobody wants, and nests without work."""

from dataclasses import replace

from gyrator.ir import program as ir
from gyrator.ir.build import axes_of
from gyrator.ir.expr import Const
from gyrator.ir.index import ZERO
from gyrator.ir.ops import identity


def remove_dead(program: ir.Program) -> ir.Program:
    """Drop single results that nobody reads, and nodes that nothing needs: no output, update, effect or mutation.

    Before: ``v = nest…; mean, m2, count = welford…; return mean``; after: ``mean, _, _ = welford…; return mean``."""
    live = set(ir.shown_values(program))
    kept: list[ir.Node] = []
    for node in reversed(program.nodes):
        effects = isinstance(node, ir.Extern) and (node.effects or bool(node.scalars))
        if not effects and not any(v in live for v in ir.defines(node)):
            continue
        live |= ir.uses(node)
        if isinstance(node, ir.Nest) and any(v is not None and v not in live for v in node.out):
            node = replace(node, out=tuple(v if v in live else None for v in node.out))
        kept.append(node)
    nodes = tuple(reversed(kept))
    return program if nodes == program.nodes else replace(program, nodes=nodes)


def fill_empty(program: ir.Program) -> ir.Program:
    """Replace nests that compute nothing by constants, so that later passes meet no loop of extent 0.

    Before: ``s = nest[i<3] reduce sum over r<0  x[i, r]``; after: ``s = nest[i<3] 0.0``.
    Scatters stay (they copy), and so do reductions without a single value to start from (Welford's)."""
    return ir.map_nests(program, _filled)


def _filled(nest: ir.Nest) -> list[ir.Nest]:
    root, values = nest.root, ir.defines(nest)
    if not isinstance(root, ir.Scatter) and any(ZERO in v.shape for v in values):
        kind = "any"
    elif isinstance(root, ir.Reduce) and len(nest.out) == 1 and any(a.extent is ZERO for a in root.reduced):
        kind = root.kind  # where nothing is reduced the result is what it starts from
    else:
        return [nest]
    filled = [(v, ir.Pointwise(Const(identity(kind, v.dtype), v.dtype))) for v in values]
    return [replace(nest, out=(v,), axes=axes_of("i", v.shape), root=root) for v, root in filled]
