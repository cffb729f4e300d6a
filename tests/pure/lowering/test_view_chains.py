"""Random chains of views: one index map says what eager's strides say, with sizes known and symbolic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.pure.lowering.harness import check, tensor

Step = Callable[[Tensor], Tensor]


def factors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    """A shape, and views that each fit the shape before."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    x, steps = torch.empty(shape), []
    for _ in range(draw(st.integers(1, 5))):
        step = draw(views(x))
        x = step(x)
        steps.append(step)
    return shape, steps


@st.composite
def views(draw: st.DrawFn, x: Tensor) -> Step:
    if x.dim() == 0:
        return lambda t: t[None]
    dim = draw(st.integers(0, x.dim() - 1))
    size = x.shape[dim]
    other = draw(st.integers(0, x.dim() - 1))
    start, by = draw(st.integers(-size, size - 1)) if size else 0, draw(st.integers(1, 3))
    cut = draw(st.sampled_from(factors(size))) if size else 1
    copies = draw(st.integers(1, 3))
    order = draw(st.permutations(range(x.dim())))
    choices: list[Step] = [
        lambda t: t.transpose(dim, other),
        lambda t: t.permute(order),
        lambda t: t.unsqueeze(dim),
        lambda t: t.flip(dim),
        lambda t: t.reshape(-1),
        lambda t: t.unflatten(dim, (cut, t.shape[dim] // cut)),
        lambda t: t.flatten(min(dim, other), max(dim, other)),
        lambda t: t.unsqueeze(dim).expand(*t.shape[:dim], copies, *t.shape[dim:]),
        lambda t: t[(slice(None),) * dim + (slice(start, None, by),)],
    ]
    if size:
        choices += [lambda t: t.select(dim, start), lambda t: t.unfold(dim, cut, by)]
    if dim != other:
        choices.append(lambda t: t.diagonal(start, dim, other))
    return draw(st.sampled_from(choices))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains())
def test_chains_of_views(case: tuple[tuple[int, ...], list[Step]]) -> None:
    shape, steps = case

    def fn(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x + 1

    check(fn, tensor(*shape))
    check(fn, tensor(*shape), dynamic=True)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains())
def test_views_leave_with_eagers_strides(case: tuple[tuple[int, ...], list[Step]]) -> None:
    shape, steps = case

    def fn(x: Tensor) -> Tensor:
        x = x * 2
        for step in steps:
            x = step(x)
        return x

    check(fn, tensor(*shape))
