"""What a traced program returns: which of its outputs are inputs, views of inputs, views of each other, or new.

An output that shares memory with an input or with another output is not returned by the compiled graph: the
shell rebuilds it by repeating its views on the tensor that owns the memory, outside the graph, so that
autograd and later in-place writes see the same aliasing as in eager.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from gyrator.autograd.builder import mapped
from gyrator.autograd.functionalize import Alias
from gyrator.autograd.interface import Update
from gyrator.autograd.recorder import Recorder
from gyrator.autograd.symbols import SYMBOLIC_TYPES
from gyrator.autograd.views import View

aten = torch.ops.aten


@dataclass(frozen=True)
class Number:
    """A symbolic number among a view's arguments: result `result` of the graph."""

    result: int


@dataclass(frozen=True)
class ReplayedView:
    """A view to repeat; symbolic arguments are `Number`s. `tracks_grad` is False for one made under no_grad."""

    view: View
    tracks_grad: bool


@dataclass(frozen=True)
class FromGraph:
    """The output is result `result` of the compiled graph, through `views`."""

    result: int
    views: tuple[ReplayedView, ...] = ()


@dataclass(frozen=True)
class FromInput:
    """The output is input `input` itself or, through `views`, a view of it, after all updates."""

    input: int
    views: tuple[ReplayedView, ...] = ()


@dataclass(frozen=True)
class Literal:
    """The output is a constant."""

    value: Any


Source: TypeAlias = FromGraph | FromInput | Literal


@dataclass(frozen=True)
class MetadataChange:
    """An in-place view of an input, to be repeated on the caller's tensor: `t_`, `squeeze_`, …"""

    input: int
    op: Any
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    """A result of the forward half as it was traced: its node, the tensor that autograd knows (None for what it does
    not see), and whether the user sees its strides.
    """

    node: Node
    tensor: Tensor | None = None
    exact: bool = False


@dataclass(frozen=True)
class Forward:
    """How the program's outputs come from the results of the forward half.

    Attributes:
        updates: inputs to overwrite, in order.
        changes: inputs whose metadata changes, in order.
        sources: for each flat output of the program where it comes from.
        structure: how flat outputs are arranged.
        offsets: inputs whose storage offset the graphs rely on, with that offset.
    """

    updates: tuple[Update, ...]
    changes: tuple[MetadataChange, ...]
    sources: tuple[Source, ...]
    structure: pytree.TreeSpec
    offsets: tuple[tuple[int, int], ...] = ()


def generations(recorder: Recorder, inputs: Sequence[Any]) -> list[int]:
    """How often each input's memory was written so far."""
    return [recorder.alias_of(value).root.generation if isinstance(value, Tensor) else 0 for value in inputs]


