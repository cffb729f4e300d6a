"""Schedule a function as the compiler would, run the plan by the reference interpreter, compare with
eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gyrator.config import Config
from gyrator.schedule.stage import Scheduled, schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan


def scheduled(fn: Callable[..., Any], args: Sequence[Any], *, dynamic: bool = False) -> Scheduled:
    """The plan of ``fn`` for these arguments, checked after every pass, its results compared with eager's."""
    low = lowered(fn, *args, dynamic=dynamic)
    result = schedule(low.program, Session(Config(check="every"), torch.device("cpu")), overlays=True)
    given = [a.clone() if isinstance(a, Tensor) else a for a in args]
    for actual, expected in zip(
        run_plan(result.plan, given, low.constants), pytree.tree_leaves(fn(*args)), strict=True
    ):
        if isinstance(expected, Tensor):
            assert isinstance(actual, Tensor)
            torch.testing.assert_close(actual, expected.detach(), equal_nan=True, rtol=1e-4, atol=1e-4)
            assert actual.stride() == expected.stride()
    return result


def kernels(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> int:
    """How many kernels ``fn`` becomes."""
    return len(scheduled(fn, args, dynamic=dynamic).plan.kernels)


def gradients(fn: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """The gradients of ``fn(*inputs)`` for the output gradient ``grad``."""
    leaves = [x.detach().requires_grad_(True) for x in inputs]
    return torch.autograd.grad(fn(*leaves), leaves, grad)
