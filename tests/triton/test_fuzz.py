"""Random programs, scheduled for a GPU and computed by what defines kernels, do what eager does. ``--fuzz N`` runs N of
them, ``--fuzz-seed`` picks others.

Some are scheduled with thresholds so low that their small tensors take the ways of large ones: rows in blocks and in
parts, rows that programs share, rows and columns in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gyrator.config import Config
from gyrator.lowering import reductions
from gyrator.schedule import gpu, gpu_reductions, gpu_tiling, scatter
from tests.fuzz.harness import Settings, run
from tests.fuzz.known import KNOWN
from tests.triton import emulated
from tests.triton.emulated import Emulator
from tests.triton.worker import Worker

IN_CI, CHUNK = 300, 50
LOW_IN_CI = 50

_NEVER = 1 << 30
_SPLIT = {"MIN_WORK": 4, "MIN_ROW": 2, "MIN_ROWS": 2, "ALIGNED": 1, "MIN_RUN": 1, "MIN_ROWS_MIXED": 2}
_WHOLE = {"WHOLE_ROW": 4, "WHOLE_SUM": 2, "WHOLE_SCAN": 2, "WHOLE_COLUMN": 2}

LOW: Mapping[str, Mapping[ModuleType, Mapping[str, object]]] = {
    "blocks and parts": {
        gpu_tiling: _WHOLE,
        gpu_reductions: {**_SPLIT, "WHOLE_ROW": 4, "MIN_PART": _NEVER},
        scatter: {"LEAST_CROWD": 2},
        reductions: {"MOST_SORTED": 0},  # a row is sorted whole
    },
    "shared rows": {
        gpu_reductions: {**_SPLIT, "MIN_PART": 2, "MIN_SHARED": 2, "LEAST_SHARED": 2, "SCAN_PARTS": (2, 4)},
        scatter: {"LEAST_CROWD": 2},
    },
    "rows and columns": {gpu_reductions: {"MIN_WORK": 4, "MIN_ROWS_MIXED": 1, "MIN_PART": _NEVER}},
}
"""Thresholds by what they lead to, on a GPU of four processors."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = metafunc.config.getoption("--fuzz")
    start = metafunc.config.getoption("--fuzz-seed")
    most = LOW_IN_CI if "low" in metafunc.fixturenames else IN_CI
    metafunc.parametrize("first_seed", range(start, start + (most if asked is None else asked), CHUNK))


def failures_of(first_seed: int, interpreter: Worker, folder: Path) -> str:
    torch._dynamo.reset()
    emulator = Emulator(folder, interpreter, trees=True, config=Config())
    seeds = [seed for seed in range(first_seed, first_seed + CHUNK) if seed not in KNOWN]
    return "\n\n".join(map(str, run(seeds, Settings(emulator.backend, folder / "failures"))))


def test_random_programs_match_eager(first_seed: int, interpreter: Worker, tmp_path: Path) -> None:
    assert not failures_of(first_seed, interpreter, tmp_path)


@pytest.mark.parametrize("low", LOW)
def test_random_programs_with_low_thresholds_match_eager(
    low: str, first_seed: int, interpreter: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, values in LOW[low].items():
        for name, number in values.items():
            monkeypatch.setattr(module, name, number)
    monkeypatch.setattr(emulated, "Gpu", lambda: gpu.Gpu(processors=4))
    assert not failures_of(first_seed, interpreter, tmp_path)
