"""Few rows too long for one core: all threads share each row, unless one element of it needs the one before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.acceptance import check

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: (2 * x).sum(-1) + 1,
    "variance": lambda x: x.var(-1),
    "extremes": lambda x: (x.amax(-1), x.argmin(-1)),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "what is summed is stored": lambda x: (y := x.exp(), y.sum(-1)),
    "cumulative sum": lambda x: x.cumsum(-1),
    "cumulative maximum": lambda x: x.cummax(-1),
    "cumulative sum beside a sum": lambda x: (x.cumsum(-1), x.sum(-1)),
}


pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize("shape", [(100_003,), (3, 40_001)], ids=["one row", "three rows"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_long_rows(name: str, shape: tuple[int, ...], backend: str) -> None:
    torch.manual_seed(0)
    check(PROGRAMS[name], (torch.randn(shape),), backend=backend)


@pytest.mark.parametrize("shape", [(1_000_003,), (2, 300_001)], ids=["one row", "two rows"])
def test_writes_that_collide_are_all_made(shape: tuple[int, ...], backend: str) -> None:
    torch.manual_seed(0)
    zeros, ones, index = (
        torch.zeros(*shape[:-1], 4, dtype=torch.int64),
        torch.ones(*shape, dtype=torch.int64),
        torch.randint(4, shape),
    )
    compiled = torch.compile(lambda *args: zeros.scatter_add(-1, *args), backend=backend)
    assert torch.equal(compiled(index, ones), zeros.scatter_add(-1, index, ones))
    compiled = torch.compile(lambda ones: zeros.scatter_add(-1, torch.zeros_like(ones), ones), backend=backend)
    assert torch.equal(compiled(ones)[..., 0], ones.sum(-1))
