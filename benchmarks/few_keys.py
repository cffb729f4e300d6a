"""Attention of few keys or under a mask on a GPU: gyrator's template against the library's kernel, which eager calls.

    python -m benchmarks.few_keys [--jobs N] [--json FILE]

Microseconds of GPU kernels, of forward or of forward and backward, in bfloat16. Operands lie as projections make them,
[batch, rows, heads, width], and have some ten million elements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from benchmarks import measure
from benchmarks.measure import write_gpu_rows
from benchmarks.model_row import kernels

HEADS, ELEMENTS, REPEATS = {6: 4, 32: 8, 64: 12, 128: 16}, 9_700_000, 10
SIDES: Sequence[tuple[str, int, Sequence[int]]] = (
    ("none", 6, (16,)),
    ("none", 32, (16, 64, 100, 144, 197, 256, 512)),
    ("none", 64, (16, 32, 49, 64)),
    ("causal", 32, (64, 100, 128)),
    ("causal", 64, (64,)),
    ("bias", 32, (16, 49, 64, 144, 200, 256, 512, 1000)),
    ("bias", 64, (16, 49, 64, 128, 144, 256, 512, 1000, 2048)),
    ("bias", 128, (128, 512, 2048)),
    ("keys", 32, (16, 49, 64, 128, 197, 256, 1000)),
    ("keys", 64, (16, 49, 64, 128, 197, 256, 512, 1000, 2048, 4096)),
    ("keys", 128, (197, 512, 1000, 2048, 4096)),
    ("key_bias", 32, (197, 1000)),
    ("key_bias", 64, (128, 197, 512, 1000, 2048)),
    ("key_bias", 128, (197, 512, 1000, 2048)),
    ("pairs", 32, (16, 64, 144, 200, 512, 1000)),
    ("pairs", 64, (16, 64, 144, 200, 512, 1000, 2048, 4096)),
    ("pairs", 128, (128, 512, 2048, 4096)),
    ("made", 32, (64, 144, 200, 512, 1000)),
    ("made", 64, (64, 144, 197, 512, 1000, 2048, 4096)),
    ("made", 128, (128, 197, 512, 1000, 2048, 4096)),
    ("window", 64, (1000, 4096)),
    ("window", 128, (1000, 4096)),
)
"""Masks (``keys`` hides keys, ``pairs`` keys of rows; ``bias`` adds to each score, ``key_bias`` to those of a key),
widths of heads, and as many rows as keys. ``made`` is as ``pairs``, and ``window`` hides keys that are far away, but
the compiled function makes it, from the keys that are hidden; the library finds it made."""
WINDOW = 256
ONE_ROW: Sequence[tuple[str, int, Sequence[int]]] = (("keys", 64, (1000, 4096)), ("keys", 128, (1000, 4096)))
"""The same where there is one row, as in decoding."""


@dataclass(frozen=True)
class Case:
    mask: str
    width: int
    rows: int
    keys: int
    training: bool

    def arguments(self) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        """Operands, what the compiled function gets of the mask, and the mask."""
        heads, rows, keys = HEADS[self.width], self.rows, self.keys
        batch = (1 if rows > 1 else 8) * ELEMENTS // (heads * keys * max(self.width, 8))
        shapes = [(batch, side, heads, self.width) for side in (rows, keys, keys)]
        operands = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for shape in shapes]
        hidden = keys - 3 - torch.arange(batch, device="cuda")[:, None] % (keys // 2)
        seen = (torch.arange(keys, device="cuda") < hidden)[:, None, None]
        masks: dict[str, Callable[[], Tensor]] = {
            "bias": lambda: torch.randn(1, heads, rows, keys, device="cuda", dtype=torch.bfloat16),
            "key_bias": lambda: torch.zeros(seen.shape, device="cuda", dtype=torch.bfloat16).masked_fill(~seen, -1e4),
            "keys": lambda: seen,
            "pairs": lambda: self.made(seen),
            "made": lambda: self.made(seen),
            "window": lambda: self.made(seen),
        }
        mask = masks[self.mask]() if self.mask in masks else None
        return [x.requires_grad_(self.training) for x in operands], seen if self.makes else mask, mask

    @property
    def makes(self) -> bool:
        """Whether the compiled function makes the mask."""
        return self.mask in ("made", "window")

    def made(self, seen: Tensor) -> Tensor:
        """A mask of what is not behind the row, nor far before it."""
        row, key = torch.arange(self.rows, device="cuda")[:, None], torch.arange(self.keys, device="cuda")
        near = key > row - WINDOW if self.mask == "window" else key >= 0
        return seen & (key <= row) & near

    def microseconds(self, compiled: bool, lock: FileLock) -> float:
        """Of all kernels of a call, while no other process measures."""

        def attention(mask: Tensor | None, *operands: Tensor) -> Tensor:
            query, key, value = operands
            mask = self.made(mask) if compiled and self.makes and mask is not None else mask
            out = F.scaled_dot_product_attention(query, key, value, mask, is_causal=self.mask == "causal")
            return out.transpose(1, 2).flatten(2)

        operands, given, mask = self.arguments()
        mask = given if compiled else mask
        call: Callable[..., Tensor] = measure.compiled(attention, "gyrator" if compiled else "eager", dynamic=False)
        tangent = torch.randn_like(attention(mask, *operands))

        def several() -> None:
            for _ in range(REPEATS):
                with torch.set_grad_enabled(self.training):
                    out = call(mask, *operands)
                if self.training:
                    torch.autograd.grad(out, operands, tangent)

        several()
        with lock:
            several()
            found: float = kernels(several)["ms"]
        return found / REPEATS * 1e3


def cases() -> list[Case]:
    sides = [(mask, width, keys, keys) for mask, width, several in SIDES for keys in several]
    steps = [Case(mask, width, 1, keys, False) for mask, width, several in ONE_ROW for keys in several]
    return [Case(*side, training) for side, training in product(sides, (False, True))] + steps


def rows(part: int, parts: int, lock: FileLock) -> Iterator[dict[str, Any]]:
    for case in cases()[part::parts]:
        torch._dynamo.reset()
        library, gyrator = (case.microseconds(compiled, lock) for compiled in (False, True))
        yield {**asdict(case), "library": round(library, 1), "gyrator": round(gyrator, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_keys", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5, help="processes that compile at the same time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        part, folder = int(options.part[0]), Path(options.part[1])
        found = list(rows(part, options.jobs, FileLock(folder / "lock")))
        (folder / f"{part}.json").write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as folder_name:
        command = [sys.executable, "-m", "benchmarks.few_keys", "--jobs", str(options.jobs), "--part"]
        workers = [subprocess.Popen([*command, str(part), folder_name]) for part in range(options.jobs)]
        failed = [worker.wait() for worker in workers]
        found = [row for path in sorted(Path(folder_name).glob("*.json")) for row in json.loads(path.read_text())]
    for row in sorted(found, key=lambda row: list(row.values())):
        print(" ".join(map(str, row.values())), f"{row['library'] / row['gyrator']:.2f}")
    if options.json:
        write_gpu_rows(options.json, "python -m benchmarks.few_keys. Microseconds of GPU kernels, bfloat16.", found)
    return int(any(failed))


if __name__ == "__main__":
    raise SystemExit(main())
