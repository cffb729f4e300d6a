"""Writes the README's table and docs/measured.md from benchmarks/results/*.json: ``python -m benchmarks.readme_table``.

Each file holds what ``benchmarks.run --json`` wrote: the machine, rows and geometric means. The README has the means,
docs/measured.md every case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
MEASURED = ROOT / "docs" / "measured.md"

BEGIN = "<!-- measured: written by `python -m benchmarks.readme_table` from benchmarks/results/*.json -->"
END = "<!-- end measured -->"
NOTHING = "No measurement is recorded yet."


def tables(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The text between the marks, from reports by file name: how many times as fast, and shares of the time of first
    calls and of peak memory, geometric means."""
    means = [line for name in sorted(reports, key=_order) for line in _means(name, reports[name])]
    if not means:
        return NOTHING
    head = [
        "machine",
        "suite",
        "threads",
        "shapes",
        "cases",
        "speed: of eager",
        "of Inductor",
        "first call: of Inductor",
    ]
    return "\n".join([f"| {' | '.join([*head, 'memory: of eager'])} |", "|---|---|---:|---|" + "---:|" * 5, *means])


def cases(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of docs/measured.md, from reports by file name."""
    head = [
        "# Measured, case by case",
        "Written by `python -m benchmarks.readme_table`. Peers run side by side in one process or one after the other "
        "in one run; a step is the median of repeats, a first call is from empty caches.",
    ]
    return "\n\n".join([*head, *(_report(name, reports[name]) for name in sorted(reports, key=_order))]) + "\n"


def with_tables(readme: str, text: str) -> str:
    """The README with the text between its marks."""
    head, _, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"README.md lacks the marks {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def recorded() -> dict[str, Mapping[str, Any]]:
    """Every report of cases with peers in benchmarks/results, by file name."""
    reports = {path.name: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    return {name: report for name, report in reports.items() if "rows" in report and "machine" in report}


def _order(name: str) -> tuple[bool, bool, str]:
    """Whole models first, static shapes before symbolic ones."""
    return not name.startswith("models"), "dynamic" in name, name


def _report(name: str, report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {machine['compiler']}"
    where = f"{machine['gpu']}, torch {machine['torch']}" if machine.get("gpu") else where
    head = f"## {name.removesuffix('.json')}"
    source = f"[{name}](../benchmarks/results/{name})"
    return "\n\n".join(
        [head, f"{where} ({source}, {machine['date'][:10]}, commit {machine['commit']}).", *_cases(report["rows"])]
    )


def _means(name: str, report: Mapping[str, Any]) -> Iterator[str]:
    """A row for each suite, thread count and kind of shapes."""
    machine = report["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    for mean in report["geomeans"]:
        alike = [r for r in report["rows"] if _group(r) == _group(mean)]
        speeds = [_times(mean.get(f"gyrator_over_{peer}")) for peer in ("eager", "inductor")]
        shares = [_share(mean.get(figure)) for figure in ("first_call_over_inductor", "memory_over_eager")]
        shapes = "dynamic" if mean["dynamic"] else "static"
        suite = f"[{mean['suite']}](docs/measured.md#{name.removesuffix('.json')})"
        cells = [where, suite, str(mean["threads"]), shapes, str(len(alike)), *speeds, *shares]
        yield f"| {' | '.join(cells)} |"


def _cases(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each suite a folded table of its cases: milliseconds of a step, seconds of the first call."""
    suites = dict.fromkeys(row["suite"] for row in rows)
    return [_suite(suite, [row for row in rows if row["suite"] == suite]) for suite in suites]


def _suite(suite: str, rows: Sequence[Mapping[str, Any]]) -> str:
    peers = list(dict.fromkeys(peer for row in rows for peer in (*row["seconds"], *row["errors"])))
    lines = [
        "| case | threads | " + " | ".join([*(f"{p}, ms" for p in peers), *(f"first {p}, s" for p in peers)]) + " |",
        "|---|" + "---:|" * (1 + 2 * len(peers)),
    ]
    for row in rows:
        steps = [_number(row["seconds"].get(peer), 1e3, peer in row["errors"]) for peer in peers]
        first = [_number(row["first_call"].get(peer), 1.0, peer in row["errors"]) for peer in peers]
        name = row["case"] + (" (dynamic)" if row["dynamic"] else "")
        lines.append(f"| {name} | {row['threads']} | {' | '.join([*steps, *first])} |")
    return "\n".join([f"**{suite}**", "", *lines])


def _group(item: Mapping[str, Any]) -> tuple[str, int, bool]:
    return item["suite"], item["threads"], item["dynamic"]


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}×" if ratio else ""


def _share(ratio: float | None) -> str:
    return f"{ratio:.2f}" if ratio else ""


def _number(seconds: float | None, scale: float, failed: bool) -> str:
    if seconds is None:
        return "failed" if failed else ""
    return f"{seconds * scale:.3g}" if seconds * scale < 1000 else f"{seconds * scale:.0f}"


def main() -> int:
    """Rewrite both."""
    README.write_text(with_tables(README.read_text(), tables(recorded())))
    MEASURED.write_text(cases(recorded()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