def pinned_offsets(recorder: Recorder, inputs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """`Forward.offsets` of a program that ran on these inputs; a symbolic offset becomes a guarded number."""
    return tuple(
        (position, int(value.storage_offset()))
        for position, value in enumerate(inputs)
        if isinstance(value, Tensor) and recorder.alias_of(value).root.pinned
    )


class _Results:
    """Results collected so far, each tensor once."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.found: list[Result] = []
        self._positions: dict[int, int] = {}

    def tensor(self, tensor: Tensor, exact: bool) -> int:
        """The position of a tensor's present value."""
        position = self._positions.get(id(tensor))
        if position is None:
            position = self._positions[id(tensor)] = len(self.found)
            self.found.append(Result(self.recorder.node_of(tensor), tensor, exact))
        return position

    def value(self, node: Node) -> int:
        """The position of a value that autograd does not see."""
        self.found.append(Result(node))
        return len(self.found) - 1

    def number(self, value: Any) -> Any:
        """A symbolic number as a `Number`; anything else unchanged."""
        node = self.recorder.node_of(value) if isinstance(value, SYMBOLIC_TYPES) else value
        return Number(self.value(node)) if isinstance(node, Node) else node


def describe_outputs(
    recorder: Recorder, inputs: Sequence[Any], grad_fns: Sequence[Any], outputs: Any
) -> tuple[Forward, tuple[Result, ...]]:
    """Describes what a traced program did to its inputs and returned; the results that its graph must give for that.

    Args:
        inputs: the tensors that it ran on.
        grad_fns: their autograd nodes before the run.
        outputs: what it returned.
    """
    results = _Results(recorder)
    updates = tuple(_updates(recorder, inputs, grad_fns, results))
    flat, structure = pytree.tree_flatten(outputs)
    kinds = (Tensor, *SYMBOLIC_TYPES)
    positions = {id(value): position for position, value in enumerate(inputs) if isinstance(value, kinds)}
    shared = _shared_roots(recorder, flat)
    sources = tuple(_source(recorder, value, positions, shared, results) for value in flat)
    changes = tuple(
        MetadataChange(positions[id(tensor)], op, mapped(args, results.number))
        for tensor, op, args in recorder.metadata_changes
        if id(tensor) in positions
    )
    return Forward(updates, changes, sources, structure), tuple(results.found)


def _updates(recorder: Recorder, inputs: Sequence[Any], grad_fns: Sequence[Any], results: _Results) -> list[Update]:
    updates = []
    for position, value in enumerate(inputs):
        if not isinstance(value, Tensor):
            continue
        root = recorder.alias_of(value).root
        if root.generation == 0 or root.input != position:
            continue
        tracked = value.requires_grad and value.grad_fn is not grad_fns[position]
        result = results.tensor(value, False) if tracked else results.value(root.node)
        updates.append(Update(position, result, tracked))
    for position, (root, _) in enumerate(recorder.constants):
        if root.generation and root.input is not None:
            updates.append(Update(len(inputs) + position, results.value(root.node), False))
    return updates


_Shared: TypeAlias = "dict[int, tuple[Tensor, Alias | None]]"


def _shared_roots(recorder: Recorder, flat: Sequence[Any]) -> _Shared:
    """Roots that several different outputs view: the tensor to start from, and its alias if that is not the root.

    ``y = zeros_like(x); y.mul_(x); return y[0], y[1]``: autograd knows y as a detached root, which the write made
    differentiable, while the root is not. Then y is where to start from.
    """
    views: dict[int, dict[int, Alias]] = {}
    for value in flat:
        if isinstance(value, Tensor):
            alias = recorder.alias_of(value)
            views.setdefault(id(alias.root), {})[id(value)] = alias
    return {root: _start(recorder, [*of.values()]) for root, of in views.items() if len(of) > 1}


def _start(recorder: Recorder, aliases: Sequence[Alias]) -> tuple[Tensor, Alias | None]:
    """The root that ``aliases`` view, or a detached one: one that is differentiable, or any if the root alone is (of
    ``y = x.exp().detach(); y.zero_()`` backward cannot pass the root, which was overwritten behind its back)."""
    links = [_first_view(alias) for alias in aliases]
    detached = [link for link in links if link.view is not None and link.view.op is aten.detach.default]
    for link in detached:
        if recorder.tensor_of(link).requires_grad:
            return recorder.tensor_of(link), link
    root = aliases[0].root.tensor
    if detached and root.requires_grad and not any(recorder.tensor_of(alias).requires_grad for alias in aliases):
        return recorder.tensor_of(detached[0]), detached[0]
    return root, None


def _first_view(alias: Alias) -> Alias:
    """The first of the views that lead from the root to ``alias``."""
    while alias.parent is not None and alias.parent.parent is not None:
        alias = alias.parent
    return alias


def _source(recorder: Recorder, value: Any, positions: dict[int, int], shared: _Shared, results: _Results) -> Source:
    if id(value) in positions:
        return FromInput(positions[id(value)])
    if isinstance(value, SYMBOLIC_TYPES):
        number = results.number(value)
        return FromGraph(number.result) if isinstance(number, Number) else Literal(number)
    if not isinstance(value, Tensor):
        return Literal(value)
    alias = recorder.alias_of(value)
    if alias.root.input is not None:
        return FromInput(alias.root.input, _chain(alias, results))
    if id(alias.root) in shared:
        start, detached = shared[id(alias.root)]
        base, chain = results.tensor(start, True), _chain(alias, results, detached)
        if detached is not None and not _follows(alias, detached):
            chain = (ReplayedView(View(aten.detach.default, (), {}), True), *chain)
        return FromGraph(base, chain)
    return FromGraph(results.tensor(value, True))


def _follows(alias: Alias | None, start: Alias) -> bool:
    return alias is start or (alias is not None and _follows(alias.parent, start))


def _chain(alias: Alias, results: _Results, start: Alias | None = None) -> tuple[ReplayedView, ...]:
    """The views that lead from `start`, or else the root, to `alias`."""
    views: list[ReplayedView] = []
    link: Alias | None = alias
    while link is not None and link is not start and link.view is not None:
        view = link.view
        args, kwargs = mapped((view.args, dict(view.kwargs)), results.number)
        views.append(ReplayedView(View(view.op, args, kwargs, view.index), link.tracks_grad))
        link = link.parent
    return tuple(reversed(views))
