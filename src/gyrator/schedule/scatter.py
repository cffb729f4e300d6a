"""Scatters that need not scatter: onto a constant they become pointwise selects, which fuse with what follows; sums
into few elements on a GPU a reduction for each, where atomic additions would wait for each other."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Value
from gyrator.ir.index import ZERO, Atom, Axis, Index, Indirect
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Scatter, map_nests
from gyrator.ir.volume import volume
from gyrator.lowering.refs import axes_of

LEAST_CROWD = 512
"""Additions to one element that are worth another kernel."""
BYTES_IN_A_WAIT = 1 << 20
"""What an H200 reads while an addition waits for the one before it at the same element: 8,192 in turn took 2.8 ms."""
SIMPLE = 4
"""Nodes of an expression that is rather computed again for each of those elements than stored."""


# -- onto constants ----------------------------------------------------------------------------------------
def scatters_to_selects(program: Program) -> Program:
    """One write per element into a constant tensor is a choice per element.

    Before: ``t = full(0)[n, v];  u = scatter nest[n] into t at (n, load(idx, n)) value x[n]``
    after:  ``u = nest[n, v] where(v == load(idx, n), x[n], 0)``

    Refuses where more than one coordinate is known only at run time, or two iterations could hit one element."""
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
    found = coordinates(nest, root)
    if found is None or len(found[1]) != len(nest.axes):
        return None
    axes, at, axis, chosen = found
    value = root.body.substitute(at)
    if root.combine == "add":
        value = Op("add", (base, value), value.dtype)
    body = Op("where", (hits(axis, chosen, at), value, base), value.dtype)
    return replace(nest, axes=axes, root=Pointwise(body))


def coordinates(nest: Nest, root: Scatter) -> tuple[tuple[Axis, ...], dict[Atom, Index], Axis, Expr] | None:
    """The axes of the result, as which of them iteration axes run, and the one whose coordinate is chosen at run time,
    by what; None where two are chosen, or one is neither an axis nor a single element."""
    axes = axes_of("i", root.into.shape)
    at: dict[Atom, Index] = {a: ZERO for a in nest.axes if a.extent.value == 1}
    chosen: tuple[Axis, Expr] | None = None
    for axis, index in zip(axes, root.index, strict=True):
        atom = index.atom
        if isinstance(atom, Indirect) and chosen is None:
            chosen = axis, atom.value
        elif isinstance(atom, Axis) and atom not in at and atom.extent is axis.extent:
            at[atom] = axis.index()
        elif not (index is ZERO and axis.extent.value == 1):
            return None
    return None if chosen is None else (axes, at, *chosen)


def hits(axis: Axis, chosen: Expr, at: Mapping[Atom, Index]) -> Expr:
    """Whether an iteration, with its axes replaced, writes to the element of ``axis``."""
    return Op("eq", (IndexValue(axis.index()), chosen.substitute(at)), torch.bool)


# -- into few elements -------------------------------------------------------------------------------------
def scatters_to_sums(program: Program) -> Program:
    """Additions that crowd on few elements of one dimension become a sum for each of them, always in the same order.

    Before: ``u = scatter add nest[q, h] into t at (load(idx, q), h) of x[q, h]``
    after:  ``s = nest[b, h] reduce sum over q  where(b == load(idx, q), x[q, h], 0);  u = nest[b, h] t[b, h] +
    s[b, h]``

    So do the gradients of a table of position biases. Each element along the dimension that is chosen at run time reads
    the whole source: refuses where that takes longer than additions that wait for each other, or each gets fewer than
    512; where more than one coordinate is known only at run time; and sizes that are not static."""
    return map_nests(program, _sums)


def _sums(nest: Nest) -> list[Node]:
    root, out = nest.root, nest.out[0]
    if not isinstance(root, Scatter) or not nest.on_gpu:
        return [nest]
    into, found = root.into, coordinates(nest, root)
    static = all(extent.value is not None for extent in (*into.shape, *(axis.extent for axis in nest.axes)))
    if out is None or found is None or root.combine != "add" or not static or into.dtype == torch.bool:
        return [nest]
    axes, at, axis, chosen = found
    rows = [a for a in nest.axes if a not in at]
    cells = max(volume((axis.extent,)), 1)
    crowd, source = volume(a.extent for a in rows) // cells, volume(a.extent for a in nest.axes) * into.dtype.itemsize
    if crowd < LEAST_CROWD or cells * source > crowd * BYTES_IN_A_WAIT:
        return [nest]
    reduced = axes_of("r", tuple(a.extent for a in rows))
    at |= {old: new.index() for old, new in zip(rows, reduced, strict=True)}
    before, body = _stored(nest, root.body, out)
    hit, nothing = hits(axis, chosen, at), Const(identity("sum", body.dtype), body.dtype)
    part = Op("where", (hit, body.substitute(at), nothing), body.dtype)
    total = out.derived("sums", into.shape, body.dtype)
    here = tuple(a.index() for a in axes)
    whole = Op("add", (Load(into, here), Load(total, here)), body.dtype)
    return [
        *before,
        replace(nest, out=(total,), axes=axes, root=Reduce("sum", reduced, (part,))),
        replace(nest, axes=axes, root=Pointwise(whole)),
    ]


def _stored(nest: Nest, body: Expr, out: Value) -> tuple[list[Node], Expr]:
    """What is added, read from memory if it is more than a load or so; and the nest that stores it then."""
    if sum(1 for _ in body.walk()) <= SIMPLE:
        return [], body
    shape = tuple(axis.extent for axis in nest.axes)
    value = out.derived("source", shape, body.dtype)
    made = replace(nest, out=(value,), root=Pointwise(body))
    return [made], Load(value, tuple(axis.index() for axis in nest.axes))
