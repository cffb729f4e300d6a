"""Scatters onto a constant become pointwise selects, which fuse with what follows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Op, Value
from gyrator.ir.index import ZERO, Atom, Axis, Index, Indirect
from gyrator.ir.program import Nest, Pointwise, Program, Scatter, map_nests


def scatters_to_selects(program: Program) -> Program:
    """One write per element into a constant tensor is a choice per element.

    Before: ``t = full(0)[n, v];  u = scatter nest[n] into t at (n, load(idx, n)) value x[n]``
    after:  ``u = nest[n, v] where(v == load(idx, n), x[n], 0)``

    Refuses where more than one coordinate is known only at run time, or two iterations could hit one element.
    """
    constants: dict[Value, Const] = {}
    for node in program.nodes:
        if isinstance(node, Nest) and isinstance(node.root, Pointwise) and isinstance(node.root.body, Const):
            constants |= {value: node.root.body for value in node.out if value is not None}
    return map_nests(program, lambda nest: (_select(nest, constants) or nest,))


def _select(nest: Nest, constants: Mapping[Value, Const]) -> Nest | None:
    root = nest.root
    base = constants.get(root.into) if isinstance(root, Scatter) else None
    if base is None or not isinstance(root, Scatter) or root.combine not in ("set", "add"):
        return None
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(root.into.shape))
    found = coordinates(nest, root, axes)
    if found is None or len(found[0]) != len(nest.axes):
        return None
    at, position, chosen = found
    hit = hits(axes[position], chosen, at)
    value = root.body.substitute(at)
    if root.combine == "add":
        value = Op("add", (base, value), value.dtype)
    body = Op("where", (hit, value, base), value.dtype)
    return replace(nest, axes=axes, root=Pointwise(body))


def coordinates(nest: Nest, root: Scatter, axes: Sequence[Axis]) -> tuple[dict[Atom, Index], int, Expr] | None:
    """The one coordinate that is chosen at run time, and each iteration axis that is another one as an axis of the
    result; None where two are chosen, or one is neither an axis nor a single element.
    """
    at: dict[Atom, Index] = {a: ZERO for a in nest.axes if a.extent.value == 1}
    position, chosen = -1, None
    for k, index in enumerate(root.index):
        atom = index.atom
        if isinstance(atom, Indirect) and chosen is None:
            position, chosen = k, atom.value
        elif isinstance(atom, Axis) and atom not in at and atom.extent is axes[k].extent:
            at[atom] = axes[k].index()
        elif not (index is ZERO and axes[k].extent.value == 1):
            return None
    return None if chosen is None else (at, position, chosen)


def hits(axis: Axis, chosen: Expr, at: Mapping[Atom, Index]) -> Expr:
    """Whether an iteration, with its axes replaced, writes to the element of ``axis``."""
    return Op("eq", (IndexValue(axis.index()), chosen.substitute(at)), torch.bool)
