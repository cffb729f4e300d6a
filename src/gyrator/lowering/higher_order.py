"""Higher-order operators: custom ops that write into arguments, and operators that run subgraphs.

=====================  ===============================================================================
auto_functionalized    a call of the op itself, which writes into new versions of its arguments
gyrator_attention      likewise; a template may compute it
others with subgraphs  one call of the whole operator (a region), which runs its subgraphs op by op
=====================  ===============================================================================
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from gyrator.autograd.builder import flatten
from gyrator.autograd.effects import behaviour
from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Index, contiguous_strides
from gyrator.ir.program import Arg, Extern, Program, View
from gyrator.lowering import extern
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.extern import Result
from gyrator.lowering.refs import TensorRef, whole


def auto_functionalized(b: Builder, node: fx.Node, kwargs: Mapping[str, Result]) -> Result:
    """``auto_functionalized(op, **arguments)`` → op's own results (None for none), then the new arguments.

    Raises: UnsupportedOperator for an op that writes into keyword-only arguments or lists.
    """
    op = node.args[0]
    assert isinstance(op, OpOverload)
    given = dict(kwargs)
    for name in behaviour(op).written:
        value = given.get(name)
        if isinstance(value, TensorRef):
            given[name] = _own_memory(b, value, name, given)
    results, new = _call(b, node, op, given)
    return [*results, *[new.get(name) for name in behaviour(op).written]]


def _call(
    b: Builder, node: fx.Node, op: OpOverload, given: Mapping[str, Result]
) -> tuple[list[Result], dict[str, TensorRef]]:
    """Append the call. Its own results (one None for none), and what each written argument became."""
    positional: list[Arg] = []
    named: list[tuple[str, Arg]] = []
    mutates: list[tuple[int, Value]] = []
    new: dict[str, TensorRef] = {}
    written = behaviour(op).written
    for schema in op._schema.arguments:
        value = given.get(schema.name, schema.default_value)
        writes = schema.name in written and value is not None
        passed = extern.argument(b, node, value, node.kwargs.get(schema.name), exact=not writes)
        if writes:
            if schema.kwarg_only or not isinstance(value, TensorRef) or not isinstance(passed, View):
                raise extern.refused(op, node, "it writes into a list or a keyword-only argument")
            old = passed.value
            version = b.value(Meta(old.shape, old.dtype, old.strides, old.device), schema.name)
            mutates.append((len(positional), version))
            seen = TensorRef(version, value.shape, value.coords, value.dtype)
            new[schema.name] = seen if old is value.value else whole(version)
        if schema.kwarg_only:
            named.append((schema.name, passed))
        else:
            positional.append(passed)
    outs = extern.results(b, list(node.meta["val"])[: max(1, len(op._schema.returns))])
    b.fallbacks.append(str(op))
    b.add(Extern(outs, str(op), tuple(positional), tuple(named), tuple(mutates)))
    return [None if v is None else whole(v) for v in outs], new


def _own_memory(b: Builder, ref: Result, name: str, others: Mapping[str, Result]) -> TensorRef:
    """``ref``, copied if it is a part of a value or another argument reads that value."""
    assert isinstance(ref, TensorRef)
    leaves = flatten([v for k, v in others.items() if k != name])
    if ref.is_whole() and not any(isinstance(leaf, TensorRef) and leaf.value is ref.value for leaf in leaves):
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
