"""Attention on a processor: the numbers of the templates `gy::Attention` and `gy::AttentionGradient`. Scores lie with
``ROWS`` rows beside each other, in vectors, so that the greatest of a row and its sum need no step across lanes, and so
that weights are the left operand of their product with values as they lie."""

from math import gcd

import torch

from gyrator.ir.tree import Attend, Config
from gyrator.ir.volume import volume
from gyrator.schedule.cpu_gemm import REGISTERS, Cpu

_VECTORS, _KEYS, _PANEL = 3, 128, 16
"""Vectors of rows and keys at a time, with which scores stay in the first two caches; keys that lie side by side."""


def cpu_ways(attend: Attend, cpu: Cpu) -> tuple[str, tuple[Config, ...]]:
    """The template for a call and its numbers.

    ROWS by MK keys are summed at once, then MR rows by VV vectors of columns; KEYS are a step. With lists rows and
    steps divide the blocks of those; MC keys by VV vectors are summed at once for gradients. ROWS that fill half of a
    vector at most have a text of their own, and their gradient is the library's. Only ``forward`` and ``backward``; of
    the library's calls those where there are vectors."""
    (query, _, value), (registers, lanes) = attend.operands[:3], REGISTERS[cpu.isa]
    rows, wide = (volume((n,)) for n in (query.shape[2], value.shape[3]))
    wide_lists = any(view.value.dtype != torch.int32 for view in attend.lists)
    few, backward = rows <= lanes // 2, attend.template == "backward"
    stays = attend.natural and (lanes == 1 or (backward and few))
    if attend.template not in ("forward", "backward") or wide_lists or stays:
        return "", ()
    some = (4, 2, 1) if cpu.on_tiles(query.value.dtype) else (_VECTORS, 4, 2, 1)  # tiles have pairs of vectors
    fitting = [v for v in some if not attend.lists or attend.sides[0] % (v * lanes) == 0]
    v = min(fitting, key=lambda v: -(-rows // (v * lanes)) * _cost(_height(v, _PANEL, registers), v, _PANEL))
    all_rows, across = v * lanes, -(-wide // lanes)
    heights = {vv: _height(vv, all_rows, registers) for vv in range(4, 0, -1)}
    vv = min(heights, key=lambda vv: -(-across // vv) * _cost(heights[vv], vv, all_rows))
    keys = gcd(_KEYS, attend.sides[1]) if attend.lists else _KEYS
    all_rows = 1 << (rows - 1).bit_length() if few and not backward else all_rows
    numbers = {"ROWS": all_rows, "MK": _height(v, _PANEL, registers), "MR": heights[vv], "VV": vv}
    numbers |= {"MC": _height(vv, keys, registers)} if backward else {}
    return attend.template, (Config((*numbers.items(), ("KEYS", keys)), 1),)


def _height(across: int, most: int, registers: int) -> int:
    """Rows beside ``across`` registers of columns, whose sums leave registers for a row of those and one element."""
    return max(m for m in range(1, most + 1) if most % m == 0 and (m == 1 or m * across + across + 1 <= registers))


def _cost(height: int, across: int, rows: int) -> float:
    """About how long ``rows`` take beside that many registers of columns: multiplications, and loads at half that."""
    return rows / height * (height * across + (height + across) / 2)
