"""What it costs to time candidates in a process of their own.

    python -m benchmarks.sandbox [--device cuda] [--json FILE]

The candidates of real choices are timed in turns by a sandbox and by the same steps in this process. Each choice counts
by its quickest turn, so that the first sandbox's start, which its first turn shows, is in no ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.measure import machine
from gyrator.autotune import bench
from gyrator.autotune.sandbox import Sandbox, Sandboxes
from gyrator.config import Config

SHAPES = {
    "cuda": ((512, 1024, 1024), (4096, 4096, 4096), (32, 28672, 32), (8192, 512, 8192), (64, 4096, 14336)),
    "cpu": ((64, 256, 512), (512, 256, 1024), (2048, 256, 256)),
}
"""(m, k, n) of the products whose choices are timed."""
TURNS = 3


@dataclass(frozen=True)
class Cost:
    """Seconds for all candidates of a choice, turn by turn, in a process of their own and in this one."""

    candidates: int
    apart: list[float] = field(default_factory=list)
    here: list[float] = field(default_factory=list)


class Here(Sandbox):
    """A sandbox's questions answered in this process."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, None)
        self._device, self._choice = device, -1
        self._given, self._wanted, self._batches = list[object](), list[object](), dict[str, Callable[[], float]]()

    def ask(self, request: Mapping[str, object], config: Config) -> float | str:
        """Milliseconds of a candidate."""
        if request["choice"] != self._choice:
            self._choice, self._given, self._wanted, self._batches = int(str(request["choice"])), [], [], {}
        folder = str(request["folder"])
        with torch.no_grad():
            if folder not in self._batches:
                device = str(self._device)
                self._batches[folder] = bench.load(Path(folder), device, request, self._given, self._wanted)
            return self._batches[folder]()


class AllHere(Sandboxes):
    """Sandboxes of which there is one, this process."""

    def prepare(self, device: torch.device, most: int = 1) -> list[Sandbox]:
        """That one."""
        return [Here(device)]


def measure(shape: tuple[int, int, int], device: str, found: list[Cost]) -> None:
    """Compile a product with bias and activation; the turns of each of its choices are added to ``found``."""
    m, k, n = shape
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    args = [torch.randn(*size, device=device, dtype=dtype) for size in ((n,), (m, k), (k, n))]
    apart, here = Sandboxes.time, AllHere()

    def both(
        own: Sandboxes, folders: Sequence[Path], at: torch.device, settings: Mapping[str, object], config: Config
    ) -> list[float | str]:
        cost, answer = Cost(len(folders)), list[float | str]()
        for _ in range(TURNS):
            for boxes, seconds in ((own, cost.apart), (here, cost.here)):
                start = time.perf_counter()
                answer = apart(boxes, folders, at, settings, config)
                seconds.append(time.perf_counter() - start)
        found.append(cost)
        return answer

    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), mock.patch.object(Sandboxes, "time", both):
        options: dict[str, Any] = {
            "cache_dir": folder,
            "max_autotune": True,
            "autotune_silent": True,
            "progress": "off",
        }
        torch.compile(lambda *a: torch.addmm(*a).relu(), backend="gyrator", options=options)(*args)


def main() -> None:
    """Print a line for each choice, and the mean of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(SHAPES), default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: list[Cost] = []
    for shape in SHAPES[args.device]:
        done = len(found)
        measure(shape, args.device, found)
        for cost in found[done:]:
            turns = [f"{apart:.2f}/{here:.2f}" for apart, here in zip(cost.apart, cost.here, strict=True)]
            print(f"{shape}: {cost.candidates} candidates, apart/here {' '.join(turns)} s", flush=True)
    ratios = [min(cost.apart) / min(cost.here) for cost in found]
    print(f"apart/here: {statistics.geometric_mean(ratios):.2f} in the mean, {min(ratios):.2f} to {max(ratios):.2f}")
    if args.json:
        document = {"machine": machine(), "ratios": ratios, "choices": [asdict(cost) for cost in found]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
