"""What a traced program returns: which of its outputs are inputs, views of inputs, views of each other, or new. An
output that shares memory with an input or another output is not returned by the compiled graph: the shell repeats its
views on the tensor that owns the memory, so that autograd and later in-place writes see eager's aliasing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.fx import Node
from torch.utils import _pytree as pytree

from gyrator.autograd.builder import mapped
from gyrator.autograd.functionalize import Alias
from gyrator.autograd.interface import Update
from gyrator.autograd.recorder import MOVES, Recorder
from gyrator.autograd.symbols import SYMBOLIC_TYPES
from gyrator.autograd.views import ViewCall
from gyrator.errors import UnsupportedOperator

aten = torch.ops.aten
DETACH = ViewCall(aten.detach.default, (), {})


@dataclass(frozen=True)
class FromGraph:
    """Result `result` of the compiled graph, through `views`: an output, or a number among a view's arguments."""

    result: int
    views: tuple[ViewCall, ...] = ()


@dataclass(frozen=True)
class FromInput:
    """The output is input `input` itself or, through `views`, a view of it, after all updates."""

    input: int
    views: tuple[ViewCall, ...] = ()


Source = FromGraph | FromInput | object
"""Where an output comes from; anything else is a constant that is returned as it is."""


@dataclass(frozen=True)
class Result:
    """A result of the forward half as it was traced: its node, the tensor that autograd knows (None for what it does
    not see), and whether the user sees its strides."""

    node: Node
    tensor: Tensor | None = None
    exact: bool = False


@dataclass(frozen=True)
class Program:
    """A traced program besides its graphs: how its outputs come from the results of the forward half.

    Attributes:
        inputs: number of inputs.
        updates: inputs to overwrite, in order.
        changes: inputs that become views of themselves in place (`t_`, `squeeze_`, …), in order.
        sources: for each flat output of the program where it comes from.
        structure: how flat outputs are arranged.
        offsets: inputs whose storage offset the graphs rely on, with that offset.
        moves: inputs that take the memory of another tensor (`x.data = y`), after all else, and where that comes from.
        grad_mode: whether the program leaves autograd on.
        constants: further inputs that the program holds.
        autocast: whether autocast was on, so that it must be off inside.
        written: inputs that backward overwrites."""

    inputs: int
    updates: tuple[Update, ...]
    changes: tuple[tuple[int, ViewCall], ...]
    sources: tuple[Source, ...]
    structure: pytree.TreeSpec
    offsets: tuple[tuple[int, int], ...] = ()
    moves: tuple[tuple[int, Source], ...] = ()
    grad_mode: bool = True
    constants: tuple[Tensor, ...] = ()
    autocast: bool = False
    written: tuple[int, ...] = ()


