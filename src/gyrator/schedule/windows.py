"""Reductions over small windows, as in pooling: the window is written out, and a thread or a lane has one of its own.
As a row its few elements would fill a part of a warp or a vector, and neighbours in memory would lie in other rows."""

import itertools
from collections.abc import Iterator, Set
from dataclasses import replace
from functools import partial, reduce

import torch

from gyrator.ir.build import op
from gyrator.ir.expr import Const, Expr, Load, Op, Value
from gyrator.ir.index import Atom, FloorDiv, Index, Mod, const, contiguous_strides, exact_quotient, product
from gyrator.ir.program import Nest, Pointwise, Program, Reduce, defines, loads, map_nests
from gyrator.ir.volume import iterations, volume

MOST, MOST_ON_GPU, ROW, DIVISIONS, VECTOR = 32, 128, 8, 64, 16
_STEPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "argmax": "maximum", "argmin": "minimum"}


def unroll_windows(program: Program) -> Program:
    """Write out reductions over windows that slide along a kept axis.

    Before: ``y = nest[i<N] reduce max over a<2  x[2*i + a]``;  after: ``y = nest[i<N] maximum(x[2*i], x[2*i + 1])``

    Also over at most 8 elements that are made of what is read for 8 and more results each (squared distances of
    points) where they are reduced further or, on a GPU, would leave lanes idle, and on a processor for the position of
    the largest of any few. Refuses windows of more than 32 elements (on a GPU 128 where an element is in an eighth as
    many) or unknown size, or of which positions would take more than 64 divisions, sums in 16 bits, and rows of more
    than 8 that lie one after another or, on a GPU, begin 16 bytes apart and more."""
    roots = [node.root for node in program.nodes if isinstance(node, Nest)]
    further = {load.value for root in roots if isinstance(root, Reduce) for load in loads(root.body)}
    return map_nests(program, partial(_unrolled, further))


def _fits(nest: Nest, root: Reduce, further: Set[Value]) -> bool:
    elements, dtype = iterations(root.reduced), root.body[0].dtype
    if any(a.extent.value is None for a in root.reduced) or not 0 < elements <= (MOST_ON_GPU if nest.on_gpu else MOST):
        return False
    if root.kind not in _STEPS or dtype == torch.bool:
        return False
    if root.kind in ("sum", "prod") and dtype.is_floating_point and dtype.itemsize < 4:
        return False
    read = loads(root.body)
    held = max((overlap(load, nest, root) for load in read), default=0)
    large = elements > MOST and 8 * held < elements
    spread = elements <= ROW and min((_uses(load, nest, root) for load in read), default=0) >= ROW
    spread &= not further.isdisjoint(nest.out) or (nest.on_gpu and elements & (elements - 1) > 0)
    moving = [load for load in read if load.axes() & {*root.reduced}]
    row = not (held or spread) or (elements > ROW and all(_is_row(load, nest, root) for load in moving))
    if (large or row) and (nest.on_gpu or root.kind not in ("argmax", "argmin")):
        return False
    indices = {index for node in root.body[0].walk() for index in node.indices()}
    divisions = {atom for index in indices for atom in index.atoms() if isinstance(atom, FloorDiv | Mod)}
    return len(divisions) * elements <= DIVISIONS


def overlap(load: Load, nest: Nest, root: Reduce) -> float:
    """In how many windows that are moved along a kept axis an element of what a load reads is; 0 if none are."""
    inner, kept = set(root.reduced), set(nest.axes)
    return _uses(load, nest, root) if any(inner & i.axes() and kept & i.axes() for i in load.index) else 0


def _uses(load: Load, nest: Nest, root: Reduce) -> float:
    """How often an element of what a load reads is used."""
    return iterations((*nest.axes, *root.reduced)) / max(volume(load.value.shape), 1)


def _is_row(load: Load, nest: Nest, root: Reduce) -> bool:
    """Whether the elements lie side by side in memory, and begin where those of another result end, or on a GPU, where
    each thread would load 16 bytes and more of its own, as far from those of its neighbour."""
    place, sizes = load.value.position(load.index), tuple(a.extent for a in root.reduced)
    beside = [place.coefficient(a) for a in root.reduced] == list(contiguous_strides(sizes))

    def apart(step: Index | None) -> bool:
        far = nest.on_gpu and step is not None and (step.value or 0) * load.dtype.itemsize >= VECTOR
        return far or (step is not None and exact_quotient(step, product(sizes)) is not None)

    return beside and all(apart(place.coefficient(axis)) for axis in nest.axes)


def _unrolled(further: Set[Value], nest: Nest) -> Iterator[Nest]:
    """The result, and for argmax and argmin the lowest number of the elements that are the result."""
    root = nest.root
    if not isinstance(root, Reduce) or not _fits(nest, root, further):
        yield nest
        return
    along = [[const(k) for k in range(a.extent.value or 0)] for a in root.reduced]
    places = [dict[Atom, Index](zip(root.reduced, at, strict=True)) for at in itertools.product(*along)]
    elements = [[body.substitute(at) for at in places] for body in root.body]
    best = nest.out[0]
    if best is None:
        of, *_ = defines(nest)
        best = replace(of, name=f"{of.name}_best", dtype=root.body[0].dtype)
    yield replace(nest, out=(best,), root=Pointwise(reduce(partial(op, _STEPS[root.kind]), elements[0])))
    number = nest.out[1] if len(nest.out) > 1 else None
    if number is not None:
        found = Load(best, tuple(a.index() for a in nest.axes))
        nowhere = Const(torch.iinfo(torch.int64).max, torch.int64)
        numbers = [op("where", _same(e, found), n, nowhere) for e, n in zip(*elements, strict=True)]
        yield replace(nest, out=(number,), root=Pointwise(reduce(partial(op, "minimum"), numbers)))


def _same(a: Expr, b: Expr) -> Op:
    """Equal, or both NaN."""
    equal, nans = op("eq", a, b), op("logical_and", op("isnan", a), op("isnan", b))
    return op("logical_or", equal, nans) if a.dtype.is_floating_point else equal
