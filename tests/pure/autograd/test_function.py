"""The torch.autograd.Function and the shell around it: what users do with gradients."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from gyrator import autograd
from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo, Pending, interpret
from gyrator.errors import UnsupportedInput, UnsupportedOperator
from tests.processes import lines_of_two
from tests.pure.autograd.ddp_worker import batch, build
from tests.pure.autograd.harness import BACKEND, compiled, leaf, same_as_eager


def cube(x: Tensor) -> Tensor:
    return (x**3).sum()


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, (y * 3).t()


def test_backward_may_run_again_where_the_graph_is_retained() -> None:
    run, _ = compiled(cube)
    x = leaf(4)
    loss = run(x)
    first = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, x)[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, x)


def exponential_of_a_product(x: Tensor) -> Tensor:
    return (x @ torch.eye(4)).exp().sum()


@pytest.mark.parametrize("function", [cube, exponential_of_a_product])
def test_a_second_derivative_is_refused_with_a_clear_error(function: Any) -> None:
    """Whether backward reads inputs or what was computed from them."""
    run, _ = compiled(function)
    x = leaf(4)
    (gradient,) = torch.autograd.grad(run(x), x, create_graph=True)
    with pytest.raises(UnsupportedInput, match=r"^a second derivative cannot be compiled\n  try: set torch._dynamo"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_gradient_that_nobody_computed_counts_as_zero() -> None:
    run, _ = compiled(two)
    x, y = leaf(3, 3), leaf(3, 3)
    run(x, y)[0].sum().backward()
    assert torch.equal(x.grad, torch.full((3, 3), 2.0))
    assert y.grad is None or not y.grad.any()


def test_gradients_may_come_in_other_strides() -> None:
    run, _ = compiled(two)
    x, y = leaf(3, 4), leaf(3, 4)
    tangents = [torch.randn(4, 3).t(), torch.randn(3, 4).t()]
    ours = torch.autograd.grad(run(x, y), [x, y], tangents)
    torch.testing.assert_close(ours, torch.autograd.grad(two(x, y), [x, y], tangents))


def test_inputs_that_need_no_gradient_get_none() -> None:
    same_as_eager(lambda x, w: (x * w).sin(), torch.randn(4), leaf(4))


def test_what_an_input_was_made_from_is_differentiated_only_where_the_input_is() -> None:
    """A generator's step after a critic's: the critic's backward must not free what the generator saved."""
    run, _ = compiled(lambda x, w: (x.detach() * w).sum())
    a, w = leaf(4), leaf(4)
    made = a.exp()
    run(made, w).backward()
    made.sum().backward()
    assert torch.equal(w.grad, made.detach()) and torch.equal(a.grad, made.detach())


def test_integer_and_detached_outputs_require_no_grad() -> None:
    run, _ = compiled(lambda x: (x.sin(), x.argmax(), x.cos().detach()))
    a, b, c = run(leaf(4))
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, False)


def test_what_is_padded_without_gradients_requires_none() -> None:
    run, graphs = compiled(lambda x: torch.nn.functional.pad(x, (1, 2)))
    with torch.no_grad():
        assert not run(leaf(4)).requires_grad and "backward" not in graphs.modules


