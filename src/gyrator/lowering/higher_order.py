"""Higher-order operators: custom ops that write into arguments, and operators that run subgraphs.

=====================  ===============================================================================
auto_functionalized    a call of the op itself, which writes into new versions of its arguments
gyrator_attention      likewise; a template may compute it
others with subgraphs  one call of the whole operator (a region), which runs its subgraphs op by op
=====================  ==============================================================================="""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from gyrator.autograd.builder import flatten, mapped
from gyrator.autograd.effects import behaviour
from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Index
from gyrator.ir.program import Arg, Extern, Program
from gyrator.lowering import extern
from gyrator.lowering.builder import Builder, Meta, same_strides
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
        given[name] = _own_memory(b, name, given, given[name], node.kwargs.get(name))
        for old in (leaf.value for leaf in flatten(given[name]) if isinstance(leaf, TensorRef)):
            new[old] = b.value(Meta(old.shape, old.dtype, old.strides, old.device), name)
    passed = [(a, extern.argument(b, node, given[a.name], node.kwargs.get(a.name), exact=True)) for a in schema]
    positional = tuple([value for a, value in passed if not a.kwarg_only])
    named = tuple([(a.name, value) for a, value in passed if a.kwarg_only])
    outs = extern.results(b, list(node.meta["val"])[: max(1, len(op._schema.returns))])
    b.fallbacks.append(str(op))
    b.add(Extern(outs, str(op), positional, named, tuple(new.items())))
    updated = [mapped(given[name], lambda r: r and replace(r, value=new[r.value])) for name in written]
    return [*[v and whole(v, t.dtype) for v, t in zip(outs, node.meta["val"], strict=False)], *updated]


def _own_memory(b: Builder, name: str, arguments: Mapping[str, Any], given: Any, traced: Any) -> Any:
    """A tensor that is written to, or each of a list, with the strides that it was traced with; copied if it is a part
    of a value, or another of the arguments reads that value."""
    if isinstance(given, (list, tuple)):
        return [_own_memory(b, name, arguments, *pair) for pair in zip(given, traced, strict=True)]
    if not isinstance(given, TensorRef):
        return given
    meta = b.meta(traced.meta["val"])
    sharing = [r for r in flatten(list(arguments.values())) if isinstance(r, TensorRef) and r.value is given.value]
    if given.is_whole() and len(sharing) == 1 and same_strides(meta.shape, given.value.strides, meta.strides):
        return given
    return b.copy(given, meta, name)


def region(b: Builder, node: fx.Node, env: Mapping[fx.Node, Result]) -> Result:
    """A call of a whole operator with its subgraphs: ``cond``, ``while_loop``, ``scan``, ``map``.

    It is called by the name ``gyrator.region_k``; ``b.regions`` holds the graph that this name stands for.

    Raises: UnsupportedOperator for what is no operator."""
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
