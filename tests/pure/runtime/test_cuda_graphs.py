"""Recordings of calls, with a recorder that runs the function again instead."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.autograd.interface import GraphInfo, GraphKind
from gyrator.ir.program import Arg, Item, views
from gyrator.runtime import cuda_graphs
from gyrator.runtime.cuda_graphs import Roles, recordable, replayed
from gyrator.schedule.plan import Call
from tests.pure.lowering.harness import lowered
from tests.triton.harness import gpu_plan, on_gpu


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
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: 0)
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
    call, w = replayed(emptied, Roles(frozenset({1})), recorder), torch.randn(4)
    results = []
    for k in range(5):
        x = torch.full((4,), float(k))
        args = [x, w, 2]
        results.append((call(args)[0], x * w + 2))
        assert args == []
    assert (recorder.recorded, recorder.replayed) == (1, 4)
    for got, want in results:  # earlier results are not written over
        assert torch.equal(got, want)


def test_tensors_with_repeated_elements_are_copied_as_they_lie(recorder: Recorder) -> None:
    call = replayed(lambda args: [(args[0] * 2)[0].expand(4, 3)], Roles(frozenset()), lambda run: (run, run()))
    for _ in range(3):
        (result,) = call([torch.ones(3).expand(4, 3)])
        assert result.stride() == (0, 1) and torch.equal(result, torch.full((4, 3), 2.0))


def test_each_shape_and_number_has_a_recording(recorder: Recorder) -> None:
    call, w = replayed(affine, Roles(frozenset({1})), recorder), torch.randn(1)
    for _ in range(3):
        for shape, number in (((2,), 1), ((3,), 1), ((3,), 2)):
            x = torch.randn(shape)
            assert torch.equal(call([x, w, number])[0], x * w + number)
    assert recorder.recorded == 3


def test_a_parameter_that_moved_is_recorded_anew(recorder: Recorder) -> None:
    call, x = replayed(affine, Roles(frozenset({1})), recorder), torch.randn(4)
    for w in (torch.randn(4), torch.randn(4)):
        for _ in range(3):
            assert torch.equal(call([x, w, 1])[0], x * w + 1)
    assert recorder.recorded == 2


def test_a_call_during_that_of_another_thread_does_not_write_over_its_inputs(recorder: Recorder) -> None:
    begun, others = threading.Event(), threading.Event()

    def record(function: Callable[[], Sequence[Any]]) -> Any:
        replay, outputs = recorder(function)

        def slow() -> None:
            begun.set()
            assert others.wait(10)
            replay()

        return slow, outputs

    call, x, w = replayed(affine, Roles(frozenset({1})), record), torch.randn(4), torch.randn(4)
    call([x, w, 1])
    results: list[Sequence[Any]] = []
    thread = threading.Thread(target=lambda: results.append(call([x, w, 1])))
    thread.start()
    assert begun.wait(10)
    meanwhile = threading.Thread(target=lambda: results.append(call([x + 1, w, 1])))
    meanwhile.start()
    meanwhile.join(1)
    others.set()
    for each in (thread, meanwhile):
        each.join()
    by_order = sorted(results, key=lambda found: float((found[0] - x * w - 1).abs().max()))
    assert torch.equal(by_order[0][0], x * w + 1) and torch.equal(by_order[1][0], (x + 1) * w + 1)


def test_calls_on_several_streams_share_no_memory(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    call, x, w = replayed(affine, Roles(frozenset({1})), recorder), torch.randn(4), torch.randn(4)
    for _ in range(3):
        for stream in (1, 2):
            monkeypatch.setattr(torch.cuda, "current_stream", lambda stream=stream: stream)
            call([x, w, 1])
    assert recorder.recorded == 2


def test_there_is_an_end_to_recordings(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_RECORDINGS", 2)
    call, w = replayed(affine, Roles(frozenset({1})), recorder), torch.randn(1)
    for _ in range(2):
        for n in range(4):
            x = torch.randn(n + 1)
            assert torch.equal(call([x, w, 1])[0], x * w + 1)
    assert recorder.recorded == 2


def forward(args: list[Any]) -> Sequence[Any]:
    """The result, and what backward needs: a new value, and an input."""
    x, w = args
    args.clear()
    return ((x * w).exp(), (x * w).exp(), x)


def backward(args: list[Any]) -> Sequence[Any]:
    y, x, w, grad = args
    args.clear()
    return (grad * y * x, grad * y * w)


class RecorderOfAddresses(Recorder):
    """Holds none of its inputs, as a recording on a GPU: a replay reads what lies where they lay."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[int] = []

    def noted(self, args: list[Any]) -> Sequence[Any]:
        self.addresses = [arg.data_ptr() for arg in args]
        return backward(args)

    def __call__(self, function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], object], Sequence[Any]]:
        self.recorded += 1
        outputs, addresses = function(), self.addresses

        def replay() -> None:
            self.replayed += 1
            found = [(ctypes.c_float * 4).from_address(address) for address in addresses]
            for old, new in zip(
                outputs, backward([torch.frombuffer(f, dtype=torch.float32) for f in found]), strict=True
            ):
                old.copy_(new)

        return replay, outputs


