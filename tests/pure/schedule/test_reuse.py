"""A value of the same kind as one that has ended takes its tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, const
from gyrator.ir.program import Extern
from gyrator.schedule.check_plan import check_plan
from gyrator.schedule.overlay import guests
from gyrator.schedule.plan import Allocate, Call, Free, Launch, Plan, full_view
from gyrator.schedule.reuse import MOST_WAITING, reuse
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan

X, W = torch.randn(5, 8), torch.randn(8, 8)


def layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(4):
        x = x @ w
    return x + 1


def fresh(plan: Plan) -> list[str]:
    return [step.value.name for step in plan.steps if isinstance(step, Allocate) and step.upon is None]


def taken(plan: Plan) -> list[tuple[str, str]]:
    steps = (step for step in plan.steps if isinstance(step, Allocate) and step.upon is not None)
    return [(step.value.name, step.upon.name) for step in steps if step.upon is not None]


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_other_layer_takes_the_tensor_of_the_one_before_the_last(dynamic: bool) -> None:
    low = lowered(layers, X, W, dynamic=dynamic)
    plan = reuse(schedule(low.program, Session(Config(), torch.device("cpu"))).plan)
    check_plan(plan)
    assert len(fresh(plan)) == 2 and {("mm_2", "mm"), ("mm_3", "mm_1")} <= set(taken(plan))
    (result,) = run_plan(plan, [X, W], low.constants)
    assert isinstance(result, Tensor)
    torch.testing.assert_close(result, layers(X, W))


def vectors(**sizes: int) -> list[Value]:
    return [Value(name, (const(n),), torch.float32, (ONE,), torch.device("cpu")) for name, n in sizes.items()]


def test_memories_that_end_with_one_result_end_in_the_order_of_the_calls_arguments() -> None:
    *given, result = vectors(**{f"v{k}": 16 for k in range(40)}, result=16)
    call = Call(Extern((result,), "mylib.branch.default", tuple(map(full_view, given))))
    ended = guests((*map(Allocate, given), call, *map(Free, given), Free(result)))
    assert [guest.value for guest in ended] == given  # not that of their addresses, which no two processes share


def test_what_an_operator_returned_may_lie_in_memory_whose_own_names_have_ended() -> None:
    x, a, b, c, d = vectors(x=16, a=16, b=16, c=16, d=16)
    steps = (
        Allocate(a), Launch("k", (x, a)),
        Call(Extern((b,), "mylib.branch.default", (full_view(a),))), Free(a),
        Allocate(c), Launch("k", (b, c)), Free(b), Free(c),
        Allocate(d), Launch("k", (x, d)),
    )  # fmt: skip
    plan = reuse(Plan("p", (), steps, (full_view(d),), ()))
    assert fresh(plan) == ["a", "c"] and taken(plan) in ([("d", "a")], [("d", "c")])


def waiting(first: int, between: int) -> Plan:
    x, a, wide, other, last = vectors(x=1, a=first, wide=between, other=between, last=first)
    steps = (
        Allocate(a), Launch("k", (x, a)), Free(a),
        Allocate(wide), Launch("k", (x, wide)), Allocate(other), Launch("k", (wide, other)), Free(wide), Free(other),
        Allocate(last), Launch("k", (x, last)),
    )  # fmt: skip
    return reuse(Plan("p", (), steps, (full_view(last),), ()))


def test_no_memory_waits_at_the_peak_but_a_little() -> None:
    little = MOST_WAITING // 4
    assert taken(waiting(little, 4 * little)) == [("last", "a")]
    assert not taken(waiting(little + 1, 4 * little))
    assert taken(waiting(4 * little, little // 4)) == [("last", "a")]


def test_another_shape_or_type_has_memory_of_its_own() -> None:
    x, a, b = vectors(x=1, a=16, b=15)
    c = Value("c", a.shape, torch.int32, a.strides, a.device)
    for other in (b, c):
        steps = (Allocate(a), Launch("k", (x, a)), Free(a), Allocate(other), Launch("k", (x, other)))
        assert not taken(reuse(Plan("p", (), steps, (full_view(other),), ())))


def test_what_a_collective_reads_is_not_taken_before_what_its_end_gave_has_ended() -> None:
    x, a, sent, there, b, c = vectors(x=16, a=16, sent=16, there=16, b=16, c=16)
    steps = (
        Allocate(a), Launch("k", (x, a)),
        Call(Extern((sent,), "_c10d_functional.all_reduce.default", (full_view(a), "sum", "0"))), Free(a),
        Allocate(b), Launch("k", (x, b)),
        Call(Extern((there,), "_c10d_functional.wait_tensor.default", (full_view(sent),))), Free(sent),
        Launch("k", (there, b)), Free(there),
        Allocate(c), Launch("k", (b, c)), Free(b),
    )  # fmt: skip
    plan = reuse(Plan("p", (), steps, (full_view(c),), ()))
    assert fresh(plan) == ["a", "b"] and taken(plan) == [("c", "a")]
