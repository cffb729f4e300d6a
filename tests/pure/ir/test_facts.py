"""Facts about sizes: proved, guarded or only hinted, and never more than that."""

from __future__ import annotations

import pytest

from gyrator.ir.facts import Facts, Guarded, HintOnly, Proved, condition, divides, equal, facts_of
from gyrator.ir.index import Size
from gyrator.ir.symbols import Symbols
from tests.pure.ir.test_symbols import fake

N, M = Size("n", 2), Size("m", 0, 64)
n, m = N.index(), M.index()


@pytest.mark.parametrize(
    "true",
    [condition(2, "<=", n), condition(1, "<", n), condition(m, "<=", 64), divides(8, 16 * n), equal(n * 2, n + n)],
    ids=str,
)
def test_bounds_prove(true: object) -> None:
    facts = Facts()
    assert facts.proves(true)
    assert facts.likely(true) == facts.require(true) == Proved(true)


@pytest.mark.parametrize("open_", [condition(3, "<=", n), divides(8, n), equal(n, m), condition(m, "<", 64)], ids=str)
def test_what_bounds_leave_open_is_a_hint_at_most(open_: object) -> None:
    facts = Facts({N: 16, M: 16})
    assert not facts.proves(open_)
    assert facts.likely(open_) == HintOnly(open_)
    assert facts.require(open_) is None
    assert Facts({N: 2, M: 64}).likely(condition(n, "<", 2)) is None
    assert Facts().likely(open_) is None


def test_hints_need_an_explicit_fallback_where_a_size_is_unknown() -> None:
    facts = Facts({N: 5})
    assert facts.hint(n * 2 + 1) == 11
    assert facts.hint(n + m) is None
    assert facts.hint(n + m, fallback=32) == 37


def test_a_guard_makes_a_hint_hold_in_later_calls() -> None:
    env, (s, _) = fake((16, 8))
    symbols = Symbols(env)
    wanted = divides(8, symbols.to_index(s))
    facts = facts_of(symbols, may_guard=True)
    assert facts.require(wanted) == Guarded(wanted)
    assert any("8" in str(g.expr) for g in env.guards)
    assert facts.require(divides(7, symbols.to_index(s))) is None


def test_no_guard_is_made_once_torch_has_frozen_them() -> None:
    env, (s, _) = fake((16, 8))
    symbols = Symbols(env)
    wanted = divides(8, symbols.to_index(s))
    env.freeze()
    assert facts_of(symbols, may_guard=True).require(wanted) is None
    assert facts_of(symbols, may_guard=False).require(wanted) is None
    assert env.guards == []
