"""The command line, without compiling anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gyrator import __main__ as command_line
from gyrator.__main__ import app, main
from gyrator.cli import doctor
from gyrator.cli.doctor import Finding, findings
from gyrator.config import Config
from gyrator.errors import ToolchainMissing
from gyrator.runtime import toolchain

RUN = CliRunner()


def found(topic: str, config: Config | None = None) -> Finding:
    return next(f for f in findings(config or Config()) if f.topic == topic)


def test_doctor_lists_everything_that_decides() -> None:
    topics = {f.topic for f in findings(Config())}
    assert topics >= {"python", "torch", "backend", "C++ compiler", "instruction set", "threads", "Triton", "cache"}


def test_doctor_prints_what_is_wrong_and_what_to_do() -> None:
    result = RUN.invoke(app, ["doctor"], env={"COLUMNS": "200", "GYRATOR_CXX": "no-such-compiler"})
    assert result.exit_code == 1
    assert "!!  C++ compiler     the C++ compiler no-such-compiler not found" in result.stdout
    assert "C++ compiler: install g++ 12 or newer" in result.stdout


@pytest.mark.parametrize(("version", "problem"), [("9.4.0", "is too old"), ("13.2.0", "does not build")])
def test_doctor_tries_the_compiler(version: str, problem: str, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho {version}\n[ $1 = -dumpfullversion ]\n")
    compiler.chmod(0o755)
    finding = found("C++ compiler", Config(cxx=str(compiler)))
    assert finding.advice and finding.found == f"{compiler} {version} {problem}"


def test_doctor_reports_an_instruction_set_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, toolchain):
        monkeypatch.setattr(module, "cpu_isa", lambda: "avx2")
    assert found("instruction set", Config(cpu_isa="avx512")).advice
    assert not found("C++ compiler", Config(cpu_isa="avx512")).advice
    assert found("instruction set", Config(cpu_isa="scalar")).found == "avx2; kernels use scalar"


def test_doctor_reports_a_cache_that_can_hold_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not writable" in found("cache", Config(cache_dir=tmp_path / "file")).found
    given = os.statvfs(tmp_path)
    monkeypatch.setattr(doctor.os, "statvfs", lambda path: os.statvfs_result([*given[:8], os.ST_NOEXEC, *given[9:]]))
    assert "is mounted noexec" in found("cache", Config(cache_dir=tmp_path)).found


def test_doctor_reports_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    finding = found("cache", Config(cache_dir=tmp_path / "cache"))
    assert finding.advice
    assert "GYRATOR_CACHE_DIR" in finding.advice


def test_doctor_reports_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_DUMPS", "x")
    assert found("environment").found == "GYRATOR_DUMPS names no option; did you mean GYRATOR_DUMP?"


def test_doctor_reports_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4096)
    assert found("threads").advice


def test_the_cache_is_described_and_cleared(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "ab.so").write_bytes(b"x" * 2**20)
    (tmp_path / "letter.txt").write_text("the user's own")
    env = {"GYRATOR_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
    assert "kernels: 1 files, 1.0 MiB" in RUN.invoke(app, ["cache", "info"], env=env).stdout
    assert RUN.invoke(app, ["cache", "clear"], env=env).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert "kernels: 0 files" in RUN.invoke(app, ["cache", "info"], env=env).stdout


@pytest.mark.parametrize("command", [["doctor"], ["cache", "info"], ["cache", "clear"]])
def test_folders_with_brackets_are_printed_as_they_are(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "[bold] [" / "lab]"
    result = RUN.invoke(app, command, env={"GYRATOR_CACHE_DIR": str(folder), "COLUMNS": "400"})
    assert str(folder) in result.stdout


def test_clearing_the_cache_follows_no_links(tmp_path: Path) -> None:
    outside, cache = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    cache.mkdir()
    (outside / "kept").write_text("x")
    (cache / "kernels").symlink_to(outside)
    RUN.invoke(app, ["cache", "clear"], env={"GYRATOR_CACHE_DIR": str(cache)})
    assert (outside / "kept").exists()
    assert not os.path.lexists(cache / "kernels")


def test_a_script_that_is_bisected_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("NAME = 'neighbour'")
    (tmp_path / "script.py").write_text("from beside_the_script import NAME\nprint(f'{NAME} found')")
    command = [sys.executable, "-m", "gyrator", "bisect", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "neighbour found" in done.stdout


def test_bench_needs_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command_line, "__file__", str(tmp_path / "a/b/c.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolchainMissing, match=r"benchmarks/ not found\n  try: run this from a checkout"):
        command_line.run_module("benchmarks.run", [])


def test_an_error_is_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GYRATOR_FUSION", "perhaps")
    monkeypatch.setattr(sys, "argv", ["gyrator", "doctor"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("error: option 'fusion' must be 1 or 0, not 'perhaps'")


def test_the_tools_that_make_calls_exist_where_the_readme_says() -> None:
    root = Path(__file__).parents[3]
    targets = (root / "Makefile").read_text()
    assert all(f"\n{target}:" in targets for target in ("demo", "test", "lint", "bench"))
    assert os.access(root / ".ci/run", os.X_OK)
    assert shutil.which("bash")
