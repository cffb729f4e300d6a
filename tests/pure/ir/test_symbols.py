"""Symbolic ints of torch become indices with the same value, bounds and hints."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch
from torch import SymInt
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import Mod

from gyrator.ir.index import Size, div_mod, evaluate, is_nonnegative
from gyrator.ir.interp import derive
from gyrator.ir.symbols import Symbols, hint_of, python_text


def fake(shape: tuple[int, ...]) -> tuple[ShapeEnv, tuple[SymInt, ...]]:
    env = ShapeEnv()
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    tensor = FakeTensorMode(shape_env=env).from_tensor(torch.empty(shape), symbolic_context=context)
    return env, tuple(tensor.shape)


POLYNOMIAL: list[Callable[[SymInt, SymInt], SymInt]] = [
    lambda s, t: s * 2 + 1,
    lambda s, t: s * t - 3 * s,
    lambda s, t: s // 2,
    lambda s, t: (s + t) // 3,
    lambda s, t: s % 4,
    lambda s, t: -(-s // t),
    lambda s, t: s**2,
    lambda s, t: s << 3,
    lambda s, t: (s * t) // t,
    lambda s, t: (s // 2) ** 2 // (s // 2),
    lambda s, t: torch.sym_max(s, t),
    lambda s, t: torch.sym_min(s, 5),
    lambda s, t: torch.sym_sum([s, t, 3]),
    lambda s, t: torch.sym_int(s / 2),
    lambda s, t: math.ceil(s / t),
    lambda s, t: math.floor(s / 4),
]
OPAQUE: list[Callable[[SymInt, SymInt], SymInt]] = [
    lambda s, t: torch.sym_int(s * 0.3),
    lambda s, t: round(s / 4),
    lambda s, t: torch.sym_int(torch.sym_sqrt(s * t)),
    lambda s, t: torch.sym_ite(s > 3, s, t + 1),
    lambda s, t: s & 6,
    lambda s, t: (s | 3) ^ t,
]


@pytest.mark.parametrize("case", range(len(POLYNOMIAL)))
def test_integer_arithmetic_stays_in_the_algebra(case: int) -> None:
    env, (s, t) = fake((13, 8))
    symbols = Symbols(env)
    result = POLYNOMIAL[case](s, t)
    index = symbols.to_index(result)
    assert not symbols.derived
    for a, b in ((13, 8), (2, 9), (30, 3)):
        sizes = {symbols.to_index(s).atom: a, symbols.to_index(t).atom: b}
        expected = result.node.expr.xreplace({s.node.expr: a, t.node.expr: b})
        assert evaluate(index, dict(sizes)) == int(expected)


@pytest.mark.parametrize("case", range(len(OPAQUE)))
def test_other_functions_become_a_derived_size_with_python_text(case: int) -> None:
    env, (s, t) = fake((13, 8))
    symbols = Symbols(env)
    result = OPAQUE[case](s, t)
    (atom,) = symbols.to_index(result).atoms()
    (derived,) = symbols.derived
    assert derived.size is atom
    names = {str(s.node.expr): 13, str(t.node.expr): 8}
    assert int(eval(derived.text, {"math": math}, names)) == result.node.hint == derived.size.hint


def test_equal_expressions_give_the_identical_index() -> None:
    env, (s, t) = fake((13, 8))
    symbols = Symbols(env)
    assert symbols.to_index(s * t + s) is symbols.to_index(s * (t + 1))
    assert symbols.to_index(torch.sym_int(s * 0.3)) is symbols.to_index(torch.sym_int(s * 0.3))
    assert len(symbols.derived) == 1


def test_bounds_come_from_torch() -> None:
    env, (s, t) = fake((13, 8))
    torch._check(t <= 64)
    symbols = Symbols(env)
    assert is_nonnegative(symbols.to_index(s * 2 + 1) - 5)
    assert is_nonnegative(symbols.to_index(t - 1) - 1)
    assert is_nonnegative(63 - symbols.to_index(t - 1))
    assert not is_nonnegative(62 - symbols.to_index(t - 1))


def test_an_unbacked_size_has_bounds_but_no_hint() -> None:
    env = ShapeEnv()
    u = env.create_unbacked_symint()
    torch._check(u >= 4)
    symbols = Symbols(env)
    assert is_nonnegative(symbols.to_index(u * 2) - 8)
    assert not is_nonnegative(symbols.to_index(u * 2) - 9)
    assert {size.hint for size in symbols.to_index(u).sizes()} == {None}


def test_a_size_whose_divisor_is_zero_once_others_are_rounded_has_no_rounded_hint() -> None:
    """Rounded, 60 counts as 64. Sizes of a mixture of experts (JetMoe) and of FocalNet divide so."""
    env, (s, t) = fake((60, 8))
    size = (s * t) // (64 - s)
    assert hint_of(size.node.expr, env) == 120
    assert hint_of(size.node.expr, env, rounded=True) is None


def test_a_size_is_a_plain_symbol() -> None:
    env, (s, _) = fake((13, 8))
    symbols = Symbols(env)
    assert isinstance(symbols.to_index(s).atom, Size)
    assert symbols.to_index(s + 1).atom is None


def test_a_head_split_divides_exactly() -> None:
    env, (s, t) = fake((13, 8))
    symbols = Symbols(env)
    quotient, rest = div_mod(symbols.to_index(s * t * 64), symbols.to_index(t * 64))
    assert quotient is symbols.to_index(s) and rest.value == 0


@pytest.mark.parametrize("number", [0.1 + 0.2, 1e-30 / 3, -2.0 / 3 * 1e22, 1e300])
def test_the_text_of_a_float_is_that_float(number: float) -> None:
    assert eval(python_text(sympy.Float(number))) == number


def test_a_remainder_of_a_difference_keeps_its_parentheses() -> None:
    size = sympy.Symbol("s", integer=True, positive=True)
    padding = Mod(4 - Mod(size, 4), 4)
    for value in range(1, 9):
        assert eval(python_text(padding), {"s": value}) == -value % 4


def test_a_function_without_text_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no Python text for unheard"):
        python_text(sympy.Function("unheard")(sympy.Symbol("s")))


def test_a_sum_of_fractions_is_not_rounded_part_by_part() -> None:
    symbols, s = Symbols(), sympy.Symbol("s0", integer=True, positive=True)
    symbols.from_sympy((s + 1) / 2)
    (derived,) = symbols.derived
    assert [derive(derived.text, {Size("s0"): n}) for n in (3, 8)] == [2, 4]
