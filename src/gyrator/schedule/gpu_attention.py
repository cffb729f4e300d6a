"""Attention on a GPU: which template computes a call, and the blocks that it runs with. Forward becomes ``decode``
where the rows of all heads with the same keys are one tile."""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from gyrator.ir.expr import Op
from gyrator.ir.index import ONE
from gyrator.ir.ops import OPS
from gyrator.ir.program import View
from gyrator.ir.tree import Attend, Config
from gyrator.ir.volume import power, volume
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.prologue import DEAR
from gyrator.torch_compat import float32_matmul_precision

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


def gpu_ways(attend: Attend, gpu: Gpu, *, tune: bool) -> tuple[str, tuple[Config, ...]]:
    """The template for a call and its configurations, several if the best is to be found by ``tune``."""
    tensors, template = attend.operands, attend.template
    split = _split(tensors, attend.lists, gpu) if template == "forward" else 0
    template = "decode" if split else template
    configs = _configs(template, tensors, attend.sides, gpu, split)
    roles = template == "forward" and _has_roles(tensors, attend.sides, gpu) and (tune or _is_light(attend))
    configs = configs[: 4 if tune else 1]
    if configs and roles:  # texts of one kernel have the same block sizes
        every = [(_ROLES, gpu.processors), *((config, 0) for config in configs)]
        configs = tuple(replace(c, blocks=(*c.blocks, ("PROGRAMS", programs))) for c, programs in every)
    return template, configs


def _split(tensors: Sequence[View], lists: Sequence[View], gpu: Gpu) -> int:
    """How many programs walk the keys of a tile of `decode`; 0 where that is not the template."""
    (_, heads, rows, _), (batch, groups, keys, _) = (view.shape for view in tensors[:2])
    changing = any(n.value is None for n in (heads, rows, batch, groups))
    if changing or volume((heads, rows)) > FEW * volume((groups,)) or any(view.shape[1] != ONE for view in lists):
        return 0
    return max(1, min(gpu.processors // volume((batch, groups)), volume((keys,)) // FEW_KEYS))


def _configs(template: str, views: Sequence[View], sides: Sequence[int], gpu: Gpu, split: int) -> tuple[Config, ...]:
    """Blocks whose operands fit into shared memory and whose sums fit into registers, the likely best first. None is
    larger than there are rows and keys; warps of such smaller ones have at least 1,024 scores."""
    item, of_columns = views[0].value.dtype.itemsize, template == "columns"
    width = max(16, *(power(view.shape[-1].value) for view in views[:3]))
    tf32 = int(item == 4 and float32_matmul_precision() != "highest")
    rows, columns = (max(16, power(view.shape[2].value or 1 << 30)) for view in views[:2])
    most = 1 << (14 if item == 2 or tf32 else 10)  # without tensor cores operands lie in registers too
    found: dict[Config, None] = {}
    for text in _BLOCKS[template].split(","):
        m, n, warps, stages, widest = map(int, text.split())
        m, n = gcd(m, sides[0]), gcd(n, sides[1])
        if m > rows or n > columns:
            m, n = min(m, rows), min(n, columns)
            warps = max(min(warps, m * n >> 10), 1)
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
    return even and gpu.capability // 10 == 9 and tensors[0].value.dtype.itemsize == 2


def _is_light(attend: Attend) -> bool:
    """Whether warps with roles are surely faster: of a program's twelve, eight compute what is done for each score, to
    which what a mask reads of a row or a column adds little."""
    score, keep, *_ = attend.functions
    along = {*attend.axes[2:]}
    each = {e for f in attend.functions for e in f.walk() if e.axes() & along}
    dear = any(isinstance(e, Op) and OPS[e.name].cost >= DEAR for e in each)
    read = not each.isdisjoint(score.loads()) or any(e.axes() >= along for e in keep.loads())
    return not (dear or read) and all(view.shape[3].value == 128 for view in attend.operands)
