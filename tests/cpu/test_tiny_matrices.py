"""Many matrices of a few rows and columns: products by elements, fused, with a matrix in each lane."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.acceptance import check


def covariance(scales: Tensor, turns: Tensor, points: Tensor) -> tuple[Tensor, ...]:
    """What splats and rigid bodies compute."""
    m = turns * scales.exp()[:, None, :]
    return m @ m.mT, turns.mT @ m, (turns @ points[..., None])[..., 0], torch.einsum("bij,bkj->bik", turns, m)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 33, 1000])
def test_products_and_their_gradients(side: int, count: int, dynamic: bool, backend: str) -> None:
    shapes = (count, side), (count, side, side), (count, side)
    args = [torch.randn(shape).requires_grad_() for shape in shapes]
    check(covariance, args, backend=backend, backward=True, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_and_zero_matrices(dtype: torch.dtype, backend: str) -> None:
    for count in (0, 50):
        args = [torch.randn(shape, dtype=dtype) for shape in ((count, 3), (count, 3, 3), (count, 3))]
        check(covariance, args, backend=backend)


def test_rows_times_a_tiny_matrix(backend: str) -> None:
    def moved(points: Tensor, turn: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addmm(shift, points, turn, beta=0.5, alpha=2), points @ turn.t()

    args = [torch.randn(shape).requires_grad_() for shape in ((1001, 3), (3, 3), (3,))]
    check(moved, args, backend=backend, backward=True)


@pytest.mark.parametrize("shape", [(50, 3, 3), (50, 2, 3), (4, 50, 3, 2), (50, 6, 6)])
def test_elements_read_across(shape: tuple[int, ...], backend: str) -> None:
    def crossed(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.mT.contiguous() + b, (a * 2).mT.contiguous(), a + b.mT

    a = torch.randn(shape)
    check(crossed, (a, torch.randn(shape).mT.contiguous()), backend=backend)
