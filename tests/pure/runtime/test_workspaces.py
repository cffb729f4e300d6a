"""Memory of launches on a GPU beside their arguments; here it lies on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from gyrator.runtime.pool import RESERVE, Workspaces


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether launches are recorded from now on."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda n, **_: zeros(n, dtype=torch.uint8))
    state = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state[0])

    def set_to(recording: bool) -> None:
        state[0] = recording

    return set_to


def test_launches_on_one_stream_share_counters_and_streams_do_not(capturing: Callable[[bool], None]) -> None:
    spaces = Workspaces([])
    first = spaces(64, True, 1)
    assert not first.any() and spaces(32, True, 1).data_ptr() == first.data_ptr()
    assert spaces(64, True, 2).data_ptr() != first.data_ptr()
    larger = spaces(128, True, 1)
    assert larger.numel() >= 128 and spaces(64, True, 1).data_ptr() == larger.data_ptr()


def test_each_recorded_launch_has_counters_of_its_own(capturing: Callable[[bool], None]) -> None:
    spaces = Workspaces([])
    shared = spaces(20, True, 1)
    capturing(True)
    found = [spaces(20, True, 1) for _ in range(4)]
    starts = sorted(f.data_ptr() for f in (*found, shared))
    assert len(set(starts)) == 5 and all(start % 16 == starts[0] % 16 for start in starts)
    assert all(later - start >= 20 for start, later in pairwise(starts))
    assert all(f.untyped_storage().nbytes() == RESERVE for f in found)


def test_a_recording_without_a_reserve_zeroes_its_counters_itself(capturing: Callable[[bool], None]) -> None:
    capturing(True)
    spaces = Workspaces([])
    assert not spaces(20, True, 1).any()
    capturing(False)
    spaces(20, True, 1)
    capturing(True)
    assert spaces(2 * RESERVE, True, 1).numel() == 2 * RESERVE


def test_what_recordings_hold_outlives_the_compiled_function(capturing: Callable[[bool], None]) -> None:
    recorded: list[torch.Tensor] = []
    spaces = Workspaces(recorded)
    spaces(20, True, 1)
    assert not recorded
    capturing(True)
    held = [spaces(20, True, 1) for _ in range(2)]
    assert [r.data_ptr() for r in recorded] == [held[0].data_ptr()]
