"""Expressions as Triton functions, which templates call on tiles.

@triton.jit
def rights(batch, inner, column, inner_ok, column_ok, reads):
    weights, scales = reads
    return tl.load(weights + (inner * 64 + column)).to(tl.float32) * tl.load(scales + column)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from gyrator.codegen.blocks import Key
from gyrator.codegen.python_text import Names, is_small, tuple_of
from gyrator.codegen.triton_expr import Expressions, Term
from gyrator.ir.expr import Expr, Ref
from gyrator.ir.index import Axis
from gyrator.ir.tree import Let, Loop, LoopKind, Stage, Tile, loads_in, stage_exprs


def reads_of(printer: Expressions, stage: Stage) -> list[str]:
    """The tensors that the functions of a stage read, and the sizes."""
    sizes = sorted({size for e in stage_exprs(stage) for size in e.sizes()}, key=lambda size: size.name)
    values = dict.fromkeys(load.value for load in loads_in((stage,)))
    return [*(printer.pointers[v] for v in values), *(printer.index(size.index()).text for size in sizes)]


def function_lines(
    name: str,
    arguments: Sequence[str],
    expr: Expr,
    outer: Expressions,
    reads: Sequence[str],
    known: Mapping[Key, Term],
    element: torch.dtype,
    *,
    tiles: Sequence[Tile] = (),
    bounds: Mapping[Axis, Term] = MappingProxyType({}),
    first: Sequence[str] = (),
) -> Iterator[str]:
    """A function of ``arguments`` and the tuple ``reads``, by which axes and more is ``known``.

    ``tiles`` are the kernel's own by default, ``bounds`` where it loads along an axis. ``element`` is the type of the
    tensors it works for: functions are cheaper where that is small."""
    body: Loop | Let = Let(Ref("result", expr.dtype, expr.axes()), expr)
    for axis in reversed([key for key in known if isinstance(key, Axis)]):
        body = Loop(axis, LoopKind.PARALLEL, (body,))
    names = Names((name, *arguments, *reads, "reads", "tl", "rt", "libdevice"))
    tiling = replace(outer.tiling, tiles=tuple(tiles) or outer.tiling.tiles)
    printer = Expressions(replace(outer.kernel, body=(body,)), tiling, names)
    printer.pointers, printer.narrow, printer.bounds = outer.pointers, is_small(element), {**bounds}
    for key, term in (*known.items(), *((size, outer.index(size.index())) for size in expr.sizes())):
        printer.bind(key, replace(term, depth=0))
    result = printer.value(expr).text
    outer.asserts |= printer.asserts
    lines = [*([f"{tuple_of(reads)} = reads"] if reads else []), *first, *printer.block.lines, f"return {result}"]
    yield from ("@triton.jit", f"def {name}({', '.join([*arguments, 'reads'])}):")
    yield from (f"    {line}" for line in lines)
    yield from ("", "")
