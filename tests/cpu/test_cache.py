"""The cache across processes: no compiler runs twice, and whatever happens to it, answers stay right."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gyrator
from gyrator.config import Config
from gyrator.runtime.targets import find_targets
from tests.redis_server import serving

SCRIPT = """
import sys, torch, gyrator, warnings
torch.manual_seed(0)

def model(x, w):
    return torch.softmax(x @ w, -1).sum(0) + torch.arange(w.shape[1])

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 6
x, w = torch.randn(rows, 8), torch.randn(8, 5, requires_grad=True)
run = gyrator.compile(model, dynamic=len(sys.argv) > 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = run(x, w)
result.square().sum().backward()
gradient, w.grad = w.grad, None
expected = model(x, w)
expected.square().sum().backward()
torch.testing.assert_close(result, expected)
torch.testing.assert_close(gradient, w.grad)
print("right", sum("damaged" in str(c.message) for c in caught))
print("not kept", sum("is not kept" in str(c.message) for c in caught))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, whose digest is part of every key."""
    copy = tmp_path_factory.mktemp("source") / "src"
    shutil.copytree(Path(__file__).parents[2] / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def world(tmp_path: Path, source: Path) -> dict[str, str]:
    """An environment with a cache of its own and a compiler that writes down each of its runs."""
    (tmp_path / "script.py").write_text(SCRIPT)
    cxx = tmp_path / "cxx"
    cxx.write_text(f'#!/bin/sh\necho run >> {tmp_path}/runs\nexec g++ "$@"\n')
    cxx.chmod(0o700)
    return os.environ | {
        "PYTHONPATH": str(source),
        "CXX": str(cxx),
        "GYRATOR_CACHE_DIR": str(tmp_path / "cache"),
        "GYRATOR_DUMP": str(tmp_path / "dump"),
        "GYRATOR_PROGRESS": "off",
        "OMP_NUM_THREADS": "1",
    }


def start(world: dict[str, str], tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(tmp_path / "script.py"), *args]
    return subprocess.Popen(command, env=world, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(world: dict[str, str], tmp_path: Path, *args: str) -> str:
    process = start(world, tmp_path, *args)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def compiler_runs(tmp_path: Path) -> int:
    log = tmp_path / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_second_process_runs_no_compiler_lowering_or_scheduling(world: dict[str, str], tmp_path: Path) -> None:
    assert "right 0" in run(world, tmp_path)
    before = compiler_runs(tmp_path)
    assert before > 0
    world["GYRATOR_DUMP"] = str(tmp_path / "second")
    assert "right 0" in run(world, tmp_path)
    assert compiler_runs(tmp_path) == before
    times = [path.read_text() for path in (tmp_path / "second").glob("*/*times.txt")]
    assert [text.count("load") for text in times] == [2]
    assert all(stage not in times[0] for stage in ("lower", "schedule", "build"))


def test_dynamic_graph_is_found_for_other_sizes(world: dict[str, str], tmp_path: Path) -> None:
    assert "right 0" in run(world, tmp_path, "6", "dynamic")
    before = compiler_runs(tmp_path)
    assert "right 0" in run(world, tmp_path, "11", "dynamic")
    assert compiler_runs(tmp_path) == before


def test_a_machine_runs_what_another_one_built(world: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known to all the machines")
    world["GYRATOR_REMOTE_CACHE_SECRET"] = str(tmp_path / "secret")
    with serving() as world["GYRATOR_REMOTE_CACHE"]:
        assert "right 0" in run(world, tmp_path)
        before = compiler_runs(tmp_path)
        world |= {name: str(tmp_path / "other" / name) for name in ("GYRATOR_CACHE_DIR", "GYRATOR_DUMP")}
        assert "right 0" in run(world, tmp_path)
    assert compiler_runs(tmp_path) == before > 0
    (times,) = (path.read_text() for path in (tmp_path / "other").glob("GYRATOR_DUMP/*/*times.txt"))
    assert times.count("load") == 2 and "lower" not in times


@pytest.mark.parametrize("file", ["wrapper.py", "manifest.json"])
def test_damaged_entry_is_a_miss_with_one_warning(world: dict[str, str], tmp_path: Path, file: str) -> None:
    run(world, tmp_path)
    damaged = list((tmp_path / "cache").glob(f"graphs/??/*/{file}"))
    assert damaged
    for path in damaged:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    assert "right 2" in run(world, tmp_path)
    assert "right 0" in run(world, tmp_path)


def test_two_processes_compile_the_same_at_once(world: dict[str, str], tmp_path: Path) -> None:
    both = [start(world, tmp_path) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and "right 0" in output, output


def test_killed_process_leaves_the_cache_intact(world: dict[str, str], tmp_path: Path) -> None:
    process = start(world, tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "runs").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert "right 0" in run(world, tmp_path)


def test_cache_can_be_switched_off(world: dict[str, str], tmp_path: Path) -> None:
    world["GYRATOR_CACHE"] = "0"
    assert "right 0" in run(world, tmp_path)
    before = compiler_runs(tmp_path)
    assert "right 0" in run(world, tmp_path)
    assert compiler_runs(tmp_path) == 2 * before
    assert not (tmp_path / "cache").exists()


def test_folder_that_others_may_write_is_not_used(world: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert "right 0" in run(world, tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_a_folder_that_takes_no_more_costs_what_it_keeps_and_one_warning(world: dict[str, str], tmp_path: Path) -> None:
    run(world, tmp_path)
    for kind in ("programs", "graphs", "kernels"):
        for first in range(256):
            folder = tmp_path / "cache" / kind / f"{first:02x}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.write_text("")
    output = run(world, tmp_path)
    assert "right 0" in output and "not kept 1" in output


def test_without_a_home_nothing_is_kept(world: dict[str, str], tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "GYRATOR_CACHE_DIR"):
        world.pop(name, None)
    unknown = "import pwd\npwd.getpwuid = {}.__getitem__  # a container's user whom the system does not know\n"
    (tmp_path / "script.py").write_text(unknown + SCRIPT)
    output = run(world, tmp_path)
    assert "right 0" in output and "not kept 1" in output


def test_neither_the_locale_nor_python_is_asked_how_texts_are_encoded(world: dict[str, str], tmp_path: Path) -> None:
    world |= {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "always::EncodingWarning,always::ResourceWarning"}
    world |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "GYRATOR_LOGS": "output_code"}
    output = run(world, tmp_path)
    assert "right 0" in output
    assert not [line for line in output.splitlines() if "Warning" in line and ("gyrator" in line or "tempfile" in line)]


def test_keys_say_for_how_many_threads_work_is_shared() -> None:
    one, two, as_torch = (find_targets(Config(threads=n), torch.device("cpu")).key() for n in (1, 2, 0))
    assert one != two
    assert as_torch == find_targets(Config(threads=torch.get_num_threads()), torch.device("cpu")).key()


def test_a_program_whose_graph_is_gone_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for reason in ("the cache is empty", "a graph of the stored program is gone"):
        torch._dynamo.reset()
        run = gyrator.compile(lambda x: torch.tanh(x) + 1, options={"cache_dir": tmp_path, "logs": "cache"})
        run(torch.ones(5))
        assert f"_program is not in the cache; {reason}" in capsys.readouterr().out
        shutil.rmtree(tmp_path / "graphs")


def test_what_a_recording_leaves_in_place_is_part_of_a_graphs_key(tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path, "cuda_graphs": True}
    for given in (torch.ones(5), torch.nn.Buffer(torch.ones(5)), torch.nn.Buffer(torch.zeros(5))):
        torch._dynamo.reset()
        gyrator.compile(lambda x: torch.tanh(x) + 1, options=options)(given)
    assert len([*(tmp_path / "graphs").glob("??/*")]) == 2
