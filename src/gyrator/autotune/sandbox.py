"""Processes in which candidates run: what a candidate does to one of them costs that candidate alone."""

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gyrator.config import Config
from gyrator.runtime.workers import Worker, WorkerEnded

PROGRAM = str(Path(__file__).with_name("bench.py"))
START_SECONDS, LATE = 120.0, 1 / 3
"""Until a process must be ready; the share of a candidate's time after which a spare process begins to start."""
LEAST_ROUNDS, ROUNDS, SECONDS, NEAR = 3, 15, 1.5, 1.25
"""Least and most batches of a candidate. Beyond the least turns last so long, for those so many times the best."""


class Sandbox:
    """One process, started when it is needed first and again after it ended. For one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self._program = (PROGRAM, str(device))
        self._workers: list[Worker] = []  # that in use, then a spare one
        self._ready: Worker | None = None

    def prepare(self, least: int = 1) -> Worker:
        """The process, which begins to start if there is none, as does a spare one to make two."""
        for worker in [w for w in self._workers if w.process.poll() is not None]:
            self._workers.remove(worker)
            worker.end()
        while len(self._workers) < least:
            self._workers.append(Worker.start(self._program))
        return self._workers[0]

    def ask(self, request: Mapping[str, object], config: Config) -> float | str:
        """Milliseconds of a candidate, or why it has none; ``config`` says how long to wait.

        Raises: WorkerEnded if no process can be started. What interrupts the wait, after the process is ended.
        """
        worker, seconds = self.prepare(), config.autotune_timeout
        try:
            if worker is not self._ready:
                worker.ask(None, START_SECONDS)
                self._ready = worker
            answer = self._patient(worker, request, seconds)
        except WorkerEnded as problem:
            if worker is not self._ready:
                raise WorkerEnded(f"the process that times candidates did not start: {problem}") from problem
            answer = {"failure": f"the process ended with {problem}", "broken": True}
        except TimeoutError:
            _end(worker, config)
            answer = {"failure": f"no answer after {seconds:g} s"}
        except BaseException:
            self.stop()
            raise
        if answer.get("broken"):
            worker.end()
        self.prepare()
        found: float | str = answer.get("failure") or answer["milliseconds"]
        return found

    def _patient(self, worker: Worker, request: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """The answer; when it is late, another process begins to start, so that nobody waits for that later."""
        try:
            return worker.ask(request, LATE * seconds)
        except TimeoutError:
            self.prepare(2)
            return worker.ask(None, (1 - LATE) * seconds)

    def stop(self) -> None:
        """End the process."""
        while self._workers:
            self._workers.pop().end()


def _end(worker: Worker, config: Config) -> None:
    """End a process that does not answer, first kindly."""
    process = worker.process
    for grace, signal in ((config.autotune_grace, process.terminate), (config.autotune_kill_grace, process.kill)):
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            signal()
    worker.end()


class Sandboxes:
    """The sandboxes of one process, one for each device."""

    def __init__(self) -> None:
        self._of: dict[torch.device, Sandbox] = {}
        self._choices = count()

    def prepare(self, device: torch.device) -> Sandbox:
        """The sandbox for a device, which begins to start."""
        sandbox = self._of.setdefault(device, Sandbox(device))
        sandbox.prepare()
        return sandbox

    def stop(self) -> None:
        """End all processes."""
        for sandbox in self._of.values():
            sandbox.stop()

    def time(
        self, folders: Sequence[Path], device: torch.device, settings: Mapping[str, object], config: Config
    ) -> list[float | str]:
        """For each wrapper in a folder milliseconds of a call, or why there are none; ``settings`` are for `bench.py`.

        Rounds go over all candidates, so that what changes on the machine meets them alike. The lower quartile counts:
        other work on the machine only ever adds. Raises: WorkerEnded if no process starts.
        """
        sandbox, about = self.prepare(device), {**settings, "choice": next(self._choices)}
        times, failed = [list[float]() for _ in folders], dict[int, str]()

        def turn(numbers: Iterable[int]) -> None:
            for at in numbers:
                answer = failed.get(at) or sandbox.ask({**about, "folder": str(folders[at])}, config)
                if isinstance(answer, str):
                    failed[at] = answer
                else:
                    times[at].append(answer)

        for _ in range(LEAST_ROUNDS):
            turn(range(len(folders)))
        end = time.perf_counter() + SECONDS
        for _ in range(LEAST_ROUNDS, ROUNDS):
            best = {at: min(found) for at, found in enumerate(times) if at not in failed}
            near = [at for at, least in best.items() if least <= NEAR * min(best.values())]
            if len(near) < 2 or time.perf_counter() > end:
                break
            turn(near)
        return [failed.get(at) or sorted(found)[len(found) // 4] for at, found in enumerate(times)]
