"""Timing peers side by side: interleaved repeats, medians, and the machine's limits in the same run."""

from __future__ import annotations

import datetime
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import gyrator.backend

PEERS = ("eager", "inductor", "gyrator")


@dataclass(frozen=True)
class Limits:
    """What the machine can do with the given number of threads, measured by copying and by a matmul.

    ``bandwidth`` is in bytes per second, reads and writes together; ``flops`` in fp32 operations per second.
    """

    threads: int
    bandwidth: float
    flops: float

    def seconds(self, traffic: float, operations: float) -> float:
        """The least time for moving that many bytes and doing that many operations."""
        return max(traffic / self.bandwidth, operations / self.flops)


@dataclass(frozen=True)
class Row:
    """One case: seconds per call and of the first call by peer, errors by peer, and the physical limit."""

    suite: str
    case: str
    threads: int
    dynamic: bool
    seconds: Mapping[str, float]
    first_call: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    limit: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def speedup(self, over: str) -> float | None:
        """How many times faster gyrator is than a peer."""
        if over in self.seconds and "gyrator" in self.seconds:
            return self.seconds[over] / self.seconds["gyrator"]
        return None


def machine() -> dict[str, Any]:
    """What a reader needs to know to compare figures."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": _first_line(["g++", "--version"]),
        "commit": _first_line(["git", "rev-parse", "--short", "HEAD"]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_gpu_rows(path: Path, note: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows measured on this GPU as JSON, with the date, the device and torch's version."""
    date, device = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", torch.cuda.get_device_name()
    head = {"date": date, "device": device, "torch": torch.__version__, "note": note}
    path.write_text(json.dumps({**head, "rows": rows}, indent=1))


def _first_line(command: Sequence[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def limits(threads: int) -> Limits:
    """Measures both limits; takes about a second."""
    torch.set_num_threads(threads)
    source, target = torch.ones(32 * 2**20), torch.empty(32 * 2**20)
    copy = best_of(lambda: target.copy_(source), 8)
    matrix = torch.randn(1024, 1024)
    product = torch.empty(1024, 1024)
    multiply = best_of(lambda: torch.mm(matrix, matrix, out=product), 8)
    return Limits(threads, 2 * source.nbytes / copy, 2 * 1024**3 / multiply)


def best_of(fn: Callable[[], object], repeats: int) -> float:
    """The shortest of a few calls, in seconds."""
    return min(_timed(fn) for _ in range(repeats))


def _timed(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, budget: float, least: int = 5, most: int = 200
) -> dict[str, float]:
    """Median seconds per call of each candidate.

    The candidates take turns, so that a slow minute of the machine hits all of them, until ``budget`` seconds
    are spent; each is called at least ``least`` times.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    started, rounds = time.perf_counter(), 0
    gc.collect()
    gc.disable()
    try:
        while rounds < least or (rounds < most and time.perf_counter() - started < budget):
            for name, fn in candidates.items():
                samples[name].append(_timed(fn))
            rounds += 1
    finally:
        gc.enable()
    return {name: statistics.median(times) for name, times in samples.items()}


def prepared(
    build: Callable[[str], Callable[[], object]], peers: Sequence[str]
) -> tuple[dict[str, Callable[[], object]], dict[str, float], dict[str, str]]:
    """Builds and warms each peer: the callables that work, seconds of first calls, the others' errors."""
    ready: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    errors: dict[str, str] = {}
    for peer in peers:
        try:
            fn = build(peer)
            first[peer] = _timed(fn)
            fn()
            ready[peer] = fn
        except Exception as error:
            errors[peer] = f"{type(error).__name__}: {error}".strip()[:400]
    return ready, first, errors


def compiled(fn: Any, peer: str, *, dynamic: bool) -> Any:
    """``fn`` itself for eager, else ``torch.compile`` with the peer as backend."""
    if peer == "eager":
        return fn
    return torch.compile(fn, backend=peer, dynamic=dynamic or None)


def peak_memory(call: Callable[[], object]) -> int:
    """Most bytes that one call takes from torch's CPU allocator at a time. Memory that a backend kept from
    earlier calls is given back before, so that it counts.
    """
    gyrator.backend.gyrator.reset()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(held, default=0)


def geomean(values: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def report(rows: Sequence[Row], measured: Sequence[Limits]) -> dict[str, Any]:
    """The rows with the machine, the limits, and geometric means of the speed-ups by group."""
    groups = sorted({(row.suite, row.threads, row.dynamic) for row in rows})
    means = []
    for suite, threads, dynamic in groups:
        alike = [r for r in rows if (r.suite, r.threads, r.dynamic) == (suite, threads, dynamic)]
        means.append(
            {"suite": suite, "threads": threads, "dynamic": dynamic}
            | {f"gyrator_over_{over}": geomean([s for r in alike if (s := r.speedup(over))]) for over in PEERS[:2]}
            | {"inductor_over_eager": geomean(_ratios(alike, "eager", "inductor"))}
            | {f"memory_over_{over}": geomean(_memory(alike, over)) for over in PEERS[:2]}
            | {"first_call_over_inductor": geomean(_first_calls(alike, "gyrator", "inductor"))}
        )
    return {
        "machine": machine(),
        "limits": [asdict(limit) for limit in measured],
        "geomeans": means,
        "rows": [asdict(row) for row in rows],
    }


def _ratios(rows: Sequence[Row], slow: str, fast: str) -> list[float]:
    return [row.seconds[slow] / row.seconds[fast] for row in rows if slow in row.seconds and fast in row.seconds]


def _first_calls(rows: Sequence[Row], long: str, short: str) -> list[float]:
    return [r.first_call[long] / r.first_call[short] for r in rows if long in r.first_call and short in r.first_call]


def _memory(rows: Sequence[Row], over: str) -> list[float]:
    """gyrator's peak memory by the peer's."""
    peaks = [row.notes.get("peak_memory", {}) for row in rows]
    return [p["gyrator"] / p[over] for p in peaks if p.get("gyrator") and p.get(over)]


def line(row: Row) -> str:
    """One row as text: milliseconds by peer, and gyrator's speed-ups."""
    times = "  ".join(
        f"{peer} {1e3 * row.seconds[peer]:9.3f}" if peer in row.seconds else f"{peer}    failed"
        for peer in PEERS
        if peer in row.seconds or peer in row.errors
    )
    limit = f"  limit {1e3 * row.limit:8.3f}" if row.limit else ""
    gains = "  ".join(f"×{gain:.2f} {over}" for over in PEERS[:2] if (gain := row.speedup(over)))
    mode = "dynamic" if row.dynamic else "static"
    return f"{row.suite}/{row.case:28} {row.threads}t {mode:7} ms: {times}{limit}  {gains}"


def say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)
