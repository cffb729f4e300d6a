"""Sums into few elements on a GPU: a reduction for each, where atomic additions would wait for each other."""

from dataclasses import replace

import torch

from gyrator.ir.expr import Const, Expr, Load, Op, Value
from gyrator.ir.index import Axis, contiguous_strides
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Scatter, map_nests
from gyrator.schedule.scatter import coordinates, hits
from gyrator.schedule.volume import volume

LEAST_CROWD = 512
"""Additions to one element that are worth another kernel."""
BYTES_IN_A_WAIT = 1 << 20
"""What an H200 reads while an addition waits for the one before it at the same element: 8,192 in turn took 2.8 ms."""
SIMPLE = 4
"""Nodes of an expression that is rather computed again for each of those elements than stored."""


def scatters_to_sums(program: Program) -> Program:
    """Additions that crowd on few elements of one dimension become a sum for each of them, always in the same order.

    Before: ``u = scatter add nest[q, h] into t at (load(idx, q), h) of x[q, h]``
    after:  ``s = nest[b, h] reduce sum over q  where(b == load(idx, q), x[q, h], 0);  u = nest[b, h] t[b, h] +
    s[b, h]``

    So do the gradients of a table of position biases. Each element along the dimension that is chosen at run time reads
    the whole source: refuses where that takes longer than additions that wait for each other, or each gets fewer than
    512; where more than one coordinate is known only at run time; and sizes that are not static.
    """
    return map_nests(program, _sums)


def _sums(nest: Nest) -> list[Node]:
    root, out = nest.root, nest.out[0]
    if not isinstance(root, Scatter) or not nest.on_gpu:
        return [nest]
    into = root.into
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(into.shape))
    found = coordinates(nest, root, axes)
    static = all(extent.value is not None for extent in (*into.shape, *(axis.extent for axis in nest.axes)))
    if out is None or found is None or root.combine != "add" or not static or into.dtype == torch.bool:
        return [nest]
    at, position, chosen = found
    rows = [axis for axis in nest.axes if axis not in at]
    cells = max(volume((into.shape[position],)), 1)
    crowd, source = volume(a.extent for a in rows) // cells, volume(a.extent for a in nest.axes) * into.dtype.itemsize
    if crowd < LEAST_CROWD or cells * source > crowd * BYTES_IN_A_WAIT:
        return [nest]
    reduced = tuple(Axis(f"r{k}", axis.extent) for k, axis in enumerate(rows))
    at |= {old: new.index() for old, new in zip(rows, reduced, strict=True)}
    before, body = _stored(nest, root.body, out)
    hit, nothing = hits(axes[position], chosen, at), Const(identity("sum", body.dtype), body.dtype)
    part = Op("where", (hit, body.substitute(at), nothing), body.dtype)
    total = Value(f"{out.name}_sums", into.shape, body.dtype, contiguous_strides(into.shape), out.device)
    here = tuple(axis.index() for axis in axes)
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
    value = Value(f"{out.name}_source", shape, body.dtype, contiguous_strides(shape), out.device)
    made = replace(nest, out=(value,), root=Pointwise(body))
    return [made], Load(value, tuple(axis.index() for axis in nest.axes))
