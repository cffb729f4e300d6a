"""Attention as units of a schedule: calls that become kernels of their own.

    call gyrator.region_0("forward", [q, k, v], lists, sides, scale, reads, reads)   →   out = forward of q, k, v
    call aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)                   →   out = forward of q, k, v

First comes the template: ``forward``, ``rows`` (the gradient of queries) or ``columns`` (of keys and values), for the
library's gradient ``backward``. Gradients also take that of the result, the sums, and what to subtract. ``lists`` say
which blocks of ``sides`` rows and columns are walked: counts, numbers, the same of whole ones. The user's functions on
one score (what becomes of it, whether it is kept, its gradient) become expressions over batch, head, row and column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch

from gyrator.ir.build import cast, op
from gyrator.ir.expr import Const, Expr, IndexValue, Load, Masked, Op, Ref, Value, rewrite, stem_of, with_loads
from gyrator.ir.index import ONE, ZERO, Axis, as_index
from gyrator.ir.masks import causal
from gyrator.ir.program import Arg, Extern, Nest, Pointwise, Program, View
from gyrator.ir.simplify import Rule
from gyrator.ir.tree import Attend, Config, Kernel, Param, Tile, Tiling
from gyrator.ir.volume import fits_32_bits, iterations
from gyrator.schedule.canonical import named
from gyrator.schedule.kernel import Built
from gyrator.schedule.plan import full_view
from gyrator.schedule.products import FLOATS, Templated, Unit
from gyrator.schedule.prologue import element_of

_LIBRARY = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": ("forward", "query key value dropout causal"),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
        "backward", "grad query key value result sums dropout causal",
    ),
}  # fmt: skip
"""The template that computes what a call of the library does, and what the call's arguments are."""
_OPERANDS = ("query", "key", "value", "grad", "sums", "delta")
_OF_BACKWARD = (*_OPERANDS[:4], "result", "sums")
_LISTS = ("counts", "blocks", "whole_counts", "whole_blocks")
_FORWARD = ("out", "sums", "maxima")
_RESULTS = {
    "forward": _FORWARD, "decode": _FORWARD, "rows": ("d_query",), "columns": ("d_key", "d_value"),
    "backward": ("d_query", "d_key", "d_value"),
}  # fmt: skip

Ways = Callable[[Attend], tuple[str, tuple[Config, ...]]]
"""The template for a call and its configurations, the likely best first; none where the call stays."""


def attention_unit(call: Extern, rule: Rule, ways: Ways, made: Mapping[Value | None, Nest]) -> Unit:
    """A call of attention as a kernel, which computes what it reads of scores as ``made``; any other call as it is.

    A call stays whose functions are more than expressions, or whose tensors are views of other types or empty."""
    meaning = _written if call.functions else _library if call.op in _LIBRARY else None
    attend = None if meaning is None else meaning(call, rule, made)
    template, configs = ("", ()) if attend is None else ways(attend)
    if attend is None or not configs:
        return call
    read = dict.fromkeys(load.value for f in attend.functions for load in f.loads())
    args = (*call.args[: 5 if call.functions else None], tuple(map(full_view, read)))
    call = replace(call, args=args, kwargs=tuple(named for named in call.kwargs if named[0] != "attn_mask"))
    return Templated(call, template, configs, attend=replace(attend, template=template))


def _written(call: Extern, rule: Rule, made: Mapping[Value | None, Nest]) -> Attend | None:
    """What a call of flex_attention means."""
    args: Sequence[Any] = call.args
    template, tensors, lists, sides, scale, *reads = args
    plain = (isinstance(v, View) and v.dtype in (None, v.value.dtype) and ZERO not in v.shape for v in tensors + lists)
    if not all(plain):
        return None
    axes = _axes(tensors)
    given = zip(call.functions, (*reads, reads[0]), strict=False)
    functions = tuple(f for f in [_function(p, r, axes, rule, made) for p, r in given] if f is not None)
    if len(functions) < len(call.functions):
        return None
    return Attend(template, axes, tensors, lists, _shown(call), functions, tuple(sides), scale)


