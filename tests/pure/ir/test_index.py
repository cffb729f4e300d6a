"""Index algebra: exact for all values, and strong enough for what models produce."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyrator.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    Size,
    const,
    contiguous_strides,
    div_mod,
    dot,
    evaluate,
    exact_quotient,
    is_less,
    is_nonnegative,
    lower,
    maximum,
    minimum,
    substitute,
    upper,
)
from tests.strategies import IndexCase, Space, _index, indices, spaces

B, S, N = Size("B", 1), Size("S", 1), Size("N", 2)
b, s = Axis("b", B.index()).index(), Axis("s", S.index()).index()
h, d = Axis("h", const(12)).index(), Axis("d", const(64)).index()
i, j = Axis("i", const(2304)).index(), Axis("j", const(6)).index()

many = settings(max_examples=120, deadline=None)


# -- exact ---------------------------------------------------------------------------------------------------
@many
@given(indices())
def test_arithmetic_is_that_of_python_ints(case: IndexCase) -> None:
    assert evaluate(case.index, case.env) == case.value


@many
@given(indices())
def test_bounds_hold(case: IndexCase) -> None:
    low, high = lower(case.index), upper(case.index)
    if low is not None:
        assert not low.axes() and evaluate(low, case.env) <= case.value
    if high is not None:
        assert not high.axes() and evaluate(high, case.env) >= case.value


@pytest.mark.parametrize("rows", [S.index(), const(300_017)])
def test_parts_that_take_turns_end_with_the_last_row(rows: Index) -> None:
    part = Axis("p", const(2112)).index()
    turn = Axis("t", (rows - part + 2111) // 2112).index()
    assert upper((turn * 2112 + part) * 64 + d) is rows * 64 - 1


@many
@given(st.data())
def test_what_is_proved_is_true(data: st.DataObject) -> None:
    space = data.draw(spaces())
    x, y = data.draw(indices(space, 3)), data.draw(indices(space, 3))
    if is_nonnegative(x.index - y.index):
        assert x.value >= y.value
    if is_less(x.index, y.index):
        assert x.value < y.value
    if x.index is y.index:
        assert x.value == y.value


@many
@given(st.data())
def test_substitution_is_evaluation_in_two_steps(data: st.DataObject) -> None:
    space = data.draw(spaces())
    case = data.draw(indices(space, 4))
    target = data.draw(st.sampled_from([a for a in space.atoms if isinstance(a, Axis)]))
    replacement = data.draw(_within(space, target))
    env = {**space.env, target: replacement.value}
    try:
        moved = substitute(case.index, {target: replacement.index})
        expected = evaluate(case.index, env)
    except ZeroDivisionError:
        return
    assert evaluate(moved, space.env) == expected


@st.composite
def _within(draw: st.DrawFn, space: Space, target: Axis) -> IndexCase:
    """An index that is proved to lie within an axis's range."""
    index, value = _index(draw(st.randoms(use_true_random=False)), space, 2)
    extent = evaluate(target.extent, space.env)
    return IndexCase(index % target.extent, space.env, value % extent)


@many
@given(st.data())
def test_division_gives_quotient_and_remainder(data: st.DataObject) -> None:
    space = data.draw(spaces())
    num, den = data.draw(indices(space, 3)), data.draw(indices(space, 1))
    if not is_nonnegative(den.index - 1):
        return
    q, r = div_mod(num.index, den.index)
    assert (evaluate(q, space.env), evaluate(r, space.env)) == divmod(num.value, den.value)


@many
@given(indices())
def test_an_index_knows_its_axes_and_sizes(case: IndexCase) -> None:
    assert set(case.index.atoms()) >= {*case.index.axes(), *case.index.sizes()}
    assert copy.deepcopy(case.index) is case.index
    assert pickle.loads(pickle.dumps(case.index)) is case.index


@many
@given(st.data())
def test_a_coefficient_is_the_slope(data: st.DataObject) -> None:
    space = data.draw(spaces())
    case = data.draw(indices(space, 4))
    for axis in (a for a in space.atoms if isinstance(a, Axis)):
        slope = case.index.coefficient(axis)
        if slope is not None:
            at_0, at_1 = (evaluate(case.index, {**space.env, axis: k}) for k in (0, 1))
            assert at_1 - at_0 == evaluate(slope, space.env)


def test_a_multiple_of_what_may_be_none_has_no_remainder() -> None:
    """A divisor is positive, though half a size might be none."""
    half = Size("n", 1).index() // 2
    assert half * 17 // half is const(17)
    assert half * 17 % half is ZERO


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        div_mod(i, ZERO)


