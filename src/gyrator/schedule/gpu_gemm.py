"""Templates of matrix products on a GPU: which blocks are worth a trial for a product's shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch

from gyrator.ir.tree import Config, Contract, Kernel, Tile, Tiling
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_tiling import is_wide
from gyrator.schedule.products import Product
from gyrator.schedule.volume import volume

TILED = "tiled"
GROUP_M = 8
"""Rows of tiles whose programs run at about the same time, so that they find each other's operands in the cache."""
MOST = 8
"""Tiled candidates of a product."""

_SHAPES = (
    (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 4, 4), (128, 128, 128, 8, 3), (128, 128, 64, 8, 4),
    (128, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 256, 128, 4, 4), (64, 64, 128, 4, 5), (64, 64, 256, 4, 3),
    (64, 32, 256, 4, 4), (32, 64, 256, 4, 4), (32, 32, 256, 4, 4), (16, 64, 256, 4, 4), (16, 128, 256, 4, 4),
    (64, 16, 256, 4, 4), (16, 32, 512, 4, 4), (32, 16, 512, 4, 4), (16, 16, 512, 2, 4),
)  # fmt: skip
"""Rows and columns of a tile, bytes of k, warps, stages."""


def gpu_configs(product: Product, gpu: Gpu) -> Iterator[tuple[str, Config]]:
    """Templates and their blocks for a product, the likely best first."""
    *batch, m, n = (volume((extent,), 256) for extent in product.out.shape)
    item = product.left.value.dtype.itemsize
    found = [s for s in _SHAPES if _fits(s[0], m) and _fits(s[1], n)]
    found = [s for s in found if s[4] * (s[0] + s[1]) * s[2] <= gpu.shared_bytes]
    found.sort(key=lambda s: _cost(s[0], s[1], m, n, prod(batch), gpu))
    for rows, columns, bytes_k, warps, stages in found[:MOST]:
        blocks = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": max(bytes_k // item, 16), "GROUP_M": GROUP_M}
        yield TILED, Config((*blocks.items(), ("ALLOW_TF32", _allow_tf32(product))), warps, stages)


def tile_product(kernel: Kernel, contract: Contract, configs: tuple[Config, ...]) -> Kernel:
    """The kernel with its tiling: a program computes a tile of rows and columns."""
    tiles = (Tile(contract.row, "BLOCK_M"), Tile(contract.column, "BLOCK_N"))
    hint = volume(axis.extent for axis in (*contract.batch, contract.row, contract.column))
    return replace(kernel, tiling=Tiling(tiles, configs, "template", is_wide(kernel), hint))


def _fits(block: int, extent: int) -> bool:
    """Whether a block is not more than twice too long."""
    return block <= 16 or block < 2 * extent


def _cost(rows: int, columns: int, m: int, n: int, batch: int, gpu: Gpu) -> float:
    """About how long the tiles take: rounds of programs, times a tile's elements, of which small ones load more."""
    tiles = batch * -(-m // rows) * -(-n // columns)
    return -(-tiles // gpu.processors) * rows * columns * (1 + 64 / rows + 64 / columns)


def _allow_tf32(product: Product) -> int:
    return int(product.out.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")
