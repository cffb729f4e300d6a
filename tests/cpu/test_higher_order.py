"""Higher-order operators that capture emits: each runs, or is refused with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.experimental.control_flow import map as hop_map
from torch import Tensor
from torch._higher_order_ops import foreach_map
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from tests.acceptance import check


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))


def numbers_in_branches(x: Tensor) -> Tensor:
    """Python's numbers become tensors: 7 as the operand of a copy."""

    def first_replaced(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = 7
        return y

    return torch.cond(x.sum() > 0, first_replaced, lambda x: x * torch.tensor([3.0]), (x,))


def loop(x: Tensor) -> tuple[Tensor, Tensor]:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + 1), (torch.tensor(0), x))


def loop_with_numbers(x: Tensor) -> tuple[int, int, Tensor, Tensor]:
    """The numbers are 3 and 0, and the items that the body reads 1, in the first step alone."""
    return while_loop(
        lambda n, i, t, x: i < n,
        lambda n, i, t, x: (n + 0, i + 1, t * 2, x * t.item() + i),
        (3, x.shape[0] - 4, torch.tensor(1), x),
    )


def scanned(x: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda carry, row: (carry + row, carry * row), torch.ones(x.shape[1]), x, dim=0)


def associative(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def mapped(x: Tensor) -> Tensor:
    return hop_map(lambda row, y: row.softmax(0) + y, x, torch.ones(()))


def mapped_over_a_list(x: Tensor) -> Any:
    return foreach_map(lambda a, b: a * 2 + b.sin(), [x, x + 2], [x + 1, x])


@mark_compile_region
def region(x: Tensor) -> Tensor:
    return torch.relu(x * 2) + 1


def subgraph(x: Tensor) -> Tensor:
    return region(region(x)) + region(x)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda x: (x.sin() @ x.mT).tanh(), x, use_reentrant=False)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 + x * 0


def own_autograd_function(x: Tensor) -> Tensor:
    return Doubled.apply(x) + 1


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(2.0)


def own_backward_with_constants(x: Tensor) -> Tensor:
    return Weighted.apply(x) * torch.tensor([2.0, 1.0, 1.0, 1.0])


@torch.library.custom_op("gyrator_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("gyrator_tests::bump", mutates_args=("x",))
def bump(x: Tensor, by: float) -> None:
    x.add_(by)


def custom_op(x: Tensor) -> Tensor:
    return scaled(x + 1, 3.0) * 2


@torch.library.custom_op("gyrator_tests::parts", mutates_args=())
def parts(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 2


@parts.register_fake
def _(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 2


def custom_op_with_a_list_and_a_number(x: Tensor) -> tuple[Tensor, int]:
    (first, second), number = parts(x)
    return first + second, number


def custom_op_that_mutates(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    bump(y, 1.0)
    bump(x, 5.0)
    return y + 1, x * 1


def custom_op_that_mutates_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x[1:]
    part = rows.split(2, -1)[0]
    bump(rows, 1.0)
    return part.sin(), rows.diagonal() * 2


LIBRARY = torch.library.Library("gyrator_lists", "FRAGMENT")
LIBRARY.define("fill(Tensor x, Tensor(a!)[] outs, *, Tensor(b!)? last=None) -> ()")


@torch.library.impl(LIBRARY, "fill", "CompositeExplicitAutograd")
def fill(x: Tensor, outs: list[Tensor], *, last: Tensor | None = None) -> None:
    for k, out in enumerate(outs):
        out.copy_(x + k)
    if last is not None:
        last.mul_(2)


def custom_op_that_fills_a_list(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outs, last = [torch.empty_like(x), torch.zeros(*x.shape, 2)[..., 1]], x + 1
    torch.ops.gyrator_lists.fill(x.sin(), outs, last=last)
    torch.ops.gyrator_lists.fill(x.cos(), [outs[1]])
    return outs[0], outs[1] * 2, last


def vmapped(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.cumsum(0) - row.mean())(x)


def gradient_inside(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: x.sin().sum())(x) + 1


def second_derivatives(x: Tensor) -> Tensor:
    """Forward over backward: torch puts tensors without memory in the place of tangents that are zero."""
    return torch.func.hessian(lambda x: (x**3).sum() * x.norm())(x[0])


def flexible_attention(x: Tensor) -> Tensor:
    q = x.expand(1, 2, *x.shape).contiguous()
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j))


def attention_with_divided_places(x: Tensor) -> Tensor:
    """On a processor eager refuses to divide by zero, which no kernel does."""
    q = x.expand(1, 2, *x.shape).contiguous()
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * torch.tensor(2.0) - i // (j + 1))


def masked_attention(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two heads of queries share one of keys; the first row attends to nothing."""
    q, shift = x.expand(1, 2, *x.shape).contiguous(), x[0]
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 0), None, None, len(x), len(x), device="cpu")
    return flex_attention(
        q,
        q[:, :1],
        q[:, :1],
        score_mod=lambda s, b, h, i, j: s + shift[j],
        block_mask=mask,
        enable_gqa=True,
        return_lse=True,
    )


def attention_of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the result lie in one piece, wherever those of the queries do not."""
    q = x.expand(1, 2, *x.shape)
    return flex_attention(q.contiguous().mT, q, q[..., :3]).view(1, 2, -1), flex_attention(q, q, q)


RUN: list[Callable[..., Any]] = [
    cond, numbers_in_branches, loop, scanned, associative, mapped, mapped_over_a_list, subgraph, checkpointed,
    own_autograd_function, own_backward_with_constants, custom_op, custom_op_with_a_list_and_a_number,
    custom_op_that_mutates, custom_op_that_mutates_rows, custom_op_that_fills_a_list, vmapped, gradient_inside,
    second_derivatives, flexible_attention, attention_with_divided_places, masked_attention, attention_of_columns,
]  # fmt: skip
TRAINED = [
    cond, numbers_in_branches, loop, scanned, associative, mapped, subgraph, checkpointed, own_autograd_function,
    own_backward_with_constants, vmapped,
]  # fmt: skip
REFUSED: dict[Callable[..., Any], str] = {}
"""Operators that are refused, with a text that the error holds."""


@pytest.mark.parametrize("fn", [fn for fn in RUN if fn not in REFUSED], ids=lambda fn: fn.__name__)
def test_runs(fn, backend):
    for sign in (1, -1):
        x = sign * torch.arange(1.0, 17.0).reshape(4, 4) / 8
        check(fn, (x,), backend=backend)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_loop_carries_changes_from_step_to_step(dynamic, backend):
    check(loop_with_numbers, (torch.arange(1.0, 17.0).reshape(4, 4),), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("fn", [fn for fn in TRAINED if fn not in REFUSED], ids=lambda fn: fn.__name__)
def test_trains(fn, backend):
    x = (torch.arange(1.0, 17.0).reshape(4, 4) / 8).requires_grad_()
    check(fn, (x,), backend=backend, backward=True)


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_is_refused_by_name(fn, backend):
    with pytest.raises(Exception, match=REFUSED[fn]):
        torch.compile(fn, backend=backend)(torch.ones(4, 4))
