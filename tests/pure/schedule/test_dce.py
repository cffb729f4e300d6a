"""Dead code: what is dropped, and that kernels do not depend on whether anything else was."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrator.ir.program import Input, Nest, Pointwise, Program, Reduce
from gyrator.schedule.dce import remove_dead
from tests.pure.ir.examples import axis, load, value, whole
from tests.pure.schedule.harness import scheduled

X, ROW, R = value("x", 4, 6), axis("i0", 4), axis("r0", 6)
MEAN, M2, COUNT, TWICE = (value(name, 4) for name in ("mean", "m2", "count", "twice"))
MOMENTS = Nest((MEAN, M2, COUNT), (ROW,), Reduce("welford", (R,), (load(X, ROW, R),)))
DEAD = Nest((TWICE,), (ROW,), Pointwise(load(M2, ROW)))


def results(*nodes: Nest) -> list[tuple[object, ...]]:
    program = Program("p", (Input(X),), nodes, (whole(MEAN),))
    return [node.out for node in remove_dead(program).nodes if isinstance(node, Nest)]


def test_results_that_nobody_reads_are_dropped_though_every_node_stays() -> None:
    assert results(MOMENTS) == [(MEAN, None, None)]


def test_a_node_that_nobody_reads_is_dropped_and_then_what_it_alone_read() -> None:
    assert results(MOMENTS, DEAD) == [(MEAN, None, None)]


def test_a_program_without_dead_code_is_the_same_object() -> None:
    program = Program("p", (Input(X),), (MOMENTS,), tuple(map(whole, (MEAN, M2, COUNT))))
    assert remove_dead(program) is program


def test_a_kernel_is_the_same_whether_or_not_another_node_was_dropped() -> None:
    def alone(x: Tensor) -> Tensor:
        return x.max(1).values

    def beside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.max(1).values, torch.var_mean(y, 1)[1]  # the variance, a node of its own, is dropped

    x, y = torch.randn(5, 9), torch.randn(7, 33)
    names = {kernel.name for kernel in scheduled(beside, [x, y]).plan.kernels}
    assert scheduled(alone, [x]).plan.kernels[0].name in names
