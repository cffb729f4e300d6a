"""Whole models, each row in a process of its own: a crash or a time-out costs that row alone.

Some rows at a time make their first calls side by side (``jobs``), each from empty caches; then they are
measured one after the other. A peer that takes the process down is noted as failed, and the row is run again
without it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.measure import Limits, Row, geomean
from benchmarks.model_row import COLLECTIONS, Result, Task

MODES = ("inference", "training")
POLL = 0.1
LOG_SHOWN = 1500


@dataclass(frozen=True)
class Plan:
    """What to run: every model in every mode. ``timeout`` bounds the first calls and the rest of a row, each."""

    models: Sequence[str]
    modes: Sequence[str]
    size: str
    device: str
    dtype: str
    peers: Sequence[str]
    dynamic: bool
    jobs: int
    timeout: float
    kernels: bool

    def tasks(self) -> list[Task]:
        shared = (self.size, self.device, self.dtype, self.peers, self.dynamic)
        return [
            Task(name, mode, *shared, kernels=self.kernels)
            for mode in self.modes
            for name in COLLECTIONS[self.size]
            if not self.models or name in self.models
        ]


@dataclass(frozen=True)
class Pending:
    """A row yet to be run, with the errors of peers that took an earlier process down."""

    task: Task
    errors: Mapping[str, str] = field(default_factory=dict)


class Worker:
    """The process of one row with its folder for caches, result and log."""

    def __init__(self, pending: Pending, folder: Path, jobs: int) -> None:
        self.pending, self.folder = pending, folder
        self.path, self.log = folder / "result.json", folder / "log"
        self.started = time.monotonic()
        self.timed_out = False
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.model_row", json.dumps(asdict(pending.task)), str(self.path)],
                env=environment(folder, jobs),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def result(self) -> Result:
        return Result(**json.loads(self.path.read_text())) if self.path.exists() else Result()

    def wait(self, stage: str, seconds: float) -> None:
        """Returns when the stage is reached or the process has ended, which it must within ``seconds``."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and self.result().stage != stage:
            if time.monotonic() > end:
                self.timed_out = True
                self.kill()
            time.sleep(POLL)

    def measure(self, seconds: float) -> None:
        """Lets the process measure and waits for its end."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
            self.wait("done", seconds)
            self.wait("ended", 20.0)
        self.kill()

    def kill(self) -> None:
        """Ends the process and the compilers that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def death(self) -> str | None:
        """How the process ended before it was done, with the end of its log."""
        result = self.result()
        if result.stage == "done":
            return None
        how = "timed out" if self.timed_out else f"ended with status {self.process.returncode}"
        log = self.log.read_text(errors="replace")[-LOG_SHOWN:]
        return f"the process {how} in {result.stage}{f' of {result.peer}' if result.peer else ''}\n{log}".strip()


