"""Scatters that need not scatter: into a part that is known, or onto a constant, they become pointwise selects, which
fuse with what follows; sums into few elements on a GPU reductions, where atomic additions would wait for each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gyrator.ir.build import axes_of, between, both, cast, coords_of, masked, number, op
from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Value
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, Indirect, const, div_mod, is_nonnegative, linear, substitute
from gyrator.ir.ops import identity
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, Scatter, defines, map_nests, shown_values, uses
from gyrator.ir.volume import iterations, power, volume

LEAST_CROWD = 512
"""Additions to one element that are worth another kernel."""
BYTES_IN_A_WAIT = 1 << 20
"""What an H200 reads while an addition waits for the one before it at the same element: 8,192 in turn took 2.8 ms."""
BYTES_IN_AN_ADDITION, BYTES_IN_LAUNCHES = 40, 1 << 24
"""What it reads in the time of an addition that waits for none, and of two kernels more."""
CROWD, BYTES_OF_COPIES = 64, 1 << 22
"""Additions to one element that may wait for each other, and the most memory of copies."""
MANY_PARTS, LARGE = 8, 1 << 14
"""Parts written one after the other, and elements of a tensor, from which on it is not made anew for each few parts."""
SIMPLE = 4
"""Nodes of an expression that is rather computed again for each of those elements than stored."""


def scatters_to_selects(program: Program) -> Program:
    """One write per element into a part of a tensor that is known, or into a constant, is a choice per element; a
    write into a part of a part is made one into the whole first.

    Before: ``t = full(0)[n, v];  u = scatter nest[n] into t at (n, load(idx, n)) value x[n]``
    after:  ``u = nest[n, v] where(v == load(idx, n), x[n], 0)``

    Before: ``u = scatter nest[n, j<2] into t at (n, j + 3) value x[n, j]``
    after:  ``u = nest[n, v] where(3 <= v < 5, x[n, v - 3], t[n, v])``

    Refuses where more than one coordinate is known only at run time, or two iterations could hit one element; and where
    writing a part in place pays, as into a cache."""
    makers: dict[Value, Nest] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Nest):
            node = _of_the_whole(node, makers)
            makers |= dict.fromkeys(defines(node), node)
        nodes.append(node)
    program = replace(program, nodes=tuple(nodes))
    kept = _written_in_place(program)
    return map_nests(program, lambda n: ((None if kept.issuperset(defines(n)) else _select(n, makers)) or n,))


def _of_the_whole(nest: Nest, makers: Mapping[Value, Nest]) -> Nest:
    """A write into a part of a part as one into the whole.

    Before: ``v = scatter nest[j] into x[2] at j + 3 value y[j];  u = scatter nest[i] into x at (2, i) value v[i]``
    after:  ``u = scatter nest[j] into x at (2, j + 3) value y[j]``"""

    def read(value: Value, at: tuple[Index, ...]) -> Expr:
        maker = makers.get(value)
        if maker is None or not isinstance(maker.root, Pointwise) or not isinstance(maker.root.body, Load):
            return Load(value, at)
        return maker.element(at)

    root, here = nest.root, coords_of(nest.axes)
    if not isinstance(root, Scatter) or not isinstance(root.body, Load) or root.body != Load(root.body.value, here):
        return nest
    whole = root.body.value.shape == tuple([axis.extent for axis in nest.axes])
    inner = makers[root.body.value].root if whole and root.body.value in makers else None
    if not isinstance(inner, Scatter) or {root.combine, inner.combine} != {"set"}:
        return nest
    if any(i.indirects() for i in root.index) or read(inner.into, here) != read(root.into, root.index):
        return nest
    at = dict[Atom, Index](zip(nest.axes, inner.index, strict=True))
    index = tuple([substitute(i, at) for i in root.index])
    return replace(nest, axes=makers[root.body.value].axes, root=Scatter(root.into, index, inner.body))


def _written_in_place(program: Program) -> set[Value]:
    """Results of scatters of which each takes the memory of the one before, into less than half of it: from an input to
    its new contents, many into one tensor, or from one place of a tensor to another."""
    roots = [(n, n.root) for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Scatter)]
    into = {v: r.into for n, r in roots if iterations(n.axes) * 2 <= volume(r.into.shape) for v in defines(n)}
    last: dict[Value, Node] = {v: node for node in program.nodes for v in uses(node)}
    maker = {v: node for node in program.nodes for v in defines(node)}
    targets = {u.value.value: u.target for u in program.updates if u.value.is_full}
    found, shown = set[Value](), shown_values(program)
    for end in into.keys() - into.values():
        chain, value = [end], into[end]
        while value in into and value not in shown and last[value] is maker[chain[-1]]:
            chain.append(value)
            value = into[value]
        updates = targets.get(end) is value and last[value] is maker[chain[-1]]
        many = len(chain) >= MANY_PARTS and volume(value.shape) >= LARGE
        # A part made of others of the same tensor, as edges that wrap around are: no kernel could make both.
        reads = [v for v in chain if any(into[v] in uses(maker[x]) for x in uses(maker[v]) - {into[v]} if x in maker)]
        found.update(chain if updates or many else reads)
    return found


def _select(nest: Nest, makers: Mapping[Value, Nest]) -> Nest | None:
    """The choice in place of a scatter; None where it is none."""
    root, found = nest.root, _inverse(nest)
    if not isinstance(root, Scatter) or found is None or any(axis not in found.at for axis in nest.axes):
        return None
    constant = _constant(root.into, makers)
    base = constant or Load(root.into, coords_of(found.axes))
    if root.combine not in ("set", "add") or (base is not constant and (found.chosen or root.combine != "set")):
        return None
    value = masked(found.known, root.body.substitute(found.at))
    value = op("add", base, value) if root.combine == "add" else value
    conditions = [masked(found.known, found.hits())] if found.chosen else found.known
    body = op("where", both(conditions), value, base) if conditions else value
    return replace(nest, axes=found.axes, root=Pointwise(body))


def _constant(value: Value, makers: Mapping[Value, Nest]) -> Expr | None:
    """What all elements are, if that is one number."""
    match makers[value].root if value in makers else None:
        case Pointwise(Const() as found):
            return found
        case Pointwise(Op("cast", (Load(other, _, None),))):
            return None if (same := _constant(other, makers)) is None else cast(same, value.dtype)
    return None


@dataclass(frozen=True, slots=True)
class _Inverse:
    """Which iterations of a scatter write an element: ``axes`` are those of its coordinates, ``at`` what iteration axes
    are there, under the conditions ``known``, and where the coordinate is ``chosen`` at run time."""

    axes: tuple[Axis, ...]
    at: Mapping[Atom, Index]
    known: Sequence[Expr]
    chosen: tuple[Axis, Expr] | None

    def hits(self) -> Op:
        """Whether an iteration, with its axes replaced, writes to the element along the axis that is chosen."""
        assert self.chosen is not None
        axis, index = self.chosen
        return op("eq", IndexValue(axis.index()), index.substitute(self.at))


def _inverse(nest: Nest) -> _Inverse | None:
    """None where two coordinates are chosen at run time, or one has more than one axis."""
    if not isinstance(nest.root, Scatter):
        return None
    axes, known, chosen = axes_of("i", nest.root.into.shape), list[Expr](), list[tuple[Axis, Expr]]()
    at: dict[Atom, Index] = {a: ZERO for a in nest.axes if a.extent is ONE}
    for axis, index in zip(axes, nest.root.index, strict=True):
        atom, here = index.atom, axis.index()
        along = next(iter(index.axes()), None)
        step = None if along is None else index.coefficient(along)
        if isinstance(atom, Indirect) and not chosen:
            chosen.append((axis, atom.value))
        elif index.indirects() or len(index.axes()) > 1:
            return None
        elif along is None:
            known += [] if axis.extent is ONE else [op("eq", IndexValue(here), number(index, torch.int64))]
        elif step is None or not is_nonnegative(step - 1):
            return None
        else:
            first = index - along.index() * step
            k, off = div_mod(here - first, step)
            known += between(here, first, first + (along.extent - 1) * step + 1)
            known += [] if off is ZERO else [op("eq", IndexValue(off), number(ZERO, torch.int64))]
            known += [op("eq", IndexValue(k), IndexValue(at[along]))] if along in at else []
            at[along] = k
    return _Inverse(axes, at, known, chosen[0] if chosen else None)


def scatter_to_sums(nest: Nest) -> list[Node]:
    """Additions that crowd on few elements of one dimension become a sum for each of them, always in the same order.

    Before: ``u = scatter add nest[q, h] into t at (load(idx, q), h) of x[q, h]``
    after:  ``s = nest[b, h] reduce sum over q  where(b == load(idx, q), x[q, h], 0); u = nest[b, h] t[b, h] + s[b, h]``

    So do the gradients of a table of position biases. Each element along the dimension that is chosen at run time reads
    the whole source. Where that takes longer, as for a histogram, copies of the elements share the crowd:

    after:  ``p = scatter add nest[q, h] into zeros at (q % 1024, load(idx, q), h) of x[q, h]``
    ``s = nest[b, h] reduce sum over c  p[c, b, h];  u = nest[b, h] t[b, h] + s[b, h]``

    Refuses where either takes longer than additions that wait for each other, or each element gets fewer than 512;
    where more than one coordinate is known only at run time; and sizes that are not static."""
    root, out = nest.root, nest.out[0]
    if not isinstance(root, Scatter) or not nest.on_gpu:
        return [nest]
    into, found = root.into, _inverse(nest)
    static = all(extent.value is not None for extent in (*into.shape, *(axis.extent for axis in nest.axes)))
    if found is None or found.chosen is None or found.known:
        return [nest]
    if out is None or root.combine != "add" or not static or into.dtype == torch.bool:
        return [nest]
    cells, additions = max(volume((found.chosen[0].extent,)), 1), iterations(nest.axes)
    crowd = iterations(a for a in nest.axes if a not in found.at) // cells
    waiting, reading = crowd * BYTES_IN_A_WAIT, cells * additions * into.dtype.itemsize
    copies = min(crowd // CROWD, BYTES_OF_COPIES // max(volume(into.shape) * into.dtype.itemsize, 1))
    sharing = additions * BYTES_IN_AN_ADDITION + BYTES_IN_LAUNCHES if copies > 1 else reading
    if crowd < LEAST_CROWD or min(reading, sharing) > waiting:
        return [nest]
    if reading <= sharing:
        before, part, reduced = _by_choice(nest, root, out, found)
    else:
        before, part, reduced = _by_copies(nest, root, out, found, power(copies + 1) // 2)
    total, axes = out.derived("sums", into.shape, part.dtype), found.axes
    here = coords_of(axes)
    return [
        *before,
        replace(nest, out=(total,), axes=axes, root=Reduce("sum", reduced, (part,))),
        replace(nest, axes=axes, root=Pointwise(op("add", Load(into, here), Load(total, here)))),
    ]


def _by_choice(nest: Nest, root: Scatter, out: Value, found: _Inverse) -> tuple[list[Node], Expr, tuple[Axis, ...]]:
    """What is made before; what to sum for an element of the result, over which axes: all that is added to it."""
    rows = [a for a in nest.axes if a not in found.at]
    reduced = axes_of("r", tuple(a.extent for a in rows))
    at = dict(found.at) | {old: new.index() for old, new in zip(rows, reduced, strict=True)}
    before, body = _stored(nest, root.body, out)
    hit, nothing = replace(found, at=at).hits(), Const(identity("sum", body.dtype), body.dtype)
    return before, op("where", hit, body.substitute(at), nothing), reduced


def _by_copies(
    nest: Nest, root: Scatter, out: Value, found: _Inverse, copies: int
) -> tuple[list[Node], Expr, tuple[Axis, ...]]:
    """The same of copies of the result, to which the iterations add in turns."""
    rows = tuple([a for a in nest.axes if a not in found.at])
    (copy,) = reduced = axes_of("c", (const(copies),))
    shape, dtype = (copy.extent, *root.into.shape), root.body.dtype
    none, parts = out.derived("none", shape, dtype), out.derived("parts", shape, dtype)
    turn = linear(coords_of(rows), tuple(a.extent for a in rows)) % copies
    zeros = replace(nest, out=(none,), axes=axes_of("i", shape), root=Pointwise(Const(identity("sum", dtype), dtype)))
    added = replace(nest, out=(parts,), root=replace(root, into=none, index=(turn, *root.index)))
    return [zeros, added], Load(parts, (copy.index(), *coords_of(found.axes))), reduced


def _stored(nest: Nest, body: Expr, out: Value) -> tuple[list[Node], Expr]:
    """What is added, read from memory if it is more than a load or so; and the nest that stores it then."""
    if sum(1 for _ in body.walk()) <= SIMPLE:
        return [], body
    value = out.derived("source", tuple(axis.extent for axis in nest.axes), body.dtype)
    return [replace(nest, out=(value,), root=Pointwise(body))], Load(value, coords_of(nest.axes))
