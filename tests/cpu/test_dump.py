"""Dumps: every stage as a numbered file; graphs, wrappers and kernels are programs that run by themselves."""

from __future__ import annotations

import atexit
import os
import re
import runpy
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import gyrator
from benchmarks.compile_time import bert
from gyrator import pipeline
from gyrator.backend import Backend
from gyrator.backend import gyrator as gyrator_backend
from gyrator.pipeline import Process
from gyrator.runtime import standalone

TIMED = re.compile(r"^\d+\.\d us a call \(median of \d+\)$", re.MULTILINE)


def program(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(torch.softmax(table[index] @ x, -1), 0.5)
    return y.sum(0) * torch.tensor([0.5, 2.0]).sum()


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    options = {"dump": folder / "all", "cache_dir": folder / "cache", "benchmark_kernel": True}
    torch._dynamo.reset()
    x, table = torch.randn(16, 24, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    compiled = gyrator.compile(program, options=options)
    compiled(x, table, torch.randint(0, 50, (9,))).sum().backward()
    return folder


def dumps(dumped: Path, kind: str) -> Path:
    (found,) = (dumped / "all").glob(f"*_{kind}")
    return found


def test_every_stage_is_a_numbered_file(dumped: Path) -> None:
    names = {kind: sorted(p.name for p in dumps(dumped, kind).glob("[0-9][0-9]_*")) for kind in ("program", "forward")}
    plain = {kind: [name.partition("_")[2] for name in found] for kind, found in names.items()}
    assert plain["program"][:3] == ["captured.py", "joint.py", "partition.txt"]
    expected = ["aten.py", "lowered.txt", "nests_after_fusion.txt", "kernel_plans.txt", "plan.txt"]
    expected += ["kernels.cpp", "wrapper.py", "graph.svg", "times.txt"]
    assert [name for name in plain["forward"] if name in expected] == expected
    assert [int(name[:2]) for name in names["forward"]] == list(range(len(names["forward"])))


def test_graphs_and_wrappers_run_by_themselves(
    dumped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    ran = []
    for path in sorted((dumped / "all").rglob("*.py")):
        runpy.run_path(str(path), run_name="__main__")
        assert TIMED.search(capsys.readouterr().out), path
        ran.append(path.name.partition("_")[2])
    assert {"captured.py", "joint.py", "aten.py", "wrapper.py"} <= set(ran)


def test_a_compile_that_fails_leaves_the_times_of_all_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backward fails here; forward, whose kernels are being built, was never waited for."""
    lower, seen = pipeline.lower, list[str]()

    def fails(graph: Any, symbols: Any, name: str, *more: Any) -> Any:
        seen.append(name)
        if len(seen) == 2:
            raise RuntimeError("of the test")
        return lower(graph, symbols, name, *more)

    monkeypatch.setattr(pipeline, "lower", fails)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="of the test"):
        gyrator.compile(torch.tanh, options={"dump": tmp_path, "cache": False})(torch.ones(4, requires_grad=True))
    texts = {path.parent.name: path.read_text() for path in tmp_path.rglob("*_times.txt")}
    assert len(texts) == 3 and all("lower" in texts[name] for name in seen)


def test_a_captured_float_has_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch._dynamo.reset()
    options = {"dump": tmp_path, "cache": False}
    compiled = gyrator.compile(torch.nn.functional.dropout, options=options, dynamic=True)
    compiled(torch.ones(4), 0.25)
    (path,) = tmp_path.rglob("00_captured.py")
    assert "torch.tensor(0.25, dtype=torch.float64)" in path.read_text()
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    runpy.run_path(str(path), run_name="__main__")
    assert TIMED.search(capsys.readouterr().out)


def test_a_graph_with_branches_runs_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)).sum(0)

    torch._dynamo.reset()
    gyrator.compile(branches, options={"dump": tmp_path, "cache": False})(torch.ones(4))
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    for name in ("00_captured.py", "00_aten.py"):
        (path,) = tmp_path.rglob(name)
        runpy.run_path(str(path), run_name="__main__")
        assert TIMED.search(capsys.readouterr().out), path


def test_a_joint_graph_with_a_checkpoint_runs_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def region(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x.exp(), use_reentrant=False) * 2

    torch._dynamo.reset()
    gyrator.compile(region, options={"dump": tmp_path, "cache": False})(torch.ones(4, requires_grad=True))
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    (path,) = tmp_path.rglob("*_joint.py")
    runpy.run_path(str(path), run_name="__main__")
    assert TIMED.search(capsys.readouterr().out)


def test_a_dumped_graph_needs_nothing_of_the_process_that_wrote_it(dumped: Path) -> None:
    captured = dumps(dumped, "program") / "00_captured.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(captured)], env=environment, capture_output=True, text=True, check=True)
    assert TIMED.search(done.stdout)


def test_nests_and_graphs_name_the_users_lines(dumped: Path) -> None:
    forward = dumps(dumped, "forward")
    for name in ("aten.py", "lowered.txt", "nests_after_fusion.txt"):
        (path,) = forward.glob(f"*_{name}")
        assert Path(__file__).name in path.read_text(), name


def test_the_partition_gives_reasons(dumped: Path) -> None:
    (path,) = dumps(dumped, "program").glob("*_partition.txt")
    lines = path.read_text().splitlines()[1:]
    assert lines and all(re.search(r": (saved|recomputed): \w", line) for line in lines)


def test_the_picture_is_svg_with_a_box_for_each_kernel(dumped: Path) -> None:
    (path,) = dumps(dumped, "forward").glob("*_graph.svg")
    tree = ET.parse(path)
    (plan,) = dumps(dumped, "forward").glob("*_plan.txt")
    launches = sum(line.strip().startswith(("launch", "call", "copy")) for line in plan.read_text().splitlines())
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}rect")) == launches + 2


def test_each_kernel_has_a_program_that_times_it(
    dumped: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    scripts = list((dumped / "cache").rglob("kernel_*.py"))
    for script in scripts:
        runpy.run_path(str(script), run_name="__main__")
        assert re.search(r"\d+\.\d+ ms +\d+\.\d+ GB +\d+\.\d+ GB/s", capsys.readouterr().out)
    assert scripts


def test_real_runs_report_bandwidth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process()
    options = {"profile_bandwidth": True, "cache_dir": tmp_path}
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1), backend=Backend(process), options=options)
    for _ in range(3):
        compiled(torch.ones(64, 64))
    process.profile.print()  # as when the process ends
    atexit.unregister(process.profile.print)
    nbytes = 2 * 64 * 64 * 4 / 1e9
    assert re.search(rf"ms +{nbytes:.6f} GB +\d+\.\d+ GB/s +3 x \w", capsys.readouterr().err)


@pytest.mark.parametrize("validate", [False, True])
def test_the_compiled_callable_names_the_files_of_its_wrappers(tmp_path: Path, validate: bool) -> None:
    found: list[tuple[str, ...]] = []

    def noting(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        call = gyrator_backend(gm, inputs, options={"cache_dir": tmp_path, "validate": validate})
        found.append(call.wrappers)
        return call

    for _ in range(2):  # from the compiler, then from the cache
        torch._dynamo.reset()
        torch.compile(lambda x: torch.tanh(x).sum(), backend=noting)(torch.ones(5, requires_grad=True)).backward()
    assert found[0] == found[1] and len(found[0]) == 2
    assert all("def call(args):" in Path(wrapper).read_text() for wrapper in found[0])


def test_output_code_is_printed_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # from the compiler, then from the cache
        torch._dynamo.reset()
        options = {"logs": "output_code", "cache_dir": tmp_path}
        gyrator.compile(lambda x: torch.tanh(x) + 1, options=options)(torch.ones(5))
        out = capsys.readouterr().out
        assert 'extern "C"' in out and "def call(args):" in out and re.search(rf"# {tmp_path}.*/wrapper\.py", out)


def test_logs_say_what_runs_and_what_was_not_fused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # from the compiler, then from the cache
        torch._dynamo.reset()
        options = {"logs": ["schedule", "fusion"], "cache_dir": tmp_path}
        gyrator.compile(lambda x: torch.relu(x @ x).sum(0), options=options)(torch.ones(5, 5, dtype=torch.float64))
        out = capsys.readouterr().out
        assert re.search(r"graph\d+_inference: extern aten\.mm\.default: mm_default", out)
        assert re.search(r"graph\d+_inference: kernel \w+: sum_dim_int_list$", out, re.MULTILINE)
        assert "mm_default and sum_dim_int_list are not fused: the value comes from a call: aten.mm.default" in out


def test_every_file_of_a_models_dump_runs_and_nothing_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, batch = bert(1)
    torch._dynamo.reset()
    options = {"dump": tmp_path / "dump", "cache_dir": tmp_path / "cache"}
    report = gyrator.explain(model, options=options, timing=False, **batch)
    assert len(list(report.data.graphs())) == 2
    assert "unknown" not in report.json()
    monkeypatch.setattr(standalone, "SECONDS", 0.01)
    paths = list((tmp_path / "dump").rglob("*.py"))
    assert len(paths) == 6
    for path in paths:
        runpy.run_path(str(path), run_name="__main__")
        assert TIMED.search(capsys.readouterr().out), path


def test_recompiles_say_which_input_differs(capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    compiled = gyrator.compile(lambda x: x + 1, options={"logs": "recompiles"}, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(torch.ones(5))
        compiled(torch.ones(6))
    out = capsys.readouterr().out
    assert re.search(r"compiles a function again: tensor 'x' size mismatch at index 0\. expected 5, actual 6", out)


def test_a_miss_names_the_fields_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (5, 6):
        torch._dynamo.reset()
        compiled = gyrator.compile(torch.sin, options={"logs": "cache", "cache_dir": tmp_path}, dynamic=False)
        compiled(torch.ones(size))
    lines = [line for line in capsys.readouterr().out.splitlines() if "program is not in the cache" in line]
    assert "the cache is empty" in lines[0] and "new compared with it: inputs" in lines[1]
