"""Products on a GPU that end in a relu: which become one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.lowering.activations import with_activations

BF16 = torch.bfloat16


def operators(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = BF16, device: str = "cuda") -> str:
    """The operators of the graph of `fn` after the pass, but for views."""
    with FakeTensorMode() as mode:
        args = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        graph = with_activations(make_fx(fn, tracing_mode="real")(*args))
        del mode
    graph.graph.lint()
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    names = [name.removeprefix("aten.").removesuffix(".default") for name in called]
    return " ".join(name for name in names if name not in ("t", "view", "_unsafe_view", "reshape", "detach"))


def hidden(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return F.linear(torch.relu(F.linear(x, w, b)), v)


SHAPES = ((4096, 512), (1024, 512), (1024,), (512, 1024))


def test_a_hidden_layer_is_one_call() -> None:
    assert operators(hidden, *SHAPES) == "_addmm_activation mm"
    assert operators(hidden, (4, 1024, 512), *SHAPES[1:]) == "_addmm_activation mm"
    assert operators(lambda x, w, b: torch.relu(F.linear(x, w, b)), *SHAPES[:3]) == "_addmm_activation"


REFUSED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "others read the product": (lambda x, w, b: (y := torch.addmm(b, x, w.t())) @ torch.relu(y).t(), SHAPES[:3]),
    "a kernel reads the result": (lambda x, w, b: torch.relu(F.linear(x, w, b)).reshape(-1) * 2, SHAPES[:3]),
    "no bias": (lambda x, w: torch.relu(x @ w.t()), SHAPES[:2]),
    "a bias of rows": (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), (*SHAPES[:2], (4096, 1))),
    "scaled": (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t(), beta=2)), SHAPES[:3]),
    "odd sides": (lambda x, w, b: torch.relu(F.linear(x, w, b)), ((4096, 513), (1024, 513), (1024,))),
    "a small product": (lambda x, w, b: torch.relu(F.linear(x, w, b)), ((64, 512), *SHAPES[1:3])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_others_stay_as_they_are(case: str) -> None:
    fn, shapes = REFUSED[case]
    assert "_addmm_activation" not in operators(fn, *shapes)


def test_so_do_other_types_and_devices() -> None:
    assert "activation" not in operators(hidden, *SHAPES, dtype=torch.float32)
    assert "activation" not in operators(hidden, *SHAPES, device="cpu")
