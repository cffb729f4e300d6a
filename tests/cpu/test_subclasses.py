"""Tensor subclasses that change operators: torch takes them apart, and what is left is compiled like any program."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import gyrator
from gyrator.autograd.aliasing import FromGraph, FromInput, Program
from gyrator.autograd.shell import taking_list
from gyrator.backend import gyrator as BACKEND
from gyrator.errors import UnsupportedInput


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Sizes that earlier tests gave a layer would else be taken for symbols here."""
    torch.compiler.reset()


def two(*shape: int) -> TwoTensor:
    """A tensor that does what is done to it with two tensors."""
    return TwoTensor(torch.randn(shape), torch.randn(shape))


def plain(values: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(values)
    return [torch.stack([leaf.a, leaf.b]) if isinstance(leaf, TwoTensor) else leaf for leaf in leaves]


def mixed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x @ torch.ones(5, 3), x.softmax(-1) * x.shape[0]


def in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)[0].add_(1)
    return x, x.t()


def made(x: Tensor) -> Tensor:
    return (TwoTensor(x.a, x.b + 1) * x).sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [mixed, in_place, made])
def test_a_subclass_goes_in_and_comes_out(function: Callable[[Tensor], Any], dynamic: bool) -> None:
    x = two(4, 5)
    found = []
    for call in (function, torch.compile(function, backend="gyrator", dynamic=dynamic)):
        given = x.clone()
        results = call(given)
        found.append((plain(results), plain(given), [type(t) for t in pytree.tree_leaves(results)]))
    assert found[0][2] == found[1][2]
    torch.testing.assert_close(found[0][:2], found[1][:2])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_parameters_of_a_subclass_are_trained(dtype: torch.dtype | None) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    model[0].weight = nn.Parameter(two(8, 8))
    compiled = torch.compile(model, backend="gyrator")
    x, found = torch.randn(4, 8), []
    for call in (model, compiled):
        model.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = call(x).square().sum()
        loss.backward()
        found.append(plain([loss, model[0].weight.grad, model[1].weight.grad]))
    torch.testing.assert_close(*found, rtol=1e-5 if dtype is None else 2e-2, atol=1e-5 if dtype is None else 2e-2)


class Int8Weight(Tensor):
    """A weight of 8 bits with a scale for each row, as libraries for quantisation have."""

    def __new__(cls, rows: Tensor, scale: Tensor) -> "Int8Weight":
        return Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scale.dtype, device=rows.device)

    def __init__(self, rows: Tensor, scale: Tensor) -> None:
        self.rows, self.scale = rows, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["rows", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: None, size: Any, stride: Any) -> "Int8Weight":
        return Int8Weight(parts["rows"], parts["scale"])

    def __repr__(self) -> str:
        return f"Int8Weight{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.t.default:
            return (args[0].rows.to(args[0].scale.dtype) * args[0].scale).t()
        if func is torch.ops.aten.detach.default:
            return Int8Weight(args[0].rows, args[0].scale)
        raise NotImplementedError(func)


def test_a_loss_saves_no_logarithms_of_probabilities() -> None:
    """They are computed again from the input and two numbers of each row."""
    target, sizes = torch.randint(0, 50, (40,)), []

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x * x, target)

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    x = TwoTensor(torch.randn(40, 50), torch.randn(40, 50)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        found = torch.compile(loss, backend="gyrator")(x)
    found.backward()
    again = TwoTensor(x.a.detach(), x.b.detach()).requires_grad_()
    loss(again).backward()
    torch.testing.assert_close(plain(x.grad), plain(again.grad))
    assert sum(size == 40 * 50 for size in sizes) <= 2, sizes


def test_weights_of_8_bits_are_expanded_in_a_kernel() -> None:
    linear = nn.Linear(32, 16).requires_grad_(False)
    rows = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    linear.weight = nn.Parameter(Int8Weight(rows, torch.rand(16, 1)), requires_grad=False)
    x = torch.randn(4, 32)
    torch.testing.assert_close(torch.compile(linear, backend="gyrator")(x), linear(x))
    assert "1 kernels, 0 calls of operators" in str(gyrator.explain(linear, x))


def test_rows_of_many_lengths_compile_as_often_as_capture_does() -> None:
    block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
    counter = CompileCounterWithBackend("gyrator")
    compiled = torch.compile(block, backend=counter)
    for lengths in ((3, 5, 2), (4, 1, 7), (6, 6, 1)):
        rows = [torch.randn(length, 8) for length in lengths]
        found = []
        for call in (block, compiled):
            x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
            y = call(x)
            y.values().square().sum().backward()
            found.append((y.values(), x.grad.values()))
        torch.testing.assert_close(*found)
    assert counter.frame_count == 2  # the second time the number of rows becomes a symbol


def test_a_graph_gets_the_callers_list_if_nothing_else_happens() -> None:
    structure = pytree.tree_structure((0, 0))
    seen: list[int] = []

    def run(args: list[Any]) -> list[Any]:
        seen.append(len(args))
        found = [args[0] * 2]
        args.clear()
        return found

    given = [torch.ones(2), torch.ones(2)]
    picked = taking_list(Program(2, (), (), (FromGraph(0), None), structure), run, lambda *args: "shell")
    assert torch.equal(picked(given)[0], torch.full((2,), 2.0)) and given == [] and seen == [2]
    other = taking_list(Program(2, (), (), (FromGraph(0), FromInput(1)), structure), run, lambda *args: "shell")
    assert other([1, 2]) == "shell"


def test_what_cannot_be_taken_apart_is_refused() -> None:
    class Opaque(Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    opaque = Tensor._make_subclass(Opaque, torch.ones(3))
    gm = torch.fx.symbolic_trace(lambda x: (F.relu(x),))
    with pytest.raises(UnsupportedInput, match="subclass Opaque"):
        BACKEND(gm, [opaque])


def test_backward_is_compiled_within_a_program_that_capture_left() -> None:
    def step(x: torch.Tensor) -> None:
        y = (x * 2).sin()
        torch._dynamo.graph_break()
        y.values().sum().backward()

    rows = [torch.arange(6.0).view(2, 3), torch.ones(4, 3)]
    x, wanted = (torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True) for _ in range(2))
    torch.compile(step, backend="gyrator")(x)
    step(wanted)
    torch.testing.assert_close(x.grad.values(), wanted.grad.values())
