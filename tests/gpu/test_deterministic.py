"""torch's deterministic mode on a GPU: the same bits each time, and eager's errors and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="gyrator", dynamic=False)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape)))


def places(count: int, below: int) -> Tensor:
    return torch.randint(below, (count,), device="cuda", generator=torch.Generator("cuda").manual_seed(count))


CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_put accumulate": lambda t, at, x: t.index_put((at,), x, accumulate=True),
    "index_put": lambda t, at, x: t.index_put((at,), x),
    "index_add": lambda t, at, x: t.index_add(0, at, x),
    "index_copy": lambda t, at, x: t.index_copy(0, at, x),
    "scatter_add": lambda t, at, x: t.scatter_add(0, at[:, None].expand(x.shape), x),
    "scatter": lambda t, at, x: t.scatter(0, at[:, None].expand(x.shape), x),
    "cumsum": lambda t, at, x: t.flatten().cumsum(0),
}


@pytest.mark.parametrize("case", CASES)
def test_each_run_gives_the_same_bits(case: str) -> None:
    fn, args = CASES[case], (random(300, 64), places(1 << 16, 300), random(1 << 16, 64))
    function = compiled(lambda *args: fn(*args) * 2)
    first = function(*args)
    assert all(torch.equal(function(*args), first) for _ in range(20))
    if case != "cumsum":
        torch.testing.assert_close(first, fn(*args) * 2, rtol=1e-4, atol=1e-3)


def test_so_do_gradients_of_lookups() -> None:
    table, at, weight = random(300, 64).requires_grad_(), places(1 << 16, 300), random(1 << 16, 64)

    def loss(table: Tensor) -> Tensor:
        return (F.embedding(at, table) * weight + table[at].sin()).sum()

    function = compiled(loss)
    (first,) = torch.autograd.grad(function(table), table)
    for _ in range(10):
        assert torch.equal(torch.autograd.grad(function(table), table)[0], first)
    (eager,) = torch.autograd.grad(loss(table), table)
    torch.testing.assert_close(first, eager, rtol=1e-4, atol=1e-3)


def test_what_eager_refuses_is_refused_unless_it_shall_only_warn() -> None:
    table, at, x = random(300), places(4000, 300), random(4000)
    refused = set[str]()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda t: t.scatter_reduce(0, at, x, "sum") + 1,
        "mean": lambda t: t.scatter_reduce(0, at, x, "mean") + 1,
        "index_reduce": lambda t: t.index_reduce(0, at, x, "mean") + 1,
        "put": lambda t: t.put(at, x) + 1,
        "bincount": lambda t: torch.bincount(at, x, minlength=300) + t,
    }
    for name, fn in functions.items():
        torch.use_deterministic_algorithms(True)
        try:
            torch.testing.assert_close(compiled(fn)(table), fn(table), rtol=1e-4, atol=1e-4)
            continue
        except RuntimeError as error:
            assert "deterministic" in str(error)
            refused.add(name)
        with pytest.raises(RuntimeError, match="deterministic"):
            fn(table)
        torch.use_deterministic_algorithms(True, warn_only=True)
        compiled(fn)(table)  # torch writes its warning
    assert {"put", "bincount"} & refused


def test_a_graph_of_one_mode_is_not_used_in_the_other() -> None:
    table, at, x = random(300, 64), places(1 << 16, 300), random(1 << 16, 64)
    function = compiled(lambda: table.index_add(0, at, x))
    torch.use_deterministic_algorithms(False)
    function()
    torch.use_deterministic_algorithms(True)
    first = function()
    assert all(torch.equal(function(), first) for _ in range(20))
