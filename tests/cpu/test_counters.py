"""Counters and metric tables of compilations: each figure against what is known of a small program."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from gyrator.report.data import GraphRecord

Program = Callable[..., object]


def record(program: Program, *args: object, **options: object) -> GraphRecord:
    """The record of the only graph of a program."""
    torch._dynamo.reset()
    report = gyrator.explain(program, *args, options={"cache": False, **options}, timing=False)
    (graph,) = report.data.graphs()
    return graph.record


@pytest.mark.parametrize(
    ("program", "shape", "kind"),
    [
        (lambda x: torch.tanh(x) * 2, (40, 50), "pointwise"),
        (lambda x: x.sum(1), (40, 50), "looped reduction"),
        (lambda x: F.softmax(torch.exp(torch.sin(x)), -1), (40, 500), "persistent reduction"),
        (lambda x: x.sum(), (1 << 20,), "split reduction"),
        (lambda x: x.cumsum(1), (40, 50), "scan"),
        (lambda x: torch.zeros(9).index_add(0, torch.arange(40) % 9, x[:, 0]) * 1, (40, 50), "scatter"),
    ],
    ids=["pointwise", "looped", "persistent", "split", "scan", "scatter"],
)
def test_the_kind_of_a_kernel(program: Program, shape: tuple[int, ...], kind: str) -> None:
    kinds = [kernel.facts.kind for kernel in record(program, torch.randn(shape)).kernels]
    assert kind in kinds


def test_bytes_elements_and_operations_of_a_kernel_are_exact() -> None:
    (kernel,) = record(lambda x, y: x * y + 1, torch.randn(6, 64), torch.randn(64)).kernels
    assert kernel.facts.bytes == 4 * (6 * 64 + 64 + 6 * 64)
    assert (kernel.facts.elements, kernel.facts.operations) == (6 * 64, 2 * 6 * 64)
    assert (kernel.facts.loads, kernel.facts.stores, kernel.arguments, kernel.launches) == (2, 1, 3, 1)
    assert kernel.facts.vectorised


def test_a_table_that_is_read_by_index_counts_the_rows_that_are_read() -> None:
    table, index = torch.randn(1000, 8), torch.tensor([3, 5])
    (kernel,) = record(lambda t, i: t[i] * 2, table, index).kernels
    assert kernel.facts.bytes == 4 * 2 * 8 + 8 * 2 + 4 * 2 * 8


def test_casts_are_counted() -> None:
    (kernel,) = record(lambda x: torch.sin(x), torch.randn(64, dtype=torch.bfloat16)).kernels
    assert kernel.facts.casts == 2  # to float32 and back


def test_loops_that_do_not_follow_a_results_dimensions_are_reorderings() -> None:
    def transposed(x: Tensor) -> Tensor:
        return F.softmax(x, -1).t().contiguous() + 1

    assert record(transposed, torch.randn(32, 64)).counters["LOOP_REORDERINGS"] == 1
    assert record(lambda x: x * 2, torch.randn(6, 7)).counters.get("LOOP_REORDERINGS", 0) == 0


def test_a_scatter_upon_a_constant_becomes_a_choice() -> None:
    def one_hot(i: Tensor) -> Tensor:
        return torch.zeros(5, 7).scatter(1, i, 1.0)

    counters = record(one_hot, torch.randint(0, 7, (5, 1))).counters
    assert counters["SCATTERS_UPON_CONSTANTS"] == 1


def test_fusion_is_seen_in_nests_before_and_after() -> None:
    counters = record(lambda x: torch.sin(x).sum(1) + 1, torch.randn(8, 9)).counters
    assert counters["NESTS_BEFORE_FUSION"] == 3 and counters["NESTS_AFTER_FUSION"] == counters["LAUNCHES"] == 1


def test_phases_of_one_kernel_are_an_outer_loop_fusion_of_inner_loops() -> None:
    counters = record(lambda x: F.softmax(torch.exp(torch.sin(x)), -1), torch.randn(40, 500)).counters
    assert counters["OUTER_LOOP_FUSIONS"] == 1 and counters["OUTER_LOOP_INNER_KERNELS"] >= 2


def test_operators_that_are_called_are_counted_by_name() -> None:
    counters = record(lambda x: torch.sort(x @ x)[0], torch.randn(5, 5, dtype=torch.float64)).counters
    assert {name: n for name, n in counters.items() if name.startswith("extern ")} == {
        "extern aten.mm.default": 1,
        "extern aten.sort.default": 1,
    }


def test_a_product_in_a_template_is_a_kernel_and_no_call() -> None:
    x, w = torch.randn(64, 256), torch.randn(256, 512)
    program = lambda x, w: torch.relu(torch.sin(x) @ w).sum(1)  # noqa: E731
    found = record(program, x, w, gemm_backends=["cpp"], max_autotune=True)
    (product,) = [kernel for kernel in found.kernels if kernel.facts.kind == "template"]
    assert product.facts.numels == (512, 64, 256) and product.facts.operations >= 2 * 64 * 256 * 512
    assert found.counters["TEMPLATES"] == 1
    assert not [name for name in found.counters if name.startswith("extern ")]
    assert {pair.reason for pair in found.unfused} == {
        "a template reads whole operands: aten.mm.default",
        "a template goes on with elements of its own tile alone: aten.mm.default",
    }


# -- tables --------------------------------------------------------------------------------------------------
def rows(name: str) -> list[dict[str, str]]:
    with Path(f"metric_table_{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_tables_of_a_compile_and_of_a_cache_hit_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x).sum(1)
        return y + 1, torch.cos(x).t().reshape(-1).sum()

    for _ in range(2):
        torch._dynamo.reset()
        tables = ["graph_stats", "kernel_metadata", "fusion_failure_due_to_indexing_mismatch"]
        options = {"metrics": tables, "model_name": "sines", "cache_dir": tmp_path / "cache"}
        torch.compile(program, backend="gyrator", options=options)(torch.randn(33, 65))
    stats, kernels = rows("graph_stats"), rows("kernel_metadata")
    without_id = [{k: v for k, v in row.items() if k != "graph_id"} for row in stats]
    assert len(stats) == 2 and without_id[0] == without_id[1]
    assert kernels[: len(kernels) // 2] == kernels[len(kernels) // 2 :]
    assert all(row["model_name"] == "sines" and int(row["line_of_code"]) > 3 for row in kernels)
    assert all((row["reduction_hint"] != "") == ("reduction" in row["kernel_category"]) for row in kernels)
    assert all(float(row["kernel_args_num_gb"]) > 0 and "/" in row["kernel_path"] for row in kernels)


def test_nothing_is_written_where_no_table_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(lambda x: x + 1, torch.ones(3))
    assert list(tmp_path.iterdir()) == []
