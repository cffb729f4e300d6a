"""Templates of matrix products on a GPU: which blocks are worth a trial for a product's shape."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

import torch

from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, ZERO
from gyrator.ir.program import Extern, Program, View, defines, shown_values
from gyrator.ir.tree import Config, Contract, Kernel, Tile, Tiling
from gyrator.ir.volume import iterations, volume
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_tiling import in_32_bits
from gyrator.schedule.group import Group
from gyrator.schedule.products import Product, Templated, product_of
from gyrator.torch_compat import float32_matmul_precision

GROUP_M = 8
"""Rows of tiles whose programs run at about the same time, so that they find each other's operands in the cache."""
MOST_TILED, MOST_DESCRIBED, MOST_FEW, MOST_THIN = 6, 4, 3, 2
MOST_SUMMED = 1 << 16
"""Products in a sum for few rows: 200,704 for each of 96 x 384 took 1.65 ms on an H200, and libraries split k."""
SHORT, BROAD, LARGEST, LEAST_STEP, MOST_UNEVEN, LONGEST = 9 << 20, 64, 1 << 14, 32, 512, 4096
"""Multiplications of a program, of which all run at once, up to which the template needs no trial: a third of them for
tiles with a side under BROAD, where half of the processors have none, or if the left operand lies transposed. The
largest tile and the shortest blocks of k then, the longest k of which the last block may be a part, the longest k."""
ROW_BYTES = 16
"""Libraries are slow at rows that end between multiples of it."""
WORTH = 1 << 33
"""Floating-point operations of a product from which on it is worth it to mind where its rows end."""

_TILED = (
    (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 4, 4), (128, 128, 128, 8, 3), (128, 128, 64, 8, 4),
    (128, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 256, 128, 4, 4), (64, 64, 128, 4, 5), (64, 64, 256, 4, 3),
    (64, 32, 256, 4, 4), (32, 64, 256, 4, 4), (32, 32, 256, 4, 4), (16, 64, 256, 4, 4), (16, 128, 256, 4, 4),
    (64, 16, 256, 4, 4), (16, 32, 512, 4, 4), (32, 16, 512, 4, 4), (16, 16, 512, 2, 4),
)  # fmt: skip
"""Rows and columns of a tile, bytes of k, warps, stages."""
_DESCRIBED = (
    (128, 256, 128, 8, 4), (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 8, 4), (128, 128, 128, 4, 3),
    (64, 256, 128, 4, 4), (64, 128, 128, 4, 5),
)  # fmt: skip
"""Likewise, of persistent programs that load by descriptors of tensors."""
_SPLIT = (
    (16, 16, 128, 2, 4), (16, 16, 256, 4, 1), (16, 16, 256, 4, 4), (16, 32, 256, 4, 2), (32, 32, 128, 4, 4),
    (32, 32, 256, 4, 4), (16, 128, 256, 4, 4), (64, 64, 128, 4, 4), (64, 128, 128, 4, 4), (128, 128, 128, 8, 3),
)  # fmt: skip
"""Likewise, of programs that sum a part of k each: all run at the same time, as they wait for each other."""


