"""What a result is placed upon: memory that dies in its kernel, whichever nest there reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.schedule.plan import Allocate
from tests.pure.schedule.harness import scheduled


def through_a_value_of_the_kernel(x: Tensor, w: Tensor) -> Tensor:
    powers = (x @ w).exp()
    return powers / powers.sum(-1, keepdim=True)


def through_a_reduction(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sum(-1, keepdim=True) * x


def at_another_place(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sum(0) * x


@pytest.mark.parametrize(
    ("fn", "upon"), [(through_a_value_of_the_kernel, "mm"), (through_a_reduction, "mm"), (at_another_place, None)]
)
def test_a_result_lies_upon_what_its_kernel_reads_last(fn: Callable[..., Tensor], upon: str | None) -> None:
    plan = scheduled(fn, [torch.randn(8, 8), torch.randn(8, 8)]).plan
    last = [step for step in plan.steps if isinstance(step, Allocate)][-1]
    assert (last.upon and last.upon.name) == upon
