"""Subgraphs as candidates: an operator's result computed by a graph of others, which is inlined if it is fastest.

Inlined before lowering, its nests fuse with their neighbours like all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autograd.decompositions import decomposition_table
from gyrator.autotune.candidates import Candidate
from gyrator.autotune.parts import Builder
from gyrator.autotune.tuner import Tuner
from gyrator.schedule.products import Ask


@dataclass(frozen=True, slots=True)
class SubgraphTemplate:
    """A name, and a function of tensors that a graph is traced from."""

    name: str
    make: Callable[..., Tensor]

    def trace(self, inputs: Sequence[Tensor]) -> "Subgraph":
        """The graph for these inputs, which are fake tensors."""
        return Subgraph(self.name, make_fx(self.make, decomposition_table())(*inputs), tuple(inputs))


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A traced graph of ATen operators that computes one tensor."""

    name: str
    graph: fx.GraphModule
    inputs: tuple[Tensor, ...]

    def candidate(self, builder: Builder, family: str = "subgraph", ask: Ask | None = None) -> Candidate:
        """The graph compiled as ``benchmark_<name>``; it may stand for another family, with choices inside it."""
        kinds = [(tuple(t.shape), t.dtype, t.stride(), str(t.device)) for t in self.inputs]
        info = {"backend": family, "kernel_name": self.name, "heuristic": f"{family}_{self.name}"}
        start = partial(builder.start_graph, self.graph, self.inputs, f"benchmark_{self.name}", ask)
        return Candidate(self.name, family, f"{self.name} {kinds} {self.graph.code}", info, start)

    def inline(self, into: fx.Graph, args: Sequence[fx.Node], outer: fx.Node) -> fx.Node:
        """Copy the nodes to the end of ``into``, as if the user's line had called them instead of ``outer``."""
        given = dict(zip(self.graph.graph.find_nodes(op="placeholder"), args, strict=True))
        places = dict(given)
        result = into.graph_copy(self.graph.graph, places)
        for inner in places.keys() - given.keys():
            places[inner].meta = {**outer.meta, "val": inner.meta["val"]}
        assert isinstance(result, fx.Node)
        return result


Templates: TypeAlias = Callable[[fx.Node], Sequence[SubgraphTemplate]]


def with_subgraphs(graph: fx.GraphModule, templates: Templates, tuner: Tuner, ask: Ask) -> fx.GraphModule:
    """The graph with the operators for which ``templates`` has a subgraph that was measured to be faster than the best
    of all other families, which ``ask`` finds, replaced by it, in a copy.
    """
    new, env = fx.Graph(), dict[fx.Node, fx.Node]()
    asked: dict[str, SubgraphTemplate | None] = {}
    for node in graph.graph.nodes:
        offered = templates(node) if node.op == "call_function" else ()
        args = [arg for arg in node.args if isinstance(arg, fx.Node)]
        inputs = [arg.meta["val"] for arg in args] if offered else []
        question = f"{node.target} {inputs} {node.kwargs}"
        if offered and question not in asked:
            asked[question] = _fastest(node, inputs, offered, tuner, ask)
        best = asked[question] if offered else None
        if best is None:
            env[node] = new.node_copy(node, env.__getitem__)
        else:
            env[node] = best.trace(inputs).inline(new, [env[arg] for arg in args], node)
    return fx.GraphModule(graph, new) if any(asked.values()) else graph


def _fastest(
    node: fx.Node, inputs: Sequence[Tensor], offered: Sequence[SubgraphTemplate], tuner: Tuner, ask: Ask
) -> SubgraphTemplate | None:
    """The best template for a node, if it is the best candidate."""
    assert callable(node.target)
    op, out = str(node.target).split(".")[1], node.meta["val"]
    others = next((family for family in tuner.builder.session.config.gemm_backends if family != "subgraph"), "")
    rival = SubgraphTemplate(op, partial(node.target, **node.kwargs)).trace(inputs)
    shapes = ", ".join("x".join(map(str, t.shape)) for t in (*inputs[-2:], *inputs[:-2]))
    size = prod(map(int, (*out.shape, inputs[-1].shape[-2])))
    own = [template.trace(inputs).candidate(tuner.builder) for template in offered]
    ranked = tuner.rank(f"{op}({shapes})", "a graph", size, [rival.candidate(tuner.builder, others, ask), *own], {})
    return next((template for template in offered if ranked and ranked[0][0].name == template.name), None)
