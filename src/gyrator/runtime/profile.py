"""Timing what a wrapper calls, kernel by kernel: for reports, and for the option `profile_bandwidth`."""

import atexit
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gyrator.autograd.interface import BoxedCallable
from gyrator.runtime.load import WRAPPER, Runtime, measured, names_of
from gyrator.torch_compat import outside_tracing


def step_times(runtime: Runtime, seconds: float = 0.2) -> tuple[float, ...]:
    """Median seconds of each launch and call of a compiled graph on random inputs, in their order."""
    program = names_of((runtime.folder / WRAPPER).read_text("utf-8"), runtime.folder)
    calls: list[list[float]] = []
    with outside_tracing(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        call: BoxedCallable = program["bind"](replace(runtime, note=lambda _, took: calls[-1].append(took)))
        given: list[Any] = program["inputs"]()
        end = time.perf_counter() + seconds
        while len(calls) < 3 or (time.perf_counter() < end and len(calls) < 100):
            calls.append([])
            call(list(given))
    return tuple(statistics.median(times) for times in zip(*calls[1:], strict=True))


def seconds_a_call(call: Callable[[], object], count: int, *, on_gpu: bool) -> float:
    """The mean of so many calls, one after the other."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine reaches: bytes a second of a copy, operations a second of a matrix product."""

    bytes: float
    operations: float


def machine_peaks(device: str = "cpu") -> Peaks:
    """Measured on a copy of 64 MiB and a product of 768x768 matrices: the best of a few. On a GPU, whose caches and
    units are larger, on 512 MiB and a product of 8192x8192 matrices in bfloat16."""
    gpu = device != "cpu"
    source = torch.ones(1 << (27 if gpu else 24), device=device)
    size, dtype = (8192, torch.bfloat16) if gpu else (768, torch.float32)
    target, square = torch.empty_like(source), torch.ones(size, size, dtype=dtype, device=device)

    def best(function: Callable[[], object]) -> float:
        return min(measured(function, gpu)[1] for _ in range(4))

    with torch.no_grad(), outside_tracing():
        copied = best(lambda: target.copy_(source))
        return Peaks(2.0 * source.nbytes / copied, 2 * size**3 / best(lambda: square @ square))


class BandwidthProfile:
    """What kernels of real runs take, added up by name, for one process. Printed when the process ends."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._times: dict[str, list[float]] = {}

    def expect(self, traffic: Mapping[str, int]) -> None:
        """Bytes that one launch of each kernel moves."""
        if not self._bytes:
            atexit.register(self.print)
        self._bytes |= traffic

    def note(self, name: str, seconds: float) -> None:
        """A kernel ran, in any thread."""
        if name in self._bytes:
            self._times.setdefault(name, []).append(seconds)

    def print(self) -> None:
        """Write a line for each kernel to stderr, the one that took most time in all first."""
        order = sorted(self._times.items(), key=lambda item: -sum(item[1]))
        lines = [bandwidth_line(name, statistics.median(times), self._bytes[name], len(times)) for name, times in order]
        print("\n".join(["gyrator: bandwidth of kernels", *lines]), file=sys.stderr)


def bandwidth_line(name: str, seconds: float, nbytes: int, launches: int) -> str:
    """``0.123 ms   0.012 GB   97.56 GB/s   8 x softmax_1``."""
    rate = nbytes / 1e9 / seconds if seconds else 0.0
    return f"{seconds * 1e3:9.3f} ms {nbytes / 1e9:9.6f} GB {rate:9.2f} GB/s  {launches:5d} x {name}"
