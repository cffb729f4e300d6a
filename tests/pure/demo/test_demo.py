"""The demo's command line and table, without compiling anything."""

from __future__ import annotations

import io

import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.demo.__main__ import app
from benchmarks.demo.measure import Result
from benchmarks.demo.run import Failure, results_table

RUN = CliRunner()


def test_wrong_arguments_of_the_demo_are_refused() -> None:
    assert RUN.invoke(app, ["--dtype", "int8"]).exit_code == 2
    assert RUN.invoke(app, ["--size", "huge"]).exit_code == 2
    assert RUN.invoke(app, ["--steps", "0"]).exit_code == 2
    if not torch.cuda.is_available():
        assert RUN.invoke(app, ["--device", "cuda"]).exit_code == 2


def test_the_demos_table_shows_speed_up_memory_and_failures() -> None:
    out = io.StringIO()
    rows = {
        ("inference", "eager"): Result(0.2, 0.1, 100 * 2**20, 1e-7),
        ("inference", "gyrator"): Result(2.5, 0.05, 90 * 2**20, 2e-7),
        ("training", "gyrator"): Failure("it broke"),
    }
    Console(width=100, file=out).print(results_table(rows))
    text = " ".join(out.getvalue().split())
    assert "inference gyrator 2.50 s 50.00 ms 2.00× 90 MiB 2.0e-07" in text
    assert "training gyrator failed" in text
