"""Processes in which candidates run: what a candidate does to one of them costs that candidate alone."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gyrator.config import Config
from gyrator.runtime.workers import Worker, WorkerEnded

PROGRAM = str(Path(__file__).with_name("bench.py"))
START_SECONDS, LATE = 120.0, 1 / 3
"""Until a process must be ready; the share of a candidate's time after which a spare process begins to start."""
NO_ANSWER = "no answer"
LEAST_ROUNDS, ROUNDS, SECONDS, NEAR = 3, 15, 1.5, 1.25
"""Least and most batches of a candidate. Beyond the least turns last so long, for those so many times the best."""
SHARE = 4
"""Another GPU helps if each has at least so many candidates."""


class Sandbox:
    """One process, started when it is needed first and again after it ended. For one thread at a time."""

    def __init__(self, device: torch.device, visible: str | None) -> None:
        """``visible``: the GPUs that the process sees, as CUDA_VISIBLE_DEVICES names them."""
        self._program = (PROGRAM, str(device))
        self._more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        self._workers: list[Worker] = []  # that in use, then a spare one
        self._ready: Worker | None = None

    def prepare(self, least: int = 1) -> Worker:
        """The process, which begins to start if there is none, as does a spare one to make two."""
        for worker in [w for w in self._workers if w.process.poll() is not None]:
            self._workers.remove(worker)
            worker.end()
        while len(self._workers) < least:
            self._workers.append(Worker.start(self._program, self._more))
        return self._workers[0]

    def ask(self, request: Mapping[str, object], config: Config) -> float | str:
        """Milliseconds of a candidate, or why it has none; ``config`` says how long to wait.

        Raises: WorkerEnded if no process can be started. What interrupts the wait, after the process is ended."""
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
            answer = {"failure": f"{NO_ANSWER} after {seconds:g} s"}
        except BaseException:
            self.stop()
            raise
        if answer.get("broken"):
            worker.end()
        self.prepare()
        return answer.get("failure") or answer["milliseconds"]

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
    """The sandboxes of one process: one for the processor, and one for each GPU of a kind."""

    def __init__(self) -> None:
        self._of: dict[torch.device, list[Sandbox]] = {}
        self._choices = count()

    def prepare(self, device: torch.device, most: int = 1) -> list[Sandbox]:
        """Sandboxes for a device, which begin to start."""
        if device not in self._of:
            self._of[device] = [Sandbox(device, visible) for visible in _slots(device)]
        for sandbox in self._of[device][:most]:
            sandbox.prepare()
        return self._of[device][:most]

    def stop(self) -> None:
        """End all processes."""
        for sandbox in (sandbox for sandboxes in self._of.values() for sandbox in sandboxes):
            sandbox.stop()

    def time(
        self, folders: Sequence[Path], device: torch.device, settings: Mapping[str, object], config: Config
    ) -> list[float | str]:
        """For each wrapper in a folder milliseconds of a call, or why there are none; ``settings`` are for `bench.py`.

        Rounds go over all candidates, so that what changes on the machine meets them alike. With several GPUs each
        times its share at first; those that come near the best meet on one. The lower quartile counts: other work on
        the machine only ever adds. Raises: WorkerEnded if no process starts."""
        sandboxes = self.prepare(device, max(1, len(folders) // SHARE))
        about = {**settings, "choice": next(self._choices)}
        times, failed = [list[float]() for _ in folders], dict[int, str]()

        def turn(sandbox: Sandbox, numbers: Iterable[int]) -> None:
            for at in numbers:
                answer = failed.get(at) or sandbox.ask({**about, "folder": str(folders[at])}, config)
                if isinstance(answer, str):
                    failed[at] = answer
                else:
                    times[at].append(answer)

        def share(number: int) -> None:
            for _ in range(LEAST_ROUNDS):
                turn(sandboxes[number], range(number, len(folders), len(sandboxes)))

        with ThreadPoolExecutor(len(sandboxes)) as threads:
            others = [threads.submit(share, number) for number in range(1, len(sandboxes))]
            share(0)
            for other in others:
                other.result()
        end = time.perf_counter() + SECONDS
        for _ in range(LEAST_ROUNDS, ROUNDS):
            best = {at: min(found) for at, found in enumerate(times) if at not in failed}
            near = [at for at, least in best.items() if least <= NEAR * min(best.values())]
            if len(near) < 2 or time.perf_counter() > end:
                break
            turn(sandboxes[0], near)
        return [failed.get(at) or sorted(found)[len(found) // 4] for at, found in enumerate(times)]


def _slots(device: torch.device) -> list[str | None]:
    """What each process for a device sees: the GPUs in an order in which ``device`` names another of the same kind. The
    processes of a distributed program use their own GPU alone."""
    found: list[str | None] = [None]
    if device.type == "cuda" and "LOCAL_RANK" not in os.environ:
        own, kinds = device.index or 0, [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = names if len(names) == len(kinds) and all(names) else [str(k) for k in range(len(kinds))]
        for other in (k for k, kind in enumerate(kinds) if k != own and kind == kinds[own]):
            order = {own: names[other], other: names[own]}
            found.append(",".join(order.get(k, name) for k, name in enumerate(names)))
    return found
