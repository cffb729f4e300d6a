"""A plan that gets memory wrong is refused, with the step and the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gyrator.errors import InternalCheckError
from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, Index, Size, const
from gyrator.ir.program import Extern, Input
from gyrator.origin import Origin
from gyrator.schedule.check_plan import check_plan
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Join, Plan, Step, full_view


def value(name: str, count: int | Index = 16) -> Value:
    extent = const(count) if isinstance(count, int) else count
    return Value(name, (extent,), torch.float32, (ONE,), torch.device("cpu"))


X, A, B, RESULT = value("x"), value("a"), value("b"), value("result", 64)
LONG = replace(value("long"), dtype=torch.int64)


def copy(into: Value, source: Value) -> Copy:
    return Copy(full_view(into), full_view(source))


def plan(*steps: Step, shown: Value = RESULT) -> Plan:
    return Plan("p", (Input(X),), steps, (full_view(shown),), ())


def column(name: str, width: int) -> Value:
    """Columns of a matrix of 4 rows of 16."""
    return Value(name, (const(4), const(width)), torch.float32, (const(16), ONE), torch.device("cpu"))


MATRIX, LEFT, again = column("matrix", 16), column("left", 8), column("again", 16)


def joined(left: int, right: int, *, width: int = 8) -> Plan:
    """A matrix joined of columns that begin there."""
    a, b = column("left", 8), column("right", width)
    made = (Allocate(a, MATRIX, const(left)), copy(a, X), Allocate(b, MATRIX, const(right)), copy(b, X))
    return plan(Allocate(MATRIX), *made, Join(MATRIX, (a, b), const(4)), Free(a), Free(b), shown=MATRIX)


MADE = (Allocate(RESULT), copy(RESULT, X))

RIGHT = {
    "wider elements beside others": plan(
        Allocate(RESULT),
        Allocate(A, RESULT, const(0)),
        Allocate(LONG, RESULT, const(8)),
        Allocate(B, RESULT, const(48)),
        Free(A),
        Free(LONG),
        Free(B),
        copy(RESULT, X),
    ),
    "one after the other": plan(Allocate(A), copy(A, X), *MADE, copy(RESULT, A), Free(A)),
    "in place": plan(Allocate(A), copy(A, X), Allocate(B, A), copy(B, A), Free(A), *MADE, copy(RESULT, B), Free(B)),
    "within": plan(Allocate(RESULT), Allocate(A, RESULT, const(0)), copy(A, X), Free(A), copy(RESULT, X)),
    "joined of columns": joined(0, 8),
    "a call's result": plan(Call(Extern((RESULT,), "mylib.f.default", (full_view(X),)))),
}

WRONG = {
    "read before it is written": (plan(Allocate(A), *MADE, copy(RESULT, A), Free(A)), "nothing was written there"),
    "read before it is allocated": (plan(*MADE, copy(RESULT, A)), "not allocated yet"),
    "read after its end": (plan(Allocate(A), copy(A, X), Free(A), *MADE, copy(RESULT, A)), "freed already"),
    "freed twice": (plan(Allocate(A), copy(A, X), Free(A), Free(A), *MADE), "freed already"),
    "never freed": (plan(Allocate(A), copy(A, X), *MADE), "a is never freed"),
    "named twice": (plan(Allocate(RESULT), *MADE), "named twice"),
    "a result that is freed": (plan(*MADE, Free(RESULT)), "freed already"),
    "read after it was overwritten": (
        plan(Allocate(A), copy(A, X), Allocate(B, A), copy(B, X), *MADE, copy(RESULT, A), Free(A), Free(B)),
        "cannot read a: b was written over it",
    ),
    "an input that is overwritten and shown": (plan(Allocate(B, X), copy(B, X), Free(B), shown=X), "written over it"),
    "written while another lies in it": (
        plan(Allocate(RESULT), Allocate(A, RESULT, const(0)), copy(A, X), copy(RESULT, X), Free(A)),
        "result is written while a lies in it",
    ),
    "joined of columns that meet": (joined(0, 4), "left does not fill its place in matrix up to the next one's"),
    "joined of columns but the first": (joined(8, 8), "left does not begin where matrix does"),
    "joined of what lies elsewhere": (
        plan(
            Allocate(MATRIX), Allocate(LEFT), copy(LEFT, X), Join(MATRIX, (LEFT,), const(4)), Free(LEFT), shown=MATRIX
        ),
        "not all of left lie in matrix",
    ),
    "joined of too few": (joined(0, 8, width=4), "right does not fill its place in matrix"),
    "joined before they are written": (
        plan(Allocate(MATRIX), Allocate(LEFT, MATRIX, const(0)), Join(MATRIX, (LEFT,), const(4)), shown=MATRIX),
        "cannot join left: nothing was written there",
    ),
    "a part read after the whole was overwritten": (
        plan(
            *joined(0, 8).steps[:6], Allocate(again, MATRIX), copy(again, X), copy(again, LEFT),
            *joined(0, 8).steps[6:], Free(MATRIX), shown=again,
        ),
        "cannot read left: again was written over it",
    ),
    "a part read while the whole is overwritten": (
        plan(
            *joined(0, 8).steps[:6], Allocate(again, MATRIX), copy(again, LEFT), *joined(0, 8).steps[6:],
            Free(MATRIX), shown=again,
        ),
        "left is read while again is written over it",
    ),
    "within what is written": (plan(*MADE, Allocate(A, RESULT, const(0)), Free(A)), "which is written already"),
    "two that meet": (
        plan(Allocate(RESULT), Allocate(A, RESULT, const(0)), Allocate(B, RESULT, const(8)), Free(A), Free(B)),
        "b and a may meet in result",
    ),
    "two that meet by bytes": (
        plan(Allocate(RESULT), Allocate(LONG, RESULT, const(0)), Allocate(A, RESULT, const(16)), Free(LONG), Free(A)),
        "a and long may meet in result",
    ),
    "beyond the end": (plan(Allocate(RESULT), Allocate(A, RESULT, const(60)), Free(A)), "a need not fit into result"),
    "beyond the last byte": (
        plan(Allocate(RESULT), Allocate(LONG, RESULT, const(24)), Free(LONG)), "long need not fit into result",
    ),
    "a symbol that need not fit": (
        plan(Allocate(wide := value("wide", Size("s0", 2).index())), Allocate(A, wide, const(0))),
        "a need not fit into wide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_plans_pass(name: str) -> None:
    check_plan(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_plans_are_refused(name: str) -> None:
    wrong, why = WRONG[name]
    with pytest.raises(InternalCheckError, match="memory") as caught:
        check_plan(wrong)
    assert why in str(caught.value)


def test_a_refusal_names_the_users_line() -> None:
    here = Origin("model.py", 12, "forward", "mylib.f.default")
    call = Call(Extern((RESULT,), "mylib.f.default", (full_view(A),), origins=(here,)))
    with pytest.raises(InternalCheckError, match=r"at: model\.py:12 in forward"):
        check_plan(plan(call))
