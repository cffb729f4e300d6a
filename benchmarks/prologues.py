"""Products of few rows whose weights are converted, on a GPU: stored first, computed by the template, and Inductor.

    python -m benchmarks.prologues [--rows 1 16 64] [--inductor] [--json FILE]

Each is recorded as a CUDA graph of calls over so many weights that they do not stay in the second cache (240 MB), and
replayed in turns with the others; medians count. `bf16` is the library with weights that are already converted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gemm import Call, medians
from benchmarks.measure import write_gpu_rows

SIZES = ((2048, 2048), (4096, 4096), (11008, 4096), (4096, 11008))
ROWS = (1, 8, 16, 24, 32, 48, 64, 96, 128)
CACHED = 240_000_000


def layer(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """A linear layer with a scale for each of its results."""
    return (x @ w.to(x.dtype).t()) * s


def weights(n: int, k: int, dtype: torch.dtype) -> list[Tensor]:
    """Matrices of numbers that bfloat16 has, more than a cache holds."""
    number = max(2, -(-CACHED // (n * k * dtype.itemsize)))
    return [torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8).to(dtype) for _ in range(number)]


def over(fn: Callable[..., Tensor], x: Tensor, all_weights: list[Tensor], s: Tensor) -> Call:
    def call() -> None:
        for w in all_weights:
            fn(x, w, s)

    return call


def compiled(backend: str, **options: Any) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(layer, backend=backend, options=options or None, dynamic=False)


def measured(m: int, n: int, k: int, dtype: torch.dtype, *, inductor: bool) -> dict[str, float]:
    """Microseconds of one product, by way."""
    x, s = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, device="cuda").bfloat16() / 100
    given, plain = weights(n, k, dtype), weights(n, k, torch.bfloat16)
    calls = {"bf16": over(lambda x, w, s: x @ w.t(), x, plain, s)}
    ways = [("apart", "gyrator", {"gemm_backends": ("aten",)}), ("computed", "gyrator", {})]
    for name, backend, options in (*ways, *([("inductor", "inductor", {})] if inductor else [])):
        fn = compiled(backend, **options)
        torch.testing.assert_close(fn(x, given[0], s), layer(x, given[0], s), rtol=3e-2, atol=3e-2 * k**0.5)
        calls[name] = over(fn, x, given, s)
    numbers = {"bf16": len(plain)}
    return {name: 1e3 * t / numbers.get(name, len(given)) for name, t in medians(calls).items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for dtype in (torch.int8, torch.float32):
        for n, k in SIZES:
            for m in args.rows:
                found = measured(m, n, k, dtype, inductor=args.inductor)
                rows.append({"weights": str(dtype).removeprefix("torch."), "m": m, "n": n, "k": k, **found})
                print(rows[-1]["weights"], f"{m}x{k}x{n}", *(f"{way} {t:.1f}" for way, t in found.items()), flush=True)
    if args.json:
        note = "python -m benchmarks.prologues. Microseconds of a product in a recorded CUDA graph that is replayed."
        write_gpu_rows(args.json, note, rows)


if __name__ == "__main__":
    main()
