"""Frozen linear layers of one input are one product where nothing tells the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from gyrator.autograd import joined_linears
from gyrator.autograd.aot import aot_program, assemble
from tests.pure.autograd.harness import Graphs


class Layers(nn.Module):
    """Three layers of 8 columns, and what a test computes by them."""

    def __init__(self, fn: Callable[[Layers, Tensor], Any], bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, n, bias=bias) for n in (6, 6, 6))
        self.vector, self.number = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(1))
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(self, x * 2)


def products(fn: Callable[[Layers, Tensor], Any], *, dynamic: bool = False, **kwargs: Any) -> int:
    """How many products a frozen program has. Its results are eager's, their strides too."""
    torch._dynamo.reset()
    graphs = Graphs()

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        traced = aot_program(gm, example_inputs, fw_compiler=graphs.compiler, frozen=True)
        return assemble(traced, gm, example_inputs, lambda: traced)

    module, x = Layers(fn, **kwargs), torch.randn(2, 5, 8)
    with torch.no_grad():
        found = torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)(x)
        expected = module(x)
    torch.testing.assert_close(found, expected, check_stride=True)
    return sum(op in ("mm.default", "addmm.default") for op in graphs.ops("inference"))


def heads(layers: Layers, x: Tensor) -> Tensor:
    q, k, v = (
        layer(x).view(2, -1, 3, layer.out_features // 3).transpose(1, 2) for layer in (layers.q, layers.k, layers.v)
    )
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_queries_keys_and_values_are_one_product(bias: bool, dynamic: bool) -> None:
    assert products(heads, bias=bias, dynamic=dynamic) == 1


def test_a_gate_and_what_it_lets_pass_are_one_product() -> None:
    assert products(lambda layers, x: F.silu(layers.q(x)) * layers.k(x)) == 1


def test_layers_within_transforms_are_what_they_are_in_eager() -> None:
    products(lambda layers, x: torch.vmap(lambda y: layers.q(y) * layers.k(y))(x))
    products(lambda layers, x: torch.func.grad(lambda y: (layers.q(y) * layers.k(y)).sum())(x))


def test_under_autocast_the_joined_weights_are_converted_once() -> None:
    def mixed(layers: Layers, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (layers.q(x) * layers.k(x)).float()

    assert products(mixed) == 1


def test_layers_of_which_autocast_converts_one_alone_stay_apart() -> None:
    def partly(layers: Layers, x: Tensor) -> Tensor:
        q = layers.q(x)
        with torch.autocast("cpu", torch.bfloat16):
            k = layers.k(x)
        return q.exp() * k.sin().float()

    assert products(partly) == 2


def test_a_result_of_the_program_has_memory_of_its_own() -> None:
    assert products(lambda layers, x: (layers.q(x).transpose(0, 1), layers.k(x) * layers.v(x).sum())) == 2


def test_what_is_written_in_place_stays_apart() -> None:
    def write_result(layers: Layers, x: Tensor) -> Tensor:
        q = layers.q(x)
        q.view(-1).add_(1)
        return q * layers.k(x)

    def write_input(layers: Layers, x: Tensor) -> Tensor:
        q = layers.q(x)
        x += 1
        return q * layers.k(x)

    def write_by_a_flag(layers: Layers, x: Tensor) -> Tensor:
        q = layers.q(x)
        F.relu(x, inplace=True)
        k = layers.k(x)
        F.leaky_relu(x, 0.5, True)
        return q * k * layers.v(x)

    def write_weight(layers: Layers, x: Tensor) -> Tensor:
        q = layers.q(x).sum()
        layers.k.bias.add_(0)
        return layers.k(x) * q

    assert [products(fn) for fn in (write_result, write_input, write_by_a_flag, write_weight)] == [2, 2, 3, 2]


def test_layers_of_other_inputs_and_with_others_between_stay_apart() -> None:
    def cross(layers: Layers, x: Tensor) -> Tensor:
        q, other = layers.q(x), layers.v(x + 1)
        return q.sum() + other.sum() + layers.k(x)

    assert products(lambda layers, x: layers.q(x) * layers.k(x + 1)) == 2
    assert products(cross) == 3


def test_large_weights_are_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_linears, "MOST_BYTES", 4 * 8 * 12)
    assert products(heads) == 3
    assert products(lambda layers, x: layers.q(x) * layers.k(x)) == 1


@pytest.mark.parametrize("dynamic", [True, False])
def test_results_whose_rows_are_read_as_neighbours_stay_apart(dynamic: bool) -> None:
    def of_one(view: Callable[[Tensor], Tensor]) -> int:
        return products(lambda layers, x: (view(layers.q(x)) + 1, layers.k(x) * 2), dynamic=dynamic)

    assert of_one(lambda q: q.view(-1)) == 2
    assert of_one(lambda q: q.view(q.shape[0], -1, 2)) == 2
    assert of_one(lambda q: q.as_strided((60,), (1,))) == 2
    assert of_one(lambda q: torch.view_as_complex(q.view(2, -1, 3, 2)).abs()) == 2
    assert of_one(lambda q: q.transpose(0, 1)[..., :4].unflatten(-1, (2, 2))) == 1


def test_vectors_repeated_biases_and_arguments_by_name_stay_apart() -> None:
    def by_vectors(layers: Layers, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, layers.q.weight[0]) + 1, F.linear(x, layers.vector) + F.linear(x, layers.vector)

    def one_bias(layers: Layers, x: Tensor) -> Tensor:
        return F.linear(x, layers.q.weight, layers.number) * F.linear(x, layers.k.weight, layers.number)

    def named(layers: Layers, x: Tensor) -> Tensor:
        return F.linear(x, weight=layers.q.weight) * F.linear(input=x, weight=layers.k.weight)

    assert products(by_vectors) == 0
    assert [products(fn) for fn in (one_bias, named)] == [2, 2]
