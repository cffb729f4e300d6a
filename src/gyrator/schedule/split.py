"""Sums over the rows of a narrow matrix, in two steps that all cores share."""

from __future__ import annotations

from dataclasses import replace

from gyrator.ir.expr import Load, Value
from gyrator.ir.index import ONE, Atom, Axis, Index, const, contiguous_strides, dot
from gyrator.ir.program import Nest, Node, Program, Reduce, loads
from gyrator.schedule.align import compose
from gyrator.schedule.loops import SIMPLE
from gyrator.schedule.volume import volume

PARTS = 16
WIDE = 2048
MIN_WORK = 1 << 16


def split_reductions(program: Program) -> Program:
    """Split a reduction over rows into partial results of equal blocks of rows, and their combination.

    Before: ``s = nest[j<C] reduce sum over i<R  x[i, j]``
    after:  ``p = nest[b<16, j<C] reduce sum over i<R/16  x[b*R/16 + i, j];  s = nest[j<C] reduce sum over
    b<16  p[b, j]``

    Only where columns are contiguous and too few to occupy the cores (under 2,048), the rows divide evenly,
    and there are at least 65,536 elements. The result does not depend on the number of threads.
    """
    nodes: list[Node] = []
    for node in program.nodes:
        nodes += (
            _split(node, node.root)
            if isinstance(node, Nest) and isinstance(node.root, Reduce) and not node.on_gpu
            else [node]
        )
    return replace(program, nodes=tuple(nodes))


def _split(nest: Nest, root: Reduce) -> list[Node]:
    value = nest.out[0]
    if root.kind not in SIMPLE or value is None or not nest.axes or not is_column(nest, root):
        return [nest]
    columns = volume(a.extent for a in nest.axes)
    rows = volume(a.extent for a in root.reduced)
    first = root.reduced[0]
    parts = _parts(first)
    if columns >= WIDE or rows * columns < MIN_WORK or parts is None:
        return [nest]
    block = Axis("i0", const(parts))
    inner = Axis("r0", const(volume((first.extent,)) // parts))
    kept = tuple(Axis(f"i{k + 1}", a.extent) for k, a in enumerate(nest.axes))
    reduced = (inner, *(Axis(f"r{k}", a.extent) for k, a in enumerate(root.reduced) if k > 0))
    at: dict[Atom, Index] = {first: compose((block, inner))}
    at |= {old: new.index() for old, new in zip(nest.axes, kept, strict=True)}
    at |= {old: new.index() for old, new in zip(root.reduced[1:], reduced[1:], strict=True)}
    shape = (const(parts), *value.shape)
    partial = Value(f"{value.name}_part", shape, value.dtype, contiguous_strides(shape), value.device)
    body = tuple(b.substitute(at) for b in root.body)
    final_row = Axis("r0", const(parts))
    final_body = Load(partial, (final_row.index(), *(a.index() for a in nest.axes)))
    return [
        replace(nest, out=(partial,), axes=(block, *kept), root=Reduce(root.kind, reduced, body)),
        replace(nest, root=Reduce(root.kind, (final_row,), (final_body,))),
    ]


def _parts(axis: Axis) -> int | None:
    """How many equal blocks: the divisor of the extent nearest to 16, from 8 to 32."""
    n = axis.extent.value
    if n is None:
        return None
    found = [p for p in range(PARTS // 2, 2 * PARTS + 1) if n % p == 0]
    return min(found, key=lambda p: abs(p - PARTS), default=None)


def is_column(nest: Nest, root: Reduce) -> bool:
    """Whether the largest loads are contiguous along a kept axis."""
    best, column = 0, False
    for load in loads(root.body):
        position = dot(load.index, load.value.strides)
        weight = volume(a.extent for a in position.axes())
        if weight > best:
            best = weight
            column = any(position.coefficient(a) is ONE for a in nest.axes if a in position.axes())
    return column
