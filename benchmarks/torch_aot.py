"""`aot_compile` by torch's own AOTAutograd: the peer that tests and benchmarks compare ours with.

Same contract as `gyrator.autograd.aot_compile`, so that a compiler cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node

from gyrator.autograd.decompositions import DecompositionTable, decomposition_table
from gyrator.autograd.interface import Compiled, Compiler, GraphInfo, GraphKind, Update


def aot_compile(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    compiler: Compiler,
    decompositions: DecompositionTable | None = None,
) -> Callable[..., Any]:
    """Compiles `gm` with torch's joint trace, functionalisation and min-cut partitioner.

    Args:
        gm: torch-level ops, as torch.compile hands them to a backend.
        example_inputs: one per placeholder of `gm`: fake or real tensors, sizes.
        compiler: compiles each half; see `Compiler`.
        decompositions: see `decomposition_table`, whose result is the default.

    Returns:
        A callable with `gm`'s own signature.
    """
    table = decomposition_table() if decompositions is None else decompositions
    compiled: Callable[..., Any] = aot_module_simplified(
        gm,
        list(example_inputs),
        fw_compiler=_adapt(compiler, "forward"),
        bw_compiler=_adapt(compiler, "backward"),
        inference_compiler=_adapt(compiler, "inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=dict(table),
        keep_inference_input_mutations=True,
    )
    return compiled


def _adapt(compiler: Compiler, kind: GraphKind) -> Callable[..., Callable[..., Any]]:
    """A compiler of ours as one of torch's: trailing copies into inputs become updates."""

    def compile_graph(graph: GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
        outputs = graph.graph.output_node().args[0]
        assert isinstance(outputs, (list, tuple))
        count = len(outputs)
        updates = _copies_to_updates(graph)
        strides = _output_strides(graph, count)
        saved = 0 if kind == "inference" else len(strides)  # which outputs are saved is torch's secret
        info = GraphInfo(kind=kind, updates=updates, strides=strides, saved=saved)
        built = compiler(graph, example_inputs, info)
        compiled = built if isinstance(built, Compiled) else built()
        return make_boxed_func(lambda args: compiled.call(args)[:count])

    return compile_graph


def _copies_to_updates(graph: GraphModule) -> tuple[Update, ...]:
    """`copy_(input, value)` nodes → `value` as a further output, and an `Update` for each."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    output = graph.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    updates = []
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        target, value = node.args[0], node.args[1]
        updates.append(Update(input=placeholders.index(target), output=len(results)))
        results.append(value)
        assert isinstance(target, Node)
        node.replace_all_uses_with(value)
        results = [value if result is node else result for result in results]
        graph.graph.erase_node(node)
    output.args = (tuple(results),)
    graph.recompile()
    return tuple(updates)


def _output_strides(graph: GraphModule, count: int) -> tuple[tuple[int | torch.SymInt, ...] | None, ...]:
    """Strides of the first `count` outputs as traced; None for the rest and for what is no tensor."""
    strides: list[tuple[int | torch.SymInt, ...] | None] = []
    for position, result in enumerate(graph.graph.output_node().args[0]):  # type: ignore[arg-type]
        value = result.meta.get("val") if isinstance(result, Node) else None
        exact = position < count and isinstance(value, torch.Tensor)
        strides.append(tuple(value.stride()) if exact and value is not None else None)
    return tuple(strides)
