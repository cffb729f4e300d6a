"""Subgraphs as candidates: an operator computed by a graph of others, inlined before lowering if it is fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autograd.decompositions import decomposition_table
from gyrator.autotune.parts import Builder
from gyrator.autotune.tuner import Candidate, Tuner
from gyrator.schedule.products import Ask
from gyrator.torch_compat import graph_module


@dataclass(frozen=True, slots=True)
class SubgraphTemplate:
    """A name, and a function of tensors that a graph of ATen operators is traced from."""

    name: str
    make: Callable[..., Tensor]

    def trace(self, inputs: Sequence[Tensor]) -> fx.GraphModule:
        """The graph for these inputs, which are fake tensors."""
        return make_fx(self.make, decomposition_table())(*inputs)

    def candidate(
        self, inputs: Sequence[Tensor], builder: Builder, family: str = "subgraph", ask: Ask | None = None
    ) -> Candidate:
        """The graph compiled as ``benchmark_<name>``; it may stand for another family, with choices inside it."""
        kinds, graph = [(tuple(t.shape), t.dtype, t.stride(), str(t.device)) for t in inputs], self.trace(inputs)
        info = {"backend": family, "kernel_name": self.name, "heuristic": f"{family}_{self.name}"}
        start = partial(builder.start_graph, graph, f"benchmark_{self.name}", ask)
        return Candidate(self.name, family, f"{self.name} {kinds} {graph.code}", info, start)


def with_subgraphs(
    graph: fx.GraphModule, templates: Callable[[fx.Node], Sequence[SubgraphTemplate]], tuner: Tuner
) -> fx.GraphModule:
    """A copy of the graph with operators replaced by what ``templates`` has for them, where that was measured to be
    faster than the best of all other families."""
    new, env = fx.Graph(), dict[fx.Node, fx.Node]()
    asked: dict[str, SubgraphTemplate | None] = {}
    for node in graph.graph.nodes:
        offered = templates(node) if node.op == "call_function" else ()
        inputs = [arg.meta["val"] for arg in node.args if isinstance(arg, fx.Node)] if offered else []
        question = f"{node.target} {inputs} {node.kwargs}"
        if offered and question not in asked:
            asked[question] = _fastest(node, inputs, offered, tuner)
        if not offered or (best := asked[question]) is None:
            env[node] = new.node_copy(node, env.__getitem__)
        else:
            env[node] = _inlined(new, best.trace(inputs).graph, node, env)
    return graph_module(graph, new) if any(asked.values()) else graph


def _inlined(new: fx.Graph, graph: fx.Graph, outer: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copy a graph's nodes to the end of ``new``, as if the user's line had called them instead of ``outer``."""
    args = [env[arg] for arg in outer.args if isinstance(arg, fx.Node)]
    given = dict(zip(graph.find_nodes(op="placeholder"), args, strict=True))
    places = dict(given)
    result = new.graph_copy(graph, places)
    for inner in places.keys() - given.keys():
        places[inner].meta = {**outer.meta, "val": inner.meta["val"]}
    assert isinstance(result, fx.Node)
    return result


def _fastest(
    node: fx.Node, inputs: Sequence[Tensor], offered: Sequence[SubgraphTemplate], tuner: Tuner
) -> SubgraphTemplate | None:
    """The best template for a node, if it is the best candidate."""
    assert callable(node.target)
    op, out, builder = str(node.target).split(".")[1], node.meta["val"], tuner.builder
    others = next((family for family in builder.session.config.gemm_backends if family != "subgraph"), "")
    rival = SubgraphTemplate(op, partial(node.target, **node.kwargs)).candidate(inputs, builder, others, tuner.ask)
    shapes = ", ".join("x".join(map(str, t.shape)) for t in (*inputs[-2:], *inputs[:-2]))
    size = prod(map(int, (*out.shape, inputs[-1].shape[-2])))
    own = [template.candidate(inputs, builder) for template in offered]
    ranked = tuner.rank(f"{op}({shapes})", "a graph", size, [rival, *own])
    return next((template for template in offered if ranked and ranked[0].name == template.name), None)
