"""Reductions over small windows, as in pooling: the window is written out, and a thread or a lane has one of its own.

As a row its few elements would fill a part of a warp or a vector, and neighbours in memory would lie in other rows."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce

import torch

from gyrator.ir.expr import Const, Expr, Load, Op, Value
from gyrator.ir.index import Atom, FloorDiv, Index, Mod, const, contiguous_strides, exact_quotient, product
from gyrator.ir.program import Nest, Pointwise, Program, Reduce, defines, loads, map_nests
from gyrator.ir.volume import iterations, volume
from gyrator.lowering.typed import op

MOST, MOST_ON_GPU, ROW, DIVISIONS = 32, 128, 8, 64
_STEPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "argmax": "maximum", "argmin": "minimum"}


def unroll_windows(program: Program) -> Program:
    """Write out reductions over windows that slide along a kept axis.

    Before: ``y = nest[i<N] reduce max over a<2  x[2*i + a]``;  after: ``y = nest[i<N] maximum(x[2*i], x[2*i + 1])``

    On a processor also for the position of the largest of any few elements. Refuses windows of more than 32 elements
    (on a GPU 128 where an element is in an eighth as many) or unknown size, or of which positions would take more than
    64 divisions, sums in 16 bits, and rows of more than 8 that lie one after another."""
    return map_nests(program, _unrolled)


def _fits(nest: Nest, root: Reduce) -> bool:
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
    row = not held or (elements > ROW and all(_is_row(load, nest, root) for load in read))
    if (large or row) and (nest.on_gpu or root.kind not in ("argmax", "argmin")):
        return False
    indices = {index for node in root.body[0].walk() for index in node.indices()}
    divisions = {atom for index in indices for atom in index.atoms() if isinstance(atom, FloorDiv | Mod)}
    return len(divisions) * elements <= DIVISIONS


def overlap(load: Load, nest: Nest, root: Reduce) -> float:
    """In how many windows that are moved along a kept axis an element of what a load reads is; 0 if none are."""
    inner, kept = set(root.reduced), set(nest.axes)
    slides = any(inner & i.axes() and kept & i.axes() for i in load.index)
    return iterations((*nest.axes, *root.reduced)) / max(volume(load.value.shape), 1) if slides else 0


def _is_row(load: Load, nest: Nest, root: Reduce) -> bool:
    """Whether the elements lie side by side in memory, and begin where those of another result end."""
    place, sizes = load.value.position(load.index), tuple(a.extent for a in root.reduced)
    beside = [place.coefficient(a) for a in root.reduced] == list(contiguous_strides(sizes))
    steps = map(place.coefficient, nest.axes)
    return beside and all(step is not None and exact_quotient(step, product(sizes)) is not None for step in steps)


def _unrolled(nest: Nest) -> Iterator[Nest]:
    """The result, and for argmax and argmin the lowest number of the elements that are the result."""
    root = nest.root
    if not isinstance(root, Reduce) or not _fits(nest, root):
        yield nest
        return
    along = [[const(k) for k in range(a.extent.value or 0)] for a in root.reduced]
    places = [dict[Atom, Index](zip(root.reduced, at, strict=True)) for at in itertools.product(*along)]
    elements = [[body.substitute(at) for at in places] for body in root.body]
    best = nest.out[0]
    if best is None:
        of, *_ = defines(nest)
        best = Value(f"{of.name}_best", of.shape, root.body[0].dtype, of.strides, of.device)
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
