"""The C++ template of matrix products: which panels and blocks suit a shape, and the loops around it.

parallel tile of rows, columns               BLOCK_M x BLOCK_N sums in a scratch tile, by `gy::Product` (gemm.h)
  - row of the tile
    = column of the tile                     the epilogue reads the sums while they are in the cache"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm

import torch
from torch import Tensor
from torch.nn.functional import pad

from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, ZERO, as_index, contiguous_strides
from gyrator.ir.program import Program, View
from gyrator.ir.tree import Config, Contract, Kernel, Loop, LoopKind, walk_stages
from gyrator.ir.volume import volume
from gyrator.schedule.loops import LANES
from gyrator.schedule.products import Product, Templated
from gyrator.torch_compat import float32_matmul_precision

CPP, PANELS = "cpp", "panels"
"""The family's name, and the template's."""
DEPTH = 256
"""Elements of k whose panels stay in the cache: a panel of 32 columns fills the first cache."""
TILE_ROWS, TILE_COLUMNS = 128, 512
"""Most rows and columns of a tile: its sums and panels of its rows fill half of the second cache."""
FEW = 4
"""Rows or columns of which products are the library's: it sums along k, where both operands may lie together."""
AMX_ROWS, AMX_DEPTH = 32, 512
"""Rows and columns that AMX tiles sum at once, and elements of k whose panels stay in the cache."""
REGISTERS: Mapping[str, tuple[int, int]] = {
    "scalar": (16, 1), "avx2": (16, 8), **dict.fromkeys(("avx512", "avx512_vnni", "avx512_bf16", "amx"), (32, 16)),
}  # fmt: skip
"""Vector registers of each instruction set, and the floats in one."""
_DOTS: Mapping[torch.dtype, tuple[str, ...]] = {
    torch.int8: ("avx512_vnni", "avx512_bf16", "amx"), torch.bfloat16: ("avx512_bf16", "amx"),
}  # fmt: skip
"""Instruction sets that multiply neighbours along k and add up the products."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor: its instructions, most threads of a kernel, whether libraries are made for it (MKL for Intel's)."""

    isa: str
    threads: int
    favoured: bool = True

    def on_tiles(self, dtype: torch.dtype) -> bool:
        """Whether products of that type are summed by AMX tiles."""
        return self.isa == "amx" and dtype in (torch.bfloat16, torch.int8)

    def has_dots(self, dtype: torch.dtype) -> bool:
        """Whether instructions multiply neighbours along k and add up the products."""
        return self.isa in _DOTS.get(dtype, ())

    def group(self, dtype: torch.dtype) -> int:
        """Neighbours along k that lie side by side in a panel, for such instructions."""
        return 4 // dtype.itemsize if dtype == torch.int8 or self.has_dots(dtype) else 1

    def unit(self, dtype: torch.dtype) -> int:
        """What the length of a panel is a multiple of: a group, or a tile's row of 64 bytes."""
        return 64 // dtype.itemsize if self.on_tiles(dtype) else self.group(dtype)


