"""Attention on a GPU: calls that become kernels of their own, and the blocks that these run with.

    call gyrator.region_0("forward", [q, k, v], lists, sides, scale, reads, reads)   →   out = forward of q, k, v

First comes the template: ``forward``, ``rows`` (the gradient of queries) or ``columns`` (of keys and values). Forward
becomes ``decode`` where the rows of all heads with the same keys are one tile. Gradients also take that of the result,
the sums, and what to subtract. ``lists`` say which blocks of ``sides`` rows and columns are walked: counts, numbers,
the same of whole ones. The user's functions on one score (what becomes of it, whether it is kept, its gradient),
programs of their own, become expressions over batch, head, row and column."""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import torch

from gyrator.ir.expr import Expr, IndexValue, Load, Masked, Op, Ref, Value, rewrite
from gyrator.ir.index import ONE, ZERO, Axis, dot
from gyrator.ir.ops import OPS
from gyrator.ir.program import Arg, Extern, Nest, Pointwise, Program, View
from gyrator.ir.simplify import Rule
from gyrator.ir.tree import Attend, Config, Kernel, Param, Tile, Tiling
from gyrator.ir.volume import iterations, volume
from gyrator.schedule.canonical import named, stem_of
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_tiling import fits, power
from gyrator.schedule.kernel import Built
from gyrator.schedule.plan import full_view
from gyrator.schedule.products import Templated, Unit
from gyrator.schedule.prologue import DEAR
from gyrator.torch_compat import float32_matmul_precision

_OPERANDS = ("query", "key", "value", "grad", "sums", "delta")
_LISTS = ("counts", "blocks", "whole_counts", "whole_blocks")
_FORWARD = ("out", "sums", "maxima")
_RESULTS = {"forward": _FORWARD, "decode": _FORWARD, "rows": ("d_query",), "columns": ("d_key", "d_value")}
_BLOCKS = {
    "forward": "64 128 4 2 64, 64 64 4 3 64, 128 64 8 3 64, 128 64 4 2 128, 128 128 8 3 128, 64 64 4 3 256,"
    "64 64 4 2 256, 64 32 4 2 256, 32 32 4 2 256",
    "decode": "16 64 4 4 128, 16 64 4 3 256, 16 32 4 2 256",
    "rows": "64 64 4 2 256, 128 128 8 2 128, 128 32 8 3 128, 64 64 4 3 128, 64 32 4 2 256, 32 32 4 2 256",
    "columns": "128 64 4 2 64, 64 64 4 2 256, 64 128 8 3 128, 64 64 8 2 256, 32 64 4 2 256, 32 32 4 2 256",
}
"""Rows and columns of a tile of scores, warps, stages, and the widest heads: the fastest first on an H200."""
_ROLES = Config((("BLOCK_M", 128), ("BLOCK_N", 128), ("ALLOW_TF32", 0)), 4, registers=168)
"""Of forward with roles for warps: 1.2 to 1.3 times as fast on an H200 as the text that all GPUs have."""
FEW, FEW_KEYS = 16, 256
"""Rows of a tile of ``decode``, and keys that are worth a program of their own."""


def attention_units(units: Sequence[Unit], rule: Rule, gpu: Gpu, *, tune: bool) -> tuple[Unit, ...]:
    """The units with calls of attention as kernels, with several configs if the best is to be found by ``tune``.

    A call stays whose functions are more than expressions, or whose tensors are views of other types or empty."""
    return tuple(_unit(u, rule, gpu, tune) if isinstance(u, Extern) and u.functions else u for u in units)


def _unit(call: Extern, rule: Rule, gpu: Gpu, tune: bool) -> Unit:
    args: Sequence[Any] = call.args
    template, tensors, lists, sides, _, *reads = args
    plain = (isinstance(v, View) and v.dtype in (None, v.value.dtype) and ZERO not in v.shape for v in tensors + lists)
    if not all(plain):
        return call
    given = zip(call.functions, (*reads, reads[0]), strict=False)
    functions = tuple(f for f in [_function(p, r, _axes(tensors), rule) for p, r in given] if f is not None)
    split = _split(tensors, lists, gpu) if template == "forward" else 0
    template = "decode" if split else template
    configs = _configs(template, tensors, sides, gpu, split)
    if len(functions) < len(call.functions) or not configs:
        return call
    roles = template == "forward" and _has_roles(tensors, sides, gpu) and (tune or _is_light(tensors, functions))
    return Templated(call, template, (_ROLES,) * roles + configs[: 4 if tune else 1], functions=functions)


def _axes(tensors: Sequence[View]) -> tuple[Axis, ...]:
    extents = (*tensors[0].shape[:3], tensors[1].shape[2])
    return tuple(Axis(name, n) for name, n in zip(("batch", "head", "row", "column"), extents, strict=True))


