"""Memory held over the steps of a plan: names that share memory count once, inputs not at all."""

from __future__ import annotations

import torch

from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, const
from gyrator.schedule.plan import Allocate, Free, Launch, Plan, Step, held


def value(name: str, size: int) -> Value:
    return Value(name, (const(size),), torch.float32, (ONE,), torch.device("cpu"))


X, A, B, C, D = value("x", 10), value("a", 10), value("b", 10), value("c", 20), value("d", 10)
STEPS: tuple[Step, ...] = (
    Allocate(A), Launch("k", (X, A)),
    Allocate(B, A), Launch("k", (A, B)), Free(A),  # in place: the memory lives on under its second name
    Allocate(C), Launch("k", (B, C)), Free(B),
    Allocate(D, X), Launch("k", (C, D)), Free(C), Free(X), Free(D),  # in place of an input
    Launch("k", ()),
)  # fmt: skip


def test_memory_is_counted_once_from_its_first_name_to_its_last() -> None:
    plan = Plan("p", (), STEPS, (), ())
    size_of = {A: 40, B: 40, C: 80}  # no input's size is asked for, nor that of what lies in one
    found = [(total, [v.name for v in values]) for total, values in held(plan, size_of.__getitem__)]
    assert found == [(40, ["a"]), (40, ["a"]), (120, ["a", "c"]), (80, ["c"]), (0, [])]
