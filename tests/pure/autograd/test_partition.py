"""Partitioning: the cut against brute force, what is saved, budgets, explanations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, Node

from gyrator.autograd.builder import ancestors
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.partition.min_cut import Ban, _Problem, _solve, min_cut, min_cut_with_budget
from gyrator.autograd.partition.plan import JointGraph, Partition, save_all
from gyrator.autograd.partition.recompute import operations
from gyrator.errors import InternalCheckError
from tests.pure.autograd.harness import compiled, leaf


def cheapest(nodes: list[Node], prices: dict[Node, float], bans: set[Node], read: set[Node]) -> float:
    """The least price of values from which those that are read can be computed, over all sets of values."""
    best = inf
    for count in range(len(nodes) + 1):
        for saved in itertools.combinations(nodes, count):
            needed = ancestors(read, known=saved)
            if needed.isdisjoint(bans):
                best = min(best, sum(prices[node] for node in saved))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_is_the_cheapest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, graph = random.Random(seed), Graph()
    nodes: list[Node] = []
    for _ in range(rng.randint(1, 8)):
        sources = rng.sample(nodes, min(len(nodes), rng.randint(0, 2)))
        nodes.append(graph.call_function(torch.stack, (sources,)))
    prices = {node: rng.choice((0, *range(1, 20), inf, inf)) for node in nodes}
    bans, read = ({node for node in nodes if rng.random() < 0.4} for _ in range(2))
    monkeypatch.setattr("gyrator.autograd.partition.min_cut._price", lambda node, joint: prices[node])
    joint = JointGraph(graph, (), (), (), ())
    problem = _Problem(joint, tuple(nodes), frozenset(read), dict.fromkeys(bans, Ban("", True)))
    if (least := cheapest(nodes, prices, bans, read)) == inf:
        with pytest.raises(InternalCheckError, match="neither be saved nor recomputed"):
            _solve(problem)
    else:
        saved = _solve(problem)
        assert ancestors(read, known=saved).isdisjoint(bans)
        assert sum(prices[node] for node in saved) == least


def partitioned(
    function: Callable[..., Any], *args: Tensor, by: Callable[[JointGraph], Partition] = min_cut
) -> Partition:
    """The partition of a function's joint graph; its gradients are checked against eager's."""
    found: list[Partition] = []

    def keep(joint: JointGraph) -> Partition:
        found.append(by(joint))
        return found[0]

    run, _ = compiled(function, partition_fn=keep, decompositions=decomposition_table(numerics="eager"))
    differentiated = [arg for arg in args if arg.requires_grad]
    ours = torch.autograd.grad(run(*args).sum(), differentiated)
    eagers = torch.autograd.grad(function(*args).sum(), differentiated)
    torch.testing.assert_close(ours, eagers)
    return found[0]


def saved_ops(partition: Partition) -> list[str]:
    """What computes each saved value, as `mul.Tensor`; the name of an input."""
    return [str(node.target).removeprefix("aten.") for node in partition.saved]


def chain(x: Tensor) -> Tensor:
    return x.sin().exp().sin().exp().sin()


def test_a_chain_of_pointwise_ops_saves_its_input_alone() -> None:
    x = leaf(8, 8)
    assert [node.op for node in partitioned(chain, x).saved] == ["placeholder"]


def test_saving_all_saves_every_value_that_backward_reads() -> None:
    assert saved_ops(partitioned(chain, leaf(8, 8), by=save_all)) == ["arg0", "exp.default", "exp.default"]


def test_an_input_in_another_layout_is_copied_again() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x.clone(memory_format=torch.channels_last), w)

    x, w = torch.randn(1, 3, 8, 8), leaf(4, 3, 3, 3)
    assert [node.op for node in partitioned(fn, x, w).saved] == ["placeholder"] * 2


def test_a_matrix_product_is_not_computed_again() -> None:
    partition = partitioned(lambda x, w: torch.relu(x @ w).sin(), leaf(8, 8), leaf(8, 8))
    assert "mm.default" in saved_ops(partition)


def test_where_the_largest_is_equal_is_saved_rather_than_compared_again() -> None:
    for by in (min_cut, min_cut_with_budget(0.0)):  # numbers computed again may equal none: no budget overrules that
        saved = saved_ops(partitioned(lambda x: torch.layer_norm(x, (64,)).amax(-1), leaf(16, 64), by=by))
        assert "eq.Tensor" in saved


def test_a_small_reduction_is_saved_rather_than_repeated() -> None:
    run, graphs = compiled(lambda x: torch.nn.functional.layer_norm(x.sin(), (64,)).sin())
    run(leaf(16, 64)).sum().backward()
    assert "var_mean.correction" in graphs.ops("forward")
    assert "var_mean.correction" not in graphs.ops("backward")


def test_random_values_are_saved() -> None:
    torch.manual_seed(0)
    partitioned_before: list[Partition] = []

    def keep(joint: JointGraph) -> Partition:
        partitioned_before.append(min_cut(joint))
        return partitioned_before[0]

    run, _ = compiled(lambda x: torch.nn.functional.dropout(x.sin()), partition_fn=keep)
    x = leaf(64)
    y = run(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient == 0, y == 0)


def test_parameters_cost_nothing_to_save() -> None:
    model = torch.nn.Linear(8, 8)
    found: list[Partition] = []

    def keep(joint: JointGraph) -> Partition:
        found.append(min_cut(joint))
        return found[0]

    run, _ = compiled(lambda x: model(x).sin(), partition_fn=keep)
    run(leaf(4, 8)).sum().backward()
    assert found[0].saved_bytes == 2 * 4 * 8 * 4  # the input and the product


def mlp(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight)
    return x


@pytest.mark.parametrize("budget", [0.0, 0.3, 0.6, 1.0])
def test_a_budget_bounds_the_saved_bytes(budget: float) -> None:
    wide = torch.float64
    args = [leaf(32, 16, dtype=wide), *(leaf(16, 16, dtype=wide) for _ in range(5))]
    full = partitioned(mlp, *args)
    bounded = partitioned(mlp, *args, by=min_cut_with_budget(budget))
    inputs = sum(node.meta["val"].nbytes for node in bounded.saved if node.op == "placeholder")
    assert bounded.saved_bytes <= max(budget * full.saved_bytes, inputs)


def test_a_budget_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        min_cut_with_budget(1.5)


def test_the_partition_says_why() -> None:
    partition = partitioned(lambda x, w: torch.relu(x @ w).sin(), leaf(8, 8), leaf(8, 8))
    reasons = {str(node.target): reason for node, reason in partition.reasons.items()}
    assert reasons["aten.mm.default"] == "saved: takes too long to compute again"
    assert reasons["aten.relu.default"].startswith("recomputed: pointwise")
    assert partition.saved_bytes <= partition.default_bytes


def test_what_is_recomputed_is_told_in_the_order_of_the_graph() -> None:
    partition = partitioned(lambda x, w: ((x @ w).relu().sin().exp() * 2 + 1).tanh().cos(), leaf(8, 8), leaf(8, 8))
    again = [node for node, reason in partition.reasons.items() if reason.startswith("recomputed")]
    assert len(again) > 3
    assert again == [node for node in again[0].graph.nodes if node in set(again)]


def test_backward_is_given_every_symbol_that_its_sizes_mention() -> None:
    def halves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        part = x.chunk(2, 0)[0].clone()
        part.diagonal().fill_(1)
        return part.softmax(0), y.chunk(2, -1)[0] * 1

    function, graphs = compiled(halves, dynamic=True)
    sum(out.sum() for out in function(leaf(9, 40), leaf(40, 9))).backward()
    given, mentioned = set(), set()
    for node in graphs.modules["backward"].graph.nodes:
        value = node.meta.get("val")
        sizes = [*value.shape, *value.stride()] if isinstance(value, Tensor) else [value]
        symbols = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
        mentioned |= {symbol for expr in symbols for symbol in expr.free_symbols}
        given |= {expr for expr in symbols if expr.is_Symbol and node.op == "placeholder"}
    assert mentioned <= given


def test_a_product_takes_two_operations_for_each_element_and_each_of_its_terms() -> None:
    sides = [[2, 8], [8, 3]]
    assert operations("mm", 6, sides) == operations("addmm", 6, [[3], *sides]) == 2 * 6 * 8
    assert operations("_scaled_mm", 6, [*sides, [], []]) == 2 * 6 * 8  # its scales come last
    assert operations("exp", 6, [[2, 3]]) == 6
    assert operations("_grouped_mm", 6, [[2, 8], [4, 8, 3], [4]]) == 2 * 6 * 8  # one matrix for each row
    assert operations("_grouped_mm", 24, [[2, 8], [8, 3], [4]]) == 2 * 6 * 8


def test_sizes_that_are_alike_are_partitioned_alike() -> None:
    """As keys have them: what one process compiled for a size, another finds in the cache and completes for another."""

    def function(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).cumsum(0) * v.exp()
        return y.square().mean(), y

    saved = []
    for rows in (3, 5, 60):
        run, graphs = compiled(function, dynamic=True)
        run(torch.randn(rows, 4), leaf(4, 4), leaf(4))
        saved.append([str(node) for node in graphs.modules["forward"].graph.output_node().args[0]])
    assert saved[0] == saved[1] == saved[2]
