"""Random programs, scheduled for a GPU and computed by what defines kernels, do what eager does. ``--fuzz N`` runs N of
them, ``--fuzz-seed`` picks others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyrator.config import Config
from tests.fuzz.harness import Settings, run
from tests.fuzz.known import KNOWN
from tests.triton.emulated import Emulator
from tests.triton.worker import Worker

IN_CI, CHUNK = 300, 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = metafunc.config.getoption("--fuzz")
    start = metafunc.config.getoption("--fuzz-seed")
    metafunc.parametrize("first_seed", range(start, start + (IN_CI if asked is None else asked), CHUNK))


def test_random_programs_match_eager(first_seed: int, interpreter: Worker, tmp_path: Path) -> None:
    torch._dynamo.reset()
    emulator = Emulator(tmp_path, interpreter, trees=True, config=Config())
    seeds = [seed for seed in range(first_seed, first_seed + CHUNK) if seed not in KNOWN]
    failures = list(run(seeds, Settings(emulator.backend, tmp_path / "failures")))
    assert not failures, "\n\n".join(map(str, failures))
