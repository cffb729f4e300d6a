"""Symbolic sizes as nodes of a graph. While tracing, sizes are `torch.SymInt` objects that carry an expression over
symbols. A graph needs nodes for them: a symbol is a placeholder or a size of a tensor, an expression is arithmetic on
those. Equal expressions share nodes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from gyrator import torch_compat
from gyrator.errors import InternalCheckError
from gyrator.ir.symbols import evaluated, python_text

Scalar = torch.SymInt | torch.SymFloat | torch.SymBool
aten = torch.ops.aten
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Held:
    """A symbolic number among the arguments of a template's nodes (torch warns of raw ones); each use makes nodes."""

    value: Scalar


def expression(value: Any) -> Any:
    """The expression behind a symbolic number, simplified by what is known of its symbols; a plain number unchanged."""
    return value.node.expr if isinstance(value, SYMBOLIC_TYPES) else value


def sizes_of(node: Node) -> list[Any]:
    """The sizes of a tensor, or a number, as expressions."""
    value = node.meta.get("val")
    return [expression(n) for n in (value.shape if isinstance(value, torch.Tensor) else (value,))]


def is_told_by_run(number: Any) -> bool:
    """Whether `number` has no value in the call that is compiled."""
    return isinstance(number, torch.SymInt) and not number.node.has_hint()


def counted_from_start(op: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `op`. What a slice or select takes of unknown sign counts from the start, as torch would call
    the result's size by a name that nothing defines: x[:n] → x[:max(n - x.shape[0] * (n // 2**62), 0)]."""
    for k, n in enumerate(args[2:4] if op in (aten.slice.Tensor, aten.select.int) else (), 2):
        if is_told_by_run(n) and not torch_compat.in_bounds(n >= 0):
            args = (*args[:k], torch.sym_max(n - args[0].shape[args[1]] * (n // 2**62), 0), *args[k + 1 :])
    return args


class SymbolTable:
    """Maps expressions to the nodes of one graph that compute them, and makes those nodes on demand."""

    def __init__(self, graph: Graph, nodes: Iterable[Node] = ()) -> None:
        """Binds the values of ``nodes``."""
        self._graph = graph
        self._nodes: dict[sympy.Basic, Node] = {}
        self._sources: dict[sympy.Symbol, tuple[Any, Node, int]] = {}
        for node in nodes:
            self.bind(node.meta.get("val"), node)

    def bind(self, value: Any, node: Node) -> None:
        """`node` holds `value`: a symbolic number (the first node wins), a tensor with sizes to read, or neither."""
        if isinstance(value, SYMBOLIC_TYPES):
            self._nodes.setdefault(value.node.expr, node)
        if isinstance(value, torch.Tensor):
            for op, numbers in ((aten.sym_size.int, value.shape), (aten.sym_stride.int, value.stride())):
                for dim, expr in enumerate(map(expression, numbers)):
                    if isinstance(expr, sympy.Symbol):
                        self._sources.setdefault(expr, (op, node, dim))

    def node_of(self, value: Scalar) -> Node | int | float | bool:
        """The node that computes `value`; a plain number where the expression is constant."""
        expr = value.node.expr
        if expr not in self._nodes:
            known = {symbol.name: self.find(symbol) for symbol in expr.free_symbols}
            if None in known.values():
                raise InternalCheckError("joint trace", f"no input or operator result has the sizes of {expr}")
            found = evaluated(python_text(expr), known, self._applied)
            if not isinstance(found, Node):
                return found
            self._nodes[expr] = found
        return self._nodes[expr]

    def _applied(self, function: Callable[..., Any], *args: Any) -> Any:
        """A node that calls a function; what it gives where no argument is a node."""
        if not any(isinstance(arg, Node) for arg in args):
            return function(*args)
        node = self._graph.call_function(function, args)
        node.meta["val"] = function(*[arg.meta["val"] if isinstance(arg, Node) else arg for arg in args])
        return node

    def find(self, symbol: sympy.Symbol) -> Node | None:
        """The node that holds a symbol; a new one after what it is read from; None where nothing has that size."""
        if symbol not in self._nodes:
            flag = self._nodes.get(sympy.Eq(symbol, 1))  # a bool that was read from data
            source = self._sources.get(symbol) if flag is None else (torch.sym_ite, flag, 1, 0)
            if source is None:
                return None
            op, node, *others = source
            with self._graph.inserting_after(node):
                number = self._nodes[symbol] = self._graph.call_function(op, (node, *others))
            number.meta["val"] = op(node.meta["val"], *others)
        return self._nodes[symbol]
