"""Building: what is built, what is found again, whose fault a failure is, what an interrupt leaves."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gyrator.cache.store import Store
from gyrator.codegen.cpp import CppKernel
from gyrator.config import Config
from gyrator.errors import KernelBuildError
from gyrator.origin import Origin
from gyrator.runtime.build import KERNELS_PER_RUN, LAUNCHER, Build, CompilerRuns, in_runs, start_build
from gyrator.runtime.toolchain import find_toolchain
from gyrator.session import Count, Session


def kernel(name: str, body: str = "return 0;", *, comment: str = "model.py:1", lines: int = 0) -> CppKernel:
    filler = "".join(f"  volatile int v{i} = {i}; (void)v{i};\n" for i in range(lines))
    text = f'// {comment}\nextern "C" int32_t {name}(int64_t a, int32_t threads) {{\n{filler}  {body}\n}}\n'
    return CppKernel(name, text, ())


def session() -> Session:
    return Session(Config(), torch.device("cpu"), "test")


def begin(kernels: list[CppKernel], store: Store, at: Session, **origins: Origin) -> Build:
    return start_build(kernels, find_toolchain(Config()), store, at, origins)


def call(build: Build, files: dict[str, Path], name: str, argument: int) -> int:
    library = ctypes.CDLL(str(files[build.library_of[name]]))
    return int(getattr(library, name)(ctypes.c_int64(argument), ctypes.c_int32(1)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", "kernels")


def test_kernels_are_built_and_run(store: Store) -> None:
    kernels = [kernel(f"plus{i}", f"return (int32_t)a + {i};") for i in range(3)]
    build = begin(kernels, store, session())
    files = build.wait()
    assert [call(build, files, f"plus{i}", 40) for i in range(3)] == [40, 41, 42]
    assert LAUNCHER in files


def test_a_kernel_is_found_again_in_other_company_and_under_other_lines(store: Store) -> None:
    begin([kernel("first"), kernel("second", "return 2;")], store, session()).wait()
    with session() as later:
        build = begin([kernel("second", "return 2;", comment="moved.py:99"), kernel("third")], store, later)
        files = build.wait()
        assert later.counters[Count.COMPILER_RUNS] == 1
        assert later.counters[Count.KERNELS_BUILT] == 1
        assert later.counters[Count.KERNELS_CACHED] == 1
    assert call(build, files, "second", 0) == 2


def test_nothing_is_compiled_when_all_is_known(store: Store) -> None:
    begin([kernel("known")], store, session()).wait()
    with session() as later:
        begin([kernel("known")], store, later).wait()
        assert later.counters[Count.COMPILER_RUNS] == 0


def test_a_damaged_library_is_built_again_after_one_warning(store: Store, tmp_path: Path) -> None:
    files = begin([kernel("hurt", "return 5;")], store, session()).wait()
    for name, path in files.items():
        if name != LAUNCHER:
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    with session() as later, pytest.warns(UserWarning, match="damaged") as warnings:
        build = begin([kernel("hurt", "return 5;")], store, later)
        assert call(build, build.wait(), "hurt", 0) == 5
        assert later.counters[Count.KERNELS_BUILT] == 1
        assert len(warnings) == 1
    with session() as last:
        begin([kernel("hurt", "return 5;")], store, last).wait()
        assert last.counters[Count.COMPILER_RUNS] == 0


def test_every_damaged_file_is_replaced(store: Store, tmp_path: Path) -> None:
    begin([kernel("hurt", "return 6;")], store, session()).wait()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with session() as later, pytest.warns(UserWarning, match="damaged"):
        build = begin([kernel("hurt", "return 6;")], store, later)
        assert call(build, build.wait(), "hurt", 0) == 6


def test_the_kernel_that_does_not_compile_is_named(store: Store) -> None:
    place = Origin("model.py", 12, "forward", "aten.add")
    kernels = [kernel("good"), kernel("bad", "return nonsense;"), kernel("fine")]
    with pytest.raises(KernelBuildError, match=r"(?s)bad.*nonsense") as caught:
        begin(kernels, store, session(), bad=place).wait()
    assert caught.value.kernel == "bad"
    assert caught.value.where == place
    assert "nonsense" in Path(caught.value.file).read_text()


def test_a_failure_without_a_line_is_traced_by_building_alone(store: Store) -> None:
    """The assembler's messages name no line of the source."""
    kernels = [kernel("good"), kernel("assembled", 'asm(".nonsense"); return 0;'), kernel("other")]
    with pytest.raises(KernelBuildError, match="nonsense") as caught:
        begin(kernels, store, session()).wait()
    assert caught.value.kernel == "assembled"


