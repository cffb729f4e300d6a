"""The reference interpreter for loop trees: the definition of what a kernel means.

``PARALLEL`` and ``LANES`` loops become dimensions of torch tensors, ``SERIAL`` loops run one iteration at a
time. A loop around an update whose running result is read has an order and runs serially, whatever its kind;
so does a loop on which the extent of an inner one depends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from gyrator.ir.evaluate import Evaluator, IntOrTensor, State, combine_into, equal, reduce_dims, start
from gyrator.ir.expr import Ref, Value
from gyrator.ir.index import Axis, Size, evaluate
from gyrator.ir.tree import Carry, Kernel, Let, Loop, LoopKind, Stage, Store, Update


def run_kernel(kernel: Kernel, buffers: Mapping[str, Tensor], sizes: Mapping[Size, int]) -> None:
    """Run ``kernel`` on ``buffers``: a tensor for each parameter's name; written ones are written in place.

    Meant for small sizes: an iteration of a serial loop costs some 20 µs per stage.

    Raises: IndexOutOfRange where a ``Checked`` index is out of range; OutOfRange where the kernel itself is wrong.
    """
    params = {p.value: _seen(buffers[p.value.name], p.value, sizes) for p in kernel.params}
    rank = max((_vector_depth(item) for item in kernel.body), default=0)
    machine = _Machine(kernel, params, dict(sizes), [1] * rank, [1] * rank)
    machine.block(kernel.body)


@final
@dataclass(slots=True)
class _Running:
    """A carry during its loop: how many vectorised loops are around it, and its state so far."""

    carry: Carry
    depth: int
    state: State | None = None


@final
@dataclass(slots=True)
class _Machine:
    """``shape`` is the grid of the vectorised loops around the current stage, one dimension per nesting
    level; ``rows`` the same for parallel loops alone: the grid of private scratch rows.
    """

    kernel: Kernel
    params: Mapping[Value, Tensor]
    sizes: dict[Size, int]
    shape: list[int]
    rows: list[int]
    scratch: dict[Value, Tensor] = field(default_factory=dict)
    axes: dict[Axis, IntOrTensor] = field(default_factory=dict)
    refs: dict[str, Tensor] = field(default_factory=dict)
    carries: dict[str, _Running] = field(default_factory=dict)
    depth: int = 0

    def block(self, body: Iterable[Loop | Stage]) -> None:
        for item in body:
            match item:
                case Loop():
                    self.loop(item)
                case _ if 0 in self.shape:
                    pass  # no iteration comes here
                case Let(name, expr):
                    self.refs[name.name] = (
                        self.evaluator().value(expr).clone()
                    )  # what torch reads of one place is a view
                case Store():
                    self.store(item)
                case Update():
                    self.update(item)

    # -- loops ---------------------------------------------------------------------------------------------
    def loop(self, loop: Loop) -> None:
        for carry in loop.carries:
            self.carries[carry.name] = _Running(carry, self.depth)
        known: dict[Size | Axis, int] = {a: at for a, at in self.axes.items() if isinstance(at, int)}
        known.update(self.sizes.items())
        extent = evaluate(loop.axis.extent, known)
        if _vectorised(loop):
            with self.dimension(loop, extent):
                self.block(loop.body)
        else:
            for at in range(extent):
                self.axes[loop.axis] = at
                self.block(loop.body)
        self.axes.pop(loop.axis, None)
        for carry in loop.carries:
            self.finish(self.carries.pop(carry.name))

    @contextmanager
    def dimension(self, loop: Loop, extent: int) -> Iterator[None]:
        """Inside, the loop's axis is the next dimension of the grid."""
        at = self.depth
        self.axes[loop.axis] = torch.arange(extent).reshape([extent if d == at else 1 for d in range(len(self.shape))])
        self.shape[at] = extent
        self.rows[at] = extent if loop.kind is LoopKind.PARALLEL else 1
        self.depth += 1
        yield
        self.depth -= 1
        self.shape[at] = self.rows[at] = 1

    def finish(self, running: _Running) -> None:
        carry, state = running.carry, running.state
        if state is None:  # no iteration came
            first = carry.results[0]
            state = start(carry.kind, torch.float32 if first is None else first.dtype)
        self.name(carry.results, state)

    def name(self, refs: tuple[Ref | None, ...], state: State) -> None:
        for ref, tensor in zip(refs, state, strict=True):
            if ref is not None:
                self.refs[ref.name] = tensor

    # -- stages --------------------------------------------------------------------------------------------
    def evaluator(self) -> Evaluator:
        row = tuple(self.along(d, extent) for d, extent in enumerate(self.rows))
        return Evaluator(self.fetch, self.sizes, self.axes, self.refs, row)

    def along(self, dimension: int, extent: int) -> Tensor:
        """``0 … extent-1`` along a dimension of the grid."""
        return torch.arange(extent).reshape([extent if d == dimension else 1 for d in range(len(self.shape))])

    def fetch(self, value: Value) -> Tensor:
        if value in self.params:
            return self.params[value]
        tensor = self.scratch[value]
        return tensor.expand(*self.rows, *tensor.shape[len(self.rows) :])

    def update(self, update: Update) -> None:
        running = self.carries[update.carry]
        evaluator = self.evaluator()
        args = tuple(evaluator.value(a).broadcast_to(self.shape) for a in update.args)
        found = reduce_dims(running.carry.kind, args, running.depth)
        state = tuple(r.reshape([*r.shape, *[1] * (len(self.shape) - running.depth)]) for r in found)
        if running.state is not None:
            state = merge(running.carry.kind, running.state, state, last_wins=bool(update.running))
        running.state = state
        if update.running:
            self.name(update.running, state)

    def store(self, store: Store) -> None:
        evaluator = self.evaluator()
        coords = evaluator.coordinates(store.index, store.value)
        source = evaluator.value(store.expr).broadcast_to(self.shape).clone()  # it may be read from the target
        target = self.target(store.value)
        if target.dim() > len(coords):
            coords = (*evaluator.row, *coords)
        linear = torch.zeros(self.shape, dtype=torch.int64)
        for coordinate, stride in zip(coords, target.stride(), strict=True):
            linear = linear + coordinate * stride
        if linear.numel():
            combine_into(_flat(target), linear.reshape(-1), source.reshape(-1), store.combine)

    def target(self, value: Value) -> Tensor:
        """The tensor to write ``value`` into; scratch gets a row per iteration of the parallel loops."""
        if value in self.params:
            return self.params[value]
        shape = [*self.rows, *(evaluate(s, self.sizes) for s in value.shape)]
        known = self.scratch.get(value)
        if known is None:
            known = _poisoned(shape, value.dtype)
        elif list(known.shape) != shape:
            fits = all(a in (1, b) for a, b in zip(known.shape, shape, strict=True))
            known = known.expand(shape).clone() if fits else _poisoned(shape, value.dtype)
        self.scratch[value] = known
        return known


