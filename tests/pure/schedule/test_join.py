"""Parts of a concatenation of many are made within its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.schedule.plan import Allocate, Call, Join, Launch
from tests.pure.lowering.harness import lowered
from tests.pure.schedule.harness import scheduled
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu

N = 10
"""More parts than a kernel takes as branches."""


def states(x: Tensor, a: Tensor) -> Tensor:
    h, found = x[:, 0], []
    for t in range(N):
        h = torch.tanh(h * a + x[:, t])
        found.append(h)
    return torch.stack(found, 1)


def cells(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, 0] * 1, []
    for t in range(N):
        h = torch.tanh(h @ w + x[:, t])
        found.append(h)
    return torch.stack(found, 1)


def columns(x: Tensor, a: Tensor) -> Tensor:
    return torch.cat([(x[:, t] * a + t).sin() for t in range(N)], -1)


def rows(x: Tensor, a: Tensor) -> Tensor:
    return torch.cat([(x[:, t] * a + t).sin() for t in range(N)]).cos() + 1


def sums(x: Tensor, a: Tensor) -> Tensor:
    """The parts are reductions, and have a dimension less."""
    return torch.stack([(x * (a + t)).sum(1) for t in range(N)], 1)


def read_later(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """What takes the place of the whole must wait until its parts are read."""
    parts = [(x[:, t] * a + t).sin() for t in range(N)]
    whole = torch.cat(parts, -1).relu()
    return whole.sort(0)[0], parts[3].cos().softmax(-1)


X, A, W = torch.randn(5, N, 16), torch.randn(16), torch.randn(16, 16) / 4
JOINED: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "states": (states, (X, A)), "cells": (cells, (X, W)), "columns": (columns, (X, A)), "rows": (rows, (X, A)),
    "sums": (sums, (X, A)), "read later": (read_later, (X, A)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", JOINED)
def test_parts_are_made_within_the_whole(case: str, dynamic: bool) -> None:
    fn, args = JOINED[case]
    plan = scheduled(fn, args, dynamic=dynamic).plan
    (join,) = [step for step in plan.steps if isinstance(step, Join)]
    within = {step.value for step in plan.steps if isinstance(step, Allocate) and step.upon is join.whole}
    assert within >= {*join.parts} and len(join.parts) == N


@pytest.mark.parametrize("case", JOINED)
def test_so_they_are_on_a_gpu(case: str) -> None:
    fn, args = JOINED[case]
    low = lowered(fn, *args)
    plan = gpu_plan(on_gpu(low.program))
    assert any(isinstance(step, Join) for step in plan.steps)
    expected = fn(*args)
    found = run_plan(plan, list(args), low.constants)
    for got, want in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("on_cuda", [False, True], ids=["cpu", "gpu"])
def test_a_kernel_that_reads_a_part_takes_no_place_in_the_whole(on_cuda: bool) -> None:
    def both(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        parts = more(x, a)
        whole = torch.cat(parts)
        return parts[3].cos() + whole.sum(0), whole.cos()

    plan = gpu_plan(on_gpu(lowered(both, X, A).program)) if on_cuda else scheduled(both, (X, A)).plan
    (join,) = [step for step in plan.steps if isinstance(step, Join)]
    upon = {step.value for step in plan.steps if isinstance(step, Allocate) and step.upon is join.whole}
    written = upon.difference(join.parts)
    launches = [{*step.args} for step in plan.steps if isinstance(step, Launch)]
    assert not any(join.parts[3] in args and args & written for args in launches)


def test_what_takes_the_place_of_the_whole_runs_after_the_readers_of_parts() -> None:
    """On a GPU small kernels that do not depend on each other share a launch."""

    def both(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        parts = more(x, a)
        whole = torch.cat(parts)
        return parts[3].cos() + whole.sort(0)[0][:1], whole.cos()

    plan = gpu_plan(on_gpu(lowered(both, X, A).program))
    (join,) = [step for step in plan.steps if isinstance(step, Join)]
    upon = {step.value for step in plan.steps if isinstance(step, Allocate) and step.upon is join.whole}
    launches = [{*step.args} for step in plan.steps if isinstance(step, Launch)]
    (over,) = [k for k, args in enumerate(launches) if args & upon.difference(join.parts)]
    assert all(k < over for k, args in enumerate(launches) if join.parts[3] in args)
    assert any(args.issuperset(join.parts) for args in launches)  # made in one launch


def more(x: Tensor, a: Tensor) -> list[Tensor]:
    return [(x[:, t] + a).sin() for t in range(N)]


def sorted_first(x: Tensor, a: Tensor) -> Tensor:
    first = (x[:, 0] + a).sin()
    return torch.cat([first, *more(x, a + first.sort(0)[0])], -1)


COPIED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "inputs": lambda x, a: torch.cat([x[:, 0] * 1, a[None], *more(x, a), a[None]]),
    "a part twice": lambda x, a: torch.cat([(y := x[:, 0].sin()), *more(x, a), y]),
    "a shown part": lambda x, a: (y := x[:, 0].sin(), torch.cat([y, *more(x, a)])),
    "what a call reads as it lies": sorted_first,
    "a part of two wholes": lambda x, a: (torch.cat((y := more(x, a)) + more(x, a + 1)), torch.cat(y + more(x, a + 2))),
}


@pytest.mark.parametrize("case", COPIED)
def test_parts_that_cannot_lie_there_are_copied(case: str) -> None:
    plan = scheduled(COPIED[case], (X, A)).plan
    joins = [step for step in plan.steps if isinstance(step, Join)]
    assert joins and any("part" in part.name for step in joins for part in step.parts)


LEFT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "most would be copied": lambda x, a: torch.cat([x[:, 0].sin(), *(a[None] for _ in range(N))]),
    "part of a value": lambda x, a: torch.cat([x.sin().sort(0)[0][:, 0], *more(x, a)]),
    "short rows": lambda x, a: torch.stack(more(x, a), -1),
    "another dtype": lambda x, a: torch.cat([x[:, 0] > 0, *more(x, a)]),
}


@pytest.mark.parametrize("case", LEFT)
def test_else_it_stays_a_call(case: str) -> None:
    plan = scheduled(LEFT[case], (X, A)).plan
    assert "aten.cat.default" in [step.extern.op for step in plan.steps if isinstance(step, Call)]


LARGE = torch.randn(1100, 192), torch.randn(1100, 64)


def beside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    part = x.relu()
    return torch.cat([part, y], 1), part


def through_views(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.t().reshape(192, 1100), y.t()], 0).view(2, 128, 1100).transpose(0, 1)


@pytest.mark.parametrize("fn", [beside, through_views], ids=lambda fn: fn.__name__)
def test_two_large_parts_are_made_apart_where_no_loop_reads_the_whole(fn: Callable[..., Any]) -> None:
    plan = scheduled(fn, LARGE, dynamic=False).plan
    assert any(isinstance(step, Join) for step in plan.steps)
    assert sum(isinstance(step, Launch) for step in plan.steps) == 2
    want = fn(*LARGE)
    for got, whole in zip(run_plan(plan, LARGE, ()), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(got, whole)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, y: torch.cat([x, y], 1) + 1, LARGE),
        (lambda x, y: torch.cat([x, y[:, :8]], 1), LARGE),
        (lambda x, y: torch.cat([x, y], 1), [x[:100] for x in LARGE]),
    ],
    ids=["read by a loop", "short rows", "small"],
)
def test_others_are_made_by_one_loop(fn: Callable[..., Any], args: Sequence[Tensor]) -> None:
    plan = scheduled(fn, args, dynamic=False).plan
    assert [type(step) for step in plan.steps if isinstance(step, Join | Launch | Call)] == [Launch]