def environment(folder: Path, jobs: int) -> dict[str, str]:
    """Empty caches; beside other rows, each compiler gets its share of the cores."""
    caches = {"GYRATOR_CACHE_DIR": "gyrator", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    found = os.environ | {name: str(folder / place) for name, place in caches.items()} | {"GYRATOR_PROGRESS": "off"}
    if jobs > 1:
        share = str(max((os.cpu_count() or 1) // jobs, 1))
        found |= {"GYRATOR_BUILD_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}
    return found


def run(plan: Plan, limits: Limits) -> Iterator[Row]:
    """The rows, as each is done."""
    waiting = deque(Pending(task) for task in plan.tasks())
    while waiting:
        wave = [waiting.popleft() for _ in range(min(plan.jobs, len(waiting)))]
        with tempfile.TemporaryDirectory(prefix="gyrator_rows_", ignore_cleanup_errors=True) as root:
            workers: list[Worker] = []
            try:
                for number, pending in enumerate(wave):
                    folder = Path(root, str(number))
                    folder.mkdir()
                    workers.append(Worker(pending, folder, plan.jobs))
                for worker in workers:
                    worker.wait("ready", plan.timeout - (time.monotonic() - worker.started))
                for worker in workers:
                    worker.measure(plan.timeout)
                    found = outcome(worker, plan, limits)
                    if isinstance(found, Row):
                        yield found
                    else:
                        waiting.appendleft(found)
            finally:
                for worker in workers:
                    worker.kill()


def outcome(worker: Worker, plan: Plan, limits: Limits) -> Row | Pending:
    """The row that a process found, or what to run again without the peer that ended it."""
    task, result, death = worker.pending.task, worker.result(), worker.death()
    errors = {**worker.pending.errors, **result.errors}
    if death is not None:
        failed = {result.peer} if result.peer else set(task.peers)
        errors |= {peer: errors.get(peer, death) for peer in failed}
        rest = [peer for peer in task.peers if peer not in failed]
        if rest:
            return Pending(replace(task, peers=rest), {peer: errors[peer] for peer in errors if peer not in rest})
    notes = {
        "jobs": plan.jobs,
        "cpu_seconds": result.cpu_seconds,
        "peak_memory": result.peak_memory,
        "accuracy": result.accuracy,
        "kernels": result.kernels,
    }
    suite = f"{'timm' if task.size == 'timm' else 'models'} {task.mode} {task.device} {task.dtype}"
    return Row(suite, task.case, limits.threads, task.dynamic, result.seconds, result.first_call, errors, notes=notes)


def details(row: Row) -> str:
    """First calls, memory, processor time, accuracy and errors of a row as indented lines."""
    seconds = {peer: f"{value:.1f}" for peer, value in row.first_call.items()}
    memory = {peer: f"{value / 2**30:.2f}" for peer, value in row.notes["peak_memory"].items()}
    cpu = {peer: f"{1e3 * value:.2f}" for peer, value in row.notes["cpu_seconds"].items()}
    share = {peer: f"{found['share']:.2f}" for peer, found in row.notes["accuracy"].items()}
    count = {peer: f"{found['count']} in {found['ms']:.2f} ms" for peer, found in row.notes["kernels"].items()}
    named = {"first call s": seconds, "peak GiB": memory, "CPU ms": cpu, "error/allowed": share, "kernels": count}
    lines = [f"    {name}: " + ", ".join(f"{p} {v}" for p, v in by.items()) for name, by in named.items() if by]
    lines += [f"    {peer} FAILED: {error}".replace("\n", "\n      ") for peer, error in row.errors.items()]
    return "\n".join(lines)


def summary(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """What the goals ask for: speed, memory and first calls next to each peer, over the rows without error."""
    if "gyrator" not in peers:
        return f"{len(rows)} rows"
    sound = [row for row in rows if "gyrator" not in row.errors]
    lines = [f"gyrator: {len(sound)} of {len(rows)} rows without error"]
    for peer in peers:
        if peer == "gyrator":
            continue
        gains = [gain for row in sound if (gain := row.speedup(peer)) is not None]
        first = [row.first_call["gyrator"] / row.first_call[peer] for row in sound if peer in row.first_call]
        peaks = [row.notes["peak_memory"] for row in sound]
        memory = [peak["gyrator"] / peak[peer] for peak in peaks if "gyrator" in peak and peak.get(peer)]
        if gains:
            lines.append(
                f"over {peer}: ×{geomean(gains):.3f} speed, slower in {sum(g < 1 for g in gains)} of {len(gains)}; "
                f"×{geomean(first) or 0:.2f} first call; ×{geomean(memory) or 0:.2f} memory, "
                f"more in {sum(m > 1 for m in memory)}"
            )
    return "\n".join(lines)


def device_limits(device: str) -> Limits:
    """What a GPU's memory and bf16 matrix units reach, by a copy of 1 GiB and a matmul of 8192³."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = min(_seconds(lambda: target.copy_(source)) for _ in range(10))
    left = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(left)
    multiply = min(_seconds(lambda: torch.mm(left, left, out=product)) for _ in range(10))
    return Limits(torch.get_num_threads(), 2 * source.nbytes / copy, 2 * 8192**3 / multiply)


def _seconds(action: Callable[[], object]) -> float:
    """How long the device is at work on it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3