def _seen(tensor: Tensor, value: Value, sizes: Mapping[Size, int]) -> Tensor:
    """The memory of ``tensor`` with the shape and strides that the kernel knows it by.

    A kernel may know memory as a vector from the first element to the last, ``1 + (n-1)*s`` long.
    """
    shape, strides = ([max(0, evaluate(i, sizes)) for i in part] for part in (value.shape, value.strides))
    return tensor.as_strided(shape, strides) if tensor.numel() else tensor.new_empty(shape)


def _flat(tensor: Tensor) -> Tensor:
    """The memory of ``tensor`` as a vector, from its first element to its last."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def _poisoned(shape: list[int], dtype: torch.dtype) -> Tensor:
    """A fresh scratch tensor whose elements show when they are read before they are written."""
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    return torch.full(shape, torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max, dtype=dtype)


def _vectorised(loop: Loop) -> bool:
    ordered = loop.kind is LoopKind.SERIAL or bool(_ordered_carries(loop.body))
    return not ordered and not any(_ragged(item, loop.axis) for item in loop.body)


def _ragged(item: Loop | Stage, axis: Axis) -> bool:
    """Whether a loop within ``item`` has an extent that depends on ``axis``."""
    if not isinstance(item, Loop):
        return False
    return axis in item.axis.extent.axes() or any(_ragged(i, axis) for i in item.body)


def _ordered_carries(body: Iterable[Loop | Stage]) -> set[str]:
    """The carries from outside of ``body`` whose running results are read in it."""
    found: set[str] = set()
    for item in body:
        if isinstance(item, Loop):
            found |= _ordered_carries(item.body) - {c.name for c in item.carries}
        elif isinstance(item, Update) and any(r is not None for r in item.running):
            found.add(item.carry)
    return found


def _vector_depth(item: Loop | Stage) -> int:
    """How many vectorised loops are nested in ``item``."""
    if not isinstance(item, Loop):
        return 0
    inner = max((_vector_depth(i) for i in item.body), default=0)
    return inner + _vectorised(item)


# -- the states of two sets of elements as that of both -----------------------------------------------------
def merge(kind: str, a: State, b: State, *, last_wins: bool = False) -> State:
    """The state of ``a``'s elements followed by ``b``'s. Shapes broadcast.

    Of equal extremes the first keeps its index, or with ``last_wins`` the last: indices are not compared.
    """
    if kind == "welford":
        return _merge_welford(a, b)
    if kind == "softmax":
        return _merge_softmax(a, b)
    pairs = [torch.stack(torch.broadcast_tensors(x, y), -1) for x, y in zip(a, b, strict=True)]
    merged = reduce_dims(kind, tuple(pairs), pairs[0].dim() - 1)
    if len(a) == 1:
        return merged
    first = equal(merged[0], a[0])
    if last_wins:
        first = first & ~equal(merged[0], b[0])
    return merged[0], torch.where(first, a[1], b[1])


def _merge_welford(a: State, b: State) -> State:
    (mean_a, m2_a, n_a), (mean_b, m2_b, n_b) = ([t.double() for t in s] for s in (a, b))
    count = n_a + n_b
    share = torch.where(count > 0, n_b / count.clamp(min=1), 0.0)
    delta = mean_b - mean_a
    mean = mean_a + delta * share
    deviations = m2_a + m2_b + delta * delta * n_a * share
    return tuple(t.to(a[0].dtype) for t in (mean, deviations, count))


def _merge_softmax(a: State, b: State) -> State:
    """A part of only -inf adds nothing to one with a finite maximum."""
    top = torch.maximum(a[0], b[0])
    parts = [torch.where((m == -math.inf) & (top != -math.inf), 0.0, s * torch.exp(m - top)) for m, s in (a, b)]
    return top, (parts[0] + parts[1]).to(top.dtype)
