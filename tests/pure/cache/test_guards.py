"""Facts about sizes: read as arithmetic, never run as Python; asked of symbols, they become guards."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gyrator.cache.key import all_hold, holds, new_facts


@pytest.mark.parametrize(
    ("fact", "truth"),
    [
        ("s0 % 8 == 0", True),
        ("(s0 // 3) < s1", False),
        ("s0 > 3 and s1 != 4", True),
        ("not s0 > 3 or s1 == 5", True),
        ("max(s0, 2*s1) >= 16", True),
        ("-s0 + 16 == 0", True),
        ("math.floor(s0 / 3) == 5", True),
        ("max(1, math.trunc((0.5*float(s0)))) != 8", False),
        ("round(s0 / 3) == s1", True),
        ("math.sqrt(s0) == 4", True),
        ("max(s0, s1, 20) == 20", True),
        ("(s0 & 24) >> 3 == 2", True),
        ("(s0 if s1 > 4 else s1) == 16", True),
    ],
)
def test_facts_are_arithmetic(fact: str, truth: bool) -> None:
    assert holds(fact, {"s0": 16, "s1": 5}) is truth


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()",
        "s0.__class__",
        "[s0 for s0 in ()]",
        "s9 > 1",
        "lambda: 1",
        "open('x')",
        "s0 >",
        "'a' == 'a'",
    ],
)
def test_other_texts_do_not_hold(text: str) -> None:
    _, x = fresh((16,))
    assert not all_hold([text], {"s0": str(x.shape[0])}, [x])


def fresh(shape: tuple[int, ...]) -> tuple[ShapeEnv, torch.Tensor]:
    env = ShapeEnv()
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    mode = FakeTensorMode(shape_env=env)
    return env, mode.from_tensor(torch.empty(shape), source=ConstantSource("x"), symbolic_context=context)


def test_facts_found_while_compiling_become_guards_again() -> None:
    env, x = fresh((24, 5))
    before = len(env.guards)
    names = {str(s): f"c_{k}" for k, s in enumerate(x.shape)}
    assert bool(x.shape[0] % 8 == 0) and bool(x.shape[0] > 4 * x.shape[1])
    facts = new_facts(env, before, names)
    assert len(facts) == 2

    env, x = fresh((16, 3))
    before = len(env.guards)
    assert all_hold(facts, dict(zip(["c_0", "c_1"], map(str, x.shape), strict=True)), [x])
    assert len(env.guards) == before + 2

    _, x = fresh((17, 3))
    assert not all_hold(facts, dict(zip(["c_0", "c_1"], map(str, x.shape), strict=True)), [x])


def test_a_fact_that_cannot_be_read_again_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    env, x = fresh((24, 5))
    assert bool(math.floor(x.shape[0] / 5) == 4)
    monkeypatch.setattr("gyrator.ir.symbols._CALLS", {})
    with pytest.raises(ValueError, match="no arithmetic"):
        new_facts(env, 0, {str(s): f"c_{k}" for k, s in enumerate(x.shape)})


def test_the_largest_of_three_sizes_is_a_fact() -> None:
    env, x = fresh((24, 5, 7))
    a, b, c = x.shape
    assert bool(torch.sym_max(torch.sym_max(a, b), c) == 24)
    facts = new_facts(env, 0, {str(s): f"c_{k}" for k, s in enumerate(x.shape)})
    _, y = fresh((9, 24, 7))
    assert all_hold(facts, dict(zip(["c_0", "c_1", "c_2"], map(str, y.shape), strict=True)), [y])


def test_fact_about_an_unknown_symbol_cannot_be_kept() -> None:
    env, x = fresh((24, 5))
    assert bool(x.shape[0] % 8 == 0)
    with pytest.raises(ValueError, match="speaks of"):
        new_facts(env, 0, {})