def _function(program: Program, reads: Sequence[Arg], axes: tuple[Axis, ...], rule: Rule) -> Expr | None:
    """A function as an expression, whose loads are at places in the memory of what it reads; None if it is none."""
    count = len(program.inputs) - len(reads)
    scores = [Ref(name, torch.float32, frozenset(axes)) for name in ("score", "grad")[: count - len(axes)]]
    given = zip(program.inputs, (*scores, *(IndexValue(a.index()) for a in axes)), strict=False)
    known: dict[Value | None, tuple[tuple[Axis, ...], Expr]] = {i.value: ((), e) for i, e in given}
    views = {i.value: v for i, v in zip(program.inputs[count:], reads, strict=True) if isinstance(v, View)}

    def inlined(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.value in views:
            view = views[e.value]
            return Load(view.value, (dot(e.index, view.strides) + view.offset,))
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
    return body if {load.value for load in body.loads()} <= {view.value for view in views.values()} else None


def _split(tensors: Sequence[View], lists: Sequence[View], gpu: Gpu) -> int:
    """How many programs walk the keys of a tile of `decode`; 0 where that is not the template."""
    (_, heads, rows, _), (batch, groups, keys, _) = (view.shape for view in tensors[:2])
    changing = any(n.value is None for n in (heads, rows, batch, groups))
    if changing or volume((heads, rows)) > FEW * volume((groups,)) or any(view.shape[1] != ONE for view in lists):
        return 0
    return max(1, min(gpu.processors // volume((batch, groups)), volume((keys,)) // FEW_KEYS))


def _configs(template: str, views: Sequence[View], sides: Sequence[int], gpu: Gpu, split: int) -> tuple[Config, ...]:
    """Blocks whose operands fit into shared memory and whose sums fit into registers, the likely best first."""
    item, of_columns = views[0].value.dtype.itemsize, template == "columns"
    width = max(16, *(power(view.shape[-1].value) for view in views[:3]))
    tf32 = int(item == 4 and float32_matmul_precision() != "highest")
    most = 1 << (14 if item == 2 or tf32 else 10)  # without tensor cores operands lie in registers too
    found: dict[Config, None] = {}
    for text in _BLOCKS[template].split(","):
        m, n, warps, stages, widest = map(int, text.split())
        m, n = gcd(m, sides[0]), gcd(n, sides[1])
        kept, walked = (n, m) if of_columns else (m, n)
        shared = (kept * (1 + (template in ("rows", "columns"))) + 2 * walked * stages) * width * item
        sums = (kept * width * (1 + of_columns) + 2 * m * n) * item
        if width <= widest and m * n <= most and shared <= gpu.shared_bytes and sums <= warps << 14:
            blocks = (("BLOCK_M", m), ("BLOCK_N", n), ("ALLOW_TF32", tf32), *[("SPLIT", split)] * bool(split))
            found[Config(blocks, warps, stages)] = None
    return tuple(found)


def _has_roles(tensors: Sequence[View], sides: Sequence[int], gpu: Gpu) -> bool:
    """Whether forward has a text for this GPU whose warps have roles: of 16-bit elements, rows of 64 or 128 that begin
    at multiples of 16 bytes, and blocks of the mask that its tiles divide."""
    steps = [step for v in tensors for n, step in zip(v.shape[:3], v.strides, strict=False) if n is not ONE]
    steps += [v.offset for v in tensors]
    even = all(step.value is not None and step.value % 8 == 0 for step in steps)
    even = even and all(view.strides[3] is ONE and view.shape[3].value in (64, 128) for view in tensors)
    blocks = dict(_ROLES.blocks)
    even = even and sides[0] % blocks["BLOCK_M"] == 0 and sides[1] % blocks["BLOCK_N"] == 0
    return even and gpu.arch[0] == 9 and tensors[0].value.dtype.itemsize == 2


def _is_light(tensors: Sequence[View], functions: Sequence[Expr]) -> bool:
    """Whether warps with roles are surely faster: of a program's twelve, eight compute what is done for each score."""
    each = {e for f in functions for e in f.walk() if e.axes() & {*_axes(tensors)[2:]}}
    dear = any(isinstance(e, Load) or (isinstance(e, Op) and OPS[e.name].cost >= DEAR) for e in each)
    return not dear and all(view.shape[3].value == 128 for view in tensors)


def build_attention(unit: Templated) -> Built:
    """The kernel of a call of attention."""
    call, template = unit.call, unit.template
    args: Sequence[Any] = call.args
    _, tensors, lists, sides, scale, *_ = args
    memory: dict[Value, Value] = {}

    def param(value: Value, wish: str) -> Value:
        return memory.setdefault(value, Value(wish, (value.span,), value.dtype, (ONE,), value.device))

    def windows(views: Sequence[Any], wishes: Sequence[str]) -> tuple[View, ...]:
        return tuple(v and replace(v, value=param(v.value, wish)) for v, wish in zip(views, wishes, strict=False))

    def renamed(e: Expr) -> Expr | None:
        return Load(param(e.value, f"{stem_of(e.value.name)}_{len(memory)}"), e.index) if isinstance(e, Load) else None

    axes, operands = _axes(tensors), windows(tensors, _OPERANDS)
    walked = windows(lists, _LISTS)
    functions = tuple(rewrite(f, renamed) for f in unit.functions)
    read = {*memory.values()}
    results = windows([v and full_view(v) for v in call.out], _RESULTS[template])
    stage = Attend(template, axes, operands, walked, results, functions, tuple(sides), scale)
    params = {Param(p, p in read, p not in read): v for v, p in memory.items()}
    kernel = Kernel(f"attention_{template}", tuple(params), (), (), (stage,), call.origins)
    tiles = (Tile(axes[2], "BLOCK_M"), Tile(axes[3], "BLOCK_N"))[:: -1 if template == "columns" else 1]
    wide = not all(fits(i) for f in functions for load in f.loads() for i in load.index)
    texts = [tuple(c for c in unit.configs if bool(c.registers) is roles) for roles in (False, True)]
    tiling: Tiling | None = None
    for configs in filter(None, texts):
        tiling = Tiling(tiles, configs, "template", wide, iterations(axes[:3]), tiling)
    return Built(replace(named(kernel, str(unit.configs)), tiling=tiling), tuple(params.values()))
