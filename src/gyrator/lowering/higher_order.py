"""Higher-order operators: custom ops that write into arguments, and operators that run subgraphs.

=====================  ===============================================================================
auto_functionalized    a call of the op itself, which writes into new versions of its arguments
gyrator_attention      likewise; a template may compute it
others with subgraphs  one call of the whole operator (a region), which runs its subgraphs op by op
=====================  ===============================================================================
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from gyrator.autograd.builder import flatten, mapped
from gyrator.autograd.effects import behaviour
from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Index, contiguous_strides
from gyrator.ir.program import Arg, Extern, Program
from gyrator.lowering import extern
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.extern import Result
from gyrator.lowering.refs import TensorRef, whole


def auto_functionalized(b: Builder, node: fx.Node, kwargs: Mapping[str, Result]) -> Result:
    """``auto_functionalized(op, **arguments)`` → op's own results (None for none), then the new arguments."""
    op = node.args[0]
    assert isinstance(op, OpOverload)
    written, schema = behaviour(op).written, op._schema.arguments
    given: dict[str, Any] = {a.name: kwargs.get(a.name, a.default_value) for a in schema}
    new: dict[Value, Value] = {}
    for name in written:
        given[name] = mapped(given[name], partial(_own_memory, b, name, given))
        for old in (leaf.value for leaf in flatten(given[name]) if isinstance(leaf, TensorRef)):
            new[old] = b.value(Meta(old.shape, old.dtype, old.strides, old.device), name)
    passed = {
        name: extern.argument(b, node, value, node.kwargs.get(name), exact=name not in written)
        for name, value in given.items()
    }
    positional = tuple([passed[a.name] for a in schema if not a.kwarg_only])
    named = tuple([(a.name, passed[a.name]) for a in schema if a.kwarg_only])
    outs = extern.results(b, list(node.meta["val"])[: max(1, len(op._schema.returns))])
    b.fallbacks.append(str(op))
    b.add(Extern(outs, str(op), positional, named, tuple(new.items())))
    results = [None if v is None else whole(v) for v in outs]
    return [*results, *[mapped(given[name], lambda r: r and whole(new[r.value])) for name in written]]


def _own_memory(b: Builder, name: str, arguments: Mapping[str, Any], ref: TensorRef | None) -> TensorRef | None:
    """``ref``, copied if it is a part of a value or another of the arguments reads that value."""
    if ref is None:
        return None
    sharing = [r for r in flatten(list(arguments.values())) if isinstance(r, TensorRef) and r.value is ref.value]
    if ref.is_whole() and len(sharing) == 1:
        return ref
    plain = Meta(ref.shape, ref.dtype, contiguous_strides(ref.shape), ref.device)
    return b.copy(ref, plain, name)


def region(b: Builder, node: fx.Node, env: Mapping[fx.Node, Result]) -> Result:
    """A call of a whole operator with its subgraphs: ``cond``, ``while_loop``, ``scan``, ``map``.

    It is called by the name ``gyrator.region_k``; ``b.regions`` holds the graph that this name stands for.

    Raises: UnsupportedOperator for what is no operator.
    """
    if not isinstance(node.target, HigherOrderOperator):
        raise extern.refused(node.target, node, "it has no lowering")
    graph = fx.Graph()
    leaves: dict[fx.Node, Any] = {}
    held: dict[str, torch.nn.Module] = {}
    passed: list[Arg] = []
    for leaf in node.all_input_nodes:
        given = env[leaf]
        if isinstance(given, fx.GraphModule):
            held[str(leaf.target)] = given
            leaves[leaf] = graph.get_attr(str(leaf.target))
        elif isinstance(given, (TensorRef, Expr, Index)):
            leaves[leaf] = graph.placeholder(leaf.name)
            passed.append(extern.argument(b, node, given, leaf, exact=True))
        else:
            leaves[leaf] = given
    graph.output(graph.node_copy(node, lambda n: leaves[n]))
    return extern.append(b, node, Extern((), b.region(fx.GraphModule(held, graph)), tuple(passed)))


def attention(b: Builder, node: fx.Node, args: Sequence[Any], functions: tuple[Program, ...]) -> Result:
    """A call of ``gyrator_attention`` with all its arguments but the bodies, which are also given as ``functions``."""
    graph, held = fx.Graph(), dict(zip(("score", "keep", "slope"), args[1], strict=False))
    kind, *rest = [graph.placeholder(f"x{k}") for k in range(len(args) - 1)]
    target = cast(HigherOrderOperator, node.target)
    graph.output(graph.call_function(target, (kind, [*map(graph.get_attr, held)], *rest)))
    given = [extern.argument(b, node, args[k], node.args[k], exact=True) for k in range(len(args)) if k != 1]
    name = b.region(fx.GraphModule(held, graph))
    return extern.append(b, node, Extern((), name, tuple(given), functions=functions))
