"""Builds a graph of functional operators whose nodes know their metadata.

`node.meta["val"]` is a fake tensor (or symbolic number, or a tuple of them) that states size, strides, dtype
and device as eager would have them. It states metadata only: nodes with equal metadata share one fake
tensor, so its identity and storage mean nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from gyrator.autograd.symbols import SYMBOLIC_TYPES, Held, SymbolTable, expression
from gyrator.errors import UnsupportedOperator

Meta = Mapping[str, Any]

ORIGIN_KEYS = ("stack_trace", "nn_module_stack", "source_fn_stack")
"""What a node inherits from the node of the captured graph that it came from."""

PLAIN_TYPES = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


@final
class GraphBuilder:
    """Appends nodes to `graph`; `origin` is the metadata that new nodes inherit.

    With `keep_numbers`, symbolic numbers stay in the arguments as they are: for a graph that is a template.
    """

    def __init__(
        self, fake_mode: FakeTensorMode, values: dict[Any, Tensor] | None = None, keep_numbers: bool = False
    ) -> None:
        self._keep_numbers = keep_numbers
        self.graph = Graph()
        self.symbols = SymbolTable(self.graph)
        self.fake_mode = fake_mode
        self.origin: Meta = {}
        self.bodies: dict[str, GraphModule] = {}
        self.values: dict[Any, Tensor] = {} if values is None else values

    def placeholder(self, name: str, value: Any) -> Node:
        """A new input of the graph. Symbols among its sizes become known."""
        node = self.graph.placeholder(name)
        node.meta["val"] = self.metadata(value)
        if isinstance(value, Tensor):
            self.symbols.bind_sizes(value, node)
        elif isinstance(value, SYMBOLIC_TYPES):
            self.symbols.bind(value, node)
        return node

    def append(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Node:
        """A call of `op`, whose result `value` describes."""
        node = self.graph.create_node("call_function", op, args, kwargs)
        meta = node.meta
        meta.update(self.origin)
        meta["val"] = self.metadata(value)
        return node

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """A call of `op` on nodes; its result is found by calling it on their fake tensors."""
        with self.fake_mode, torch.no_grad():
            value = op(*values_of(args), **{key: values_of(arg) for key, arg in kwargs.items()})
        return self.append(op, args, kwargs, value)

    def body(self, graph: Graph, bodies: dict[str, GraphModule]) -> Node:
        """A node that stands for a graph, an argument of a higher-order operator."""
        name = f"body_{len(self.bodies)}"
        self.bodies[name] = GraphModule(dict(bodies), graph)
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = None
        return node

    def result(self, node: Node, index: int) -> Node:
        """Result `index` of a node with several."""
        return self.append(operator.getitem, (node, index), {}, node.meta["val"][index])

    def metadata(self, value: Any) -> Any:
        """`value` with each tensor replaced by the shared fake tensor of equal metadata."""
        if isinstance(value, Tensor):
            key = metadata_key(value)
            found = self.values.get(key)
            if found is None:
                with self.fake_mode, torch.no_grad():
                    found = self.values[key] = torch.ops.aten.detach.default(value)
            return found
        if isinstance(value, (tuple, list)):
            return tuple(self.metadata(item) for item in value)
        return value

    def number(self, value: Any) -> Any:
        """A symbolic number as a node; anything else unchanged."""
        if not isinstance(value, SYMBOLIC_TYPES):
            return value
        return Held(value) if self._keep_numbers else self.symbols.node_of(value)


def metadata_key(value: Tensor) -> tuple[Any, ...]:
    """What distinguishes the metadata of two strided tensors, as a hashable value."""
    if value.layout is not torch.strided:
        raise UnsupportedOperator("a tensor operator", f"its result has layout {value.layout}")
    key: tuple[Any, ...] = (
        tuple(value.shape),
        value.stride(),
        value.dtype,
        value.device,
        value.storage_offset(),
        value.is_conj(),
    )
    if any(type(size) is not int for size in value.shape) or any(type(step) is not int for step in key[1]):
        key = (tuple(map(expression, key[0])), tuple(map(expression, key[1])), *key[2:])
    return (*key[:4], expression(key[4]), key[5])


def values_of(argument: Any) -> Any:
    """Nodes replaced by what their metadata says they hold."""
    if isinstance(argument, Node):
        return argument.meta["val"]
    if isinstance(argument, Held):
        return argument.value
    if isinstance(argument, tuple):
        return tuple([values_of(item) for item in argument])
    if isinstance(argument, list):
        return [values_of(item) for item in argument]
    if isinstance(argument, dict):
        return {key: values_of(item) for key, item in argument.items()}
    return argument


def origin_of(meta: Meta) -> Meta:
    """The part of a captured node's metadata that its ATen nodes inherit."""
    return {key: meta[key] for key in ORIGIN_KEYS if key in meta}


def flatten(value: Any) -> Sequence[Any]:
    """The leaves of nested tuples and lists."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]
