"""The option `cuda_graphs`: the launches of a call are recorded once and replayed as one.

A recording reads and writes the addresses that it was made with. Parameters stay where they are; other inputs
are copied into the recording's own memory before a replay, and outputs out of it after, so that what a call
returned stays as it is. The first call of each kind runs as usual, so that kernels are loaded and tuned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from gyrator.autograd.interface import BoxedCallable, GraphInfo
from gyrator.ir.expr import Value
from gyrator.ir.program import Item, views
from gyrator.runtime.externs import copied
from gyrator.schedule.plan import Allocate, Call, Launch, Plan, Step

Record: TypeAlias = Callable[[Callable[[], Sequence[Any]]], "tuple[Callable[[], object], Sequence[Any]]"]
"""Runs a function while its launches are recorded; gives what replays them, and the function's results."""

MOST_RECORDINGS = 16
"""Of one graph; further kinds of calls run as usual."""


def recordable(plan: Plan, info: GraphInfo) -> bool:
    """Whether calls of a plan can be recorded: an inference graph whose work is all on the GPU, that reads no
    number back and writes into no input but parameters and buffers.

    What forward saves for backward would have to be copied out at each call, so training graphs run as usual.
    """
    if info.kind != "inference" or any(isinstance(output, Item) for output in plan.outputs):
        return False
    if not {update.input for update in info.updates} <= set(info.static_inputs):
        return False
    if any(given.number for given in plan.inputs):
        return False
    externs = [step.extern for step in plan.steps if isinstance(step, Call)]
    if any(e.scalars or e.effects or any(isinstance(a, Item) for a in e.args) for e in externs):
        return False
    values = [v for step in plan.steps for v in _values(step)]
    return bool(values) and all(value.device.type == "cuda" for value in values)


def _values(step: Step) -> Iterator[Value]:
    match step:
        case Allocate(value):
            yield value
        case Launch(_, args):
            yield from args
        case Call(extern):
            yield from (view.value for view in views(extern))
            yield from (value for value in extern.out if value is not None)
        case _:
            pass


@dataclass(frozen=True, slots=True)
class _Recording:
    """One kind of call: its own inputs, by position, what replays it, and the outputs it writes."""

    inputs: tuple[tuple[int, torch.Tensor], ...]
    addresses: tuple[tuple[int, int], ...]
    replay: Callable[[], object]
    outputs: Sequence[Any]

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether the parameters lie where they lay."""
        return all(args[at].data_ptr() == address for at, address in self.addresses)

    def run(self, args: list[Any]) -> list[Any]:
        for at, own in self.inputs:
            own.copy_(args[at])
        args.clear()
        self.replay()
        return [copied(out, out.stride()) if isinstance(out, torch.Tensor) else out for out in self.outputs]


def replayed(call: BoxedCallable, static: Sequence[int], record: Record) -> BoxedCallable:
    """`call` by recordings, one for each shape of its inputs; `static` are the inputs that stay in place."""
    places = frozenset(static)
    seen: set[tuple[object, ...]] = set()
    recordings: dict[tuple[object, ...], _Recording] = {}

    def run(args: list[Any]) -> Sequence[Any]:
        kind = tuple([_kind(arg) for k, arg in enumerate(args) if k not in places])
        found = recordings.get(kind)
        if found is not None and found.fits(args):
            return found.run(args)
        if torch.cuda.is_current_stream_capturing():
            return call(args)
        if kind not in seen or (found is None and len(recordings) >= MOST_RECORDINGS):
            seen.add(kind)
            return call(args)
        made = recordings[kind] = _recorded(call, args, places, record)
        return made.run(args)

    return run


def _recorded(call: BoxedCallable, args: Sequence[Any], static: frozenset[int], record: Record) -> _Recording:
    tensors = [(k, arg) for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    own = {k: copied(arg, arg.stride()) for k, arg in tensors if k not in static}
    given = [own.get(k, arg) for k, arg in enumerate(args)]
    replay, outputs = record(lambda: call(list(given)))
    addresses = tuple((k, arg.data_ptr()) for k, arg in tensors if k in static)
    return _Recording(tuple(own.items()), addresses, replay, outputs)


def _kind(arg: object) -> object:
    if isinstance(arg, torch.Tensor):
        return (arg.shape, arg.stride(), arg.data_ptr() % 16 == 0)
    return arg


def record_on_gpu(function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], object], Sequence[Any]]:
    """Record what `function` launches as a CUDA graph, with memory of its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function()
    return graph.replay, outputs
