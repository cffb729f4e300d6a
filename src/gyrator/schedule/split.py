"""Reductions in two steps that all cores, or all multiprocessors, share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Load, Masked, Op, Value
from gyrator.ir.index import ONE, Atom, Axis, Index, const, contiguous_strides, dot
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, loads
from gyrator.schedule.loops import SIMPLE
from gyrator.schedule.volume import volume

PARTS = 16
WIDE = 2048
MIN_WORK = 1 << 16


@dataclass(frozen=True, slots=True)
class Cut:
    """How a reduction is split: ``axes`` of the reduced ones, as one, into ``parts`` of ``step`` iterations."""

    axes: tuple[Axis, ...]
    parts: int
    step: int

    @property
    def length(self) -> int:
        """Iterations in all."""
        return volume(a.extent for a in self.axes)

    @property
    def ragged(self) -> bool:
        """Whether the last part is shorter."""
        return self.parts * self.step != self.length


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
        if isinstance(node, Nest) and isinstance(node.root, Reduce) and not node.on_gpu:
            cut = _cut(node, node.root)
            nodes += [node] if cut is None else split(node, node.root, cut)
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes))


def _cut(nest: Nest, root: Reduce) -> Cut | None:
    if root.kind not in SIMPLE or nest.out[0] is None or not nest.axes or not is_column(nest, root):
        return None
    columns = volume(a.extent for a in nest.axes)
    rows = volume(a.extent for a in root.reduced)
    first = root.reduced[0]
    parts = _parts(first)
    if columns >= WIDE or rows * columns < MIN_WORK or parts is None:
        return None
    return Cut((first,), parts, volume((first.extent,)) // parts)


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


# -- rewriting ---------------------------------------------------------------------------------------------
def split(nest: Nest, root: Reduce, cut: Cut) -> list[Node]:
    """Partial results, and their combination. Where the parts are not even, the last one is masked."""
    block, inner = Axis("i0", const(cut.parts)), Axis("r0", const(cut.step))
    place = block.index() * cut.step + inner.index()
    kept = tuple(Axis(f"i{k + 1}", a.extent) for k, a in enumerate(nest.axes))
    others = [a for a in root.reduced if a not in cut.axes]
    rest = tuple(Axis(f"r{k + 1}", a.extent) for k, a in enumerate(others))
    at: dict[Atom, Index] = {}
    rest_of = place
    for axis in reversed(cut.axes):
        at[axis] = rest_of if axis is cut.axes[0] else rest_of % axis.extent
        rest_of = rest_of // axis.extent
    at |= {old: new.index() for old, new in zip((*nest.axes, *others), (*kept, *rest), strict=True)}
    body = tuple(b.substitute(at) for b in root.body)
    if cut.ragged:
        inside = Op("lt", (IndexValue(place), Const(cut.length, torch.int64)), torch.bool)
        starts = [identity(root.kind, body[0].dtype), torch.iinfo(torch.int64).max]
        body = tuple(Masked(inside, b, Const(s, b.dtype)) for b, s in zip(body, starts, strict=False))
    shape = (const(cut.parts), *(a.extent for a in nest.axes))
    dtypes = [b.dtype for b in body] if root.kind != "welford" else [body[0].dtype] * 3
    device = next(v.device for v in nest.out if v is not None)
    name = next(v.name for v in nest.out if v is not None)
    partial = tuple(
        Value(f"{name}_part{k or ''}", shape, dtype, contiguous_strides(shape), device)
        for k, dtype in enumerate(dtypes)
    )
    first = replace(nest, out=partial, axes=(block, *kept), root=Reduce(root.kind, (inner, *rest), body))
    row = Axis("r0", const(cut.parts))
    coords = (row.index(), *(a.index() for a in nest.axes))
    parts = tuple(Load(p, coords) for p in partial)
    if root.kind != "welford":
        return [first, replace(nest, root=Reduce(root.kind, (row,), parts))]
    count = cut.step * volume(a.extent for a in rest)
    return [replace(first, out=(partial[0], partial[1], None)), *_welford(nest, row, parts, count, name)]


def _welford(nest: Nest, row: Axis, parted: tuple[Load, ...], count: int, name: str) -> list[Node]:
    """The variance of all from means and squared deviations of parts of ``count`` elements.

    ``mean = Σ mean_b / P``; ``m2 = Σ (m2_b + count·(mean_b - mean)²)``
    """
    means, m2s, _ = parted
    dtype, device = means.dtype, means.value.device
    shape = tuple(a.extent for a in nest.axes)
    here = tuple(a.index() for a in nest.axes)

    def fresh(suffix: str) -> Value:
        return Value(f"{name}_{suffix}", shape, dtype, contiguous_strides(shape), device)

    def op(kind: str, a: Expr, b: Expr) -> Op:
        return Op(kind, (a, b), dtype)

    parts = volume((row.extent,))
    total, mean = fresh("means"), nest.out[0] or fresh("mean")
    average = op("mul", Load(total, here), Const(1.0 / parts, dtype))
    off = op("sub", means, Load(mean, here))
    deviation = op("add", m2s, op("mul", op("mul", off, off), Const(float(count), dtype)))
    found: list[Node] = [
        replace(nest, out=(total,), root=Reduce("sum", (row,), (means,))),
        replace(nest, out=(mean,), root=Pointwise(average)),
    ]
    if nest.out[1] is not None:
        found.append(replace(nest, out=(nest.out[1],), root=Reduce("sum", (row,), (deviation,))))
    if nest.out[2] is not None:
        found.append(replace(nest, out=(nest.out[2],), root=Pointwise(Const(float(count * parts), dtype))))
    return found
