"""Building kernels: printed C++ into libraries, several kernels to a compiler run, several runs at once. Each kernel is
known by a digest of its text without comments, the headers and the toolchain, and so is each library: a kernel that any
graph built before is found in the store, whatever it was built together with."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gyrator.cache.store import Entry, Store, digest, files_digest
from gyrator.codegen.cpp import CppKernel
from gyrator.errors import KernelBuildError
from gyrator.origin import Origin
from gyrator.runtime.toolchain import Toolchain
from gyrator.session import Count, Session

INCLUDE = Path(__file__).resolve().parent / "include"
HEADERS = sorted(INCLUDE.glob("*.h"))
LAUNCHER_SOURCE = INCLUDE / "launch.cpp"
LAUNCHER = "launcher"

KERNELS_PER_RUN = 12
"""The most kernels that one compiler run builds, so that one run does not take long on its own."""

LINES_WORTH_A_RUN, LINES_OF_A_HEADER = 40, 100
"""What a run's start and linking cost (80 ms), and of a header's code, which kernels share (200 ms), in lines."""

REPORT_SECONDS = 1.0
"""Longest silence of a build; the progress display decides what of it is shown."""

_SOURCE, _LIBRARY = "kernels.cpp", "library.so"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompilerRuns:
    """The compilers at work for one build, which can be ended all at once."""

    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, command: Sequence[str], folder: Path) -> tuple[int, str]:
        """Run a compiler that keeps its temporary files in `folder`; its exit status and messages.

        Raises: CancelledError after `stop`."""
        environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
        settings: Any = {"env": environment, "encoding": "utf-8", "errors": "replace", "start_new_session": True}
        try:
            process = subprocess.Popen(command, stderr=subprocess.PIPE, **settings)
        except OSError as problem:  # it is no program, or there are too many
            return problem.errno or 1, str(problem)
        self._running.add(process)
        if self._stopped.is_set():
            self.stop()
        messages = process.communicate()[1]
        self._running.discard(process)
        if self._stopped.is_set():
            raise CancelledError
        return process.returncode, messages

    def stop(self) -> None:
        """End the compilers that run, with the processes they started, and those that start from now on."""
        self._stopped.set()
        for process in [process for process in list(self._running) if process.poll() is None]:
            with suppress(ProcessLookupError):  # whoever waits for it may have seen its end since
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Build:
    """Libraries on their way: that of each kernel, by its name, known at once, and their files, which `jobs` make."""

    library_of: Mapping[str, str]
    files: Mapping[str, Future[Path]]
    jobs: "Jobs"

    def wait(self) -> dict[str, Path]:
        """The files of all libraries, by name; the launcher is among them.

        Raises: KernelBuildError if a kernel was refused, KeyboardInterrupt; the other compilers are ended first."""
        kernels = [job for name, job in self.files.items() if name != LAUNCHER]
        self.jobs.finish(kernels)  # a kernel that is refused says more than the launcher
        self.jobs.finish([self.files[LAUNCHER]])
        return {name: job.result() for name, job in self.files.items()}


@dataclass(frozen=True, slots=True)
class _Unit:
    """What one compiler run builds. `key` names the library in the store."""

    name: str
    key: str
    text: str
    kernels: tuple[CppKernel, ...]


@dataclass(frozen=True, slots=True)
class _Builder:
    """What all jobs of one build share. `base` is the digest of the toolchain and the headers."""

    toolchain: Toolchain
    base: str
    store: Store
    session: Session
    origins: Mapping[str, Origin]
    runs: CompilerRuns

    def key(self, text: str) -> str:
        return digest(f"{self.base}\n{text}")

    def unit(self, kernels: Sequence[CppKernel]) -> _Unit:
        key = self.key("library of\n" + "\n".join(without_comments(k.text, "//") for k in kernels))
        seen_outside = 'extern "C" __attribute__((visibility("default"))) '
        text = "\n".join(k.text.replace('extern "C" ', seen_outside, 1) for k in kernels)
        return _Unit(key[:20], key, f'#include "kernel.h"\n\n{text}', tuple(kernels))

    def kernel_key(self, kernel: CppKernel) -> str:
        """The key in the store of what is noted of a kernel: which library has it."""
        return self.key(without_comments(kernel.text, "//"))

    def build(self, unit: _Unit) -> Path:
        """Build a unit's library and store it, unless another process did meanwhile.

        Raises: KernelBuildError. CancelledError after the build was given up."""
        present = self.store.find(unit.key, self.session.warn)  # also removes it if it is damaged
        if present is not None:
            return self.remember(unit, present)
        with tempfile.TemporaryDirectory(prefix="gyrator-") as folder:
            library = Path(folder) / _LIBRARY
            self.session.counters.add(Count.COMPILER_RUNS)
            self.session.counters.add(Count.KERNELS_BUILT, len(unit.kernels))
            with self.session.building(kernel.name for kernel in unit.kernels):
                messages = self.compile(unit.text, library)
            if messages is not None:
                raise self.refusal(unit, messages)
            return self.remember(unit, self.store.put(unit.key, {_SOURCE: unit.text, _LIBRARY: library}, {}))

    def remember(self, unit: _Unit, entry: Entry) -> Path:
        """Note for each kernel of a unit which library has it; the library's file."""
        for kernel in unit.kernels:
            self.store.put(self.kernel_key(kernel), {}, {"library": unit.key})
        return entry.folder / _LIBRARY

    def compile(self, text: str, library: Path) -> str | None:
        """Compile a text beside `library`; the compiler's messages if it refused."""
        source = library.with_name(_SOURCE)
        source.write_text(text, "utf-8")
        compiler, flags, link = str(self.toolchain.compiler), self.toolchain.flags, self.toolchain.libraries
        command = [compiler, *flags, f"-I{INCLUDE}", str(source), "-o", str(library), *link]
        status, messages = self.runs.run(command, library.parent)
        return None if status == 0 and library.exists() else messages or f"the compiler ended with status {status}"

    def refusal(self, unit: _Unit, messages: str) -> KernelBuildError:
        """The error for a refused unit: it names the kernel that is also refused alone, and keeps its source."""
        folder = Path(tempfile.mkdtemp(prefix="gyrator-refused-"))
        guilty, text = unit.name, unit.text
        for kernel in unit.kernels:
            alone = self.unit((kernel,)).text
            if (refused := self.compile(alone, folder / _LIBRARY)) is not None:
                guilty, text, messages = kernel.name, alone, refused
                break
        (folder / _SOURCE).write_text(text, "utf-8")
        return KernelBuildError(guilty, str(folder / _SOURCE), messages[-4000:], where=self.origins.get(guilty))


