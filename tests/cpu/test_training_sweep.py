"""Every model of the zoo trains as users train. A few rows run by default; ``--training-full`` runs them all."""

from __future__ import annotations

import pytest

from benchmarks.zoo import MODELS
from tests.training_ways import QUICK, WAYS, check_training


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_three_steps(name: str, way: str, backend: str, request: pytest.FixtureRequest) -> None:
    if (name, way) not in QUICK and not request.config.getoption("--training-full"):
        pytest.skip("only with --training-full")
    check_training(name, WAYS[way], backend)
