"""Reductions over rows whose number is a symbol: right at every size, also far from the one that was compiled for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.acceptance import assert_matches

COLUMNS = 192
CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "all": lambda x, w: (x * w).sum(),
    "columns": lambda x, w: (x * w).sum(0),
    "position": lambda x, w: (x + w).argmax(),
    "variance": lambda x, w: (x * w).var(0),
    "layer norm": lambda x, w: F.layer_norm(x, (COLUMNS,), w),
}


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    """Numbers around 1: sums that cancel would have larger errors than their size allows, by the order of adding."""
    made = (torch.randn(n, generator=torch.Generator().manual_seed(rows)) + 1 for n in (rows * COLUMNS, COLUMNS))
    x, w = (t.cuda() for t in made)
    return x.view(rows, COLUMNS).requires_grad_(), w.requires_grad_()


def run(fn: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    out = fn(x, w)
    if not out.is_floating_point():
        return (out,)
    return (out, *torch.autograd.grad((out * out).mean(), (x, w)))


@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_few_rows_and_many(name: str) -> None:
    fn = CASES[name]
    compiled = torch.compile(fn, backend="gyrator")
    for rows in (20_011, 3, 4096, 150_001):
        x, w = inputs(rows)
        torch._dynamo.mark_dynamic(x, 0)
        wide = [t.detach().double().requires_grad_() for t in (x, w)]
        for got, plain, exact in zip(run(compiled, x, w), run(fn, x, w), run(fn, *wide), strict=True):
            assert_matches(got, plain, exact, slack=8)
