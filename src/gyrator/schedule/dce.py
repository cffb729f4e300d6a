"""Dead code: nodes whose results nobody wants."""

from dataclasses import replace

from gyrator.ir.program import Extern, Nest, Node, Program, defines, shown_values, uses


def remove_dead(program: Program) -> Program:
    """Drop nodes that no output, update or effect needs, and single results that nobody reads.

    Before: ``v = nest…; mean, m2, count = reduce welford…; return mean``; after: ``mean, _, _ = reduce welford…; return
    mean``. Nodes with effects or mutations stay.
    """
    live = set(shown_values(program))
    kept: list[Node] = []
    for node in reversed(program.nodes):
        effects = isinstance(node, Extern) and (node.effects or bool(node.scalars))
        if not effects and not any(v in live for v in defines(node)):
            continue
        live |= uses(node)
        if isinstance(node, Nest) and any(v is not None and v not in live for v in node.out):
            node = replace(node, out=tuple(v if v in live else None for v in node.out))
        kept.append(node)
    nodes = tuple(reversed(kept))
    return program if nodes == program.nodes else replace(program, nodes=nodes)
