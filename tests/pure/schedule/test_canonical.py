"""Groups that do the same work are one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.ir.expr import stem_of
from gyrator.ir.index import const
from gyrator.ir.program import Program
from gyrator.schedule.plan import Launch, Plan
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered, run
from tests.run_plan import run_plan


def plan_of(program: Program) -> Plan:
    return schedule(program, Session(Config(check="every"), torch.device("cpu"))).plan


def test_layers_that_differ_in_their_seeds_alone_share_a_kernel() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.rand_like(x) * (x @ w)
        return x

    args = torch.randn(6, 8), torch.randn(8, 8)
    low = lowered(layers, *args)
    plan = plan_of(low.program)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert len(plan.kernels) == 1 and [step.sizes for step in launches] == [(const(k),) for k in range(3)]

    torch.manual_seed(1)
    (expected,) = run(low, args).outputs
    torch.manual_seed(1)
    (found,) = run_plan(plan, args)
    torch.testing.assert_close(found, expected)


def test_the_only_seed_of_a_graph_lies_at_a_known_place() -> None:
    plan = plan_of(lowered(lambda x: x * torch.rand_like(x), torch.randn(6)).program)
    assert [kernel.sizes for kernel in plan.kernels] == [()]


def test_a_kernel_that_draws_twice_is_told_both_places() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * torch.rand_like(x), x + torch.rand_like(x)

    low = lowered(both, torch.randn(6))
    plan = plan_of(low.program)
    (launch,) = (step for step in plan.steps if isinstance(step, Launch))
    assert launch.sizes == (const(0), const(1))


def test_names_keep_the_digits_of_operators_and_lose_those_that_count() -> None:
    names = ["log2_default_10", "max_pool2d_with_indices_3_argmax", "var_mean_10_welford", "arg12", "tangent_0", "_7"]
    wanted = ["log2_default", "max_pool2d_with_indices_argmax", "var_mean_welford", "arg", "tangent", "t"]
    assert [stem_of(name) for name in names] == wanted
