"""Facts about sizes: proved, guarded or only hinted, and never more than that."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.ir.facts import Guarded, HintOnly, Proved, nonnegative
from gyrator.ir.index import Axis, const
from gyrator.ir.symbols import Symbols
from tests.pure.ir.test_symbols import fake


def test_bounds_prove() -> None:
    env, (s, t) = fake((16, 8))
    torch._check(t <= 64)
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    for true in (const(0), n - 2, n * 8 - 16, 64 - m):
        assert nonnegative(true, symbols) == Proved(true)


def test_a_guard_makes_what_bounds_leave_open_hold_in_later_calls() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    guards = len(env.guards)
    assert nonnegative(n - m, symbols) == Guarded(n - m)
    assert {str(symbol) for guard in env.guards[guards:] for symbol in guard.expr.free_symbols} == {str(s), str(t)}
    assert nonnegative(n - m, symbols) == Guarded(n - m)
    assert len(env.guards) == guards + 1


def test_what_is_false_now_is_no_fact() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    assert nonnegative(m - n, symbols) is None
    assert env.guards == []


def test_no_guard_is_made_once_torch_has_frozen_them() -> None:
    env, (s, t) = fake((16, 8))
    symbols = Symbols(env)
    n, m = symbols.shape((s, t))
    env.freeze()
    assert nonnegative(n - m, symbols) == HintOnly(n - m)
    assert env.guards == []


def test_what_only_a_run_tells_is_no_fact() -> None:
    env = ShapeEnv()
    symbols = Symbols(env)
    u = symbols.to_index(env.create_unbacked_symint())
    assert nonnegative(u - 3, symbols) is None
    assert nonnegative(Axis("i0", u).index() - 1, symbols) is None
    assert env.guards == []
