"""What ends before the largest result is written lies in that result's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - defines transformers::grouped_mm_fallback
from torch import Tensor

from gyrator.config import Config
from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, const
from gyrator.ir.program import Extern, Update, View
from gyrator.ir.volume import value_bytes
from gyrator.schedule.overlay import overlay
from gyrator.schedule.plan import Allocate, Call, Free, Launch, Plan, Step, full_view, held
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.pure.schedule.harness import scheduled
from tests.run_plan import run_plan


def layers(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.relu(x @ w)
    return x @ head


X, W, HEAD = torch.randn(5, 8), torch.randn(8, 8), torch.randn(8, 100)


def overlaid(plan: Plan) -> list[tuple[str, str, str]]:
    steps = (step for step in plan.steps if isinstance(step, Allocate) and step.upon is not None)
    return [(s.value.name, s.upon.name, str(s.offset)) for s in steps if s.upon is not None and s.offset is not None]


def allocated(step: Step) -> str:
    return step.value.name if isinstance(step, Allocate) and step.upon is None else ""


def test_the_layers_of_a_model_lie_in_its_logits() -> None:
    plan = scheduled(layers, (X, W, HEAD)).plan
    fresh = [name for step in plan.steps if (name := allocated(step))]
    hosts = {host for _, host, _ in overlaid(plan)}
    assert hosts == {fresh[0]} and len(fresh) == 2  # the other is read while the logits are written


def test_what_lives_beside_the_logits_leaves_them_the_memory_of_the_layers() -> None:
    """What a residual stream becomes at last would else lie upon it, and keep it out of the logits."""

    def residual(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        x = x @ w
        for _ in range(2):
            x = x + torch.relu(x @ w)
        return torch.tanh(x) @ head

    plan = scheduled(residual, (X, W, HEAD)).plan
    memory = [total for total, _ in held(plan, value_bytes)]
    assert memory == [4 * 5 * 100] * 4 + [4 * 5 * (100 + 8)] * 2


def test_the_new_contents_of_a_large_input_are_no_such_result() -> None:
    """They have the input's memory: what is there beside them lies upon what it replaces, as ever."""

    def step(x: Tensor, w: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(x @ w)
        return cache @ x, x @ w

    low = lowered(step, W, W, cache := torch.randn(100, 8))
    (new, result), (*_, given) = low.program.outputs, low.program.inputs
    assert isinstance(new, View) and given.value is not None and given.value.shape[0].value == len(cache)
    program = replace(low.program, outputs=(result,), updates=(Update(given.value, new),))
    plan = schedule(program, Session(Config(), torch.device("cpu")), overlays=True).plan
    upon = [step.upon for step in plan.steps if isinstance(step, Allocate) and step.offset is None]
    assert any(value is not None and value.name == "mm" for value in upon)


def test_what_is_there_at_the_same_time_lies_apart_by_cache_lines() -> None:
    def both(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        a, b = x @ w, x @ w.T
        return (a @ b.T) @ head

    offsets = {name: offset for name, _, offset in overlaid(scheduled(both, (X, W, torch.randn(5, 100))).plan)}
    assert sorted(offsets.values()) == ["0", "48"]  # 40 elements of 4 bytes, rounded up to 64 bytes


def test_products_of_experts_lie_in_the_result_unless_they_are_results() -> None:
    def experts(x: Tensor, w: Tensor, ends: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.ops.transformers.grouped_mm_fallback(x, w, ends)
        saved = torch.ops.transformers.grouped_mm_fallback(x, w.mT, ends)
        return saved, (inner + saved) @ x.mT @ x @ head

    inputs = (X, torch.randn(2, 8, 8), torch.tensor([2, 5], dtype=torch.int32), HEAD)
    plan = scheduled(experts, inputs).plan
    assert [step.into for step in plan.steps if isinstance(step, Call)] == [True, False, True, True, True]
    assert [name for name, _, _ in overlaid(plan)] == ["grouped_mm_fallback", "mm"]


def test_an_overlaid_plan_stays_as_it_is() -> None:
    plan = scheduled(layers, (X, W, HEAD)).plan
    assert overlay(plan) == plan


def test_a_small_result_takes_no_overlay() -> None:
    assert not overlaid(scheduled(layers, (X, W, torch.randn(8, 1))).plan)


@pytest.mark.parametrize(("columns", "dtypes"), [(9000, {torch.float32, torch.int64}), (9001, {torch.float32})])
def test_wider_elements_lie_in_rows_of_whole_numbers_of_them(columns: int, dtypes: set[torch.dtype]) -> None:
    def chosen(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        kept = torch.argsort(torch.ops.aten.argmax(x @ w, 1) * 2)  # from an operator, whose argument is a kernel's
        return (x @ w)[kept] @ head

    plan = scheduled(chosen, (X, W, torch.randn(8, columns))).plan
    lying = {s.value.dtype for s in plan.steps if isinstance(s, Allocate) and s.offset is not None}
    assert lying == dtypes


def test_narrower_elements_lie_in_the_result() -> None:
    def rounded(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        return ((x @ w).bfloat16() @ w.bfloat16()).float() @ head

    lies = overlaid(scheduled(rounded, (X, W, HEAD)).plan)
    assert "mm_1" in {name for name, _, _ in lies}


def test_symbolic_sizes_lie_in_the_result_one_after_the_other() -> None:
    def both(x: Tensor) -> Tensor:
        a, b = x @ torch.ones(16, 32), x @ torch.ones(16, 48)
        return torch.cat((a @ torch.ones(32, 16), b @ torch.ones(48, 16)), 1) @ torch.ones(32, 900)

    plan = scheduled(both, (torch.randn(5, 16),), dynamic=True).plan
    lies = [step for step in plan.steps if isinstance(step, Allocate) and step.offset is not None]
    assert any(step.offset.sizes() for step in lies if step.offset)
    assert all(step.needs is None for step in lies)


def test_what_grows_with_the_square_of_a_size_keeps_no_other_out() -> None:
    """A mask that each layer reads: nothing else is larger or smaller for all sizes, and 64 times it is 16 of it."""

    def layered(x: Tensor) -> Tensor:
        seen = torch.relu(x @ x.T)
        for _ in range(2):
            x = torch.relu(seen @ x) @ torch.ones(16, 96) @ torch.ones(96, 16)
        return x @ torch.ones(16, 208)

    plan = scheduled(layered, (torch.randn(32, 16),), dynamic=True).plan
    apart = [step.value for step in plan.steps if isinstance(step, Allocate) and step.upon is None]
    assert len(apart) == 3  # the result, and two that are read while it is written


def test_each_call_asks_whether_symbolic_sizes_fit_that_need_not() -> None:
    def encode(x: Tensor, y: Tensor) -> Tensor:
        return y @ (x @ torch.ones(8, 8)).sum(0).expand(100, 8).T

    x, y = torch.randn(6, 8), torch.randn(5, 8)
    low = lowered(encode, x, y, dynamic=True)
    plan = schedule(low.program, Session(Config(), torch.device("cpu")), overlays=True).plan
    (asked,) = (step for step in plan.steps if isinstance(step, Allocate) and step.needs is not None)
    assert asked.upon is not None and asked.upon.shape[0] is not asked.value.shape[0]
    for rows in (6, 900):
        (result,) = run_plan(plan, [x := torch.randn(rows, 8), y], low.constants)
        torch.testing.assert_close(result, encode(x, y), rtol=1e-4, atol=1e-3)  # sums of 900


def test_no_more_is_held_at_once() -> None:
    def late(x: Tensor, w: Tensor) -> Tensor:
        scale = (x.T @ x).sum()  # would fit into the result
        wide = (x @ w * scale).sum(1)  # far more than the result, which is not to lie beside it
        return torch.stack([wide, wide], 1) @ x[:2]

    assert not overlaid(scheduled(late, (torch.randn(50, 8), torch.randn(8, 200))).plan)


def test_what_an_operator_returns_may_lie_in_its_arguments() -> None:
    """A branch may return its operand, which then lives on under another name."""
    x, a, b, c, d, result = (
        Value(name, (const(n),), torch.float32, (ONE,), torch.device("cpu"))
        for name, n in (("x", 16), ("a", 16), ("b", 16), ("c", 16), ("d", 32), ("result", 99))
    )
    steps = (
        Allocate(a), Launch("k", (x, a)),
        Call(Extern((b,), "mylib.branch.default", (full_view(a),))), Free(a),
        Allocate(c), Launch("k", (b, c)), Free(b),
        Launch("k", (c, x)), Free(c),
        Allocate(d), Launch("k", (x, d)), Allocate(result), Launch("k", (d, result)), Free(d),
    )  # fmt: skip
    plan = overlay(Plan("p", (), steps, (full_view(result),), ()))
    assert overlaid(plan) == [("a", "result", "0"), ("c", "result", "16")]
