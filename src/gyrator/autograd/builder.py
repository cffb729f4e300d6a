"""Builds a graph of functional operators whose nodes know their metadata. `node.meta["val"]` is a fake tensor (or
symbolic number, or a tuple of them) with eager's size, strides, dtype and device. It states metadata only: nodes with
equal metadata share one, so its identity and storage mean nothing."""

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from gyrator import torch_compat
from gyrator.autograd import ops
from gyrator.autograd.fake_results import FakeResults
from gyrator.autograd.symbols import SYMBOLIC_TYPES, Held, SymbolTable

Meta = Mapping[str, Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

ORIGIN_KEYS = ("stack_trace", "nn_module_stack", "source_fn_stack")
"""What a node inherits from the node of the captured graph that it came from."""


class GraphBuilder:
    """Appends nodes to `graph`; `origin` is the metadata that new nodes inherit. With `keep_numbers`, symbolic
    numbers stay in the arguments as they are: for a graph that is a template."""

    def __init__(self, results: FakeResults, keep_numbers: bool = False) -> None:
        self._keep_numbers = keep_numbers
        self.graph = Graph()
        self.symbols = SymbolTable(self.graph)
        self.results = results
        self.fake_mode = results.mode
        self.origin: Meta = {}
        self.bodies: dict[str, GraphModule] = {}

    def placeholder(self, name: str, value: Any) -> Node:
        """A new input of the graph. Symbols among its sizes become known."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.metadata(value)
        self.symbols.bind(value, node)
        return node

    def append(self, op: Any, args: Args, kwargs: Kwargs, value: Any, new: Mapping[Any, Any] | None = None) -> Node:
        """A call of `op`, whose result `value` describes; it makes the symbols `new`, with the path to each in it."""
        node = torch_compat.append_node(self.graph, "call_function", op, args, kwargs)
        node.meta.update(self.origin, val=self.metadata(value), **({"unbacked_bindings": new} if new else {}))
        return node

    def call(self, op: Any, args: Args, kwargs: Kwargs) -> Node:
        """A call of `op` on nodes; its result is found by calling it on their fake tensors."""
        with self.fake_mode, torch.no_grad():
            value = self.results.call(op, values_of(args), values_of(kwargs))
        return self.append(op, args, kwargs, value)

    def body(self, build: "GraphBuilder") -> Node:
        """A node that stands for the graph that another one built, an argument of a higher-order operator."""
        name = f"body_{len(self.bodies)}"
        self.bodies[name] = GraphModule(dict(build.bodies), build.graph)
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = None
        return node

    def result(self, node: Node, index: int) -> Node:
        """Result `index` of a node with several."""
        return self.append(operator.getitem, (node, index), {}, node.meta["val"][index])

    def metadata(self, value: Any) -> Any:
        """`value` with each tensor replaced by the shared fake tensor of equal metadata."""
        if isinstance(value, Tensor):
            return self.results.shared(value)
        return tuple(self.metadata(item) for item in value) if isinstance(value, (tuple, list)) else value

    def converted(self, node: Node, dtype: torch.dtype) -> Node:
        """A value in another dtype."""
        if node.meta["val"].dtype == dtype:
            return node
        return self.call(torch.ops.prims.convert_element_type.default, (node, dtype), {})

    def restrided(self, node: Node, wanted: Tensor) -> Node:
        """A value copied into memory that is laid out like ``wanted``, a tensor of its size and dtype."""
        stated = wanted.new_empty_strided(wanted.shape, wanted.stride())
        return self.append(ops.restride, (node, tuple(map(self.number, wanted.stride()))), {}, stated)

    def number(self, value: Any) -> Any:
        """A symbolic number as a node; anything else unchanged."""
        if not isinstance(value, SYMBOLIC_TYPES):
            return value
        return Held(value) if self._keep_numbers else self.symbols.node_of(value)


def copy_node(graph: Graph, node: Node, of: Callable[[Node], Any]) -> Node:
    """A copy of a node of another graph, where `of` says what stands for the nodes that it reads."""
    args, kwargs = map_arg((node.args, node.kwargs), of)
    copy = torch_compat.append_node(graph, node.op, node.target, args, kwargs, node.name)
    copy.meta.update(node.meta)
    return copy


def values_of(argument: Any) -> Any:
    """Nodes replaced by what their metadata says they hold."""
    return mapped(argument, lambda i: i.meta["val"] if isinstance(i, Node) else i.value if isinstance(i, Held) else i)


def mapped(argument: Any, leaf: Callable[[Any], Any]) -> Any:
    """As torch.fx's `map_aggregate`, but lists and dictionaries are plain ones, which a decomposition may change."""
    if isinstance(argument, tuple):
        return tuple([mapped(item, leaf) for item in argument])
    if isinstance(argument, list):
        return [mapped(item, leaf) for item in argument]
    return {k: mapped(x, leaf) for k, x in argument.items()} if isinstance(argument, dict) else leaf(argument)


def ancestors(values: Iterable[object], known: Container[Node] = ()) -> set[Node]:
    """The nodes among the values and all that they are computed from, without what is `known` and only that needs."""
    found: set[Node] = set()
    pending = [value for value in values if isinstance(value, Node)]
    while pending:
        node = pending.pop()
        if node not in found and node not in known:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def inherited(meta: Meta, keys: Iterable[str] = ORIGIN_KEYS) -> dict[str, Any]:
    """The part of a node's metadata that the nodes made of it get."""
    return {key: meta[key] for key in keys if key in meta}


def flatten(value: Any) -> Sequence[Any]:
    """The leaves of nested tuples and lists."""
    return [leaf for item in value for leaf in flatten(item)] if isinstance(value, (tuple, list)) else [value]
