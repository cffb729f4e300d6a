"""The option `cuda_graphs`: the launches of a call are recorded once and replayed as one.

A recording reads and writes the addresses that it was made with. Parameters stay where they are; other inputs
are copied into the recording's own memory before a replay, and outputs out of it after, so that what a call
returned stays as it is. The first call of each kind runs as usual, so that kernels are loaded and tuned.

What forward saves for backward is not copied: it stays in forward's recording, where backward's recording finds it.
While somebody holds what an earlier call saved, as two forwards before a backward do, calls run as usual."""

import threading
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
    draws = torch.Tag.nondeterministic_seeded  # may be recorded: torch's generator goes on at each replay
    waits = any(extern.effects and draws not in getattr(operator(extern.op), "tags", ()) for extern in externs)
    if numbers or others or waits or any(isinstance(value, Item) for value in named):
        return False
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    # the state of attention's generator, a number, lies on the GPU where calls are recorded
    apart = [isinstance(step, Call) and "_attention" in step.extern.op for step in plan.steps]
    pairs = [(a, v) for a, s in zip(apart, plan.steps, strict=True) for values in touched(s, kernels) for v in values]
    return {v.device.type for a, v in pairs if v.dtype.is_floating_point or not a} == {"cuda"}


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
    """`call` by recordings, one for each stream, shape of its inputs, and place of those that are not copied: layers
    that run the same code share a graph, each with its own parameters. A recording's memory serves one call after the
    other: what another thread calls meanwhile runs as usual."""
    seen: set[tuple[object, ...]] = set()
    recordings: dict[tuple[object, ...], _Recording] = {}
    failures: list[RuntimeError] = []
    lock = threading.Lock()

    def recording(args: list[Any]) -> _Recording | None:
        inputs = [_kind(arg, in_place=k < roles.kept or k in roles.static) for k, arg in enumerate(args)]
        kind = (torch.cuda.current_stream(), *inputs)
        found = recordings.get(kind)
        if found is None and kind in seen and len(recordings) < MOST_RECORDINGS:
            try:
                found = recordings[kind] = _recorded(call, args, roles, record)
            except RuntimeError as error:  # an operator waits for the GPU
                failures.append(error)
                warnings.warn(f"calls cannot be recorded as a CUDA graph, and run as usual: {error}", stacklevel=1)
        elif len(seen) < MOST_SEEN:
            seen.add(kind)
        return found if found is not None and found.is_idle() else None

    def run(args: list[Any]) -> Sequence[Any]:
        several = len({arg.device for arg in args if isinstance(arg, torch.Tensor)}) > 1
        if failures or several or torch.cuda.is_current_stream_capturing() or not lock.acquire(blocking=False):
            return call(args)
        try:
            found = recording(args)
            return call(args) if found is None else found.run(args)
        finally:
            lock.release()

    return run


def _recorded(call: BoxedCallable, args: Sequence[Any], roles: Roles, record: Record) -> _Recording:
    tensors = [(k, arg) for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    moving = {k: arg for k, arg in tensors if k not in roles.static and k >= roles.kept}
    own = dict(zip(moving, _copies([*moving.values()]), strict=True))
    given = [own.get(k, arg) for k, arg in enumerate(args)]  # at once, as the caller's list is emptied
    replay, outputs = record(lambda: call(list(given)))
    shown = len(outputs) - roles.saved
    inputs = {arg.untyped_storage().data_ptr() for _, arg in tensors}
    saved = (out.untyped_storage() for out in outputs[shown:] if isinstance(out, torch.Tensor))  # lists would hold them
    counts = [storage_holders(storage) for storage in saved if storage.data_ptr() not in inputs]
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
