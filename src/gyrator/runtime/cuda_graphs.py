"""The option `cuda_graphs`: the launches of a call are recorded once and replayed as one.

A recording reads and writes the addresses that it was made with. Parameters stay where they are; other inputs
are copied into the recording's own memory before a replay, and outputs out of it after, so that what a call
returned stays as it is. The first call of each kind runs as usual, so that kernels are loaded and tuned.

What forward saves for backward is not copied: it stays in forward's recording, where backward's recording finds it.
While somebody holds what an earlier call saved, as two forwards before a backward do, calls run as usual."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gyrator.autograd.interface import BoxedCallable, GraphInfo
from gyrator.ir.evaluate import copy_into, unrepeated
from gyrator.ir.program import Item, arguments
from gyrator.runtime.externs import operator
from gyrator.schedule.plan import Call, Plan, touched
from gyrator.torch_compat import copy_all, storage_holders

Record = Callable[[Callable[[], Sequence[Any]]], "tuple[Callable[[], object], Sequence[Any]]"]
"""Runs a function while its launches are recorded; gives what replays them, and the function's results."""

MOST_RECORDINGS, MOST_SEEN = 64, 1024
"""Of one graph, and kinds of calls that are remembered; further ones run as usual."""


def recordable(plan: Plan, info: GraphInfo) -> bool:
    """Whether calls can be recorded: all on the GPU, no number read, no input but parameters and buffers written."""
    externs = [step.extern for step in plan.steps if isinstance(step, Call)]
    named = [*plan.outputs, *(arg for extern in externs for arg in arguments(extern))]
    numbers = any(g.number for g in plan.inputs) or any(e.scalars for e in externs)
    others = {update.input for update in info.updates}.difference(info.static_inputs)
    if numbers or others or any(isinstance(value, Item) for value in named):
        return False
    draws = torch.Tag.nondeterministic_seeded  # may be recorded: torch's generator goes on at each replay
    if any(extern.effects and draws not in getattr(operator(extern.op), "tags", ()) for extern in externs):
        return False
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    pairs = [(step, value) for step in plan.steps for values in touched(step, kernels) for value in values]
    # the state of attention's generator, a number, lies on the GPU where calls are recorded
    used = [
        v for s, v in pairs if v.dtype.is_floating_point or not (isinstance(s, Call) and "_attention" in s.extern.op)
    ]
    return bool(used) and all(value.device.type == "cuda" for value in used)


@dataclass(frozen=True, slots=True)
class Roles:
    """What a graph's inputs and outputs are to its recordings: inputs that stay in place (``static``), how many inputs
    at the start lie in forward's recording (``kept``), how many outputs at the end stay in this one (``saved``)."""

    static: frozenset[int]
    kept: int = 0
    saved: int = 0


@dataclass(frozen=True, slots=True)
class _Recording:
    """One kind of call: its own inputs, by position, what replays it, the outputs it writes, and of those that it does
    not give away how many hold their memory, by the number of holders while nobody else does."""

    inputs: tuple[tuple[int, torch.Tensor], ...]
    replay: Callable[[], object]
    outputs: Sequence[Any]
    saved: Sequence[Any]
    holders: tuple[tuple[Callable[[], int], int], ...]

    def is_idle(self) -> bool:
        """Whether nobody needs what the last replay saved."""
        return all(count() == alone for count, alone in self.holders)

    def run(self, args: list[Any]) -> list[Any]:
        for at, own in self.inputs:
            copy_into(own, args[at])
        args.clear()
        self.replay()
        return _copies(self.outputs) + [out.detach() if isinstance(out, torch.Tensor) else out for out in self.saved]


def replayed(call: BoxedCallable, roles: Roles, record: Record) -> BoxedCallable:
    """`call` by recordings, one for each shape of its inputs, and for each place of those that are not copied: layers
    that run the same code share a graph, each with its own parameters."""
    seen: set[tuple[object, ...]] = set()
    recordings: dict[tuple[object, ...], _Recording] = {}
    failures: list[RuntimeError] = []

    def run(args: list[Any]) -> Sequence[Any]:
        if failures or len({arg.device for arg in args if isinstance(arg, torch.Tensor)}) > 1:
            return call(args)
        kind = tuple([_kind(arg, in_place=k < roles.kept or k in roles.static) for k, arg in enumerate(args)])
        found = recordings.get(kind)
        if torch.cuda.is_current_stream_capturing() or (found is not None and not found.is_idle()):
            return call(args)
        if found is not None:
            return found.run(args)
        if kind not in seen or len(recordings) >= MOST_RECORDINGS:
            if len(seen) < MOST_SEEN:
                seen.add(kind)
            return call(args)
        try:
            made = recordings[kind] = _recorded(call, args, roles, record)
        except RuntimeError as error:  # an operator waits for the GPU
            failures.append(error)
            warnings.warn(f"calls cannot be recorded as a CUDA graph, and run as usual: {error}", stacklevel=1)
            return call(args)
        return made.run(args)

    return run


def _recorded(call: BoxedCallable, args: Sequence[Any], roles: Roles, record: Record) -> _Recording:
    tensors = [(k, arg) for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    moving = {k: arg for k, arg in tensors if k not in roles.static and k >= roles.kept}
    own = dict(zip(moving, _copies([*moving.values()]), strict=True))
    given = [own.get(k, arg) for k, arg in enumerate(args)]
    replay, outputs = record(lambda: call(list(given)))
    shown = len(outputs) - roles.saved
    inputs = {arg.untyped_storage().data_ptr() for _, arg in tensors}
    saved = [out.untyped_storage() for out in outputs[shown:] if isinstance(out, torch.Tensor)]
    counts = [storage_holders(storage) for storage in saved if storage.data_ptr() not in inputs]
    del saved  # it would count as a holder
    holders = tuple((count, count()) for count in counts)
    return _Recording(tuple(own.items()), replay, outputs[:shown], outputs[shown:], holders)


def _kind(arg: object, *, in_place: bool) -> object:
    if isinstance(arg, torch.Tensor):
        return (arg.shape, arg.stride(), arg.data_ptr() if in_place else arg.data_ptr() % 16 == 0)
    return arg


def _copies(values: Sequence[Any]) -> list[Any]:
    """The values with copies of tensors, all of a type in one launch: gradients are many."""
    old = {k: value for k, value in enumerate(values) if isinstance(value, torch.Tensor)}
    new = {k: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for k, t in old.items()}
    for dtype in {t.dtype for t in old.values()}:
        same = [k for k, t in old.items() if t.dtype == dtype]
        copy_all([unrepeated(new[k]) for k in same], [unrepeated(old[k]) for k in same])
    return [new.get(k, value) for k, value in enumerate(values)]


def record_on_gpu(function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], object], Sequence[Any]]:
    """Record what `function` launches as a CUDA graph, with memory of its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function()
    return graph.replay, outputs
