"""Test tiers and golden files.

A test's tier is its folder: `pure` needs no toolchain, `cpu` builds C++ kernels, `triton` needs Triton but
no GPU, `gpu` needs an NVIDIA GPU. Tests whose tool is missing are deselected with a line that says so.

`golden(name, text)` compares a text with `tests/golden/name`; `pytest --update-golden` rewrites it instead.
"""

from __future__ import annotations

import difflib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.known_failures import KNOWN

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"

MISSING: dict[str, Callable[[], str | None]] = {
    "pure": lambda: None,
    "cpu": lambda: None if shutil.which("g++") or shutil.which("clang++") else "no C++ compiler",
    "triton": lambda: None if importlib.util.find_spec("triton") else "Triton is not installed",
    "gpu": lambda: None if torch.cuda.is_available() else "no CUDA device",
}
"""For each tier, why its tests cannot run here, or None."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {tier: why() for tier, why in MISSING.items()}
    kept, dropped = [], []
    for item in items:
        tier = tier_of(item.path)
        if tier is not None:
            item.add_marker(tier)
        if item.nodeid in KNOWN:
            item.add_marker(pytest.mark.xfail(reason=KNOWN[item.nodeid], strict=False))
        (dropped if tier is not None and reasons[tier] else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_report_header(config: pytest.Config) -> list[str]:
    absent = [f"{tier} ({why()})" for tier, why in MISSING.items() if why()]
    return [f"gyrator tiers not run here: {', '.join(absent)}"] if absent else []


def tier_of(path: Path) -> str | None:
    """The tier whose folder a test file lies in."""
    try:
        first = path.relative_to(TESTS).parts[0]
    except ValueError:
        return None
    return first if first in MISSING else None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name; a difference or a missing file fails."""
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text if text.endswith("\n") else text + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"tests/golden/{name} does not exist; run pytest --update-golden and read what it wrote")
        wanted = path.read_text()
        if text != wanted:
            lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join(lines) + "\nrun pytest --update-golden if the change is meant", pytrace=False)

    return compare
