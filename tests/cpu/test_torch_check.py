"""Sizes and numbers that only a run tells: what `torch._check` says of them holds or is an error, and they can be
trained through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

from tests.acceptance import check


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    """Dynamo captures what reads values."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def _first(told: Callable[[Any, Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def program(x: Tensor, y: Tensor) -> Tensor:
        n = x[0].item()
        torch._check(told(n, y))
        return y + n

    return program


def _found(told: Callable[[Any, Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def program(x: Tensor, y: Tensor) -> Tensor:
        found = x.nonzero()
        torch._check(told(found.shape[0], y))
        return found + 1

    return program


def _unread(x: Tensor, y: Tensor) -> Tensor:
    torch._check(x[0].item() <= 4)
    return y + 1


TOLD = {
    "at most": _first(lambda n, y: n <= 4),
    "at least": _first(lambda n, y: n >= 4),
    "a value": _first(lambda n, y: n == 4),
    "another size": _first(lambda n, y: n == y.shape[0] - 2),
    "a multiple": _first(lambda n, y: n % 4 == 0),
    "a number that nobody reads": _unread,
    "a size's value": _found(lambda n, y: n == 4),
    "a size is another": _found(lambda n, y: n == y.shape[0] - 2),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("told", TOLD)
def test_what_a_program_tells_of_values_is_checked_in_each_call(told: str, dynamic: bool | None, backend: str) -> None:
    compiled = torch.compile(TOLD[told], backend=backend, dynamic=dynamic, fullgraph=True)
    x, y = torch.tensor([4, 0, 1, 1, 0, 1]), torch.arange(6.0)
    assert torch.equal(compiled(x, y), TOLD[told](x, y))
    wrong = torch.tensor([3, 0, 1, 0, 0, 0]) if told == "at least" else torch.tensor([5, 0, 1, 0, 0, 0])
    with pytest.raises(RuntimeError):
        compiled(wrong, y)


def test_a_bool_that_is_read_from_data(backend: str) -> None:
    check(lambda x: (x * (x.sum() > 0).item(), (x[0] > 9).item()), (torch.ones(3),), backend=backend, fullgraph=True)


@torch.library.custom_op("gyrator_tests::twice_as_long", mutates_args=())
def twice_as_long(x: Tensor) -> Tensor:
    return torch.cat([x, x])


@twice_as_long.register_fake
def _(x: Tensor) -> Tensor:
    sizes = [torch.library.get_ctx().new_dynamic_size() for _ in x.shape]
    return x.new_empty(sizes)


@torch.library.custom_op("gyrator_tests::spaced", mutates_args=())
def spaced(x: Tensor) -> Tensor:
    return torch.empty_strided((1,), (int(x.item()),))


@spaced.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_strided((1,), (torch.library.get_ctx().new_dynamic_size(),))


def test_a_custom_operator_makes_sizes_and_strides(backend: str) -> None:
    check(lambda x: twice_as_long(x) + 1, (torch.randn(2, 3),), backend=backend, fullgraph=True)
    strided = torch.compile(lambda x: torch.zeros(spaced(x).stride(0)), backend=backend, fullgraph=True)
    assert strided(torch.tensor([3])).shape == (3,)


@torch.library.custom_op("gyrator_tests::counted_rows", mutates_args=("count",))
def counted_rows(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    count.add_(len(x))
    return x * 2, x[:1].clone()


@counted_rows.register_fake
def _(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    sizes = [torch.library.get_ctx().new_dynamic_size() for _ in x.shape]
    return x.new_empty(sizes), x.new_empty((1, sizes[1]))


def test_a_custom_operator_that_writes_makes_sizes(backend: str) -> None:
    def program(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, first = counted_rows(x, count)
        return rows, rows.sum(0) + first, torch.ones(rows.shape[0])

    check(program, (torch.randn(3, 2), torch.tensor(1)), backend=backend, fullgraph=True)
    check(lambda x: program(x, x[0]), (torch.randn(3, 2),), backend=backend, fullgraph=True)  # shown by another


def of_a_part_twice(t: Tensor, x: Tensor) -> Tensor:
    return torch.cat([t[x > 0], t[x > 0] * 2]).sin()


def positions_twice(t: Tensor, x: Tensor) -> Tensor:
    found = x.nonzero()
    return torch.cat([found, found]).float() * t[0]


def a_sum_of_numbers(t: Tensor, x: Tensor) -> Tensor:
    a, b = x[0].item(), x[2].item()
    return torch.ones(a + b).cumsum(0) * t[0]


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [of_a_part_twice, positions_twice, a_sum_of_numbers], ids=lambda fn: fn.__name__)
def test_a_result_as_long_as_a_sum_of_such_sizes_is_trained(fn: Any, dynamic: bool | None, backend: str) -> None:
    """The sizes of its gradient tell the sum alone, and backward reads the parts."""
    t, x = torch.randn(6, requires_grad=True), torch.tensor([4, 0, 1, 1, 0, 1])
    check(fn, (t, x), backend=backend, backward=True, dynamic=dynamic, fullgraph=True)
