"""Rows of matrices on a GPU start at multiples of 16 bytes: the fast kernels of matrix libraries need it.

The logits of a vocabulary of 30,522 words are rows of 61,044 bytes in bfloat16; with every row 12 bytes
longer their product and those of their gradient take a third of the time. Only the steps between rows change,
so that nothing else computes differently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from gyrator.ir.expr import Load, Value
from gyrator.ir.index import ONE, ZERO, Axis, Index, contiguous_strides
from gyrator.ir.program import Extern, Nest, Node, Pointwise, Program, Scatter, View, defines, shown_values, uses, views
from gyrator.origin import Origins
from gyrator.schedule.simplify import reading, rewrite_root
from gyrator.schedule.volume import volume
from gyrator.session import Count, Counters

ROW_BYTES = 16
LARGE = 1 << 20
"""Bytes from which on a value is worth it."""

MATRICES: Mapping[str, tuple[int, ...]] = {
    "aten.mm.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.bmm.default": (0, 1),
    "aten.baddbmm.default": (1, 2),
}
"""Products, and which of their arguments are matrices. They take and give rows of any steps."""


@dataclass(frozen=True, slots=True)
class _Padding:
    """The value with longer steps between its rows: ``step`` elements where there were ``row``."""

    value: Value
    row: int
    step: int

    def moved(self, distance: Index) -> Index | None:
        """A distance in the old memory as one in the new; None for one that does not follow the rows."""
        if distance in (ZERO, ONE):
            return distance
        rows = distance // self.row
        return rows * self.step if rows * self.row is distance else None

    def view(self, old: View) -> View | None:
        """The same window on the padded value."""
        steps = [self.moved(s) for s in old.strides]
        offset = self.moved(old.offset)
        if offset is None or offset is ONE or None in steps or old.dtype not in (None, old.value.dtype):
            return None
        return replace(old, value=self.value, strides=tuple(s for s in steps if s is not None), offset=offset)


def pad_rows(
    program: Program, counters: Counters, *, everywhere: bool = False, unpadded: Collection[Value] = ()
) -> Program:
    """Lengthen the steps between rows of large matrices on a GPU that products read or write.

    Before: ``y: bf16[4096, 30522]@[30522, 1] = addmm(b, x, w)``; after: ``… @[30528, 1]``. What the caller
    sees keeps its strides: a product that is an output is padded too, and copied.

    Refuses values of less than 1 MiB, whose rows have symbolic lengths, that other operators read, that
    scatters start from, outputs that no product makes, and what a template makes (``unpadded``). ``everywhere`` pads
    also what only nests read.
    """
    found = {v: p for v in _candidates(program, everywhere) if (p := _padding(v)) is not None}
    for value in (*_refused(program, found), *unpadded):
        found.pop(value, None)
    if not found:
        return program
    counters.add(Count.PADDED_STRIDES, len(found))
    shown = shown_values(program)
    nodes: list[Node] = []
    for node in program.nodes:
        nodes.append(_renamed(node, found))
        nodes += [copied(v, found[v].value, node.origins) for v in defines(node) if v in found and v in shown]
    return replace(program, nodes=tuple(nodes))


def _candidates(program: Program, everywhere: bool) -> Iterator[Value]:
    """Values of the program that products read or write, or all that nests make."""
    made = {v for node in program.nodes for v in defines(node)}
    for node in program.nodes:
        if isinstance(node, Extern) and node.op in MATRICES:
            yield from (v for v in node.out if v is not None)
            args = (node.args[k] for k in MATRICES[node.op])
            yield from (a.value for a in args if isinstance(a, View) and a.value in made)
        elif everywhere and isinstance(node, Nest):
            yield from (v for v in node.out if v is not None)


def _padding(value: Value) -> _Padding | None:
    """How to pad a value; None if it is on a CPU, small, aligned, or not row by row in memory."""
    row = value.shape[-1].value if value.shape else None
    size = value.dtype.itemsize
    if value.device.type != "cuda" or len(value.shape) < 2 or row is None or row * size % ROW_BYTES == 0:
        return None
    if value.strides != contiguous_strides(value.shape) or volume(value.shape) * size < LARGE:
        return None
    step = -(-row * size // ROW_BYTES) * ROW_BYTES // size
    plain = _Padding(value, row, step)
    strides = tuple(s for s in map(plain.moved, value.strides) if s is not None)
    padded = Value(f"{value.name}_padded", value.shape, value.dtype, strides, value.device)
    return replace(plain, value=padded) if len(strides) == len(value.shape) else None


def _refused(program: Program, found: Mapping[Value, _Padding]) -> set[Value]:
    """Values that something needs as they are."""
    producers = {v: node for node in program.nodes for v in defines(node)}
    bad = {v for v in shown_values(program) if not _is_product(producers.get(v))}
    for node in program.nodes:
        if isinstance(node, Nest):
            if isinstance(node.root, Scatter):
                bad |= {node.root.into, *defines(node)}
            continue
        matrices = [node.args[k] for k in MATRICES.get(node.op, ())]
        for view in views(node):
            padding = found.get(view.value)
            if padding is not None and (view not in matrices or padding.view(view) is None):
                bad.add(view.value)
        if not _is_product(node):
            bad |= set(defines(node))
    return bad


def _is_product(node: Node | None) -> bool:
    return isinstance(node, Extern) and node.op in MATRICES


def copied(value: Value, padded: Value, origins: Origins) -> Nest:
    """``value[i, j] = padded[i, j]``"""
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(value.shape))
    return Nest((value,), axes, Pointwise(Load(padded, tuple(axis.index() for axis in axes))), origins)


def _renamed(node: Node, found: Mapping[Value, _Padding]) -> Node:
    """The node with padded values for those in ``found``."""
    if not (uses(node) | set(defines(node))) & found.keys():
        return node
    padded = {value: padding.value for value, padding in found.items()}
    out = tuple(None if v is None else padded.get(v, v) for v in node.out)
    if isinstance(node, Nest):
        return replace(node, out=out, root=rewrite_root(node.root, reading(padded)))
    args = [found[a.value].view(a) or a if isinstance(a, View) and a.value in found else a for a in node.args]
    return replace(node, out=out, args=tuple(args))
