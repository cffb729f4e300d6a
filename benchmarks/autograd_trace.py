"""Joint trace and partition, ours and torch's side by side: ``python -m benchmarks.autograd_trace --json
FILE``.

Each model is captured once by torch.compile. Then gyrator.autograd and torch's AOTAutograd, with its min-cut
partitioner and the same decompositions, take turns on the captured training graph; nothing is compiled. The
partitioners alone are compared on one joint graph: their time and the bytes that they save.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from benchmarks import torch_aot
from benchmarks.compile_time import bert
from benchmarks.measure import machine
from benchmarks.zoo import MODELS, build
from gyrator.autograd import aot
from gyrator.autograd.decompose import decompose
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.inputs import fake_inputs
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.autograd.joint import trace
from gyrator.autograd.partition.min_cut import min_cut
from gyrator.autograd.partition.plan import JointGraph
from gyrator.autograd.partition.recompute import tensor_bytes

LAYERS = 12


@dataclass(frozen=True)
class Figures:
    """CPU seconds of the whole trace and of partitioning alone, and saved bytes: ours against torch's."""

    model: str
    nodes: int
    trace: float
    torch_trace: float
    partition: float
    torch_partition: float
    saved_bytes: int
    torch_saved_bytes: int

    def line(self) -> str:
        """The figures for a reader."""
        return (
            f"{self.model:18} {self.nodes:5} nodes   trace {self.trace:5.2f} s, torch"
            f" {self.torch_trace:5.2f} s ({self.trace / self.torch_trace:4.2f})   partition"
            f" {self.partition:5.3f} s, torch"
            f" {self.torch_partition:5.3f} s   saved {self.saved_bytes}, torch {self.torch_saved_bytes}"
        )


def captured(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[GraphModule, list[Any]]:
    """The largest graph that torch.compile captures of a training step."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def keep(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append((gm, example_inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=keep)(**batch)
    return max(found, key=lambda pair: len(pair[0].graph.nodes))


def nothing(graph: GraphModule, example_inputs: Sequence[object], info: GraphInfo) -> Compiled:
    """A compiler that compiles nothing."""
    return Compiled(lambda args: ())


def seconds(function: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def measured(name: str, repeats: int) -> Figures:
    """The figures of one model: the best of several turns each."""
    model, batch = bert(LAYERS) if name == "bert12" else _from_zoo(name)
    gm, example_inputs = captured(model, batch)
    ours: list[float] = []
    torchs: list[float] = []
    for _ in range(repeats):
        ours.append(seconds(lambda: aot.aot_compile(gm, example_inputs, fw_compiler=nothing)))
        torchs.append(seconds(lambda: torch_aot.aot_compile(gm, example_inputs, compiler=nothing)))
    joint = _joint(gm, example_inputs)
    partition = min_cut(joint)
    saved, spent = _torchs_partition(joint)
    return Figures(
        name,
        len(joint.graph.nodes),
        min(ours),
        min(torchs),
        min(seconds(lambda: min_cut(joint)) for _ in range(repeats)),
        spent,
        partition.saved_bytes,
        saved,
    )


def _from_zoo(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    workload = build(name, "tiny")
    return workload.model.train(), dict(workload.batch)


def _joint(gm: GraphModule, example_inputs: list[Any]) -> JointGraph:
    inputs = fake_inputs(gm, example_inputs)
    joint = trace(gm, inputs, {})
    return aot.roles_of(joint, decompose(joint.build, decomposition_table()).graph, inputs)


def _torchs_partition(joint: JointGraph) -> tuple[int, float]:
    """Bytes that torch's partitioner saves beyond parameters, and its CPU seconds."""
    graph, copies = Graph(), dict[Node, Node]()
    for index, node in enumerate(joint.graph.nodes):
        if node.op == "placeholder":
            kind = "tangents" if node in joint.tangents else "primals"
            copies[node] = graph.placeholder(f"{kind}_{index}")
            copies[node].meta = dict(node.meta)
        else:
            copies[node] = graph.node_copy(node, lambda source: copies[source])
    from_descriptors(graph)
    module = GraphModule(torch.nn.Module(), graph)
    static = [position for position, node in enumerate(joint.primals) if node in joint.static]
    halves: list[Any] = []
    spent = seconds(
        lambda: halves.extend(
            torch._functorch.partitioners.min_cut_rematerialization_partition(
                module, None, num_fwd_outputs=len(joint.results), static_lifetime_input_indices=static
            )
        )
    )
    free = {copies[node].name for node in joint.static}
    saved = sum(
        tensor_bytes(node.meta["val"])
        for node in halves[1].graph.find_nodes(op="placeholder")
        if not node.name.startswith("tangents") and node.name not in free
    )
    return saved, spent


def from_descriptors(graph: Graph) -> None:
    """Labels the outputs as torch's partitioner wants them."""
    descriptors = torch._functorch._aot_autograd.descriptors
    output = graph.output_node()
    results = output.args[0]
    assert isinstance(results, tuple)
    output.meta["desc"] = [descriptors.PlainAOTOutput(index) for index in range(len(results))]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the models asked for, prints a line each and writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autograd_trace", description=__doc__)
    parser.add_argument("models", nargs="*", default=["bert12"], help="bert12, names of the zoo, or all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    names = ["bert12", *MODELS] if options.models == ["all"] else options.models
    found = []
    for name in names:
        found.append(measured(name, options.repeats))
        print(found[-1].line(), flush=True)
    if options.json:
        report = {"machine": machine(), "models": [asdict(figures) for figures in found]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
