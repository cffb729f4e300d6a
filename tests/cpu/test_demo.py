"""`python -m gyrator demo` and the backend as a whole, on the smallest model."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.demo.__main__ import app


def test_the_demo_runs_and_is_as_right_as_eager(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    result = CliRunner().invoke(app, ["--size", "tiny", "--steps", "2", "--json", str(out)])
    assert result.exit_code == 0, result.stdout
    rows = {(row["task"], row["backend"]): row for row in json.loads(out.read_text())["results"]}
    assert set(rows) == {(t, b) for t in ("inference", "training") for b in ("eager", "gyrator")}
    for task in ("inference", "training"):
        assert rows[task, "gyrator"]["error"] <= 2 * rows[task, "eager"]["error"] + 1e-6
        assert rows[task, "gyrator"]["step"] > 0
        assert rows[task, "gyrator"]["peak"] > 2**20
