"""Places in 32 bits: which are, and what is asked of their size."""

from __future__ import annotations

import torch

from gyrator.ir.check import PREDICATED, check_program
from gyrator.ir.expr import Checked, Expr, Load
from gyrator.ir.index import Index, IndexLike, Indirect, Size, as_index
from gyrator.ir.program import Input, Nest, Pointwise, Program
from gyrator.ir.volume import WITHIN_32_BITS
from gyrator.schedule.narrow import narrow_places
from tests.pure.ir.examples import axis, cast, const, load, op, value, whole

HERE = axis("i0", 6)
N = Size("s0", 0)
FLOATS, WIDE = value("at", 6), value("n", 6, dtype=torch.int64)


def place(arg: Expr, extent: IndexLike = 9) -> str:
    """Where ``x[arg]`` reads once the pass is done."""
    x, y = value("x", extent), value("y", 6)
    body = load(x, Indirect(Checked(arg, as_index(extent)), as_index(extent)).index())
    inputs = (Input(size=N), Input(x), Input(FLOATS), Input(WIDE), Input(value("short", 6, dtype=torch.int32)))
    after = narrow_places(Program("p", inputs, (Nest((y,), (HERE,), Pointwise(body)),), (whole(y),)))
    check_program(after, PREDICATED)
    (nest,) = after.nodes
    assert isinstance(nest, Nest) and isinstance(nest.root, Pointwise) and isinstance(nest.root.body, Load)
    (index,) = nest.root.body.index
    assert isinstance(index, Index)
    (atom,) = index.indirects()
    return str(atom.value)


def test_a_float_is_converted_and_checked_in_32_bits() -> None:
    assert place(cast(load(FLOATS, HERE), torch.int64)) == "i64(checked(i32(at[i0]), 9))"


def test_a_short_integer_stays_as_it_is() -> None:
    assert place(cast(load(value("short", 6, dtype=torch.int32), HERE), torch.int64)) == "i64(checked(short[i0], 9))"


def test_a_choice_between_a_place_and_a_literal_is_narrow() -> None:
    at = load(FLOATS, HERE)
    chosen = op("where", op("ge", at, const(0.0)), cast(at, torch.int64), const(0, torch.int64))
    assert place(chosen) == "i64(checked(where(at[i0] >= 0.0, i32(at[i0]), 0:i32), 9))"


def test_integers_of_64_bits_and_what_is_computed_of_them_stay() -> None:
    at = load(WIDE, HERE)
    assert place(at) == "checked(n[i0], 9)"
    clamped = op("minimum", cast(load(FLOATS, HERE), torch.int64), const(8, torch.int64))
    assert place(clamped).startswith("checked(minimum(i64(")
    assert place(const(1 << 40, torch.int64)) == f"checked({1 << 40}, 9)"


def test_a_size_that_may_need_64_bits_keeps_them() -> None:
    arg = cast(load(FLOATS, HERE), torch.int64)
    assert place(arg, WITHIN_32_BITS - 1).startswith("i64(")
    assert place(arg, WITHIN_32_BITS).startswith("checked(i64(")
    assert place(arg, N.index()).startswith("checked(i64(")
