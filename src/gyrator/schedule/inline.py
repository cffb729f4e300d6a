"""Inlining: copy a cheap producer into its readers instead of storing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gyrator.ir.expr import Checked, Const, Expr, Load, Masked, Op, Random, Value, rewrite
from gyrator.ir.index import Atom, Index
from gyrator.ir.ops import OPS
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Root, Sort
from gyrator.origin import Origin
from gyrator.schedule.simplify import Rule, rewrite_root
from gyrator.schedule.uses import Uses, loads, node_exprs, uses, volume

MAX_NODES, MAX_LOADS = 64, 8
BALANCE = 4.0
"""Cheap instructions that cost as much as moving one byte through memory, about, on the machines we know."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What inlining a body would copy."""

    cost: int
    nodes: int
    loads: int
    big_loads: int
    dear: bool


def inline(program: Program, rule: Rule) -> Program:
    """Copy a pointwise producer P into its readers where that is cheaper than storing and loading it.

    Before: ``v1 = nest[i] x[i]*2;  v2 = nest[i] exp(v1[i])``; after: ``v2 = nest[i] exp(x[i]*2)``.

    Legal where nothing but nests needs P. Done where P has one reader that evaluates it once per element, or where
    the extra work costs less than the memory traffic it saves: ``extra work < BALANCE · bytes saved``. Refused for
    bodies over 64 nodes or 8 loads, for transcendental, random or indirect bodies that would be evaluated more often
    than P has elements, and into sorts. Sharing at the same index between several readers is left to fusion.
    """
    used = uses(program)
    bodies_of: dict[Value, tuple[Nest, Expr]] = {}
    nodes: list[Node] = []
    evaluations = _evaluations(program)
    for node in program.nodes:
        if not isinstance(node, Nest):
            nodes.append(node)
            continue
        root = _with_producers(node.root, bodies_of, rule)
        node = replace(node, root=root, origins=_origins(node, bodies_of))
        value = node.out[0]
        if (
            isinstance(root, Pointwise)
            and value is not None
            and _wanted(value, root.body, node, program, used, evaluations)
        ):
            bodies_of[value] = (node, root.body)
            if value in used.pinned:
                nodes.append(node)
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes))


def _with_producers(root: Root, bodies_of: Mapping[Value, tuple[Nest, Expr]], rule: Rule) -> Root:
    if not bodies_of or not any(load.value in bodies_of for load in loads(_exprs(root))):
        return root

    def replace_load(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.value in bodies_of:
            nest, body = bodies_of[expr.value]
            at: dict[Atom, Index] = dict(zip(nest.axes, expr.index, strict=True))
            inner = rewrite(body, rule, at)
            return inner if expr.mask is None else Masked(expr.mask, inner, Const(expr.other, expr.dtype))
        return rule(expr)

    return rewrite_root(root, replace_load)


def _exprs(root: Root) -> tuple[Expr, ...]:
    return node_exprs(Nest((), (), root))


def _origins(node: Nest, bodies_of: Mapping[Value, tuple[Nest, Expr]]) -> tuple[Origin, ...]:
    merged = dict.fromkeys(node.origins)
    for load in loads(node_exprs(node)):
        if load.value in bodies_of:
            merged.update(dict.fromkeys(bodies_of[load.value][0].origins))
    return tuple(merged)


def _evaluations(program: Program) -> dict[Value, tuple[int, int]]:
    """Per value: how often its elements are loaded in all (by size hints), and how many distinct loads there are."""
    totals: dict[Value, tuple[int, int]] = {}
    for node in program.nodes:
        if not isinstance(node, Nest):
            continue
        points = volume(a.extent for a in node.axes)
        if isinstance(node.root, Reduce):
            points *= volume(a.extent for a in node.root.reduced)
        for load in loads(node_exprs(node)):
            n, k = totals.get(load.value, (0, 0))
            totals[load.value] = (n + points, k + 1)
    return totals


def _wanted(
    value: Value, body: Expr, nest: Nest, program: Program, used: Uses, evaluations: Mapping[Value, tuple[int, int]]
) -> bool:
    readers = used.readers.get(value, ())
    nests = [n for n in (program.nodes[p] for p in readers) if isinstance(n, Nest)]
    if not nests or any(isinstance(n.root, Sort) for n in nests):
        return False
    if isinstance(body, Const):
        return True
    if value in used.pinned:
        return False
    shape = _measure(body, nest)
    if shape.nodes > MAX_NODES or shape.loads > MAX_LOADS:
        return False
    elements = volume(a.extent for a in nest.axes)
    evaluated, distinct = evaluations[value]
    if len(nests) == 1 and distinct == 1 and evaluated <= elements:
        return True
    if shape.dear and evaluated > elements:
        return False
    if len(nests) > 1 and shape.big_loads > 1:
        return False
    size = value.dtype.itemsize
    saved = size * (elements + min(evaluated, len(nests) * elements))
    return shape.cost * max(evaluated - elements, 0) < BALANCE * saved and (shape.cost <= 8 or evaluated <= elements)


def _measure(body: Expr, nest: Nest) -> _Shape:
    cost = count = n_loads = big = 0
    dear = False
    for node in body.walk():
        count += 1
        match node:
            case Op(name):
                cost += OPS[name].cost
                dear = dear or OPS[name].cost > 8
            case Random() | Checked():
                cost, dear = cost + 40, True
            case Load(_, index):
                n_loads += 1
                axes = frozenset().union(*(i.axes() for i in index)) if index else frozenset()
                big += len(axes) == sum(a.extent.value != 1 for a in nest.axes)
                dear = dear or any(i.indirects() for i in index)
    return _Shape(cost, count, n_loads, big, dear)
