"""Attention as Triton: the user's functions on a tile of scores, and what the template is called with.

@triton.jit
def score(score, b, h, i, j, reads):
    slopes, = reads
    return score + tl.load(slopes + h) * (j - i)"""

from collections.abc import Iterator, Mapping

import torch

from gyrator.codegen.python_text import tuple_of
from gyrator.codegen.texts import Key
from gyrator.codegen.triton_expr import Expressions, Term, function_lines, reads_of
from gyrator.codegen.triton_source import GridAxis, Workspace
from gyrator.ir.expr import Const, Ref
from gyrator.ir.index import ONE, ZERO, as_index, product
from gyrator.ir.masks import FAR, band
from gyrator.ir.program import View
from gyrator.ir.tree import Attend
from gyrator.ir.volume import power

FUNCTIONS = {"score": ("score",), "keep": (), "slope": ("score", "grad")}
"""What each takes before b, h, i and j."""


def attention_grid(stage: Attend, blocks: Mapping[str, int]) -> tuple[GridAxis, ...]:
    """A program for each tile of rows of each head, or of columns of each head of keys, or for each share of these."""
    of_keys = stage.template in ("columns", "decode")
    batch, heads, length, _ = stage.operands[1 if of_keys else 0].shape
    tiles = GridAxis(length, "BLOCK_N" if of_keys else "BLOCK_M")
    return GridAxis(batch), GridAxis(heads), GridAxis(as_index(blocks["SPLIT"])) if "SPLIT" in blocks else tiles


def attention_workspaces(stage: Attend, blocks: Mapping[str, int]) -> Iterator[Workspace]:
    """Memory for what the programs of a tile of rows find, and for a counter for each tile; or for one of all tiles."""
    if "PROGRAMS" in blocks:  # as many, or none, share the tiles
        yield Workspace("counters", as_index(4), zeroed=True)
    if blocks.get("SPLIT", 1) > 1:
        tiles, widest = product(stage.operands[1].shape[:2]), stage.operands[2].shape[3].value
        numbers = blocks["BLOCK_M"] * (max(16, power(widest)) + 2)  # as the template lays them
        yield Workspace("space", tiles * (blocks["SPLIT"] * numbers * 4), zeroed=False)
        yield Workspace("counters", tiles * 4, zeroed=True)


def attention_arguments(printer: Expressions, stage: Attend) -> list[str]:
    """What the template is called with."""

    def tensor(view: View | None) -> str:
        if view is None:
            return "None"
        steps = [ZERO if n is ONE else step for n, step in zip(view.shape, view.strides, strict=True)]
        return tuple_of([printer.address(view.value, (view.offset,)).text, *(printer.index(s).text for s in steps)])

    (_, head, row, column), (query, key, value, *_) = stage.axes, stage.operands
    blocks = [dict(config.blocks) for config in printer.tiling.configs]
    even, several = [], []
    for axis, name, side in zip((row, column), ("BLOCK_M", "BLOCK_N"), stage.sides, strict=True):
        steps, length = [b[name] for b in blocks], axis.extent.value
        even.append(length is not None and all(length % n == 0 for n in (*steps, *([side] if stage.lists else []))))
        several.append(length is None or length > max(steps))
    moved = not even[1] and column.extent.value is not None and column.extent.value >= max(b["BLOCK_N"] for b in blocks)
    bounds = band(stage.functions[1], row, column) if several[stage.template != "columns"] else (-FAR, FAR)
    slope = "None" if all(isinstance(f, Ref) for f in stage.functions[2:]) else "slope"
    plain = isinstance(stage.functions[0], Ref) and stage.scale > 0  # else the greatest product is no greatest score
    return [
        *(tuple_of(map(tensor, views)) for views in (stage.operands, stage.lists, stage.results)),
        tuple_of(printer.index(axis.extent).text for axis in stage.axes),
        *(repr(stage.scale), "score", "keep", slope),
        tuple_of(reads_of(printer, stage)),
        *map(str, (*even, moved, plain, stage.functions[1] == Const(True, torch.bool), *bounds)),
        *map(str, (query.shape[3], value.shape[3], head.extent // key.shape[1], *stage.sides, *blocks[0])),
        *(["space", "counters"] if blocks[0].get("SPLIT", 1) > 1 else ["None"] * 2 * ("SPLIT" in blocks[0])),
        *["counters"] * ("PROGRAMS" in blocks[0]),
    ]


def score_functions(printer: Expressions, stage: Attend, *, gluon: bool) -> Iterator[str]:
    """The functions that the template calls, in ``gluon`` or not."""
    tiled = frozenset(printer.tile_of)
    known: dict[Key, Term] = {}
    for letter, axis in zip("bhij", stage.axes, strict=True):
        along = stage.axes[2] if (stage.template, letter) == ("decode", "h") else axis  # a head for each row of a tile
        known[axis] = Term(letter + ".to(tl.int64)" * printer.tiling.wide, axes=tiled & {along}, name=True)
    for score in FUNCTIONS["slope"]:
        known[Ref(score, torch.float32, frozenset(stage.axes))] = Term(score, axes=tiled, name=True)
    reads, element = reads_of(printer, stage), stage.operands[0].value.dtype
    for (name, scores), expr in zip(FUNCTIONS.items(), stage.functions, strict=False):
        if name != "slope" or not isinstance(expr, Ref):
            yield from function_lines(name, (*scores, *"bhij"), expr, printer, reads, known, element, apart=not gluon)
