"""Symbolic sizes as nodes of a graph.

While tracing, sizes are `torch.SymInt` objects that carry an expression over symbols. A graph needs nodes for them: a
symbol is a placeholder or a size of a tensor, an expression is arithmetic on those. Equal expressions share nodes.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import sympy
import torch
from torch.fx import Graph, Node

from gyrator import torch_compat
from gyrator.errors import InternalCheckError

Scalar: TypeAlias = "torch.SymInt | torch.SymFloat | torch.SymBool"
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Held:
    """A symbolic number as it stands among the arguments of a template's nodes; each use of it makes its nodes."""

    value: Scalar


def expression(value: Any) -> Any:
    """The expression behind a symbolic number, simplified by what is known of its symbols; a plain number unchanged."""
    return value.node.expr if isinstance(value, SYMBOLIC_TYPES) else value


@final
class SymbolTable:
    """Maps expressions to the nodes of one graph that compute them, and makes those nodes on demand."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[sympy.Basic, Node] = {}
        self._sources: dict[sympy.Symbol, tuple[Node, int]] = {}

    def bind(self, value: Scalar, node: Node) -> None:
        """`node` computes `value`. The first binding of an expression wins."""
        self._nodes.setdefault(value.node.expr, node)

    def bind_sizes(self, tensor: torch.Tensor, node: Node) -> None:
        """The symbols among the sizes of `tensor` can be read from `node`."""
        sizes: tuple[Any, ...] = tuple(tensor.shape)
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                self._sources.setdefault(size.node.expr, (node, dim))

    def node_of(self, value: Scalar) -> Node | int | float | bool:
        """The node that computes `value`; a plain number where the expression is constant."""
        expr = value.node.expr
        if isinstance(expr, (sympy.Number, sympy.logic.boolalg.BooleanAtom)):
            return torch_compat.plain_number(expr)
        found = self._nodes.get(expr)
        if found is not None:
            return found
        for symbol in expr.free_symbols:
            self._bind_symbol(symbol)
        node: Node | int | float | bool
        node = (
            self._nodes[expr]
            if expr in self._nodes
            else torch_compat.build_expression(
                expr, self._graph, {symbol: self._nodes[symbol] for symbol in expr.free_symbols}
            )
        )
        if isinstance(node, Node):
            node.meta.setdefault("val", value)
            self._nodes[expr] = node
        return node

    def _bind_symbol(self, symbol: sympy.Symbol) -> None:
        if symbol in self._nodes:
            return
        source = self._sources.get(symbol)
        if source is None:
            raise InternalCheckError("joint trace", f"no input or operator result has the size {symbol}")
        node, dim = source
        size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
        size.meta["val"] = node.meta["val"].shape[dim]
        self._nodes[symbol] = size