def gpu_configs(product: Product, gpu: Gpu) -> Iterator[tuple[str, Config]]:
    """Templates and their blocks for a product, the likely best first."""
    count, m, n = _sides(product)
    tf32 = int(product.out.dtype == torch.float32 and float32_matmul_precision() != "highest")
    exact = product.out.dtype == torch.float32 and not tf32
    most = 1 << 14 if exact else 1 << 15  # sums that fit in registers; without tensor cores operands lie there too
    item, k = product.left.value.dtype.itemsize, volume(product.left.shape[-1:], 256)

    def tiles(s: tuple[int, ...]) -> int:
        return count * -(-m // s[0]) * -(-n // s[1])

    def best(shapes: tuple[tuple[int, ...], ...], number: int) -> list[tuple[int, ...]]:
        """By rounds of programs, times the elements of a tile, of which small ones load more."""
        found = [s for s in shapes if all(b <= 16 or b < 2 * side for b, side in zip(s, (m, n), strict=False))]
        found = [s for s in found if s[0] * s[1] <= most and s[4] * (s[0] + s[1]) * s[2] <= gpu.shared_bytes]
        cost = {s: -(-tiles(s) // gpu.processors) * s[0] * s[1] * (1 + 64 / s[0] + 64 / s[1]) for s in found}
        return sorted(found, key=lambda s: cost[s])[:number]

    def config(s: tuple[int, ...], **more: int) -> Config:
        blocks = {"BLOCK_M": s[0], "BLOCK_N": s[1], "BLOCK_K": max(s[2] // item, 16), "GROUP_M": GROUP_M}
        fast = {"FAST": 1} if product.fast else {}
        return Config((*(blocks | {"ALLOW_TF32": tf32} | fast | more).items(),), s[3], s[4])

    yield from (("tiled", config(s)) for s in best(_TILED, MOST_TILED))
    small = product.left.value.dtype.is_floating_point and item <= 2
    of_rows = product.ends is None or product.rows_in_groups
    matrices = (product.left, product.right) if small and of_rows and not product.has_patches else ()
    if matrices and gpu.capability >= 90 and all(map(_describable, matrices)):
        found = [s for s in best(_DESCRIBED, MOST_DESCRIBED) if tiles(s) >= gpu.processors]
        yield from (("described", config(s, PROGRAMS=gpu.processors)) for s in found)
    split = product.ends is None and all(n.value is not None for n in product.shape)
    for s in best(_SPLIT, len(_SPLIT)) if split else ():
        step = max(s[2] // item, 16)
        length = -(-max(k // max(gpu.processors // tiles(s), 1), 1) // step) * step
        parts = -(-k // length)
        if parts > 1:
            yield "tiled", config(s, SPLIT_K=parts, SHARE=s[0] >> min(parts.bit_length() - 1, s[0].bit_length() - 1))


def few_configs(product: Product, gpu: Gpu, made: Sequence[Group]) -> tuple[Config, ...]:
    """Blocks of the template `tiled` for a product that is bound by reading an operand: programs for half of the
    processors at least, or else for parts of k. None if neither can be, or if k is far too long for one program, as for
    gradients of weights. Groups, which are many, have any number. Fewer stages where what an operand is computed from,
    by one of ``made``, would not fit. The third may be the fastest for few rows, but not for few columns."""
    if volume(product.left.shape[-1:], 1) > MOST_SUMMED:
        return ()
    found = [config for name, config in gpu_configs(product, gpu) if name == "tiled"]
    split = [config for config in found if "SPLIT_K" in dict(config.blocks)]
    enough = 0 if product.ends is not None else gpu.processors
    whole = [config for config in found if config not in split and 2 * _programs(product, config) >= enough]
    _, m, n = _sides(product)
    most = MOST_FEW if m <= n else MOST_THIN
    return tuple([_within(config, product, gpu, made) for config in whole[:most] or split[:1]])


def short_configs(product: Product, gpu: Gpu) -> tuple[Config, ...]:
    """Blocks of the template `tiled` for a product of 16 bits that is so small that a call of the library costs more:
    0.3 to 1.0 of its time on an H200, the largest 0.96 in the mean, and 4 µs of the processor's instead of 13. A
    longer k has whole blocks."""
    sizes = [n.value for n in (*product.shape, product.left.shape[-1])]
    if product.left.value.dtype.itemsize != 2 or None in sizes or product.ends is not None or product.has_patches:
        return ()
    k = volume(product.left.shape[-1:])
    for name, config in gpu_configs(product, gpu) if k <= LONGEST else ():
        blocks = dict(config.blocks)
        step = gcd(k, blocks["BLOCK_K"])
        if name != "tiled" or "SPLIT_K" in blocks or (step < LEAST_STEP and k > MOST_UNEVEN):
            continue
        rows, columns, programs = blocks["BLOCK_M"], blocks["BLOCK_N"], _programs(product, config)
        broad = min(rows, columns) >= BROAD and 2 * programs >= gpu.processors and product.left.strides[-1] is ONE
        most = SHORT if broad else SHORT // 3
        if rows * columns <= LARGEST and rows * columns * k <= most and programs <= gpu.processors:
            blocks["BLOCK_K"] = step if step >= LEAST_STEP else blocks["BLOCK_K"]
            return (replace(config, blocks=(*blocks.items(),)),)
    return ()


def _programs(product: Product, config: Config) -> int:
    (count, m, n), blocks = _sides(product), dict(config.blocks)
    return count * -(-m // blocks["BLOCK_M"]) * -(-n // blocks["BLOCK_N"])


def _within(config: Config, product: Product, gpu: Gpu, made: Sequence[Group]) -> Config:
    blocks, stage = dict(config.blocks), 0
    for view, side in ((product.left, "BLOCK_M"), (product.right, "BLOCK_N")):
        read = [load.dtype.itemsize for g in made if view.value in g.members[0].nest.out for load in g.members[0].loads]
        stage += blocks["BLOCK_K"] * blocks[side] * (sum(read) or view.value.dtype.itemsize)
    return replace(config, num_stages=max(1, min(config.num_stages, gpu.shared_bytes // stage)))


def _sides(product: Product) -> tuple[int, int, int]:
    """About how many matrices a product makes, and their sides. Most rows of groups are in those of twice the mean."""
    *batch, m, n = (volume((extent,), 256) for extent in product.shape)
    groups = volume(product.ends.shape) if product.ends is not None and product.rows_in_groups else 1
    return prod(batch) * groups, m if groups == 1 else -(-2 * m // groups), n


def unpadded(call: Extern, gpu: Gpu) -> Templated | None:
    """A large product whose rows alone end where libraries are slow (logits of 30,522 words in bfloat16), by the
    template that loads by descriptors: 16384 x 768 x 30522 take 1.20 ms on an H200, a padded product and the copy
    of what the caller sees 1.58 ms, and twice the memory; the library 3.24 ms."""
    if (product := product_of(call)) is None or len(product.out.shape) != 2 or product.out.dtype.itemsize != 2:
        return None
    row = product.out.shape[1].value
    if row is None or row * 2 % ROW_BYTES == 0 or 2 * volume((*product.out.shape, product.left.shape[1]), 1) < WORTH:
        return None
    return next((Templated(call, name, (c,)) for name, c in gpu_configs(product, gpu) if name == "described"), None)


def shown_unpadded(program: Program, gpu: Gpu) -> set[Value]:
    """Products that the caller sees and that need no padding, as `unpadded` computes them."""
    shown = shown_values(program)
    calls = [n for n in program.nodes if isinstance(n, Extern) and not shown.isdisjoint(defines(n))]
    return {value for call in calls if unpadded(call, gpu) for value in defines(call)}


def _describable(view: View) -> bool:
    """Whether a descriptor can tell how matrices lie: neighbours along one side, steps of whole 16 bytes."""
    *batch, rows, columns = view.strides
    sizes = [n.value for n in (*batch, rows if columns is ONE else columns, view.offset)]
    whole = all(n is not None and n * view.value.dtype.itemsize % 16 == 0 for n in sizes)
    return whole and ONE in (rows, columns) and ZERO not in view.strides


def tile_product(kernel: Kernel, contract: Contract, configs: tuple[Config, ...]) -> Kernel:
    """The kernel with its tiling: a program computes a tile of rows and columns."""
    tiles = (Tile(contract.row, "BLOCK_M"), Tile(contract.column, "BLOCK_N"))
    hint = iterations((*contract.batch, contract.row, contract.column))
    return replace(kernel, tiling=in_32_bits(Tiling(tiles, configs, "template", hint=hint), kernel))
