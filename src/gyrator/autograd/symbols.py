"""Symbolic sizes as nodes of a graph.

While tracing, sizes are `torch.SymInt` objects that carry an expression over symbols. A graph needs nodes for them: a
symbol is a placeholder or a size of a tensor, an expression is arithmetic on those. Equal expressions share nodes.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch.fx import Graph, Node

from gyrator import torch_compat
from gyrator.errors import InternalCheckError

Scalar: TypeAlias = "torch.SymInt | torch.SymFloat | torch.SymBool"
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Held:
    """A symbolic number among the arguments of a template's nodes (torch warns of raw ones); each use makes nodes."""

    value: Scalar


def expression(value: Any) -> Any:
    """The expression behind a symbolic number, simplified by what is known of its symbols; a plain number unchanged."""
    return value.node.expr if isinstance(value, SYMBOLIC_TYPES) else value


class SymbolTable:
    """Maps expressions to the nodes of one graph that compute them, and makes those nodes on demand."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[sympy.Basic, Node] = {}
        self._sources: dict[sympy.Symbol, tuple[Node, int]] = {}

    def bind(self, value: Any, node: Node) -> None:
        """`node` holds `value`: a symbolic number (the first node wins), a tensor with sizes to read, or neither."""
        if isinstance(value, SYMBOLIC_TYPES):
            self._nodes.setdefault(value.node.expr, node)
        sizes: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                self._sources.setdefault(size.node.expr, (node, dim))

    def node_of(self, value: Scalar) -> Node | int | float | bool:
        """The node that computes `value`; a plain number where the expression is constant."""
        expr = value.node.expr
        if isinstance(expr, (sympy.Number, sympy.logic.boolalg.BooleanAtom)):
            return torch_compat.plain_number(expr)
        if expr not in self._nodes:
            known = {symbol: self._node_of_symbol(symbol) for symbol in expr.free_symbols}
            node = torch_compat.build_expression(expr, self._graph, known)
            if not isinstance(node, Node):
                return node
            node.meta.setdefault("val", value)
            self._nodes[expr] = node
        return self._nodes[expr]

    def _node_of_symbol(self, symbol: sympy.Symbol) -> Node:
        if symbol in self._nodes:
            return self._nodes[symbol]
        source = self._sources.get(symbol)
        if source is None:
            raise InternalCheckError("joint trace", f"no input or operator result has the size {symbol}")
        node, dim = source
        size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
        size.meta["val"] = node.meta["val"].shape[dim]
        self._nodes[symbol] = size
        return size
