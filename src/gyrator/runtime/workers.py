"""Processes that take a line of JSON and answer with one: those that compile Triton kernels, each one kernel at a
time (`triton_worker.py` is their program), and those in which candidates are timed (`gyrator.autotune`)."""

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("triton_worker.py")

MOST = 16
"""Workers of one process at most; each takes 130 MB."""


class WorkerEnded(Exception):
    """A worker ended before it answered: it was killed, or stopped on purpose."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process and the folder that takes what it writes."""

    process: subprocess.Popen[str]
    folder: tempfile.TemporaryDirectory[str]

    @staticmethod
    def start(program: Sequence[str] = (str(PROGRAM),), more: Mapping[str, str] | None = None) -> "Worker":
        """Start a worker in a session of its own, so that Ctrl-C in a terminal does not reach it. `program` is a file
        and arguments after its folder, `more` are variables of its environment."""
        folder = tempfile.TemporaryDirectory(prefix="gyrator-worker-")
        environment = {**os.environ, **(more or {}), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command, pipe = [sys.executable, "-P", program[0], folder.name, *program[1:]], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True)
        worker = Worker(process, folder)
        atexit.register(worker.end)  # before its folder goes, without which one that begins to start would fail, loudly
        return worker

    def ask(self, request: Mapping[str, object] | None, seconds: float | None = None) -> dict[str, Any]:
        """The answer to a request, or to none what it says next. Raises: WorkerEnded; TimeoutError after `seconds`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if request is not None:
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
            said = select.poll()  # unlike select, takes any of more than a thousand open files
            said.register(self.process.stdout, select.POLLIN)
            late = not said.poll(None if seconds is None else min(1000 * seconds, (1 << 31) - 1))
            answer = "" if late else self.process.stdout.readline()
        except (OSError, ValueError) as error:
            raise WorkerEnded(str(error)) from error
        if late:
            raise TimeoutError
        if not answer:
            raise WorkerEnded(f"status {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        """End the process and remove its files."""
        with contextlib.suppress(OSError), self.process:  # closes its streams, and waits
            self.process.kill()
        self.folder.cleanup()
        atexit.unregister(self.end)


class Workers:
    """The workers of one process. Threads may ask at the same time; each gets a worker of its own.

    Workers end with this process: their input ends. One that was idle for two minutes ends by itself, and
    another takes its place when there is work again."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._stops = 0

    def prepare(self, count: int) -> None:
        """Have at least `count` workers, which begin to import Triton now."""
        with self._lock:
            self._idle += [Worker.start() for _ in range(min(count, MOST) - len(self._idle) - len(self._busy))]

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """What a worker answers; a new one is asked if it ended before.

        Raises: WorkerEnded if the new one ended too, or after `stop`."""
        stops = self._stops
        try:
            return self._answer(self._take(), request)
        except WorkerEnded:
            if self._stops != stops:
                raise
            return self._answer(self._take(new=True), request)

    def _answer(self, worker: Worker, request: Mapping[str, object]) -> dict[str, Any]:
        try:
            answer = worker.ask(request)
        except BaseException:
            with self._lock:
                self._busy.discard(worker)
            worker.end()
            raise
        with self._lock:
            self._busy.discard(worker)
            self._idle.append(worker)
        return answer

    def _take(self, *, new: bool = False) -> Worker:
        with self._lock:
            while self._idle and not new:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    break
                worker.end()
            else:
                worker = Worker.start()
            self._busy.add(worker)
        return worker

    def stop(self) -> None:
        """End all workers; those who wait for an answer get `WorkerEnded`."""
        with self._lock:
            ending, self._idle, self._busy = [*self._idle, *self._busy], [], set()
            self._stops += 1
        for worker in ending:
            worker.end()