class _Results:
    """The results collected so far, each tensor once. Mutable, and private to one call of `describe_outputs`."""

    def __init__(self, recorder: Recorder, inputs: Sequence[Any]) -> None:
        self.recorder = recorder
        self.inputs = {id(value): k for k, value in enumerate(inputs) if isinstance(value, (Tensor, *SYMBOLIC_TYPES))}
        self.found: list[Result] = []
        self._positions: dict[int, int] = {}

    def tensor(self, tensor: Tensor, exact: bool) -> int:
        """The position of a tensor's present value."""
        if id(tensor) not in self._positions:
            self._positions[id(tensor)] = len(self.found)
            self.found.append(Result(self.recorder.node_of(tensor), tensor, exact))
        return self._positions[id(tensor)]

    def value(self, node: Node, exact: bool = False) -> int:
        """The position of a value that autograd does not see."""
        self.found.append(Result(node, node.meta["val"] if exact else None, exact))
        return len(self.found) - 1

    def number(self, value: Any) -> Any:
        """A symbolic number as a result; anything else unchanged."""
        node = self.recorder.node_of(value) if isinstance(value, SYMBOLIC_TYPES) else value
        return FromGraph(self.value(node)) if isinstance(node, Node) else node

    def replayed(self, view: ViewCall) -> ViewCall:
        """A view whose symbolic arguments are results."""
        args, kwargs = mapped((view.args, dict(view.kwargs)), self.number)
        return replace(view, args=args, kwargs=kwargs)

    def updates(self, inputs: Sequence[Any], before: Sequence[tuple[Any, int]]) -> Iterator[Update]:
        """The new values of inputs and constants that were written."""
        for at, (value, (grad_fn, version)) in enumerate(zip(inputs, before, strict=True)):
            root = self.recorder.alias_of(value).root if isinstance(value, Tensor) else None
            if root is not None and root.generation and root.input == at:
                tracked, counted = value.requires_grad and value.grad_fn is not grad_fn, value._version != version
                yield Update(at, self.tensor(value, False) if tracked else self.value(root.node), tracked, counted)
        for position, (root, _) in enumerate(self.recorder.constants, len(inputs)):
            if root.generation and root.input is not None:
                yield Update(position, self.value(root.node))

    def bases(self, flat: Sequence[Any]) -> dict[int, tuple[int, Alias | None]]:
        """For each root, not of an input, that several outputs view: the result to start from; its alias if detached.

        ``y = zeros_like(x); y.mul_(x); return y[0], y[1]``: autograd knows y as a detached root, which the write made
        differentiable, while the root is not. Then y is where to start from, as it is where nothing has gradients;
        where no output has the gradients of either, the root's value is, which has none."""
        views: dict[int, dict[int, Tensor]] = {}
        for value in flat:
            if isinstance(value, Tensor) and (root := self.recorder.alias_of(value).root).input is None:
                views.setdefault(id(root), {})[id(value)] = value
        return {root: self._base([*of.values()]) for root, of in views.items() if len(of) > 1}

    def _base(self, values: Sequence[Tensor]) -> tuple[int, Alias | None]:
        tracked = [value for value in values if value.requires_grad]
        owners = [self._owner(self.recorder.alias_of(value)) for value in tracked or values]
        root = next((owner for owner in owners if owner.parent is None), None)
        if root is not None and tracked:
            return self.tensor(self._tensor_of(root), True), None
        detached = (owner for owner in owners if owner.parent and owner.parent.parent is None and owner.view == DETACH)
        if root is None and (owner := next(detached, None)) is not None:
            return self.tensor(self._tensor_of(owner), True), owner
        return self.value(self.recorder.alias_of(values[0]).root.node, True), None

    def _owner(self, alias: Alias) -> Alias:
        """The alias of whose gradients this one has its own: the root, or the last detached, hooked or by a Function.

        A detached tensor shares memory but not history: a write of what requires grad makes it and its views
        differentiable, whereas the gradients of what it was detached from do not see the write."""
        grad = torch.is_grad_enabled()  # else `grad_fn` may raise: of views of what a write has changed
        while alias.parent is not None and alias.view not in (None, DETACH):
            tensors = self.recorder.tensors_of(alias)
            if grad and any(isinstance(x.grad_fn, BackwardCFunction) or x._backward_hooks for x in tensors):
                return alias
            alias = alias.parent
        return alias

    def _tensor_of(self, alias: Alias) -> Tensor:
        """The tensor that has this alias, or where it took another shape in place its view of the first one."""
        if found := self.recorder.tensors_of(alias):
            return found[0]
        shape, changed = alias.node.meta["val"], [tensor for tensor, _ in self.recorder.metadata_changes]
        reshaped = next(x for x in changed if self._owner(self.recorder.alias_of(x)) is alias)
        with self.recorder:
            return reshaped.as_strided(shape.shape, shape.stride(), shape.storage_offset())

    def source(self, value: Any, bases: Mapping[int, tuple[int, Alias | None]]) -> Source:
        if id(value) in self.inputs:
            return FromInput(self.inputs[id(value)])
        if not isinstance(value, Tensor):
            return self.number(value)
        alias = self.recorder.alias_of(value)
        owner = self._owner(alias)
        if value.requires_grad and owner.parent and 0 in self._tensor_of(owner).stride():
            return FromGraph(self.tensor(value, True))  # its elements share memory: nothing can be written to it
        if alias.root.input is not None:
            return FromInput(alias.root.input, self._chain(value, None))
        if id(alias.root) in bases:
            base, start = bases[id(alias.root)]
            return FromGraph(base, self._chain(value, start))
        return FromGraph(self.tensor(value, True))

    def _chain(self, value: Tensor, start: Alias | None) -> tuple[ViewCall, ...]:
        """The views that lead from `start`, a detached root, or else from the root to `value`.

        A detached tensor among them that a write made differentiable, or a Function's view, gets its gradients as in
        eager: its value, a result, is written to it. For ``v = y.detach(); v.mul_(x)`` that is ``v.copy_(result)``."""
        views: list[ViewCall] = []
        link = self.recorder.alias_of(value)
        tied = self._owner(link) if value.requires_grad else None
        while link.parent is not None and link is not start and link.view is not None:
            if link is tied:
                written = FromGraph(self.tensor(self._tensor_of(link), False))
                views += [ViewCall(aten.copy_.default, (written,), {}), DETACH]
            views.append(self.replayed(link.view))
            link = link.parent
        if start is not None and link is not start:
            views.append(DETACH)
        return tuple(reversed(views))


def describe_outputs(
    recorder: Recorder, inputs: Sequence[Any], before: Sequence[tuple[Any, int]], outputs: Any
) -> tuple[Program, tuple[Result, ...]]:
    """Describes what a traced program did to the inputs that it ran on, which had these autograd nodes and versions
    before, and what it returned; the results that its graph must give for that.

    Raises: UnsupportedOperator for an input that took other memory, where its own was written to."""
    results = _Results(recorder, inputs)
    updates = tuple(results.updates(inputs, before))
    flat, structure = pytree.tree_flatten(outputs)
    at = results.inputs
    taken = {at[target]: source for target, (source, _) in recorder.moves.items() if target in at}
    for _, own in recorder.moves.values():  # written, and out of its input's reach; or a tensor of the program's own
        if own.input is not None and (own.input >= len(inputs) or (own.generation and own.input in taken)):
            raise UnsupportedOperator(str(aten.set_.source_Tensor), MOVES, for_eager=True)
    bases = results.bases([*flat, *taken.values()])
    sources = tuple(results.source(value, bases) for value in flat)
    moves = tuple((k, results.source(value, bases)) for k, value in taken.items())
    changes = tuple((at[id(x)], results.replayed(view)) for x, view in recorder.metadata_changes if id(x) in at)
    return Program(len(inputs), updates, changes, sources, structure, moves=moves), tuple(results.found)
