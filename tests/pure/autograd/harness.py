"""Compiles through gyrator.autograd with graphs that run op by op, so that a wrong answer is the trace's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch.fx import GraphModule

from gyrator.autograd.aot import aot_compile, aot_program, assemble
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from tests.acceptance import check

BACKEND = "gyrator_autograd"
"""A torch.compile backend: gyrator.autograd, then the graph as it is, with eager's random numbers."""

FROZEN = "gyrator_autograd_frozen"
"""The same, where parameters of a program without gradients are constants."""


def _backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return aot_compile(gm, example_inputs, fw_compiler=interpret, decompositions=decomposition_table(numerics="eager"))


def _frozen(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    table = decomposition_table(numerics="eager")
    traced = aot_program(gm, example_inputs, fw_compiler=interpret, decompositions=table, frozen=True)
    return assemble(traced, gm, example_inputs, lambda: traced)


torch._dynamo.register_backend(_backend, BACKEND)
torch._dynamo.register_backend(_frozen, FROZEN)


@dataclass
class Graphs:
    """The graphs that a compile made, by kind, and what was said about them."""

    modules: dict[str, GraphModule] = field(default_factory=dict)
    infos: dict[str, GraphInfo] = field(default_factory=dict)

    def ops(self, kind: str) -> list[str]:
        """The operators of a graph in order, as `mul.Tensor`."""
        return [
            str(node.target).partition(".")[2] for node in self.modules[kind].graph.nodes if node.op == "call_function"
        ]

    def compiler(self, graph: GraphModule, example_inputs: Sequence[object], info: GraphInfo) -> Compiled:
        """Keeps the graph and runs it op by op."""
        self.modules[info.kind], self.infos[info.kind] = graph, info
        return interpret(graph, example_inputs, info)


def compiled(
    function: Callable[..., Any], *, dynamic: bool = False, **options: Any
) -> tuple[Callable[..., Any], Graphs]:
    """`function` compiled through gyrator.autograd with the given options, and the graphs it will have
    made.
    """
    torch._dynamo.reset()
    graphs = Graphs()

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_compile(gm, example_inputs, fw_compiler=graphs.compiler, **options)

    return torch.compile(function, backend=backend, dynamic=dynamic), graphs


def same_as_eager(function: Callable[..., Any], *args: Any, backward: bool = True, dynamic: bool = False) -> None:
    """Values, gradients, mutation, strides and aliasing are eager's."""
    torch._dynamo.reset()
    check(function, list(args), backend=BACKEND, backward=backward, dynamic=dynamic)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A random tensor that requires grad."""
    return torch.randn(shape, dtype=dtype).requires_grad_()
