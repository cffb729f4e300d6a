"""Derivatives that a program takes itself are compiled with it, where capture is told to trace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.acceptance import check


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def forces(positions: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    apart = positions[:, None] - positions
    energy = F.silu((apart.square().sum(-1) + 1e-3).sqrt() @ weight).sum()
    return energy, -torch.autograd.grad(energy, positions, create_graph=True)[0]


def penalty(images: Tensor, weight: Tensor) -> Tensor:
    scores = F.gelu(F.conv2d(images, weight, padding=1)).flatten(1).softmax(-1)[:, 0]
    (slopes,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).square().mean()


def laplacian(points: Tensor, weight: Tensor) -> Tensor:
    heights = F.layer_norm((points @ weight).tanh(), weight.shape[1:]).exp().sum()
    (slopes,) = torch.autograd.grad(heights, points, create_graph=True)
    parts = [torch.autograd.grad(s.sum(), points, create_graph=True)[0][:, k] for k, s in enumerate(slopes.unbind(1))]
    return torch.stack(parts).sum(0)


def derivative_of_an_intermediate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    rows = (x * y).softmax(-1)
    return rows, torch.autograd.grad(rows.square().sum(), rows)[0]


def one_that_is_not_reached(x: Tensor, y: Tensor) -> Tensor:
    found = torch.autograd.grad(x.sin().sum(), [x, y], create_graph=True, allow_unused=True, materialize_grads=True)
    return found[0] * 2 + found[1]


PROGRAMS: list[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = [
    (forces, (7, 3), (7, 5)),
    (penalty, (3, 2, 5, 7), (4, 2, 3, 3)),
    (laplacian, (9, 2), (2, 5)),
    (derivative_of_an_intermediate, (3, 5), (3, 5)),
    (one_that_is_not_reached, (3, 5), (3, 5)),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("program", "first", "second"), PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_derivatives_of_derivatives_are_those_of_eager(
    program: Callable[..., Any], first: tuple[int, ...], second: tuple[int, ...], dynamic: bool, backend: str
) -> None:
    if program is penalty and dynamic and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 asks symbolic sizes of convolutions for numbers")
    arguments = [torch.randn(shape, requires_grad=True) for shape in (first, second)]
    check(program, arguments, backend=backend, backward=True, dynamic=dynamic, fullgraph=True, seeds=(0, 1))


def _trained(backend: str | None) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        return loss.detach()

    run = torch.compile(step, backend=backend) if backend else step
    losses = []
    for _ in range(3):
        losses.append(run(torch.randn(5, 6), torch.randint(4, (5,))))
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(p.detach() for p in model.parameters())]


def test_a_step_that_calls_backward_itself_trains_as_eager_does(backend: str) -> None:
    torch.testing.assert_close(_trained(backend), _trained(None))
