"""The README and docs/measured.md say what was measured and nothing else."""

from __future__ import annotations

import pytest

from benchmarks.readme_table import BEGIN, END, MEASURED, NOTHING, README, cases, recorded, tables, with_tables

REPORT = {
    "machine": {
        "cpu": "Some CPU",
        "cores": 2,
        "torch": "2.13.0",
        "compiler": "g++ 12.2.0",
        "commit": "abc1234",
        "date": "2026-01-02T03:04:05+00:00",
    },
    "geomeans": [
        {
            "suite": "kernels",
            "threads": 1,
            "dynamic": False,
            "inductor_over_eager": None,
            "gyrator_over_eager": 2.5,
            "gyrator_over_inductor": 1.25,
            "first_call_over_inductor": 0.2,
        }
    ],
    "rows": [
        {
            "suite": "kernels",
            "case": "softmax",
            "threads": 1,
            "dynamic": False,
            "seconds": {"eager": 0.005, "gyrator": 0.002},
            "first_call": {"eager": 0.1, "gyrator": 1.5},
            "errors": {"inductor": "it broke"},
        }
    ],
}


def test_a_report_becomes_rows_of_means_and_a_table_of_cases() -> None:
    row = "| Some CPU, 2 cores | [kernels](docs/measured.md#cpu) | 1 | static | 1 | 2.50× | 1.25× | 0.20 |  |"
    assert row in tables({"cpu.json": REPORT})
    text = cases({"cpu.json": REPORT})
    where = "[cpu.json](../benchmarks/results/cpu.json), 2026-01-02, commit abc1234"
    assert f"## cpu\n\nSome CPU, 2 cores, torch 2.13.0, g++ 12.2.0 ({where})." in text
    assert "| softmax | 1 | 5 | 2 | failed | 0.1 | 1.5 | failed |" in text


def test_without_results_nothing_is_claimed() -> None:
    assert tables({}) == NOTHING


def test_only_the_part_between_the_marks_is_replaced() -> None:
    assert with_tables(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\nnew\n{END}\nb\n"
    with pytest.raises(ValueError, match="lacks the marks"):
        with_tables("a\nb\n", "new")


def test_both_are_current() -> None:
    readme = README.read_text()
    assert readme == with_tables(readme, tables(recorded())), "run: python -m benchmarks.readme_table"
    assert MEASURED.read_text() == cases(recorded()), "run: python -m benchmarks.readme_table"
