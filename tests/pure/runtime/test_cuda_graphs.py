"""Recordings of calls, with a recorder that runs the function again instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.runtime import cuda_graphs
from gyrator.runtime.cuda_graphs import replayed


class Recorder:
    """Replays by running the function into the tensors that the first run gave."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], object], Sequence[Any]]:
        self.recorded += 1
        outputs = function()

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(outputs, function(), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)

        return replay, outputs


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Recorder()


def affine(args: list[Any]) -> Sequence[Any]:
    x, w, n = args
    return (x * w + n, None, n)


def emptied(args: list[Any]) -> Sequence[Any]:
    """As compiled graphs do."""
    result = affine(args)
    args.clear()
    return result


def test_the_second_call_of_a_kind_is_recorded_and_later_ones_replayed(recorder: Recorder) -> None:
    call, w = replayed(emptied, [1], recorder), torch.randn(4)
    results = []
    for k in range(5):
        x = torch.full((4,), float(k))
        args = [x, w, 2]
        results.append((call(args)[0], x * w + 2))
        assert args == []
    assert (recorder.recorded, recorder.replayed) == (1, 4)
    for got, want in results:  # earlier results are not written over
        assert torch.equal(got, want)


def test_each_shape_and_number_has_a_recording(recorder: Recorder) -> None:
    call, w = replayed(affine, [1], recorder), torch.randn(1)
    for _ in range(3):
        for shape, number in (((2,), 1), ((3,), 1), ((3,), 2)):
            x = torch.randn(shape)
            assert torch.equal(call([x, w, number])[0], x * w + number)
    assert recorder.recorded == 3


def test_a_parameter_that_moved_is_recorded_anew(recorder: Recorder) -> None:
    call, x = replayed(affine, [1], recorder), torch.randn(4)
    for w in (torch.randn(4), torch.randn(4)):
        for _ in range(3):
            assert torch.equal(call([x, w, 1])[0], x * w + 1)
    assert recorder.recorded == 2


def test_there_is_an_end_to_recordings(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_RECORDINGS", 2)
    call, w = replayed(affine, [1], recorder), torch.randn(1)
    for _ in range(2):
        for n in range(4):
            x = torch.randn(n + 1)
            assert torch.equal(call([x, w, 1])[0], x * w + 1)
    assert recorder.recorded == 2
