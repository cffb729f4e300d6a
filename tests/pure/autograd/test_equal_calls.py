"""Equal calls are made once, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.pure.autograd.harness import compiled, leaf, same_as_eager

aten = torch.ops.aten


def twice(x: Tensor) -> Tensor:
    return torch.cos(x + 1) * torch.sin(x + 1)


def made(function: Callable[..., Any], op: Any, *args: Tensor) -> int:
    """How often the whole of the compiled function calls `op`."""
    run, graphs = compiled(function)
    run(*args)
    return sum(node.target is op for gm in graphs.modules.values() for node in gm.graph.nodes)


def test_equal_calls_are_made_once() -> None:
    assert made(twice, aten.add.Tensor, torch.randn(3)) == 1


def test_chains_of_equal_calls_are_made_once() -> None:
    assert made(lambda x: (x + 1).view(6).exp() - (x + 1).view(6).sin(), aten.view.default, torch.randn(2, 3)) == 1


def test_numbers_are_one_number() -> None:
    """As the mask of each layer has it where nothing is seen."""

    def masked(x: Tensor) -> Tensor:
        hidden = [torch.where(x > 0, x, torch.scalar_tensor(-torch.inf)) for _ in range(2)]
        return hidden[0].exp() + hidden[1].softmax(0)

    assert made(masked, aten.where.self, torch.randn(3)) == 1


@pytest.mark.parametrize(
    ("function", "op", "count"),
    [
        (lambda x: torch.rand_like(x) - torch.rand_like(x) * x, aten.rand.default, 2),
        (lambda x: (x * 0.0).cos() + (x * -0.0).sin(), aten.mul.Tensor, 2),
        (lambda x: (x + 1, x + 1), aten.add.Tensor, 2),
        (lambda x: (x.sort()[1], x.sort()[1]), aten.sort.default, 2),
    ],
    ids=["random draws", "zeros of both signs", "results", "parts of results"],
)
def test_what_is_not_equal_stays(function: Callable[..., Any], op: Any, count: int) -> None:
    assert made(function, op, torch.randn(3)) == count


def test_a_checkpoint_makes_its_calls_itself() -> None:
    """What it would compute again in backward is not saved because others compute it too."""

    def both(x: Tensor) -> Tensor:
        again: Tensor = checkpoint(twice, x, use_reentrant=False)
        return again * twice(x)

    assert made(both, aten.cos.default, leaf(3)) >= 2


def test_gradients_are_those_of_eager() -> None:
    same_as_eager(lambda x, y: twice(x) * twice(y) + twice(x) * (x + 1), leaf(4), leaf(4))