# -- strong enough -------------------------------------------------------------------------------------------
hidden = (b * S.index() + s) * 768 + 64 * h + d


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (hidden // 768, b * S.index() + s),
        (hidden % 768, 64 * h + d),
        (hidden // 768 // S.index(), b),
        (hidden // 768 % S.index(), s),
        (hidden % 768 // 64, h),
        (hidden % 64, d),
        (hidden // (S.index() * 768), b),
        ((i // 36) * 36 + i % 36, i),
        ((i // 36 // 2) * 2 + i // 36 % 2, i // 36),
        (i % 36 // 6, i // 6 % 6),
        (i // 6 // 6, i // 36),
        (i // 6 % 6 + i // 36 * 6, i // 6),
        ((i + 2304) % 2304, i),
        ((6 * i + j) // 6, i),
        ((6 * i + 5 - j) % 6, 5 - j),
        ((12 * i + 3) // 4, 3 * i),
        ((b * (S.index() + 2) + s + 1) // (S.index() + 2), b),
        ((s * N.index()) // N.index(), s),
        ((N.index() * B.index()) // N.index(), B.index()),
        (minimum(h, const(11)), h),
        (maximum(h, ZERO), h),
        (h % 12, h),
        (h // 12, ZERO),
        ((-h - 1) // 12, const(-1)),
    ],
    ids=str,
)
def test_simplifies(actual: Index, expected: Index) -> None:
    assert actual is expected


def test_equal_polynomials_are_one_object() -> None:
    assert (b + s) * (b - s) is b * b - s * s
    assert b + s - s is b
    assert 2 * b - b - b is ZERO
    assert exact_quotient(b * b - s * s, b + s) is b - s
    assert exact_quotient(b * b - s * s + 1, b + s) is None


def test_strides_of_a_contiguous_shape() -> None:
    shape = (B.index(), S.index(), const(8))
    assert contiguous_strides(shape) == (8 * S.index(), const(8), ONE)
    coords = (b, s, Axis("c", const(8)).index())
    assert is_less(dot(coords, contiguous_strides(shape)), B.index() * S.index() * 8)


def test_window_partition_and_reverse_cancel() -> None:
    """Swin: [B, H, W] split into windows of 7 x 7 and put back reads every pixel at itself."""
    y, x = Axis("y", const(56)).index(), Axis("x", const(56)).index()
    window = (y // 7) * 8 + x // 7
    flat = window * 49 + (y % 7) * 7 + x % 7
    assert flat // 49 // 8 * 7 + flat % 49 // 7 is y
    assert flat // 49 % 8 * 7 + flat % 7 is x


@pytest.mark.parametrize("shape", list(itertools.product([2, 3, 6], [2, 4], [5])), ids=str)
def test_flattening_and_splitting_cancel_for_every_shape(shape: tuple[int, ...]) -> None:
    axes = [Axis(f"a{k}", const(n)).index() for k, n in enumerate(shape)]
    flat = dot(tuple(axes), contiguous_strides(tuple(const(n) for n in shape)))
    rest, found = flat, []
    for n in reversed(shape):
        found.insert(0, rest % n)
        rest = rest // n
    assert found == axes and rest is ZERO


def test_the_digits_of_a_blocked_flat_index_add_up_to_it() -> None:
    """[4, 33, 128] run over in blocks of 2048, which divide neither 128·33 nor the whole."""
    block = Axis("block", const(9)).index()
    flat = block * 2048 + Axis("t", minimum(const(2048), const(16896) - block * 2048)).index()
    assert (flat // 4224) * 4224 + (flat // 128 % 33) * 128 + flat % 128 is flat


def test_products_of_quotients_are_not_negative() -> None:
    step, block = (N.index() + 15) // 16, Axis("b", const(16))
    assert is_nonnegative(step) and is_nonnegative(step * block.index())
    assert not is_nonnegative(step * block.index() - 1)


def test_of_a_number_and_its_negative_one_is_not_below_zero() -> None:
    """A mirrored position, as padding by reflection reads, is within the input."""
    i = Axis("i", const(58)).index()
    once = maximum(i - 1, 1 - i)
    assert is_nonnegative(once) and is_nonnegative(55 - maximum(55 - once, once - 55))
    assert is_less(55 - maximum(55 - once, once - 55), 56)
    assert not is_nonnegative(maximum(i - 3, 1 - i))


def test_a_product_of_numbers_below_zero_has_no_bound() -> None:
    s, t = Size("s", -10, 2).index(), Size("t", 0, 2).index()
    assert is_nonnegative(2 - s) and is_nonnegative(4 - t * t)
    assert not is_nonnegative(5 - s * s)
