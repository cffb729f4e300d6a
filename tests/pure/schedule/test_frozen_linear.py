"""A linear layer with a constant weight and an activation: packed weights in the template, or one call of oneDNN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.schedule.cpu_gemm import Cpu, panels_of
from gyrator.schedule.plan import Call
from gyrator.schedule.products import Alternative, Ask, Question
from gyrator.schedule.stage import Scheduled, schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan

WEIGHT, BIAS = torch.randn(32, 16), torch.randn(32)


def layer(activation: Callable[[Tensor], Tensor], bias: Tensor | None = BIAS) -> Callable[[Tensor], Tensor]:
    return lambda x: activation(torch.nn.functional.linear(x, WEIGHT, bias))


def picking(backend: str, seen: list[Question]) -> Ask:
    """Answers with the alternatives of one family, and remembers what was asked."""

    def ask(question: Question) -> tuple[Alternative, ...]:
        seen.append(question)
        return tuple(a for a in question.alternatives if a.backend == backend)

    return ask


def chosen(fn: Callable[[Tensor], Tensor], ask: Ask, **options: object) -> Scheduled:
    config = Config.from_options(options={"max_autotune": True, "check": "every", **options})
    session = Session(config, torch.device("cpu"))
    return schedule(lowered(fn, torch.randn(64, 16)).program, session, ask=ask, cpu=Cpu("avx512", 1))


def test_the_librarys_call_does_not_round_to_integers() -> None:
    seen: list[Question] = []
    chosen(layer(lambda y: y.int().float()), picking("cpp", seen))
    assert "_linear_pointwise" not in [a.name for question in seen for a in question.alternatives]


def test_the_template_competes_with_the_librarys_fused_call() -> None:
    seen: list[Question] = []
    chosen(layer(torch.relu), picking("cpp", seen))
    (question,) = seen
    assert question.title == "linear_unary(64x16, 32x16, 32)"
    names = [a.name for a in question.alternatives]
    assert names[-2:] == ["_linear_pointwise", "addmm_then_epilogue"] and names[0].startswith("cpp_addmm")


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("function", [torch.relu, torch.sigmoid, torch.tanh], ids=lambda f: f.__name__)
def test_the_librarys_call_computes_the_same(function: Callable[[Tensor], Tensor], bias: Tensor | None) -> None:
    fn, x = layer(function, bias), torch.randn(64, 16)
    low = lowered(fn, x)
    session = Session(Config(max_autotune=True, check="every"), torch.device("cpu"))
    plan = schedule(low.program, session, ask=picking("aten", []), cpu=Cpu("avx512", 1)).plan
    assert [step.extern.op for step in plan.steps if isinstance(step, Call)] == ["mkldnn._linear_pointwise.default"]
    (actual,) = run_plan(plan, [x], low.constants)
    torch.testing.assert_close(actual, fn(x))


def test_a_template_that_takes_no_elements_computes_a_product_of_few_columns_without_the_library() -> None:
    cheap = layer(lambda y: y.sum(0), None)
    result = chosen(lambda x: cheap(x * 2 + 1), picking("cpp", []), gemm_backends="cpp")
    assert len(result.packings) == 1 and not any(isinstance(step, Call) for step in result.plan.steps)


def test_where_the_template_wins_no_call_is_left_and_the_weight_is_packed() -> None:
    result = chosen(layer(torch.relu), picking("cpp", []))
    assert not any(isinstance(step, Call) for step in result.plan.steps)
    (packing,) = result.packings
    panels = panels_of(WEIGHT, *packing.layout)
    assert [panels.shape[1], panels.shape[2]] == [16, packing.width]
    torch.testing.assert_close(panels.transpose(0, 1).reshape(16, -1)[:, :32], WEIGHT.t())


@pytest.mark.parametrize(
    "fn",
    [
        layer(lambda y: torch.relu(y) + y.sum(0)),
        layer(lambda y: torch.clamp_min(y, 1)),
        layer(lambda y: (y, torch.relu(y))[1] * y),
        lambda x: torch.relu(x @ WEIGHT.t().contiguous()),
        lambda x: torch.relu(torch.nn.functional.linear(x[:32], WEIGHT, BIAS).t().contiguous()),
    ],
    ids=["read twice", "another function", "a product of both", "weight of K x N", "a square one transposed"],
)
def test_other_programs_have_no_fused_call(fn: Callable[[Tensor], Tensor]) -> None:
    seen: list[Question] = []
    chosen(fn, picking("cpp", seen))
    assert all("_linear_pointwise" not in {a.name for a in question.alternatives} for question in seen)