def test_a_program_may_enable_gradients_where_its_caller_has_them_disabled() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plain = x * 3
        with torch.enable_grad():
            tracked = x * 2
            return plain, tracked, tracked.view(2, 2)

    run, _ = compiled(both)
    x = leaf(4)
    with torch.no_grad():
        plain, tracked, view = run(x)
    assert not plain.requires_grad
    assert torch.equal(torch.autograd.grad(tracked.sum() + view.sum(), x)[0], torch.full((4,), 4.0))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_program_leaves_gradients_enabled_or_not_as_in_eager(before: bool, after: bool) -> None:
    def switches(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x * 2
        torch.set_grad_enabled(not after)
        second = x * 3
        torch.set_grad_enabled(after)
        return first, second

    run, _ = compiled(switches)
    for _ in range(2):
        with torch.set_grad_enabled(before):
            first, second = run(leaf(4))
            assert torch.is_grad_enabled() == after
        assert (first.requires_grad, second.requires_grad) == (before, not after)


@pytest.mark.parametrize("part", [torch.real, torch.abs])
def test_a_real_input_times_a_complex_number_has_eagers_gradient(part: Any) -> None:
    same_as_eager(lambda x: part(x * (2 + 1j)).sum(), leaf(4))


def test_other_backends_find_what_they_need_in_the_package() -> None:
    given = inspect.signature(autograd.aot_compile).parameters
    assert [*given] == [
        *("gm", "example_inputs", "fw_compiler", "bw_compiler", "partition_fn", "decompositions", "lazy_backward"),
        "fuses",
    ]
    names = "Compiled Compiler GraphInfo Update aot_compile decomposition_table interpret min_cut min_cut_with_budget"
    assert all(callable(getattr(autograd, name)) for name in [*names.split(), "save_all"])


def test_lazy_backward_is_compiled_at_its_first_call() -> None:
    run, graphs = compiled(cube, lazy_backward=True)
    x = leaf(4)
    loss = run(x)
    assert "backward" not in graphs.modules
    loss.backward()
    assert "backward" in graphs.modules
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_backward_may_have_a_compiler_of_its_own() -> None:
    kinds: list[str] = []

    def keep(graph: torch.fx.GraphModule, given: Sequence[object], info: GraphInfo) -> Compiled:
        kinds.append(info.kind)
        return interpret(graph, given, info)

    compiled(cube, bw_compiler=keep)[0](leaf(4))
    assert kinds == ["backward"]


def test_backward_is_compiled_before_forward_is_waited_for() -> None:
    """So that forward's kernels are built meanwhile."""
    seen: list[str] = []

    def begin(graph: torch.fx.GraphModule, given: Sequence[object], info: GraphInfo) -> Pending:
        def wait() -> Compiled:
            seen.append(f"wait for {info.kind}")
            return interpret(graph, given, info)

        seen.append(info.kind)
        return wait

    torch.compile(cube, backend=lambda gm, x: aot_compile(gm, x, fw_compiler=begin))(leaf(4)).sum().backward()
    assert seen == ["forward", "backward", "wait for forward", "wait for backward"]


def test_hooks_on_inner_gradients_run() -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()

    same_as_eager(hooked, leaf(4))


def test_hooks_on_views_of_an_input_that_are_returned_run() -> None:
    def hooked(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.view(-1)
        y.register_hook(lambda gradient: gradient * 3)
        return y, y[0]

    same_as_eager(hooked, leaf(4))


def test_saved_inputs_are_guarded_against_later_writes() -> None:
    run, _ = compiled(lambda x, w: (x * w).sum())
    x, w = leaf(4), torch.randn(4)
    loss = run(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 100


def test_a_custom_function_keeps_its_own_backward() -> None:
    same_as_eager(lambda x: Doubled.apply(x.sin()).cos(), leaf(4))


@torch.library.custom_op("gyrator_tests::doubled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * 2


@scaled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(lambda ctx, gradient: gradient * 7, setup_context=lambda ctx, inputs, output: None)


@torch.library.custom_op("gyrator_tests::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def test_a_custom_op_keeps_its_registered_backward() -> None:
    same_as_eager(lambda x: scaled(x + 1).sin(), leaf(4))


def test_a_custom_op_may_mutate() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        add_to(z, y)
        add_to(x, y)
        return z * 2

    same_as_eager(program, torch.randn(4), torch.randn(4), backward=False)


def test_compiled_autograd_runs() -> None:
    x = leaf(4)
    run, _ = compiled(cube)
    loss = run(x)
    with torch._dynamo.compiled_autograd._enable(lambda gm: gm):
        loss.backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


# --- autocast, loss scaling, distributed -----------------------------------------------------------


def under_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.linear(x, w)
    return torch.nn.functional.gelu(y).float()


def test_autocast_inside() -> None:
    same_as_eager(under_autocast, leaf(4, 8), leaf(6, 8))


def test_autocast_around() -> None:
    run, _ = compiled(lambda x, w: torch.nn.functional.linear(x, w).relu())
    x, w = leaf(4, 8), leaf(6, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, eagers = run(x, w), torch.nn.functional.linear(x, w).relu()
        assert ours.dtype == torch.bfloat16
        tangent = torch.randn_like(ours)
        ours_gradients = torch.autograd.grad(ours, [x, w], tangent)
    torch.testing.assert_close(ours, eagers)
    torch.testing.assert_close(ours_gradients, torch.autograd.grad(eagers, [x, w], tangent))


def test_a_gradient_scaler_steps() -> None:
    def trained(compile_it: bool) -> Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        run = torch.compile(model, backend=BACKEND) if compile_it else model
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(run(torch.ones(2, 4)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight.detach()

    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.slow
def test_distributed_data_parallel_averages_gradients(tmp_path: Path) -> None:
    printed = lines_of_two("tests.pure.autograd.ddp_worker", tmp_path)
    model = build()
    (sum(model(batch(rank)).square().sum() for rank in range(2)) / 2).backward()
    for text in printed:
        for ours, parameter in zip(json.loads(text), model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(ours), parameter.grad)


# --- the shell -------------------------------------------------------------------------------------


def test_a_program_without_effects_costs_one_call_and_a_look_for_tangents() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    run = aot_compile(gm, [torch.randn(3)], fw_compiler=interpret)
    assert run.__code__.co_names == ("forward_ad", "_current_level", "fallback", "run")


def test_outputs_may_be_nested() -> None:
    gm = torch.fx.symbolic_trace(lambda x: {"a": x + 1, "b": [x * 2, None]})
    result = aot_compile(gm, [torch.ones(2)], fw_compiler=interpret)(torch.ones(2))
    assert result["a"].tolist() == [2, 2] and result["b"][0].tolist() == [2, 2] and result["b"][1] is None


def test_tensors_that_the_program_holds_are_inputs_of_the_graph() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.arange(3.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + self.held, self.held

    module = Holder()
    run = aot_compile(torch.fx.symbolic_trace(module), [torch.ones(3)], fw_compiler=interpret)
    total, held = run(torch.ones(3))
    assert total.tolist() == [1, 2, 3] and held.data_ptr() == module.held.data_ptr()


@torch.fx.wrap
def make_two(x: Tensor) -> Tensor:
    return TwoTensor(x, x)


def test_subclasses_and_sparse_tensors_are_refused() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(UnsupportedInput, match=r"layout torch\.sparse_coo"):
        aot_compile(gm, [torch.eye(3).to_sparse()], fw_compiler=interpret)
    with pytest.raises(UnsupportedInput, match=r"subclass TwoTensor(.|\n)*torch\.compile\(backend=\"inductor\""):
        aot_compile(gm, [make_two(torch.ones(3))], fw_compiler=interpret)


def test_parameters_of_a_subclass_that_changes_no_operator_are_parameters() -> None:
    class Named(torch.nn.Parameter):
        pass

    weight = Named(torch.ones(3))
    run, _ = compiled(lambda x: ((x * weight).sum(), weight))
    total, same = run(torch.arange(3.0))
    total.backward()
    assert same is weight and weight.grad.tolist() == [0, 1, 2]


def test_a_subclass_that_the_program_makes_is_refused_too() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (make_two(x) * 2,))
    with pytest.raises(UnsupportedInput, match=r"subclass TwoTensor(.|\n)*torch\.compile\(backend=\"inductor\""):
        aot_compile(gm, [torch.ones(3)], fw_compiler=interpret)


def test_a_sparse_gradient_counts_as_a_dense_one() -> None:
    run, _ = compiled(lambda x: x * x)
    x, g = leaf(4, 4), torch.eye(4)
    assert torch.equal(torch.autograd.grad(run(x), x, g.to_sparse())[0], 2 * x * g)


def test_a_batch_of_gradients_goes_through_backward_one_by_one() -> None:
    run, _ = compiled(lambda x: x * x)
    x = leaf(4)
    expected = torch.diag(2 * x.detach())
    (by_grad,) = torch.autograd.grad(run(x), x, torch.eye(4), is_grads_batched=True)
    result = run(x)
    (by_vmap,) = torch.vmap(lambda g: torch.autograd.grad(result, x, g))(torch.eye(4))
    assert torch.equal(by_grad, expected) and torch.equal(by_vmap, expected)


def test_batches_of_gradients_may_be_nested_and_lie_along_any_dimension() -> None:
    run, _ = compiled(lambda x: x.sin().t())
    x, gradients = leaf(4, 3), torch.randn(3, 2, 5, 4)
    of_each = torch.vmap(torch.vmap(lambda g: torch.autograd.grad(run(x), x, g)[0], in_dims=1), in_dims=1)
    assert torch.allclose(of_each(gradients), gradients.permute(1, 2, 3, 0) * x.detach().cos())


def test_a_gradient_of_a_subclass_is_refused() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x * 2,))
    x = torch.ones(3, requires_grad=True)
    (y,) = aot_compile(gm, [x], fw_compiler=interpret)(x)
    with pytest.raises(UnsupportedInput, match=r"subclass TwoTensor(.|\n)*torch\.compile\(backend=\"inductor\""):
        y.backward(TwoTensor(torch.ones(3), torch.ones(3)))


@pytest.mark.parametrize("again", [lambda w: w, lambda w: w.to(torch.float32), lambda w: w.detach()])
def test_taking_over_its_own_memory_changes_nothing(again: Any) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        w.data = again(w)
        return (x * w).sin()

    same_as_eager(program, leaf(3), leaf(3))


def test_taking_over_memory_of_another_size_is_refused() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.set_(y)
        return x + 1

    gm = torch.fx.symbolic_trace(program)
    with pytest.raises(UnsupportedOperator, match="what memory a tensor owns"):
        aot_compile(gm, [torch.ones(3), torch.ones(4)], fw_compiler=interpret)