def _library(call: Extern, rule: Rule, made: Mapping[Value | None, Nest]) -> Attend | None:
    """What a call of the library's attention means, whose masks are numbers to add; 0 and -inf say what is kept."""
    template, names = _LIBRARY[call.op]
    given: dict[str, Any] = dict(zip(names.split(), call.args, strict=False)) | dict(call.kwargs)
    tensors, mask = tuple(given[name] for name in _OF_BACKWARD if name in given), given.get("attn_mask")
    axes, width, scale, shown = _axes(tensors), tensors[0].shape[3].value, given.get("scale"), _shown(call)
    views = (*tensors, *(() if mask is None else (mask,)))
    strange = any(v.dtype is not None or v.value.dtype not in FLOATS or ZERO in v.shape for v in views)
    if strange or given.get("dropout") or width is None:
        return None
    places, group = tuple(axis.index() for axis in axes), (tensors[0].shape[1] // tensors[1].shape[1]).value
    if template == "forward" and axes[2].extent is ONE and group and group > 1:
        (query, *others), shown = tensors, tuple(v and _joined(v, group) for v in shown)
        tensors = (_joined(query, group), *others)
        axes = _axes(tensors)
        places = (axes[0].index(), axes[1].index() * group + axes[2].index(), ZERO, axes[3].index())
    score: Expr = Ref("score", torch.float32, frozenset(axes))
    keep = causal(places) if given.get("causal") else Const(True, torch.bool)
    if mask is not None:
        at = zip(mask.shape, places[-len(mask.shape) :], strict=True)
        bias = element_of(mask, tuple(ZERO if n is ONE else place for n, place in at), made, rule)
        match bias:
            case Op("where", (kept, Const(0), Const(value))) if value == -inf:
                keep = op("logical_and", keep, kept) if given.get("causal") else kept
            case _:
                score = op("add", score, cast(bias, torch.float32))
    scale = width**-0.5 if scale is None else float(scale)
    return Attend(template, axes, tensors, (), shown, (score, keep), (1, 1), scale, natural=True)


def _joined(view: View, group: int) -> View:
    """The only rows of heads that share keys as rows of one head: keys are then read once for them."""
    (batch, heads, _, *wide), (step, of_head, _, *more) = view.shape, view.strides
    shape = (batch, heads // group, as_index(group), *wide)
    return replace(view, shape=shape, strides=(step, of_head * group, of_head, *more))


def _shown(call: Extern) -> tuple[View | None, ...]:
    return tuple(None if v is None else full_view(v) for v in call.out)


def _axes(tensors: Sequence[View]) -> tuple[Axis, ...]:
    extents = (*tensors[0].shape[:3], tensors[1].shape[2])
    return tuple(Axis(name, n) for name, n in zip(("batch", "head", "row", "column"), extents, strict=True))


def _function(
    program: Program, reads: Sequence[Arg], axes: tuple[Axis, ...], rule: Rule, made: Mapping[Value | None, Nest]
) -> Expr | None:
    """A function as an expression, whose loads are at places in the memory of what it reads; None if it is none."""
    count = len(program.inputs) - len(reads)
    scores = [Ref(name, torch.float32, frozenset(axes)) for name in ("score", "grad")[: count - len(axes)]]
    given = zip(program.inputs, (*scores, *(IndexValue(a.index()) for a in axes)), strict=False)
    known: dict[Value | None, tuple[tuple[Axis, ...], Expr]] = {i.value: ((), e) for i, e in given}
    views = {i.value: v for i, v in zip(program.inputs[count:], reads, strict=True) if isinstance(v, View)}

    def inlined(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.value in views:
            return element_of(views[e.value], e.index, made, rule)
        if isinstance(e, Load) and e.value in known:
            inner, body = known[e.value]
            return rewrite(body, rule, dict(zip(inner, e.index, strict=True)))
        return rule(e)

    for node in program.nodes:
        if not isinstance(node, Nest) or not isinstance(node.root, Pointwise):
            return None
        known[node.out[0]] = node.axes, rewrite(node.root.body, inlined)
    (out,) = program.outputs
    body = known[out.value][1] if isinstance(out, View) and out.value in known else None
    if body is None or any(isinstance(e, Masked) for e in body.walk()):
        return None
    own = {i.value for i in program.inputs} | {*program.constants}
    return body if own.isdisjoint(load.value for load in body.loads()) else None


def build_attention(call: Extern, attend: Attend, configs: tuple[Config, ...]) -> Built:
    """The kernel of a call of attention."""
    memory: dict[Value, Value] = {}

    def param(value: Value, wish: str) -> Value:
        return memory.setdefault(value, Value(wish, (value.span,), value.dtype, (ONE,), value.device))

    def windows(views: Sequence[Any], wishes: Sequence[str]) -> tuple[Any, ...]:
        return tuple(v and replace(v, value=param(v.value, wish)) for v, wish in zip(views, wishes, strict=False))

    def renamed(e: Load) -> Load:
        return Load(param(e.value, f"{stem_of(e.value.name)}_{len(memory)}"), e.index)

    names = _OF_BACKWARD if attend.template == "backward" else _OPERANDS
    operands, lists = windows(attend.operands, names), windows(attend.lists, _LISTS)
    functions = tuple(with_loads(f, renamed) for f in attend.functions)
    read = {*memory.values()}
    results = windows(attend.results, _RESULTS[attend.template])
    stage = replace(attend, operands=operands, lists=lists, functions=functions, results=results)
    on_gpu = operands[0].value.device.type == "cuda"
    stage = stage if on_gpu else replace(stage, blocks=configs[0].blocks)
    params = {Param(p, p in read, p not in read): v for v, p in memory.items()}
    kernel = Kernel(f"attention_{stage.template}", tuple(params), (), (), (stage,), call.origins)
    tiling = _tiling(stage, configs) if on_gpu else None
    return Built(replace(named(kernel, str(configs)), tiling=tiling), tuple(params.values()))


def _tiling(stage: Attend, every: Sequence[Config]) -> Tiling | None:
    """The grids of a GPU, one for each text of the template: with roles for warps, and without."""
    *outer, row, column = stage.axes
    tiles = (Tile(row, "BLOCK_M"), Tile(column, "BLOCK_N"))[:: -1 if stage.template == "columns" else 1]
    wide = not all(fits_32_bits(i) for f in stage.functions for load in f.loads() for i in load.index)
    texts = [tuple(c for c in every if bool(c.registers) is roles) for roles in (False, True)]
    tiling: Tiling | None = None
    for configs in filter(None, texts):
        tiling = Tiling(tiles, configs, "template", wide, (), iterations((*outer, row)), tiling)
    return tiling