def training(
    recorder: Recorder, other: RecorderOfAddresses
) -> tuple[Callable[[Tensor, Tensor], tuple[Any, ...]], Callable[..., Sequence[Any]]]:
    """Forward and backward of exp(x·w) as a program calls them: what is saved is dropped after backward."""
    first = replayed(forward, Roles(frozenset({1}), saved=2), recorder)
    second = replayed(other.noted, Roles(frozenset({2}), kept=2), other)
    return lambda x, w: tuple(first([x, w])), lambda saved, w, grad: second([*saved, w, grad])


def test_backward_finds_what_forward_saved_where_it_lies(recorder: Recorder) -> None:
    other = RecorderOfAddresses()
    (first, second), w = training(recorder, other), torch.randn(4)
    for _ in range(6):
        x, grad = torch.randn(4), torch.randn(4)
        y, *saved = first(x, w)
        got = second(saved, w, grad)
        del saved
        right = (x * w).exp()
        torch.testing.assert_close((y, *got), (right, grad * right * x, grad * right * w))
    assert (recorder.recorded, recorder.replayed) == (1, 5)
    assert (other.recorded, other.replayed) == (
        1,
        4,
    )  # what forward saves lies in its recording from the second call on


def test_what_is_saved_for_a_later_backward_is_not_written_over(recorder: Recorder) -> None:
    (first, second), w = training(recorder, RecorderOfAddresses()), torch.randn(4)
    for _ in range(4):
        xs, grad = [torch.randn(4) for _ in range(3)], torch.randn(4)
        kept = [first(x, w)[1:] for x in xs]  # three forwards before the first backward
        for x in reversed(xs):
            right = (x * w).exp()
            torch.testing.assert_close(tuple(second(kept.pop(), w, grad)), (grad * right * x, grad * right * w))
    assert recorder.replayed == 4  # the second of all, and the first of each later three


def test_calls_that_cannot_be_recorded_run_as_usual(recorder: Recorder) -> None:
    def fails(function: Callable[[], Sequence[Any]]) -> Any:
        function()
        raise RuntimeError("operation not permitted when stream is capturing")

    call, w = replayed(emptied, Roles(frozenset({1})), fails), torch.randn(4)
    results = []
    with pytest.warns(UserWarning, match="not permitted") as warned:
        for k in range(4):
            x = torch.full((4,), float(k))
            results.append(torch.equal(call([x, w, 2])[0], x * w + 2))
    assert all(results) and len(warned) == 1


def attention(q: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q) * 2


def dropped(q: Tensor) -> Tensor:
    return q * (torch.rand_like(q) > 0.5)


def chosen(q: Tensor) -> Tensor:
    return q[q > 0]


@pytest.mark.parametrize("kind", ["inference", "forward"])
@pytest.mark.parametrize(("fn", "possible"), [(attention, True), (dropped, True), (chosen, False)])
def test_draws_can_be_recorded_and_what_waits_for_a_size_cannot(
    fn: Callable[[Tensor], Tensor], possible: bool, kind: GraphKind
) -> None:
    plan = gpu_plan(on_gpu(lowered(fn, torch.randn(2, 2, 8, 16)).program))
    assert recordable(plan, GraphInfo(kind)) is possible


def test_a_number_that_is_read_back_for_any_argument_keeps_calls_from_being_recorded() -> None:
    plan = gpu_plan(on_gpu(lowered(attention, torch.randn(2, 2, 8, 16)).program))
    (call,) = [step for step in plan.steps if isinstance(step, Call)]
    number = Item(replace(views(call.extern)[0], shape=(), strides=()))
    named: tuple[Arg, ...] = (number, (number,))
    for arg in named:
        reads = replace(call, extern=replace(call.extern, kwargs=(("scale", arg),)))
        steps = tuple(reads if step is call else step for step in plan.steps)
        assert not recordable(replace(plan, steps=steps), GraphInfo("inference"))
