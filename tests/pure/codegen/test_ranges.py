"""What scripts that make up inputs know of indices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gyrator.codegen.wrapper import index_ranges
from gyrator.config import Config
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered


@pytest.mark.parametrize("sizes", [(7, 5), (5, 7)])
def test_of_the_sizes_that_one_kernel_checks_an_index_against_the_smallest_counts(sizes: tuple[int, int]) -> None:
    def both(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return x[at] + y[at]

    low = lowered(both, torch.zeros(sizes[0]), torch.zeros(sizes[1]), torch.zeros(9, dtype=torch.int64))
    plan = schedule(low.program, Session(Config(), torch.device("cpu"))).plan
    assert len(plan.kernels) == 1
    (found,) = index_ranges(plan).values()
    assert (found[0], found[1].value) == ("below", 5)
