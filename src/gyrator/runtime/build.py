"""Building kernels: printed C++ into libraries, several kernels to a compiler run, several runs at once.

A library's name is a digest of its text, the headers and the toolchain; one that was built before is taken
from the store.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

from gyrator.cache.store import Store
from gyrator.codegen.cpp import CppKernel
from gyrator.errors import CacheCorrupt, KernelBuildError
from gyrator.origin import Origin
from gyrator.progress import Progress
from gyrator.runtime.toolchain import Toolchain
from gyrator.session import Count, Session

INCLUDE = Path(__file__).resolve().parent / "include"
LAUNCHER_SOURCE = INCLUDE / "launch.cpp"
LAUNCHER = "launcher"

KERNELS_PER_RUN = 12
"""A run costs 0.2 s for the headers, then 50 ms a kernel."""

REPORT_SECONDS = 1.0
"""Longest silence of `Build.wait`; the progress display decides what of it is shown."""

_SOURCE, _LIBRARY = "kernels.cpp", "library.so"


@final
@dataclass(frozen=True)
class Build:
    """Libraries on their way.

    Attributes:
        library_of: each kernel's library, by the kernel's name; known at once.
        jobs: each library's file, when it is there.
        progress: where `wait` reports how many are there.
    """

    library_of: Mapping[str, str]
    jobs: Mapping[str, Future[Path]]
    progress: Progress

    def wait(self) -> dict[str, Path]:
        """The files of all libraries, by name; the launcher is among them.

        Raises: KernelBuildError if the compiler refused one; the other runs are ended first.
        KeyboardInterrupt.
        """
        try:
            unfinished = set(self.jobs.values())
            while unfinished:
                finished, unfinished = wait(unfinished, REPORT_SECONDS, FIRST_COMPLETED)
                for job in finished:
                    job.result()  # raises what the job raised
                self.progress.update("building", len(self.jobs) - len(unfinished), len(self.jobs))
            return {name: job.result() for name, job in self.jobs.items()}
        finally:
            for job in self.jobs.values():
                job.cancel()


@final
@dataclass(frozen=True, slots=True)
class _Unit:
    """What one compiler run builds."""

    name: str
    text: str
    kernels: tuple[CppKernel, ...]


def start_build(
    kernels: Sequence[CppKernel],
    toolchain: Toolchain,
    store: Store,
    session: Session,
    origins: Mapping[str, Origin] | None = None,
) -> Build:
    """Begin to build `kernels` and the launcher; returns at once. `origins` are the user's places."""
    starts = range(0, len(kernels), KERNELS_PER_RUN)
    units = [_unit(kernels[start : start + KERNELS_PER_RUN], toolchain) for start in starts]
    launcher = _Unit(LAUNCHER, LAUNCHER_SOURCE.read_text(), ())
    workers = session.config.build_threads or os.cpu_count() or 1
    executor = ThreadPoolExecutor(workers, thread_name_prefix="gyrator-build")
    jobs = {
        unit.name: executor.submit(_build, unit, toolchain, store, session, origins or {})
        for unit in (*units, launcher)
    }
    executor.shutdown(wait=False)
    return Build({k.name: unit.name for unit in units for k in unit.kernels}, jobs, session.progress)


def _unit(kernels: Sequence[CppKernel], toolchain: Toolchain) -> _Unit:
    text = '#include "kernel.h"\n\n' + "\n".join(export(k.text) for k in kernels)
    digest = _digest(f"{toolchain.key()}\n{headers_digest()}\n{text}")
    return _Unit(digest[:20], text, tuple(kernels))


def export(text: str) -> str:
    """A kernel's text with its function visible from outside the library."""
    return text.replace('extern "C" ', 'extern "C" __attribute__((visibility("default"))) ', 1)


@lru_cache(maxsize=1)
def headers_digest() -> str:
    """A digest of all headers."""
    return _digest("\n".join(p.read_text() for p in sorted(INCLUDE.glob("*.h"))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _build(
    unit: _Unit, toolchain: Toolchain, store: Store, session: Session, origins: Mapping[str, Origin]
) -> Path:
    key = _digest(f"{toolchain.key()}\n{headers_digest()}\n{unit.text}")
    try:
        found = store.get(key)
    except CacheCorrupt as error:
        session.warn(str(error))
        found = None
    if found is not None:
        session.counters.add(Count.KERNELS_CACHED, len(unit.kernels))
        return found.folder / _LIBRARY
    with tempfile.TemporaryDirectory(prefix="gyrator-") as folder:
        source, library = Path(folder) / _SOURCE, Path(folder) / _LIBRARY
        source.write_text(unit.text)
        session.counters.add(Count.COMPILER_RUNS)
        session.counters.add(Count.KERNELS_BUILT, len(unit.kernels))
        _run(unit, toolchain, source, library, origins)
        return store.put(key, {_SOURCE: unit.text, _LIBRARY: library}, {}).folder / _LIBRARY


def _run(
    unit: _Unit, toolchain: Toolchain, source: Path, library: Path, origins: Mapping[str, Origin]
) -> None:
    command = [str(toolchain.compiler), *toolchain.flags, f"-I{INCLUDE}", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    kernel = _guilty(unit, done.stderr)
    kept = Path(tempfile.gettempdir()) / f"gyrator-{unit.name}.cpp"
    kept.write_text(unit.text)
    raise KernelBuildError(kernel, str(kept), done.stderr[-4000:], where=origins.get(kernel))


def _guilty(unit: _Unit, message: str) -> str:
    """The kernel whose lines the compiler's first error names."""
    match = re.search(rf"{re.escape(_SOURCE)}:(\d+)", message)
    line = int(match.group(1)) if match else 0
    name = unit.name
    for kernel in unit.kernels:
        start = unit.text[: unit.text.index(export(kernel.text))].count("\n") + 1
        if start <= line:
            name = kernel.name
    return name
