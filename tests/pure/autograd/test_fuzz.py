"""Random programs with aliasing, mutation, views and backward, traced here and run op by op."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import BATCH, Settings, run
from tests.fuzz.programs import CAPTURED
from tests.pure.autograd.harness import BACKEND, FROZEN


@pytest.mark.parametrize("first", [20_000, 20_020, 20_040])
def test_random_programs_do_what_eager_does(first: int, tmp_path: Path) -> None:
    failures = list(run(range(first, first + 20), Settings(BACKEND, tmp_path, BATCH, True)))
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("first", [CAPTURED + 1000, CAPTURED + 1020, CAPTURED + 1040])
def test_patterns_in_their_many_spellings_do_what_eager_does(first: int, tmp_path: Path) -> None:
    failures = list(run(range(first, first + 20), Settings(FROZEN, tmp_path, BATCH // 2)))
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(30_000, 32_000, 250))
def test_many_random_programs_do_what_eager_does(first: int, tmp_path: Path) -> None:
    failures = list(run(range(first, first + 250), Settings(BACKEND, tmp_path, BATCH, True)))
    assert not failures, "\n".join(map(str, failures))
