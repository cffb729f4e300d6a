"""Who reads what: the questions about a program that several passes ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gyrator.ir.expr import Expr, Load, Value
from gyrator.ir.index import Index, upper
from gyrator.ir.program import Extern, Nest, Node, Program, Scatter, bodies, output_values, views


@dataclass(frozen=True, slots=True)
class Uses:
    """Per value: the positions of the nodes that read it, and whether something other than a nest needs it in
    memory.
    """

    readers: Mapping[Value, tuple[int, ...]]
    pinned: frozenset[Value]


def node_exprs(node: Nest) -> tuple[Expr, ...]:
    """Every expression of a nest: bodies, masks, and the run-time values within a scatter's index."""
    exprs = bodies(node.root)
    if isinstance(node.root, Scatter):
        exprs += tuple(atom.value for i in node.root.index for atom in i.indirects())
    return exprs


def loads(exprs: Iterable[Expr]) -> list[Load]:
    """Each distinct load in the expressions."""
    return list(dict.fromkeys(load for expr in exprs for load in expr.loads()))


def reads(node: Node) -> set[Value]:
    """The values that a node reads."""
    if isinstance(node, Extern):
        return {v.value for v in views(node)}
    found = {load.value for load in loads(node_exprs(node))}
    return found | {node.root.into} if isinstance(node.root, Scatter) else found


def pinned_by(program: Program) -> Iterable[Value]:
    """Values that must lie in memory: outputs, updates, arguments of externs, the base of a scatter."""
    yield from output_values(program)
    yield from (u.value.value for u in program.updates)
    for node in program.nodes:
        if isinstance(node, Extern):
            yield from (v.value for v in views(node))
        elif isinstance(node.root, Scatter):
            yield node.root.into


def uses(program: Program) -> Uses:
    """Who reads each value of a program."""
    readers: dict[Value, list[int]] = {}
    for position, node in enumerate(program.nodes):
        for value in reads(node):
            readers.setdefault(value, []).append(position)
    return Uses({v: tuple(p) for v, p in readers.items()}, frozenset(pinned_by(program)))


def volume(shape: Iterable[Index], hint: int = 64) -> int:
    """About how many elements, for cost models: an extent counts as its upper bound, or ``hint`` if it has none."""
    total = 1
    for extent in shape:
        value = extent.value
        if value is None:
            bound = upper(extent)
            value = None if bound is None else bound.value
        total *= hint if value is None else value
    return total
