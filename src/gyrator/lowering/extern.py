"""Calls: operators without a lowering, with results shaped as fake kernels say; assertions; those of higher order:

=====================  ===============================================================================
auto_functionalized    a call of the op itself, which writes into new versions of its arguments
gyrator_attention      likewise; a template may compute it
others with subgraphs  one call of the whole operator (a region), which runs its subgraphs op by op
=====================  ==============================================================================="""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any, TypeAlias, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from gyrator.autograd.builder import flatten, mapped
from gyrator.autograd.effects import behaviour
from gyrator.errors import UnsupportedOperator
from gyrator.ir.build import number
from gyrator.ir.build import op as operation
from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Index
from gyrator.ir.program import Arg, Extern, Item, Program, View
from gyrator.lowering.builder import Builder, Family, Meta, rows, same_strides
from gyrator.lowering.refs import TensorRef, whole
from gyrator.origin import in_context, origin_of
from gyrator.torch_compat import is_size

aten = torch.ops.aten

Result: TypeAlias = (
    "TensorRef | Index | Expr | bool | int | float | complex | str | torch.dtype | torch.device"
    " | torch.layout | torch.memory_format | fx.GraphModule | list[Result] | tuple[Result, ...] | None"
)
"""What a node of the FX graph becomes, and what an op's arguments are."""

STRIDES_FREE = frozenset({
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten._int_mm.default,
})  # fmt: skip
"""Ops that take any strides. All others get exactly the traced ones."""

COPIES: Mapping[OpOverload, OpOverload] = {
    aten.view.dtype: aten.view_copy.dtype,
    aten.as_strided.default: aten.as_strided_copy.default,
}
"""Views that are no index maps → the op that copies, since a call's result must be memory of its own."""


def refused(op: object, node: fx.Node, reason: str, *, for_eager: bool = False) -> UnsupportedOperator:
    """The error for an operator that can neither be lowered nor called where ``node`` stands."""
    return UnsupportedOperator(str(op), reason, where=origin_of(node), node=in_context(node), for_eager=for_eager)


def call(b: Builder, node: fx.Node, op: OpOverload, args: Sequence[Result], kwargs: Mapping[str, Result]) -> Result:
    """Lower ``node`` as a call of ``op``; the result has the structure of the traced one.

    Raises: UnsupportedOperator for a traced result or an argument that a call cannot have."""
    op = COPIES.get(op, op)
    if op._schema.is_mutable:
        raise refused(op, node, "it writes into its arguments, and the graph should have been functional")
    if op._schema.name == "aten::quantize_per_tensor":  # its fake kernel says float32
        raise refused(op, node, "its result is quantised", for_eager=True)
    exact = op not in STRIDES_FREE
    positional = [argument(b, node, a, t, exact=exact) for a, t in zip(args, node.args, strict=True)]
    named = [(k, argument(b, node, a, node.kwargs.get(k), exact=exact)) for k, a in kwargs.items()]
    # Some calls matter though nobody reads a result: checks and prints, and draws, whose order counts.
    silent = not op._schema.returns or op is aten._functional_assert_async.msg
    effects = silent or torch.Tag.nondeterministic_seeded in op.tags
    return append(b, node, Extern((), str(op), tuple(positional), tuple(named), effects=effects))


def append(b: Builder, node: fx.Node, call: Extern, own: int | None = None) -> Result:
    """Append a call, whose results are those, or of several the first ``own``, that ``node`` was traced with."""
    traced = node.meta.get("val") if own is None else node.meta["val"][:own]
    leaves = zip(flatten(traced), _wanted(node, traced), strict=True)
    values = results(b, [leaf if wanted else None for leaf, wanted in leaves])
    # the sizes that exist only once this call has run: an item's value, the length of nonzero
    new = {traced.node.expr: ()} if isinstance(traced, torch.SymFloat) else node.meta.get("unbacked_bindings") or {}
    equal = {symbol: b.symbols.replaced(symbol) for symbol in new}
    bound = [s for s, path in new.items() if equal[s] is None or not is_size(path)]  # a result's shape is checked
    scalars = tuple([size for symbol in bound for size in b.symbols.from_sympy(symbol).sizes()])
    b.fallbacks.append(call.op)
    b.add(replace(call, out=values, effects=call.effects or bool(scalars), scalars=scalars))
    for symbol, known in equal.items():
        if symbol in bound and known is not None and known.value is None:  # a constant is among the size's bounds
            condition = operation("eq", number(b.symbols.from_sympy(symbol), torch.int64), number(known, torch.int64))
            _assertion(b, None, condition, f"{symbol} is what torch._check said")
    return _structured(b, traced, iter(values))


