"""Programs as JSON: written, read and put together again they do what they did."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from gyrator.autograd.aot import Traced, aot_program, assemble
from gyrator.autograd.function import Differentiable
from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from gyrator.autograd.record import Unrecordable, from_json, to_json

Program = Callable[..., Any]


def captured(function: Program, *args: Any) -> GraphModule:
    """The graph that torch.compile captures of a function."""
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Program:
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return graphs[0]


def reread(function: Program, *args: Any) -> tuple[Program, Traced, GraphModule]:
    """The captured function after a trip through JSON, its description, and the function as captured."""
    gm = captured(function, *args)
    calls: list[Any] = []

    def compiler(graph: GraphModule, examples: Sequence[object], info: GraphInfo) -> Compiled:
        compiled = interpret(graph, examples, info)
        calls.append(compiled.call)
        return compiled

    traced = aot_program(gm, args, fw_compiler=compiler)
    text = json.dumps(to_json(traced))
    again = from_json(json.loads(text), calls)
    assert json.dumps(to_json(again)) == text
    return assemble(again, gm, args, lambda: again), again, gm


def sharing(tensors: Sequence[Any]) -> list[list[bool]]:
    """Which of the tensors lie in one memory."""
    owners = [t.untyped_storage()._cdata for t in tensors if isinstance(t, torch.Tensor)]
    return [[one == other for other in owners] for one in owners]


def several(x: torch.Tensor) -> tuple[Any, ...]:
    y = x * 2
    return y, y.t(), x[1:], x, None, y.sum(), y.transpose(0, 1)[0]


def mutates(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x[0].zero_()
    return x + 1


@pytest.mark.parametrize("function", [several, mutates, torch.softmax])
def test_outputs_and_aliases_are_as_before(function: Program) -> None:
    call = (lambda x: torch.softmax(x, -1)) if function is torch.softmax else function
    x = torch.randn(3, 4)
    run, _, gm = reread(call, x.clone())
    given, wanted = x.clone(), x.clone()
    got, want = run(given), gm(wanted)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(given, wanted)
    assert sharing([given, *got]) == sharing([wanted, *want])


def test_gradients_are_as_before() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).square().sum()

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    run, traced, _ = reread(loss, x, w)
    assert isinstance(traced.run, Differentiable)
    (result,) = run(x, w)
    result.backward()
    found = x.grad, w.grad
    x.grad = w.grad = None
    loss(x, w).backward()
    for got, want in zip(found, (x.grad, w.grad), strict=True):
        torch.testing.assert_close(got, want)


def test_program_that_holds_tensors_is_refused() -> None:
    constant = torch.randn(3)
    gm = captured(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), constant)
    with pytest.raises(Unrecordable):
        to_json(aot_program(gm, (constant,), fw_compiler=interpret))


@pytest.mark.parametrize("wrong", [{"OpOverload": "aten.nonsense.default"}, {"dtype": "torch.nn"}, {"pickle": "x"}])
def test_text_of_another_version_is_refused(wrong: dict[str, str]) -> None:
    x = torch.randn(3, 4)
    _, traced, _ = reread(several, x)
    data = json.loads(json.dumps(to_json(traced)))
    data["program"]["Program"][1] = wrong
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        from_json(data, [lambda args: args])
