"""Linear layers on the processor: the C++ template, weights packed or not, the library, and the peak beside them.

    taskset -c 1 python -m benchmarks.gemm_cpu --threads 1 --json out.json

Calls alternate and the shortest of each counts, so that what else the machine does disturbs both alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gyrator
from gyrator.config import Config
from gyrator.runtime.build import INCLUDE
from gyrator.runtime.toolchain import FLAGS, ISA_FLAGS, find_toolchain

SIZES = [(2048, 4096, 1024), (512, 1024, 1024), (64, 1024, 1024), (16, 4096, 4096), (1, 4096, 4096), (127, 1000, 777)]
"""Rows, columns, length of the sums."""

PEAK = """
#include "gemm.h"
extern "C" __attribute__((visibility("default"))) void peak(int64_t rounds) {
  alignas(64) static float total[32 * 32], a[14 * 192];
  alignas(64) static float b[32 * 192];
#if defined(GY_AMX)
  alignas(64) static gy::bf16 left[32 * 32], right[32 * 32];
  gy::tile_begin();
  gy::tile_load<4>(left, 64), gy::tile_load<5>(left + 512, 64);
  gy::tile_load<6>(right, 64), gy::tile_load<7>(right + 512, 64);
  for (int64_t i = 0; i < rounds * 192; ++i) {
    gy::tile_multiply<gy::bf16, 0, 4, 6>(), gy::tile_multiply<gy::bf16, 1, 4, 7>();
    gy::tile_multiply<gy::bf16, 2, 5, 6>(), gy::tile_multiply<gy::bf16, 3, 5, 7>();
  }
  gy::tile_end();
#elif defined(GY_DOT_BF16)
  const auto left = (const gy::bf16*)a, right = (const gy::bf16*)b;
  for (int64_t i = 0; i < rounds; ++i) gy::multiply_groups<14, 2>(total, 32, left, right, 384, total, false);
#else
  for (int64_t i = 0; i < rounds; ++i) gy::multiply_panels<14, 2, float>(total, 32, a, 14, b, 32, 192, false);
#endif
}
"""
_VECTORS = 2 * 14 * 32 * 192
_WORK = {"amx": 2 * 32 * 32 * 32 * 192, "avx512_bf16": 2 * _VECTORS, "avx512_vnni": _VECTORS, "avx512": _VECTORS}
"""Operations of one round of `peak`."""


def peak() -> float | None:
    """The most GFLOP/s of one thread: in bfloat16 where it is multiplied, else in float32; None elsewhere."""
    toolchain = find_toolchain(Config())
    if toolchain.isa not in _WORK:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.cpp", Path(folder) / "peak.so"
        source.write_text(PEAK)
        command = [str(toolchain.compiler), *FLAGS, *ISA_FLAGS[toolchain.isa], f"-I{INCLUDE}", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        run = ctypes.CDLL(str(library)).peak
        (seconds,) = shortest([lambda: run(ctypes.c_int64(200))], 20)
    return 200 * _WORK[toolchain.isa] / seconds / 1e9


def shortest(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """The shortest seconds of each call, in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[k] = min(best[k], time.perf_counter() - start)
    return best


def measure(size: tuple[int, int, int], dtype: torch.dtype, rounds: int) -> dict[str, object]:
    """GFLOP/s of one layer with ReLU by the template with and without freezing, and by the library."""
    m, n, k = size
    torch._dynamo.reset()
    layer = nn.Sequential(nn.Linear(k, n), nn.ReLU()).to(dtype)
    x = torch.randn(m, k).to(dtype)
    options = {"max_autotune": True, "gemm_backends": ["cpp"]}
    frozen = gyrator.compile(layer, options={**options, "freezing": True})
    plain = gyrator.compile(layer, options=options)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), layer(x), rtol=2e-2, atol=2e-2)
        plain(x)
        seconds = shortest([lambda: frozen(x), lambda: plain(x), lambda: layer(x)], rounds)
    rates = [2 * m * n * k / s / 1e9 for s in seconds]
    row: dict[str, object] = {"size": size, "dtype": str(dtype)}
    return row | dict(zip(("frozen", "template", "library"), (round(r, 1) for r in rates), strict=True))


class Bytes(nn.Module):
    """A layer of int8 weights with a scale for each output, for int8 inputs or for others."""

    weight: Tensor
    scale: Tensor

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (n, k)).to(torch.int8))
        self.register_buffer("scale", torch.rand(n))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.int8:
            return torch.relu(torch._int_mm(x, self.weight.t()) * self.scale)
        return torch.relu((x @ self.weight.to(x.dtype).t()) * self.scale)


def measure_bytes(size: tuple[int, int, int], rounds: int) -> list[dict[str, object]]:
    """GFLOP/s with int8 weights: of int8 inputs beside the library's calls, of bfloat16 ones beside its product of
    weights converted at each call, and of bfloat16 weights, which are twice as large."""
    m, n, k = size
    torch._dynamo.reset()
    layer, wide = Bytes(n, k), nn.Linear(k, n, bias=False).bfloat16()
    x, y = torch.randint(-128, 128, (m, k)).to(torch.int8), torch.randn(m, k).bfloat16()
    shifted, zeros = (x.short() + 128).to(torch.uint8), torch.zeros(n, dtype=torch.int32)
    packed = torch.ops.onednn.qlinear_prepack(layer.weight, [m, k])
    options = {"max_autotune": True, "gemm_backends": ["cpp"]}
    frozen = gyrator.compile(layer, options={**options, "freezing": True})
    plain = gyrator.compile(layer, options=options)

    def quantised() -> Tensor:
        given: Any = (shifted, 1.0, 128, packed, layer.scale, zeros, None, 1.0, 0, torch.float32, "relu", [], "")
        return torch.ops.onednn.qlinear_pointwise(*given)

    calls: dict[str, dict[str, Callable[[], object]]] = {
        "int8": {
            "frozen": lambda: frozen(x), "template": lambda: plain(x), "library": quantised, "eager": lambda: layer(x),
        },
        "int8 weights": {"template": lambda: plain(y), "eager": lambda: layer(y), "library, bfloat16": lambda: wide(y)},
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), layer(x), rtol=1e-5, atol=1e-3)
        for name, of in calls.items():
            seconds = shortest([*of.values()], rounds)
            rates = (round(2 * m * n * k / s / 1e9, 1) for s in seconds)
            rows.append({"size": size, "dtype": name} | dict(zip(of, rates, strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[dict[str, object]] = [{"isa": find_toolchain(Config()).isa, "threads": given.threads, "peak": peak()}]
    print(rows[0], flush=True)
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            rows.append(measure(size, dtype, given.rounds))
            print(rows[-1], flush=True)
    for size in SIZES:
        rows += measure_bytes(size, given.rounds)
        print(*rows[-2:], sep="\n", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