def test_an_interrupt_ends_the_compilers(store: Store) -> None:
    slow = [kernel(f"slow{i}", lines=20_000) for i in range(3)]
    build = begin(slow, store, session())

    def interrupt() -> None:
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build.wait()
    assert time.monotonic() - started < 4
    assert not wait(build.files.values(), timeout=10).not_done
    with session() as later:  # the store is as it was
        begin([kernel("after")], store, later).wait()


def test_an_error_between_start_and_wait_ends_the_compilers(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), session() as at:
        build = begin([kernel(f"slow{i}", lines=20_000) for i in range(3)], store, at.child("part"))
        raise ZeroDivisionError
    assert all(job.exception(timeout=60) is not None for name, job in build.files.items() if name != LAUNCHER)


def test_an_interrupt_while_compilers_are_started_ends_the_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Future[object]] = []
    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, *call: Any) -> Future[object]:
        if begun:
            raise KeyboardInterrupt
        begun.append(submit(pool, *call))
        return begun[0]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt), session() as at:
        begin([kernel("slow", lines=20_000)], store, at)
    assert begun[0].exception(timeout=60) is not None


def test_two_processes_build_the_same_at_once(tmp_path: Path) -> None:
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from gyrator.cache.store import Store
from tests.cpu.runtime.test_build import begin, call, kernel, session
store = Store(Path({str(tmp_path)!r}) / "cache", "kernels")
build = begin([kernel("shared", "return (int32_t)a;")], store, session())
print(call(build, build.wait(), "shared", 11))
"""
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["11", "11"]


def test_runs_are_balanced() -> None:
    kernels = [kernel(f"k{i}", lines=10 * i) for i in range(8)]
    groups = in_runs(kernels, 2)
    assert sorted(k.name for group in groups for k in group) == sorted(k.name for k in kernels)
    work = [sum(k.text.count("\n") for k in group) for group in groups]
    assert len(groups) == 2 and max(work) < 1.3 * min(work)
    assert len(in_runs(kernels[:2], 8)) == 1
    assert max(map(len, in_runs([kernel(f"m{i}") for i in range(50)], 2))) <= KERNELS_PER_RUN
    assert in_runs([], 4) == []


def test_products_are_built_together_as_they_share_code() -> None:
    products = [replace(k, text=f'#include "gemm.h"\n{k.text}') for k in (kernel(f"p{i}", lines=20) for i in range(3))]
    groups = in_runs([*products, *(kernel(f"k{i}", lines=20) for i in range(8))], 2)
    assert [sum(k in products for k in group) for group in sorted(groups, key=len)] == [3, 0]


def test_kernels_of_two_headers_are_built_side_by_side() -> None:
    """Products and attention share no code: one run of both would take as long as two one after the other."""
    headers = {
        h: [replace(kernel(f"{h}{i}"), text=f'#include "{h}.h"\n') for i in (1, 2)] for h in ("gemm", "attention")
    }
    groups = in_runs([*headers["gemm"], *headers["attention"], *(kernel(f"k{i}", lines=20) for i in range(8))], 2)
    assert all(sum(k in group for k in same) in (0, 2) for same in headers.values() for group in groups)
    assert all(any(k in group for same in headers.values() for k in same) for group in groups)


OPENMP = """extern "C" int32_t team(int64_t a, int32_t threads) {
  int count = 0;
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    count = omp_get_num_threads();
  }
  return count;
}
"""


def test_kernels_share_torchs_openmp(store: Store) -> None:
    build = begin([CppKernel("team", OPENMP, ())], store, session())
    library = ctypes.CDLL(str(build.wait()[build.library_of["team"]]))
    for threads in (1, 2, 3):
        assert library.team(ctypes.c_int64(0), ctypes.c_int32(threads)) == threads
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libgomp" in line}) == 1


def test_a_compiler_that_ended_by_itself_does_not_disturb_the_end_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the question whether it runs and the signal, another thread may wait for it."""
    runs, ended = CompilerRuns(), subprocess.Popen(["true"], start_new_session=True, text=True)
    ended.wait()
    monkeypatch.setattr(ended, "poll", lambda: None)
    runs._running.add(ended)
    runs.stop()
    assert runs._stopped.is_set()
