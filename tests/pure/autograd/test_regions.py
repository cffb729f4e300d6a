"""Activation checkpoints, higher-order operators, and random numbers that forward and backward share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.flex_attention import flex_attention
from torch._higher_order_ops.map import map as map_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.interface import interpret
from gyrator.autograd.recorder import RECORDED
from gyrator.errors import UnsupportedOperator
from tests.pure.autograd.harness import compiled, leaf, same_as_eager


def block(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w).sin()


def checkpointed(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return checkpoint(block, checkpoint(block, x, w, use_reentrant=False), v, use_reentrant=False).cos()


def plain(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return block(block(x, w), v).cos()


def saved_by(function: Callable[..., Any]) -> int:
    """How many tensors forward saves for backward, beyond its inputs."""
    run, graphs = compiled(function)
    run(leaf(8, 8), leaf(8, 8), leaf(8, 8))
    outputs = graphs.modules["forward"].graph.output_node().args[0]
    return len(outputs) - 1


def test_a_checkpoint_saves_its_result_and_nothing_inside() -> None:
    assert saved_by(checkpointed) < saved_by(plain)
    assert saved_by(checkpointed) == 2


def test_a_checkpointed_region_runs_again_in_backward() -> None:
    run, graphs = compiled(checkpointed)
    run(leaf(8, 8), leaf(8, 8), leaf(8, 8))
    assert graphs.ops("forward").count("mm.default") == 2
    assert graphs.ops("backward").count("mm.default") == 2 + 4


def test_gradients_of_checkpoints_are_eagers() -> None:
    same_as_eager(checkpointed, leaf(4, 4), leaf(4, 4), leaf(4, 4))


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def test_a_policy_says_what_a_checkpoint_saves() -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=contexts) @ v

    run, graphs = compiled(program)
    args = [leaf(8, 8), leaf(8, 8), leaf(8, 8)]
    torch.testing.assert_close(
        torch.autograd.grad(run(*args).sum(), args), torch.autograd.grad((block(*args[:2]) @ args[2]).sum(), args)
    )
    assert graphs.ops("backward").count("mm.default") == 4


def attended(x: Tensor, w: Tensor, dropout: float) -> Tensor:
    q = (x @ w).unflatten(-1, (2, 4)).transpose(-3, -2)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout).transpose(-3, -2).flatten(-2)


def test_attention_in_a_checkpoint_runs_again() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(attended, x, w, 0.0, use_reentrant=False).sin()

    same_as_eager(function, leaf(2, 6, 8), leaf(8, 8))
    run, graphs = compiled(function)
    run(leaf(2, 6, 8), leaf(8, 8))
    attention = "_scaled_dot_product_flash_attention_for_cpu.default"
    assert attention in graphs.ops("forward") and attention in graphs.ops("backward")


def test_an_operator_with_random_results_in_a_checkpoint_is_saved() -> None:
    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.native_dropout(x.sin(), 0.5, True)[0] * x, x, use_reentrant=False).cos()

    whole = {op: f for op, f in decomposition_table().items() if "dropout" not in str(op)}
    run, _ = compiled(function, decompositions=whole)
    x = torch.linspace(0.5, 1.5, 64, requires_grad=True)
    y = run(x)
    y.sum().backward()
    kept = y != 1
    assert kept.any() and not kept.all() and torch.equal(x.grad != 0, kept)


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_dropout_in_a_checkpoint_has_one_mask(numerics: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda x, w: F.dropout(x * w, 0.5), x, w, use_reentrant=False)

    run, _ = compiled(program, decompositions=decomposition_table(numerics=numerics))
    x, w = leaf(200), torch.ones(200)
    y = run(x, w)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient == 0, y == 0) and 20 < int((y == 0).sum()) < 180


def test_a_seed_gives_the_same_numbers_again_and_each_call_new_ones() -> None:
    run, _ = compiled(lambda x: F.dropout(x, 0.5) + torch.randn(4))
    x = torch.ones(4)

    def seeded() -> list[Tensor]:
        torch.manual_seed(7)
        return [run(x), run(x)]

    (first, second), (again, _) = seeded(), seeded()
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_eager_numerics_draws_eagers_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        noise = torch.rand_like(x) + torch.randn(4) + torch.bernoulli(x.sigmoid()) + torch.randint(0, 5, (4,))
        return F.dropout(noise, 0.3)

    run, _ = compiled(program, decompositions=decomposition_table(numerics="eager"))
    x = torch.randn(4)
    torch.manual_seed(3)
    ours = run(x)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, program(x))


# --- higher-order operators ------------------------------------------------------------------------


def conditional(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: F.silu(x), lambda x: x.cos() * 2, (x,))


def repeated(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.zeros((), dtype=torch.int64), x))


def mapped(x: Tensor) -> Any:
    return map_op(lambda row: row.sin() + 1, x)


def scanned(x: Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(3), x)


def scanned_in_any_order(x: Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


RUN = {
    "scan": scanned,
    "associative_scan": scanned_in_any_order,
    "cond": conditional,
    "while_loop": repeated,
    "map_impl": mapped,
}


@pytest.mark.parametrize("name", RUN)
def test_runs(name: str) -> None:
    same_as_eager(RUN[name], torch.randn(4, 3), backward=False)


def test_bodies_are_decomposed_functional_graphs() -> None:
    run, graphs = compiled(conditional)
    run(torch.randn(4))
    bodies = dict(graphs.modules["inference"].named_children())
    ops = {str(node.target) for body in bodies.values() for node in body.graph.nodes if node.op == "call_function"}
    assert len(bodies) == 2 and "aten.sigmoid.default" in ops and "aten.silu.default" not in ops


def test_cond_is_differentiable() -> None:
    same_as_eager(conditional, leaf(4, 3))


def test_operators_that_take_graphs_are_run_or_refused() -> None:
    known = set(RECORDED)
    assert {"cond", "while_loop", "scan"} <= known and "strict_mode" not in known
    graph, root = torch.fx.Graph(), torch.nn.Module()
    root.body = torch.fx.symbolic_trace(lambda x: (x + 1,))
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.higher_order.strict_mode, (graph.get_attr("body"), (x,))),))
    with pytest.raises(UnsupportedOperator, match="strict_mode cannot be compiled"):
        aot_compile(torch.fx.GraphModule(root, graph), [torch.randn(4)], fw_compiler=interpret)


# --- attention with functions of the user's --------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    """Called as an operator, since torch's function refuses gradients on CPUs. Row 0 attends to nothing."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, bias: Tensor = bias) -> Tensor:
        return torch.tanh(s) + bias[h, i - j] + bias[0, j]

    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 0), None, None, 6, 6, device="cpu")
    reads = () if torch.compiler.is_compiling() else ((bias,), ())  # capture finds them by itself
    return flex_attention(q, k, v, score, mask.as_tuple(), 0.5, {}, *reads)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_flex_attention_has_eagers_values_and_gradients(dynamic: bool) -> None:
    same_as_eager(attention, leaf(2, 2, 6, 4), leaf(2, 2, 6, 4), leaf(2, 2, 6, 3), leaf(2, 6), dynamic=dynamic)


def test_flex_attention_lies_in_memory_as_its_query() -> None:
    q = torch.randn(2, 6, 2, 4).transpose(1, 2)
    k, bias = torch.randn(1, 1, 6, 4), torch.randn(2, 6)
    same_as_eager(attention, q, k, k, bias, backward=False)
    same_as_eager(attention, *(x.bfloat16() for x in (q, k, k, bias)), backward=False)


def test_a_view_that_leaves_a_region_is_made_from_what_the_region_saves() -> None:
    def bias(x: Tensor) -> Tensor:
        return (x.sin() @ x.cos()).t().unsqueeze(0)

    def program(x: Tensor) -> Tensor:
        shared = checkpoint(bias, x, use_reentrant=False)
        return checkpoint(lambda x, b: (x.exp() * b).tanh() * b, x, shared, use_reentrant=False)

    same_as_eager(program, leaf(4, 4))
