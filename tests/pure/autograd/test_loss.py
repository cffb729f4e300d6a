"""Backward of a loss alone: gradients that nobody gives are neither made as zeros nor added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from gyrator.autograd.aot import aot_program, assemble
from gyrator.autograd.function import Differentiable
from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from gyrator.autograd.partition.split import without_zeros
from tests.pure.autograd.test_record import captured

aten = torch.ops.aten


def classify(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.relu(x @ weight)
    logits = hidden @ weight.t()
    return torch.nn.functional.cross_entropy(logits, target), logits, hidden


def losses(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = x @ weight
    return logits.sin().sum(), torch.nn.functional.cross_entropy(logits, target), logits


def beside(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.cross_entropy(weight, target[:5]), x @ weight


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 5), torch.randn(5, 5, requires_grad=True), torch.randint(0, 5, (6,))


def inputs_of_backward(function: Any, args: Sequence[Tensor], *, dynamic: bool = False) -> tuple[int, ...]:
    """The results whose gradients backward reads, as `for_loss` compiles it."""
    made: list[Any] = []

    def backend(gm: GraphModule, examples: Sequence[Any]) -> Any:
        made.append(aot_program(gm, examples, fw_compiler=interpret, for_loss=True).run)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    assert isinstance(made[0], Differentiable)
    assert len(made[0].tangents) + len(made[0].missing) == len(function(*args))
    return tuple(tangent.result for tangent in made[0].tangents)


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_of_a_loss_reads_no_gradient_of_what_lies_behind_it(dynamic: bool) -> None:
    assert inputs_of_backward(classify, arguments(), dynamic=dynamic) == (0,)


@pytest.mark.parametrize("function", [losses, beside])
def test_results_that_may_be_differentiated_keep_their_gradients(function: Any) -> None:
    args = arguments()
    assert inputs_of_backward(function, args) == tuple(range(len(function(*args))))


def test_other_results_can_be_differentiated_after_all() -> None:
    args = arguments()
    gm = captured(classify, *args)
    kinds: list[str] = []

    def compiler(graph: GraphModule, examples: Sequence[object], info: GraphInfo) -> Compiled:
        kinds.append(info.kind)
        return interpret(graph, examples, info)

    traced = aot_program(gm, args, fw_compiler=compiler, for_loss=True)
    call = assemble(traced, gm, args, lambda: aot_program(gm, args, fw_compiler=compiler))
    for pick in ((0,), (0, 1), (2,), (0,), (1, 2)):
        found, expected = (
            torch.autograd.grad(sum(f(*args)[k].sin().sum() for k in pick), args[1]) for f in (call, classify)
        )
        torch.testing.assert_close(found, expected)
    assert kinds == ["forward", "backward"] * 2  # the second pair at the first gradient of logits, once


def test_zeros_are_made_where_an_operator_is_not_linear() -> None:
    shape, graph = torch.empty(2, 3), Graph()
    x, zero = graph.placeholder("x"), graph.placeholder("zero")
    flat = graph.call_function(aten.view.default, (zero, [6]))
    wide = graph.call_function(aten.add.Tensor, (x, zero))
    both = graph.call_function(aten.add.Tensor, (zero, zero))
    cosine = graph.call_function(aten.cos.default, (flat,))
    for node in graph.nodes:
        node.meta["val"] = shape.view(6) if node in (flat, cosine) else shape
    graph.output((wide, cosine, both))
    without_zeros(graph, {zero})
    given = torch.randn(2, 3)
    made, ones, zeros = GraphModule({}, graph)(given)
    assert made is given
    assert ones.tolist() == [1.0] * 6
    assert zeros.tolist() == [[0.0] * 3] * 2
    assert [node.name for node in graph.find_nodes(op="placeholder")] == ["x"]
