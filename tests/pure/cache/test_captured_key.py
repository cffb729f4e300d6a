"""The key of what torch.compile captured: it changes with whatever changes the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gyrator.cache.key import Key, graph_key
from gyrator.config import Config


def captured(function: Callable[..., Any], *args: Any) -> GraphModule:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return graphs[0]


def key_of(function: Callable[..., Any], *args: Any, about: str = "") -> Key | None:
    return graph_key(captured(function, *args), Config(), about, captured=args)


def model(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(torch.conv1d(x, x).relu_() + 1)
    return y.transpose(1, 2)[..., ::2].sum(dim=(0, 1)) @ torch.eye(1, dtype=torch.float32)


X = torch.randn(1, 1, 5)


def test_functions_methods_and_slices_of_torch_have_a_key() -> None:
    assert key_of(model, X) == key_of(model, X.clone())


def test_what_matters_about_inputs_is_part_of_it() -> None:
    converted = X.double().float()
    keys = [key_of(model, X), key_of(model, X, about="shared"), key_of(model, converted)]
    assert len({key.digest for key in keys}) == 2


def test_modes_are_part_of_it() -> None:
    gm = captured(model, X)
    before = graph_key(gm, Config(), captured=(X,))
    with torch.no_grad():
        assert graph_key(gm, Config(), captured=(X,)) != before
    with torch.autocast("cpu"):
        assert graph_key(gm, Config(), captured=(X,)) != before
    kernels = {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION}
    for left_out in kernels:
        with sdpa_kernel([*kernels - {left_out}]):
            assert graph_key(gm, Config(), captured=(X,)) != before
    assert graph_key(gm, Config(), captured=(X,)) == before


def test_lines_of_the_user_are_part_of_it() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    assert key_of(one, X) != key_of(other, X)


def test_a_list_and_a_tuple_of_indices_are_told_apart() -> None:
    def picked(x: torch.Tensor, index: Any) -> torch.Tensor:
        return x[index]

    assert key_of(picked, X, [0, 0]) != key_of(picked, X, (0, 0))


def test_functions_that_are_not_torchs_have_none() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(model, (graph.placeholder("x"),)))
    assert graph_key(GraphModule(torch.nn.Module(), graph), Config(), captured=(X,)) is None


def test_operators_that_are_not_torchs_have_none() -> None:
    with torch.library._scoped_library("gyrator_key_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        assert key_of(lambda x: torch.ops.gyrator_key_test.twice(x), X) is None


def test_calls_of_modules_have_none_as_what_these_hold_is_not_in_the_graph() -> None:
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.LeakyReLU(0.1)))
    assert graph_key(gm, Config(), captured=(X,)) is None


def test_a_checkpoint_whose_policy_is_the_users_has_none() -> None:
    def save_nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    def region(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    contexts = partial(create_selective_checkpoint_contexts, save_nothing)
    x = X.clone().requires_grad_()
    assert key_of(lambda x: checkpoint(region, x, use_reentrant=False), x) is not None
    assert key_of(lambda x: checkpoint(region, x, use_reentrant=False, context_fn=contexts), x) is None
