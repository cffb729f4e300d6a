"""The process in which candidates run: what they do to it costs them alone, and little time."""

from __future__ import annotations

import gc
import math
import os
import resource
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyrator.autotune.sandbox import Sandboxes
from gyrator.config import Config
from gyrator.runtime.workers import Worker
from tests.cpu.autotune.harness import CPU, folder_of

SLEEP = "time.sleep(0.001)"


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[Sandboxes]:
    made = Sandboxes()
    yield made
    made.stop()


def measure(sandboxes: Sandboxes, folders: list[Path], result: float = 20.0) -> list[float | str]:
    config = Config(autotune_timeout=result, autotune_grace=0.1, autotune_kill_grace=0.1)
    settings = {"threads": 1, "precision": "highest", "store": str(folders[0].parent / "store"), "panels": []}
    return sandboxes.time(folders, CPU, settings, config)


def test_a_candidate_is_timed(sandboxes: Sandboxes, tmp_path: Path) -> None:
    fast, slow = measure(sandboxes, [folder_of(tmp_path, "a", SLEEP), folder_of(tmp_path, "b", "time.sleep(0.02)")])
    assert isinstance(fast, float) and isinstance(slow, float)
    assert 1.0 <= fast < slow and slow >= 20.0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("ctypes.string_at(0)", "the process ended with status -11"),
        ("os._exit(3)", "the process ended with status 3"),
        ("raise ValueError('no such size')", "ValueError: no such size"),
    ],
)
def test_a_crash_or_an_error_costs_the_candidate_alone(
    sandboxes: Sandboxes, tmp_path: Path, body: str, why: str
) -> None:
    bad, good = measure(sandboxes, [folder_of(tmp_path, "bad", body), folder_of(tmp_path, "good", SLEEP)])
    assert bad == why
    assert isinstance(good, float)


def test_a_candidate_with_other_results_than_the_first_is_not_used(sandboxes: Sandboxes, tmp_path: Path) -> None:
    bodies = {"a": "return [args[0]]", "b": "return [args[0] * 1.0001]", "c": "return [args[0] * 2]"}
    first, near, far = measure(sandboxes, [folder_of(tmp_path, name, body) for name, body in bodies.items()])
    assert isinstance(first, float) and isinstance(near, float)
    assert far == "ValueError: its results are off by 100%"
    exact = {"d": "return [args[0].int()]", "e": "return [args[0].int() * 3]"}
    _, wrong = measure(sandboxes, [folder_of(tmp_path, name, body) for name, body in exact.items()])
    assert wrong == "ValueError: its results are off by 200%"


def test_a_hang_ends_after_the_time_out_even_if_it_ignores_sigterm(sandboxes: Sandboxes, tmp_path: Path) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    measure(sandboxes, [folder_of(tmp_path, "first", SLEEP)])  # the process is ready
    start = time.perf_counter()
    assert measure(sandboxes, [folder_of(tmp_path, "deaf", deaf)], result=1.0) == ["no answer after 1 s"]
    assert time.perf_counter() - start < 4.0
    assert isinstance(measure(sandboxes, [folder_of(tmp_path, "next", SLEEP)])[0], float)


def test_a_candidate_may_have_all_the_time_there_is(sandboxes: Sandboxes, tmp_path: Path) -> None:
    (found,) = measure(sandboxes, [folder_of(tmp_path, "any", SLEEP)], result=math.inf)
    assert isinstance(found, float)


def test_candidates_take_turns_and_those_that_are_clearly_slower_end_early(
    sandboxes: Sandboxes, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    bodies = {
        name: f"open({str(log)!r}, 'a').write({name!r}); time.sleep({t})" for name, t in (("a", 3e-3), ("b", 2e-2))
    }
    measure(sandboxes, [*(folder_of(tmp_path, name, body) for name, body in bodies.items())])
    assert log.read_text() == "aaaa" + "bbbb" + "ab" + "ab"  # a call to warm up, two to see how long a batch is


def test_no_process_is_left_when_they_are_stopped(tmp_path: Path) -> None:
    mine = Sandboxes()
    (sandbox,) = mine.prepare(CPU)
    assert measure(mine, [folder_of(tmp_path, "a", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))")])
    mine.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert sandbox is mine.prepare(CPU)[0]
    mine.stop()


def test_a_program_that_ends_while_they_start_ends_them_without_a_word() -> None:
    program = "from gyrator.autotune.sandbox import *; kept = Sandboxes(); kept.prepare(torch.device('cpu'))"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)  # waits for all who might write
    assert done.stderr == ""


def test_a_worker_that_ended_is_forgotten() -> None:
    worker = Worker.start()
    process = weakref.ref(worker.process)
    worker.end()
    del worker
    gc.collect()
    assert process() is None


def test_a_worker_answers_though_a_program_has_more_than_a_thousand_files_open(tmp_path: Path) -> None:
    """As one that loads data in other processes, or serves many connections."""
    echo = tmp_path / "echo.py"
    echo.write_text("print(input(), flush=True)")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        worker = Worker.start((str(echo),))
        assert worker.ask({"said": 1}, math.inf) == {"said": 1}
        worker.end()
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