def cpu_configs(product: Product, cpu: Cpu) -> Iterator[Config]:
    """The template's numbers for a product, the likely best first.
    MR rows and V registers of columns (NR in all) are summed in registers; TAIL is the height of the last panel."""
    dtype = product.left.value.dtype
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.int8):
        return
    registers, lanes = REGISTERS[cpu.isa]
    tiles, group = cpu.on_tiles(dtype), cpu.group(dtype)
    registers //= 2 if dtype == torch.int8 and not cpu.has_dots(dtype) else 1  # two for each sum (gemm_groups.h)
    m, n, k = (e.value for e in (product.out.shape[-2], product.out.shape[-1], product.left.shape[-1]))
    rows = m or volume((product.out.shape[-2],), TILE_ROWS)
    if product.ends is not None:
        m, rows = None, -(-2 * rows // volume(product.ends.shape))
    across = -(-(n or TILE_COLUMNS) // lanes)
    best = sorted(range(1, min(rows, registers - 3) + 1), key=lambda r: _cost(r, rows, across, registers))
    depth = AMX_DEPTH * group // 2 if tiles else DEPTH * group
    for height in [AMX_ROWS] if tiles else best[:2]:
        v = AMX_ROWS // lanes if tiles else _width(height, across, registers)
        tail = (m % height or height) if m is not None else max(1, height // 2)
        unit = lcm(v * lanes, LANES)  # whole panels, and whole vectors of the epilogue
        columns = _share(n or TILE_COLUMNS, rows, cpu.threads)
        blocks = {
            "MR": height, "V": v, "NR": v * lanes, "TAIL": tail,
            "BLOCK_M": _block(rows, TILE_ROWS, height),
            "BLOCK_N": _block(n or TILE_COLUMNS, columns, unit),
            "BLOCK_K": _block(k or depth, depth, cpu.unit(dtype) if tiles else LANES),
        }  # fmt: skip
        yield Config(tuple(blocks.items()), 1)


def few_rows(product: Product, cpu: Cpu) -> tuple[Config, ...]:
    """How to compute the right operand of a product of few rows, element by element. None where storing it first (of
    groups, the library) is as fast: halves that nothing multiplies, on AMX tiles columns that do not lie along k.

    4096x4096 weights of 8 bits on one core of a Sapphire Rapids: 1 to 32 rows take 4.6 ms, converted first 10.5; 128
    rows 10.5 and 16. On an EPYC without tiles 16 rows take 5.4 and 6.8 ms, of float32 9.5 and 14.8."""
    dtype, tall = product.right.value.dtype, product.right.strides[-2] is ONE
    widened = product.ends is None and (dtype == torch.float32 or cpu.has_dots(dtype))
    fast = tall if cpu.on_tiles(dtype) else widened
    return tuple(cpu_configs(product, cpu))[:1] if fast else ()


def faster_configs(product: Product, cpu: Cpu) -> tuple[Config, ...]:
    """Blocks for a product of float32 or float16 where the library is slower: on a processor that it does not favour,
    but for few rows or columns. None where it may be less exact than that, and for convolutions."""
    *_, m, n = product.shape
    dtype, few = product.out.dtype, (m.value or LANES) < FEW or (n.value or 0) < FEW
    if cpu.favoured or few or dtype not in (torch.float32, torch.float16) or product.scales or cpu.isa == "scalar":
        return ()
    exact = (dtype == torch.float16 or float32_matmul_precision() == "highest") and product.window is None
    return tuple(cpu_configs(product, cpu))[:1] if exact else ()


def block_product(kernel: Kernel, contract: Contract, configs: tuple[Config, ...]) -> Kernel:
    """The kernel with vectors along the columns, and the template's numbers in its stage."""
    axes = (*contract.batch, contract.row, contract.column)
    _, *epilogue = walk_stages(kernel.body)
    stages = (replace(contract, blocks=configs[0].blocks), *epilogue)
    grain = volume((contract.left.shape[-1],)) // LANES + len(stages)
    nest = Loop(contract.column, LoopKind.LANES, stages, lanes=LANES)
    for axis in reversed(axes[:-1]):
        nest = Loop(axis, LoopKind.PARALLEL, (nest,), grain=grain)
    return replace(kernel, body=(nest,))


@dataclass(frozen=True, slots=True)
class Packing:
    """A right operand in panels of ``width`` columns: ``value[p, k, c] = source[k, p * width + c]`` or 0. It is part of
    a constant. ``group`` neighbours along k are side by side: ``value[p, k/2, c, k%2]`` for 2."""

    value: Value
    source: View
    width: int
    group: int

    @property
    def layout(self) -> tuple[int, ...]:
        """Where ``source`` lies in its constant, and how in panels, for :func:`panels_of`."""
        places = (*self.source.shape, *self.source.strides, self.source.offset, self.value.shape[1])
        return (*(place.value or 0 for place in places), self.width, self.group)


def packing_of(source: View, config: Config, cpu: Cpu) -> Packing:
    """The constant that holds ``source`` in panels as the template wants them."""
    (k, n), dtype = source.shape, source.value.dtype
    width, unit = REGISTERS[cpu.isa][1] * dict(config.blocks)["V"], cpu.unit(dtype)
    shape = ((n + (width - 1)) // width, (k + (unit - 1)) // unit * unit, as_index(width))
    name = "_".join(map(str, (source.value.name, "panels", width, k, n, source.offset, *source.strides)))
    value = Value(re.sub(r"\W", "", name), shape, dtype, contiguous_strides(shape))
    return Packing(value, source, width, cpu.group(dtype))


def frozen(unit: Templated, right: View, program: Program, cpu: Cpu) -> tuple[Templated, tuple[Packing, ...]]:
    """The unit with a constant right operand read from panels, by strides within the first, and how it is packed."""
    if right.value not in program.constants or len(right.shape) != 2 or not unit.configs:
        return unit, ()
    (config,) = unit.configs
    packing = packing_of(right, config, cpu)
    view = View(packing.value, right.shape, (as_index(packing.width), ONE), ZERO)
    call = replace(unit.call, args=(*unit.call.args[:-1], view))
    return replace(unit, call=call, configs=(replace(config, blocks=(*config.blocks, ("PACKED", 1))),)), (packing,)


def panels_of(whole: Tensor, k: int, n: int, rk: int, rn: int, at: int, depth: int, width: int, group: int) -> Tensor:
    """A part of a tensor in panels, as a packing with this layout says."""
    source = whole.as_strided((k, n), (rk, rn), whole.storage_offset() + at)
    padded = pad(source, (0, -n % width, 0, depth - k))
    return padded.view(depth // group, group, -1, width).permute(2, 0, 3, 1).reshape(-1, depth, width).contiguous()


def _width(height: int, across: int, registers: int) -> int:
    """Registers of columns beside ``height`` rows: the sums, a row of the right operand and one element spread out. The
    fewest with which ``across`` registers are as few panels."""
    most = min(8, (registers - 1) // (height + 1))
    return -(-across // -(-across // most))


def _cost(height: int, rows: int, across: int, registers: int) -> float:
    """About how long ``rows`` take in panels of that height: products, loads or waits for sums, and far rows."""
    v = _width(height, across, registers)

    def panel(r: int) -> float:
        return max(r * v / 2, (r + v) / 2, 4) + v / 2 + (r + v) / 16

    return -(-across // v) * (rows // height * panel(height) + (panel(rows % height) if rows % height else 0))


def _block(extent: int, most: int, unit: int) -> int:
    """The size of equal blocks that are no longer than ``most`` but for rounding up to ``unit``."""
    return -(-extent // -(-extent // most) // unit) * unit


def _share(columns: int, rows: int, threads: int) -> int:
    """Most columns of a tile, so that each thread has as many columns of tiles, or else two tiles or more."""
    across = -(-columns // (TILE_COLUMNS * threads)) * threads
    if columns < 64 * across:
        across = -(-2 * threads // -(-rows // TILE_ROWS))
    return max(64, -(-columns // across))
