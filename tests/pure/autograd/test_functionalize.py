"""Mutation becomes new values: the graphs are functional, and the caller sees what eager would have done."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from gyrator.autograd.builder import GraphBuilder
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.effects import Effect, behaviour
from gyrator.autograd.functionalize import Alias, viewed
from gyrator.autograd.views import ViewCall
from tests.pure.autograd.harness import compiled, leaf, same_as_eager


def in_place(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def through_view(x: Tensor) -> Tensor:
    y = x + 1
    y[0].mul_(3)
    return y.sum()


def through_view_of_view(x: Tensor) -> Tensor:
    y = x + 1
    y.t()[1:, 0].add_(5)
    return y * y


def stale_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    v = y.view(-1)
    y.mul_(2)
    return v.sum(), y


def transposed_in_place(x: Tensor) -> Tensor:
    x.t_()
    x.add_(1)
    return x * 2


def slice_of_input(x: Tensor) -> Tensor:
    x[::2] = 0
    return x.clone()


def diagonal(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal().fill_(7)
    return y


def strided(x: Tensor) -> Tensor:
    y = x.clone()
    y.as_strided((2, 2), (1, 4), 1).zero_()
    return y


def through_rows_of_one_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    rows = y[0].expand(3, -1)
    rows[1].mul_(2)
    rows[2, :2].add_(y[1, :2])
    return rows + 1, y


def filled_in_all_places(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    rows = y[0].expand(3, -1)
    rows[:, 1:].fill_(7)
    rows.t()[0].zero_()
    return rows + 1, y


def through_windows_that_overlap(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    windows = y.flatten().unfold(0, 3, 1)
    windows[1].mul_(2)
    windows[2, 0] = 7
    return windows + 1, y


def chunks(x: Tensor) -> Tensor:
    y = x.clone()
    a, b = y.chunk(2)
    a.add_(b)
    b.copy_(a)
    return y


def copied_from_other_layout(x: Tensor) -> Tensor:
    y = torch.empty(x.shape)
    y.copy_(x.t().contiguous().t())
    return y.view(-1)


def index_put(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.tensor([0, 1, 0])] += 1
    return y


def out_variant(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y


def other_dtype(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x + 1, x + 2
    y.add_(x.double())
    z[0].gt_(0)
    return y, z


def foreach(x: Tensor) -> Tensor:
    a, b = x + 1, x + 2
    torch._foreach_mul_([a, b], 3.0)
    return a + b


def foreach_of_views(x: Tensor) -> tuple[Tensor, Tensor]:
    """Fake kernels of lists do not count writes, by which autograd knows that a view follows from another base."""
    y = x + 1
    views = [y.view(-1)[:8], y.view(-1)[8:]]
    torch._foreach_mul_(views, 3.0)
    return views[0] + views[1], y


def view_of_a_result_in_another_layout(x: Tensor) -> Tensor:
    y = x.unflatten(0, (-1, 2)).transpose(-3, -1)
    y.index_add_(1, torch.tensor([0, 1]), y[:, :2] * 1)
    return y


def through_unflatten(x: Tensor) -> Tensor:
    y = x.unflatten(-2, (-1, 2))
    y.transpose(0, -1).add_(1)
    return y


PROGRAMS = (
    in_place,
    through_view,
    through_view_of_view,
    stale_view,
    slice_of_input,
    diagonal,
    strided,
    through_rows_of_one_memory,
    filled_in_all_places,
    through_windows_that_overlap,
    chunks,
    copied_from_other_layout,
    index_put,
    out_variant,
    foreach,
    foreach_of_views,
    other_dtype,
    transposed_in_place,
    view_of_a_result_in_another_layout,
    through_unflatten,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_mutation_is_eagers(program: Any, dynamic: bool) -> None:
    same_as_eager(program, torch.randn(4, 4), backward=False, dynamic=dynamic)


@pytest.mark.parametrize(
    "program",
    [
        through_view,
        through_view_of_view,
        stale_view,
        diagonal,
        through_rows_of_one_memory,
        index_put,
        foreach,
        foreach_of_views,
    ],
    ids=lambda program: program.__name__,
)
def test_gradients_through_mutation_are_eagers(program: Any) -> None:
    same_as_eager(program, leaf(4, 4))


def test_graphs_are_functional() -> None:
    function, graphs = compiled(through_view)
    function(torch.randn(3, 3))
    assert graphs.ops("inference") == [
        "add.Tensor",
        "select.int",
        "mul.Tensor",
        "select_scatter.default",
        "sum.default",
    ]


def test_an_argument_left_out_is_what_the_writing_operator_takes_it_to_be() -> None:
    run, graphs = compiled(lambda x: x.clone().bernoulli_(), decompositions=decomposition_table(numerics="eager"))
    run(torch.ones(3))
    (draw,) = graphs.modules["inference"].graph.find_nodes(op="call_function", target=torch.ops.aten.bernoulli.p)
    assert draw.args[1] == 0.5  # bernoulli.p has no default


def test_an_updated_input_is_a_result_and_an_update() -> None:
    function, graphs = compiled(in_place)
    x = torch.ones(3)
    assert function(x).tolist() == [3, 3, 3] and x.tolist() == [2, 2, 2]
    (update,) = graphs.infos["inference"].updates
    assert (update.input, update.output) == (0, 0)


def test_an_update_has_the_size_of_its_input_as_the_input_states_it() -> None:
    run, graphs = compiled(through_unflatten, dynamic=True)
    run(torch.randn(6, 4))
    nodes = graphs.modules["inference"].graph
    (update,) = graphs.infos["inference"].updates
    given = nodes.find_nodes(op="placeholder")[update.input].meta["val"]
    result = nodes.output_node().args[0][update.output].meta["val"]
    assert [size.node.expr for size in result.shape] == [size.node.expr for size in given.shape]


def test_a_literal_is_new_at_each_call() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tensor([1.0, 2.0])
        part = y.narrow(0, 0, 2)
        y.add_(x)
        return part, y * 2

    run, _ = compiled(program)
    for _ in range(2):
        x = leaf(2)
        part, double = run(x)
        assert torch.equal(part, x + torch.tensor([1.0, 2.0])) and torch.equal(double, part * 2)
        part.sum().backward()
        assert torch.equal(x.grad, torch.ones(2))


def test_a_literal_that_is_returned_belongs_to_the_caller() -> None:
    run, _ = compiled(lambda x: (torch.tensor([1.0, 2.0]), x + 1))
    for _ in range(2):
        literal, _ = run(torch.ones(2))
        assert literal.tolist() == [1.0, 2.0]
        literal.zero_()


def test_mutating_a_non_leaf_that_requires_grad_is_seen_by_autograd() -> None:
    w = leaf(4)

    def gradient(function: Any) -> Tensor:
        y = w * 3
        result = function(y)
        return torch.autograd.grad((result * y).sum(), w)[0]

    function, _ = compiled(in_place)
    torch.testing.assert_close(gradient(function), gradient(in_place))


def test_parameters_may_be_updated_without_grad() -> None:
    def step(w: Tensor, g: Tensor) -> Tensor:
        with torch.no_grad():
            w.sub_(g)
        return (w * w).sum()

    same_as_eager(step, leaf(4), torch.randn(4))


def test_batch_norm_updates_its_statistics_once() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    same_as_eager(lambda m, x: m(x), model, torch.randn(2, 3, 8, 8))


def test_batch_norm_in_evaluation_updates_nothing() -> None:
    model = torch.nn.BatchNorm1d(4).eval()
    same_as_eager(lambda m, x: m(x), model, leaf(5, 4))


def test_a_written_update_raises_the_version_counter() -> None:
    function, _ = compiled(in_place)
    x = torch.ones(3)
    before = x._version
    function(x)
    assert x._version > before


def test_every_operator_that_makes_a_tensor_a_view_in_place_has_one_that_gives_the_view() -> None:
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if "aten::" in name]
    ops = [attrgetter(name if "." in name else f"{name}.default")(torch.ops.aten) for name in names]
    found = {op: behaviour(op) for op in ops if torch.Tag.inplace_view in op.tags}
    assert found[torch.ops.aten.transpose_.default].functional is torch.ops.aten.transpose.int
    assert all(how.functional is not None for how in found.values() if how.effect is Effect.METADATA)
    assert {how.effect for how in found.values()} == {Effect.METADATA, Effect.REFUSED}


@pytest.mark.parametrize(
    "parts", [Tensor.unbind, lambda x: x.split(1), lambda x: x.split([1, 2, 3, 3]), lambda x: x.chunk(3)]
)
def test_parts_that_are_written_one_by_one_are_made_anew_one_by_one(
    parts: Callable[[Tensor], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[ViewCall] = []

    def noted(parent: Alias, view: ViewCall, build: GraphBuilder) -> Node:
        replayed.append(view)
        return viewed(parent, view, build)

    monkeypatch.setattr("gyrator.autograd.functionalize.viewed", noted)

    def filled(x: Tensor) -> Tensor:
        y = torch.zeros(9, 4)
        for part in parts(y):
            part.add_(x)
        return y

    assert torch.equal(compiled(filled)[0](torch.arange(4.0)), torch.arange(4.0).expand(9, 4))
    assert {view.op for view in replayed} <= {torch.ops.aten.select.int, torch.ops.aten.slice.Tensor}
