"""The option benchmark_fusion: fusions are timed against their parts, and refused where they are slower."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gyrator
from gyrator import benchmark_fusion
from gyrator.report.data import GraphRecord

OPTIONS = {"benchmark_fusion": True, "metrics": "slow_fusion"}
TABLE = Path("metric_table_slow_fusion.csv")


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()


def pretend(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let the kernels that are timed take so many seconds, one after the other."""
    given: Iterator[float] = iter(seconds)
    monkeypatch.setattr(benchmark_fusion, "step_times", lambda *_: (next(given),))


def record(x: Tensor) -> GraphRecord:
    (graph,) = gyrator.explain(lambda x: x.sum(1) * 2, x, options=OPTIONS, timing=False).data.graphs()
    return graph.record


def test_a_fusion_that_is_slower_than_its_parts_is_refused_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1.0, 3.0, 5.0)
    found = record(torch.randn(40, 50))
    assert len(found.kernels) == 2
    assert [pair.reason for pair in found.unfused] == [
        "together they were measured to take 1.25 times as long as apart"
    ]
    with TABLE.open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["kernel1_latency"], row["kernel2_latency"]) == ("1000.000000", "3000.000000")
    assert (row["fused_kernel_latency"], row["slow_down_ratio"]) == ("5000.000000", "1.250000")
    paths = {row[name] for name in ("kernel1_path", "kernel2_path", "fused_kernel_path")}
    assert len(paths) == 3 and all((Path(path) / "wrapper.py").exists() for path in paths)


def test_a_fusion_that_is_as_fast_as_its_parts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1.0, 3.0, 4.1)
    assert len(record(torch.randn(40, 50)).kernels) == 1
    assert not TABLE.exists()


def test_what_cannot_run_on_random_inputs_is_fused_as_without_the_option() -> None:
    def looked_up(table: Tensor, at: Tensor) -> Tensor:
        return table[at * 30].sum(1) * 2

    table, at = torch.randn(31, 8), torch.tensor([0, 1])
    compiled = torch.compile(looked_up, backend="gyrator", options=OPTIONS)
    torch.testing.assert_close(compiled(table, at), looked_up(table, at))


def test_kernels_of_symbolic_sizes_are_timed_at_their_hints() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x * w, -1) + x.sum(0)

    x, w = torch.randn(33, 65), torch.randn(65)
    compiled = torch.compile(program, backend="gyrator", dynamic=True, options=OPTIONS)
    torch.testing.assert_close(compiled(x, w), program(x, w))
