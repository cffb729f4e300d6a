"""What `aot_compile` and the compilers it is given say to each other. A compiler turns one functional ATen graph into a
boxed callable: a function of one list, which it empties as it reads it, so that each input is freed as soon as its last
reader ran."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gyrator.ir.evaluate import copied, copy_into

GraphKind = Literal["inference", "forward", "backward"]
BoxedCallable = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Update:
    """Output `output` of the graph is the new value of its input `input`, to be written into that input's memory.

    The graph itself mutates nothing; every reader of the old value in it reads before the update. ``tracked``: autograd
    must see it, so that the caller does it; ``counted``: autograd counts it, unlike what is written to `x.data`."""

    input: int
    output: int
    tracked: bool = False
    counted: bool = True


@dataclass(frozen=True)
class GraphInfo:
    """What a compiler must know about a graph beyond its nodes.

    Attributes:
        kind: whether the graph is used without autograd, or as its forward or backward half.
        static_inputs: inputs whose memory is the same at every call (parameters and buffers).
        updates: inputs that get a new value.
        strides: for each output the strides in elements that it must have; None where they are free (updates,
            gradients, outputs that are not tensors).
        saved: how many outputs at the end are kept for the backward graph and seen by nobody else; of that graph, how
            many inputs at the start those are.
        frozen: whether parameters are constants of the graph, so that it serves this program alone."""

    kind: GraphKind
    static_inputs: tuple[int, ...] = ()
    updates: tuple[Update, ...] = ()
    strides: tuple[tuple[int | torch.SymInt, ...] | None, ...] = ()
    saved: int = 0
    frozen: bool = False


@dataclass(frozen=True)
class Compiled:
    """A compiled graph.

    Attributes:
        call: takes the list of inputs, empties it, and returns the outputs in the graph's order. It writes new values
            of `GraphInfo.updates` into the inputs' memory, after every read of the old, and may return None for them.
        key: what the cache finds the graph under; None if it is not there.
        wrapper: the file of its program; "" if it has none."""

    call: BoxedCallable
    key: str | None = None
    wrapper: str = ""


Pending = Callable[[], Compiled]
"""Waits for a graph that is being compiled."""
Compiler = Callable[[torch.fx.GraphModule, Sequence[object], GraphInfo], Compiled | Pending]
"""Compiles one functional graph, with which it does as it likes; its example inputs are fake tensors, sizes (int or
SymInt) and scalars. It may give what waits for the graph: backward is compiled while forward's kernels are built."""


def interpret(graph: torch.fx.GraphModule, example_inputs: Sequence[object], info: GraphInfo) -> Compiled:
    """The compiler that compiles nothing: it runs the graph op by op. For tests, and to find out who is to blame."""
    interpreter = torch.fx.Interpreter(graph)

    def call(args: list[Any]) -> Sequence[Any]:
        targets = [args[update.input] for update in info.updates]
        with torch.no_grad():
            outputs = interpreter.boxed_run(args)
            for target, update in zip(targets, info.updates, strict=True):
                copy_into(target, outputs[update.output])
            promised = [s if s and all(type(step) is int for step in s) else None for s in info.strides]
            return [copied(x, s) if s else x for x, s in zip(outputs, promised, strict=True)]

    return Compiled(call)