def start_build(
    kernels: Sequence[CppKernel], toolchain: Toolchain, store: Store, session: Session, origins: Mapping[str, Origin]
) -> Build:
    """Begin to build `kernels` and the launcher; returns at once. `origins` are the user's places."""
    base = digest(f"{toolchain.key()}\n{files_digest(*HEADERS)}")
    builder = _Builder(toolchain, base, store, session, origins, CompilerRuns())
    noted = {k.name: entry for k in kernels if (entry := store.find(builder.kernel_key(k), session.warn))}
    wanted = {name: entry.notes["library"] for name, entry in noted.items()}
    libraries = {key: entry.folder / _LIBRARY for key in {*wanted.values()} if (entry := store.find(key, session.warn))}
    library_of = {name: key[:20] for name, key in wanted.items() if key in libraries}
    missing = [k for k in kernels if k.name not in library_of]
    for kernel in missing:
        store.remove(builder.kernel_key(kernel))  # where its library is gone
    session.counters.add(Count.KERNELS_CACHED, len(kernels) - len(missing))
    workers = session.config.builders
    launcher = LAUNCHER_SOURCE.read_text("utf-8")
    units = [*map(builder.unit, in_runs(missing, workers)), _Unit(LAUNCHER, builder.key(launcher), launcher, ())]
    files = {key[:20]: finished(library) for key, library in libraries.items()}
    jobs = Jobs(builder.runs.stop, session)
    files |= jobs.start({unit.name: partial(builder.build, unit) for unit in units}, workers)
    library_of |= {kernel.name: unit.name for unit in units for kernel in unit.kernels}
    return Build(library_of, files, jobs)


def in_runs(kernels: Sequence[CppKernel], workers: int) -> list[list[CppKernel]]:
    """Kernels for each compiler run: about equal work, little in all, and as many runs as `workers` if it is enough."""
    lines = {k.name: k.text.count("\n") + 1 for k in kernels}

    def work(run: Sequence[CppKernel]) -> int:
        headers = {line for k in run for line in k.text.splitlines() if line.startswith("#include")}
        return sum(lines[k.name] for k in run) + LINES_OF_A_HEADER * len(headers)

    worth = min(workers, sum(lines.values()) // LINES_WORTH_A_RUN, len(kernels))
    groups: list[list[CppKernel]] = [[] for _ in range(max(1, worth, -(-len(kernels) // KERNELS_PER_RUN)))]
    for kernel in sorted(kernels, key=lambda k: -lines[k.name]):
        free = (g for g in groups if len(g) < KERNELS_PER_RUN)
        min(free, key=lambda g: 2 * work([*g, kernel]) - work(g)).append(kernel)
    return [group for group in groups if group]


def without_comments(text: str, mark: str) -> str:
    """A kernel's text without the comments that name the user's lines, which begin with a mark."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(mark))


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of one build in threads. All are given up when `session` or one of them fails: `end` ends what runs."""

    end: Callable[[], object]
    session: Session
    _jobs: dict[str, Future[Any]] = field(default_factory=dict)

    def start(self, calls: Mapping[str, Callable[[], T]], threads: int) -> Mapping[str, Future[T]]:
        """Jobs that call functions, by their names, so many at once."""
        self.session.stops.append(self.stop)  # first: Ctrl-C may come before all have begun
        executor = ThreadPoolExecutor(min(threads, len(calls)), thread_name_prefix="gyrator-build")
        for name, call in calls.items():
            self._jobs[name] = executor.submit(call)
        executor.shutdown(wait=False)
        return self._jobs

    def finish(self, jobs: Iterable[Future[T]]) -> None:
        """Wait until these have ended, showing how many have.

        Raises: what a job raised, and KeyboardInterrupt, after the others were given up."""
        unfinished = every = set(jobs)
        try:
            while unfinished:
                ended, unfinished = wait(unfinished, REPORT_SECONDS, FIRST_COMPLETED)
                self.session.progress.update("building", len(every) - len(unfinished), len(every))
                for job in ended:
                    job.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Give up what has not ended: jobs that wait do nothing, those at work are ended."""
        at_work = [job for job in self._jobs.values() if not job.cancel() and not job.done()]
        if at_work:
            self.end()


def finished(result: T) -> Future[T]:
    """A job that is done already."""
    future: Future[T] = Future()
    future.set_result(result)
    return future