def argument(b: Builder, node: fx.Node, value: Result, traced: object, *, exact: bool) -> Arg:
    """An argument of a call, or an output; an ``exact`` tensor has the strides that ``traced``, its FX node, had."""
    if isinstance(value, TensorRef):
        fake = traced.meta.get("val") if isinstance(traced, fx.Node) else None
        return b.as_view(value, b.meta(fake).strides if exact and isinstance(fake, torch.Tensor) else None)
    if isinstance(value, (list, tuple)):
        inner = traced if isinstance(traced, (list, tuple)) else [None] * len(value)
        return tuple([argument(b, node, v, t, exact=exact) for v, t in zip(value, inner, strict=True)])
    if isinstance(value, Expr):  # a float or bool that the graph computes
        return Item(_scalar(b, value, "number"))
    if isinstance(value, (fx.GraphModule, torch.ScriptObject)):
        scripted = isinstance(value, torch.ScriptObject)
        raise refused(node.target, node, f"it takes a {type(value).__name__}", for_eager=scripted)
    return value


def _scalar(b: Builder, value: Expr, suffix: str) -> View:
    return b.as_view(b.pointwise(Meta((), value.dtype, (), torch.device("cpu")), lambda at: value, suffix))


def _assertion(b: Builder, out: object, condition: Result, message: str) -> None:
    """``_assert_scalar(condition, message)`` → ``_assert_async(tensor of the condition, message)``."""
    assert isinstance(condition, (Expr, Index, bool, int, float))
    if not isinstance(condition, (bool, int)) or not condition:
        tensor = _scalar(b, number(condition, torch.bool), "condition")
        b.add(Extern((), "aten._assert_async.msg", (tensor, message), effects=True))


def _wanted(node: fx.Node, traced: object) -> list[bool]:
    """For each leaf of the result, whether someone reads it, or its size, which this call makes known."""
    if not isinstance(traced, (list, tuple)):
        return [True]
    read = {u.args[1] for u in node.users if u.target is getitem}
    read |= {path[0].idx for path in node.meta.get("unbacked_bindings", {}).values() if is_size(path)}
    everything = any(u.target is not getitem for u in node.users)
    return [everything or k in read for k, item in enumerate(traced) for _ in flatten(item)]


def results(b: Builder, traced: Sequence[object]) -> tuple[Value | None, ...]:
    """A value for each tensor among the results."""
    return tuple([b.value(b.meta(leaf)) if isinstance(leaf, torch.Tensor) else None for leaf in traced])


def _structured(b: Builder, traced: object, values: Iterator[Value | None]) -> Result:
    if isinstance(traced, (list, tuple)):
        return [_structured(b, item, values) for item in traced]
    value = next(values)
    if value is not None and isinstance(traced, torch.Tensor):
        return whole(value, traced.dtype)
    if isinstance(traced, torch.SymInt):
        return b.symbols.to_index(traced)
    return traced if isinstance(traced, (bool, int, float)) else None


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
    passed = [(a, argument(b, node, given[a.name], node.kwargs.get(a.name), exact=True)) for a in schema]
    positional = tuple([value for a, value in passed if not a.kwarg_only])
    named = tuple([(a.name, value) for a, value in passed if a.kwarg_only])
    own = append(b, node, Extern((), str(op), positional, named, tuple(new.items())), max(1, len(op._schema.returns)))
    assert isinstance(own, list)
    return [*own, *(mapped(given[name], lambda r: r and replace(r, value=new[r.value])) for name in written)]


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
        raise refused(node.target, node, "it has no lowering")
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
            passed.append(argument(b, node, given, leaf, exact=True))
        else:
            leaves[leaf] = given
    graph.output(graph.node_copy(node, lambda n: leaves[n]))
    return append(b, node, Extern((), b.region(fx.GraphModule(held, graph)), tuple(passed)))


def attention(b: Builder, node: fx.Node, args: Sequence[Any], functions: tuple[Program, ...]) -> Result:
    """A call of ``gyrator_attention`` with all its arguments but the bodies, which are also given as ``functions``."""
    graph, held = fx.Graph(), dict(zip(("score", "keep", "slope"), args[1], strict=False))
    kind, *rest = [graph.placeholder(f"x{k}") for k in range(len(args) - 1)]
    target = cast(HigherOrderOperator, node.target)
    graph.output(graph.call_function(target, (kind, [*map(graph.get_attr, held)], *rest)))
    given = [argument(b, node, args[k], node.args[k], exact=True) for k in range(len(args)) if k != 1]
    return append(b, node, Extern((), b.region(fx.GraphModule(held, graph)), tuple(given), functions=functions))


LOWERINGS: Family = {
    **rows(_assertion, "_assert_scalar"),
    # what they state is in the bounds of symbols and in metadata
    **rows(lambda *_, **__: None, "sym_constrain_range sym_constrain_range_for_size _assert_tensor_metadata"),
}
