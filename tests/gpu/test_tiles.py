"""Kernels that read along other axes than they write along, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "three orders": (
        lambda a, b, c: a + b.permute(2, 0, 1) * c.permute(1, 2, 0), ((65, 130, 200), (130, 200, 65), (200, 65, 130))
    ),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous() + 1, ((5, 3, 130, 257),)),
    "channels first": (lambda x: x.permute(0, 3, 1, 2).contiguous() + 1, ((5, 130, 257, 3),)),
    "pairs": (lambda x: x.t().contiguous() * 2, ((2, 100_001),)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_eager(case: str, dtype: torch.dtype) -> None:
    fn, shapes = CASES[case]
    args = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
    got = torch.compile(fn, backend="gyrator", dynamic=False)(*args)
    expected = fn(*[arg.double() for arg in args])
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=2 * eps, atol=2 * eps)
