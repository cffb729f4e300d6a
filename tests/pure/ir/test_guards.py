"""What holds for sizes in every call: what is proved, and what torch guards."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.ir.index import Axis, const
from gyrator.ir.symbols import Symbols
from tests.pure.ir.test_symbols import fake


def test_bounds_prove() -> None:
    env, (s, t) = fake((16, 8))
    torch._check(t <= 64)
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    guards = len(env.guards)
    for true in (const(0), n - 2, n * 8 - 16, 64 - m):
        assert symbols.nonnegative(true)
    assert len(env.guards) == guards


def test_a_guard_makes_what_bounds_leave_open_hold_in_later_calls() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    guards = len(env.guards)
    assert symbols.nonnegative(n - m)
    assert {str(symbol) for guard in env.guards[guards:] for symbol in guard.expr.free_symbols} == {str(s), str(t)}
    assert symbols.nonnegative(n - m)
    assert len(env.guards) == guards + 1


def test_what_is_false_now_holds_in_no_call() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    assert not symbols.nonnegative(m - n)
    assert env.guards == []


@pytest.mark.parametrize(("size", "text"), [(16, "(s // 4)"), (3, "max((s // 4), 1)")])
def test_strides_of_an_empty_tensor_are_for_a_call_that_has_one(size: int, text: str) -> None:
    env, (s, _) = fake((size, 8))
    index = Symbols(env).to_index(torch.sym_max(s // 4, 1))
    assert str(index).replace(str(s), "s") == text
    assert len(env.guards) == (size == 16)


def test_no_guard_is_made_once_torch_has_frozen_them() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    env.freeze()
    assert not symbols.nonnegative(n - m)
    assert env.guards == []


def test_what_only_a_run_tells_is_not_known() -> None:
    env = ShapeEnv()
    symbols = Symbols(env)
    u = symbols.to_index(env.create_unbacked_symint())
    assert not symbols.nonnegative(u - 3)
    assert not symbols.nonnegative(Axis("i0", u).index() - 1)
    assert env.guards == []
