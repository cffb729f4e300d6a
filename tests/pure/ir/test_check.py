"""Every rule of the IR is checked: what breaks it is refused, with the node and the user's line."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from gyrator.errors import InternalCheckError
from gyrator.ir.check import LOWERED, PREDICATED, SCHEDULED, check_kernel, check_program
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Masked, Op, Random, Ref
from gyrator.ir.index import ZERO, Axis, Index, Indirect, Size
from gyrator.ir.index import const as number
from gyrator.ir.program import Extern, Input, Nest, Node, Pointwise, Program, Reduce, Root, Scan, Scatter, Update, View
from gyrator.ir.tree import Carry, Kernel, Let, Loop, LoopKind, Param, Stage, Store
from gyrator.ir.tree import Update as Feed
from tests.pure.ir.examples import axis, between, const, load, nest, op, value, whole

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
ROWS, COLS, R = axis("i0", 4), axis("i1", 6), axis("r0", 6)
X, Y, COUNTS = value("x", 4, 6), value("y", 4, 6), value("counts", 4, dtype=I64)
FLAG = value("flag", 4, dtype=BOOL)
N = Size("n", 1)


def program(*nodes: Node, outputs: tuple[View, ...] = ()) -> Program:
    return Program("p", (Input(X), Input(COUNTS), Input(FLAG)), nodes, outputs)


def one(root: Root, out: object = None, axes: tuple[Axis, ...] = (ROWS, COLS)) -> Program:
    results = (Y,) if out is None else out
    return program(Nest(results, axes, root))  # type: ignore[arg-type]


def pointwise(body: Expr) -> Program:
    return one(Pointwise(body), (value("y", 4, 6, dtype=body.dtype),))


x = load(X, ROWS, COLS)
flag = load(FLAG, ROWS)
wide = op("gt", x, const(0.0))

BROKEN: list[tuple[str, Program]] = [
    ("axes i2 are not in scope", pointwise(load(X, ROWS, axis("i2", 6)))),
    ("axes i0 are not in scope", pointwise(load(X, axis("i0", 3), COLS))),
    ("reaches 6, the extent is 6", pointwise(load(X, ROWS, COLS.index() + 1))),
    ("reaches -1", pointwise(load(X, ROWS, COLS.index() - 1))),
    ("1 coordinates for x", pointwise(load(X, ROWS))),
    ("not defined before its use", pointwise(load(value("z", 4, 6), ROWS, COLS))),
    ("used as x: f64", pointwise(load(value("x", 4, 6, dtype=torch.float64), ROWS, COLS))),
    ("no such op: frobnicate", pointwise(Op("frobnicate", (x,), F32))),
    ("takes 2 arguments, not 1", pointwise(Op("add", (x,), F32))),
    ("differ in dtype: f32, i64", pointwise(Op("add", (x, load(COUNTS, ROWS)), F32))),
    ("gives f32, but the node says f64", pointwise(Op("add", (x, x), torch.float64))),
    ("gives b1, but the node says f32", pointwise(Op("lt", (x, x), F32))),
    ("logical_and of f32", pointwise(Op("logical_and", (x, x), BOOL))),
    ("exp needs a floating dtype", pointwise(Op("exp", (load(COUNTS, ROWS),), I64))),
    ("bitwise_and needs an integer dtype", pointwise(Op("bitwise_and", (x, x), F32))),
    ("condition of", pointwise(Op("where", (x, x, x), F32))),
    ("bitcast between widths", pointwise(Op("bitcast", (x,), I64))),
    ("literal 1 of f32 is no float", pointwise(op("add", x, Const(1, F32)))),
    ("literal True of i64 is no int", pointwise(Const(True, I64))),
    ("literal 300 does not fit u8", pointwise(Const(300, torch.uint8))),
    ("a mask must be b1", pointwise(Load(X, x.index, mask=x))),
    ("a mask must be b1", pointwise(Masked(x, x, const(0.0)))),
    ("differ in dtype", pointwise(Masked(flag, x, const(0, I64)))),
    ("literal 0 of f32 is no float", pointwise(Masked(flag, x, const(0)))),
    ("literal 0 of f32 is no float", pointwise(Load(X, x.index, mask=flag))),
    ("literal False of i64 is no int", pointwise(Load(COUNTS, (ROWS.index(),), mask=flag, other=False))),
    ("literal 0 of b1 is no bool", pointwise(Load(FLAG, (ROWS.index(),), mask=flag, other=0))),
    ("a checked index must be i64", pointwise(Checked(x, number(4)))),
    ("indirect index", pointwise(load(X, ROWS, Indirect(x, number(6)).index()))),
    ("no such random kind", pointwise(Random("dice", const(0, I64), ZERO, F32))),
    ("a seed must be i64", pointwise(Random("rand", const(0.0), ZERO, F32))),
    ("randint64 is i64 with two bounds", pointwise(Random("randint64", const(0, I64), ZERO, I64))),
    ("size n is not defined here", pointwise(IndexValue(N.index()))),
    ("local %a outside a kernel", pointwise(Ref("a", F32, frozenset()))),
    ("y has shape 4, 7", one(Pointwise(x), (value("y", 4, 7),))),
    ("y is f64, the nest gives f32", one(Pointwise(x), (value("y", 4, 6, dtype=torch.float64),))),
    ("1 values for 2 results", one(Reduce("argmax", (R,), (load(X, ROWS, R), IndexValue(R.index()))), axes=(ROWS,))),
    ("axes are not distinct", one(Reduce("sum", (ROWS,), (x,)))),
    ("no such reduction: median", one(Reduce("median", (R,), (load(X, ROWS, R),)), axes=(ROWS,))),
    ("argmax takes 2 values per element", one(Reduce("argmax", (R,), (load(X, ROWS, R),)), axes=(ROWS,))),
    ("any of f32", one(Reduce("any", (R,), (load(X, ROWS, R),)), axes=(ROWS,))),
    ("sum of bool", one(Reduce("sum", (R,), (op("gt", load(X, ROWS, R), const(0.0)),)), axes=(ROWS,))),
    ("welford of i64", one(Reduce("welford", (R,), (load(COUNTS, ROWS),)), (None, None, None), (ROWS,))),
    ("any is no scan", one(Scan("any", COLS, (flag,)), (value("y", 4, 6, dtype=BOOL),))),
    ("scan along r0", one(Scan("sum", R, (x,)))),
    ("a nest that defines nothing", one(Pointwise(x), (None,))),
    ("no such way to combine: average", one(Scatter(X, (ROWS.index(), COLS.index()), x, "average"), (Y,))),
    ("but f32 is needed", one(Scatter(X, (ROWS.index(), COLS.index()), load(COUNTS, ROWS)), (Y,))),
    ("reaches 6, the extent is 6", one(Scatter(X, (ROWS.index(), COLS.index() + 1), x), (Y,))),
    ("value y is defined twice", program(*[Nest((Y,), (ROWS, COLS), Pointwise(x))] * 2)),
    ("value x is defined twice", one(Pointwise(x), (X,))),
    ("not defined before its use", program(outputs=(whole(Y),))),
    ("no argument is a view of counts", program(Extern((), "aten.neg_.default", (1,), mutates=((COUNTS, Y),)))),
    (
        "is not a new version of counts",
        program(Extern((), "aten.neg_.default", (whole(COUNTS),), mutates=((COUNTS, Y),))),
    ),
    ("not defined before its use", program(Extern((), "aten.cat.default", ((whole(Y),),)))),
    ("1 sizes and 0 strides", program(outputs=(View(X, (number(3),), (), ZERO),))),
    ("reinterprets f32 as i64", program(outputs=(View(X, X.shape, X.strides, ZERO, I64),))),
    ("reinterprets f32 as complex64", program(outputs=(View(X, X.shape, X.strides, ZERO, torch.complex64),))),
    ("reinterprets f32 as complex64", program(outputs=(View(X, (number(2),), (number(2),), ZERO, torch.complex64),))),
    ("reinterprets f32 as complex128", program(outputs=(View(X, (number(2),), (number(1),), ZERO, torch.complex128),))),
    ("depends on a loop axis", program(outputs=(View(X, X.shape, X.strides, ROWS.index()),))),
    ("is not an input", replace(program(), updates=(Update(Y, whole(X)),))),
    ("shapes differ", replace(program(), updates=(Update(X, whole(COUNTS)),))),
]


@pytest.mark.parametrize(("problem", "broken"), BROKEN, ids=[p for p, _ in BROKEN])
def test_a_broken_rule_is_named(problem: str, broken: Program) -> None:
    with pytest.raises(InternalCheckError) as raised:
        check_program(broken)
    assert problem in raised.value.problem


def test_the_user_line_and_the_node_are_named() -> None:
    bad = program(nest(Y, (ROWS, COLS), Pointwise(load(X, ROWS, COLS.index() + 1)), line=42))
    with pytest.raises(InternalCheckError, match=r"model\.py:42 in forward"):
        check_program(bad)


def test_out_of_range_is_fine_under_a_mask_or_in_no_iteration() -> None:
    at = COLS.index() + 1
    mask = between(0, at, 6)
    for body in (Load(X, (ROWS.index(), at), mask, 0.0), Masked(mask, load(X, ROWS, at), const(0.0))):
        check_program(pointwise(body))
    empty = axis("i1", 0)
    check_program(program(Nest((value("y", 4, 0),), (ROWS, empty), Pointwise(load(X, ROWS, empty.index() + 9)))))


def test_an_extent_may_be_less_than_its_bound() -> None:
    """A guard may say that the chunks of a padded sequence have 64 elements, which bounds do not tell."""
    size, w = Size("n", 2), value("w", 64)
    n = size.index()

    def read(extent: Index) -> Program:
        rows = axis("i0", extent)
        copied = Nest((value("y", extent),), (rows,), Pointwise(load(w, rows)))
        return Program("p", (Input(w), Input(size=size)), (copied,), ())

    check_program(read(n + (number(64) - n % number(64)) % number(64)))
    with pytest.raises(InternalCheckError, match="the extent is 64"):
        check_program(read(n + 64))


def test_the_same_load_outside_a_mask_is_still_checked() -> None:
    beyond = load(X, ROWS, COLS.index() + 1)
    guarded = Masked(between(0, COLS.index() + 1, 6), beyond, const(0.0))
    with pytest.raises(InternalCheckError, match="reaches 6"):
        check_program(pointwise(op("add", guarded, beyond)))


def test_a_place_that_is_read_out_of_range_is_fine_under_a_mask_alone() -> None:
    at = COLS.index() + 1
    place = Indirect(Checked(Op("cast", (load(X, ROWS, at),), I64), number(4)), number(4)).index()
    guarded = Masked(between(0, at, 6), load(X, place, COLS), const(0.0))
    check_program(pointwise(guarded))
    with pytest.raises(InternalCheckError, match="reaches 6"):
        check_program(pointwise(op("add", guarded, load(X, place, COLS))))


def test_levels() -> None:
    masked = pointwise(Masked(flag, x, const(0.0)))
    check_program(masked, LOWERED)
    with pytest.raises(InternalCheckError, match="masked expression"):
        check_program(masked, PREDICATED)
    dead = pointwise(x)
    check_program(dead, PREDICATED)
    with pytest.raises(InternalCheckError, match="nothing needs"):
        check_program(dead, SCHEDULED)
    check_program(replace(dead, outputs=(whole(Y),)), SCHEDULED)


def test_checking_is_cheap() -> None:
    """A program of 3,000 nests takes some 0.1 s; the limit allows for a slow machine."""
    nodes, last = [], X
    for k in range(1500):
        new, total = value(f"v{k}", 4, 6), value(f"s{k}", 4)
        nodes.append(Nest((new,), (ROWS, COLS), Pointwise(op("mul", op("exp", load(last, ROWS, COLS)), const(2.0)))))
        nodes.append(Nest((total,), (ROWS,), Reduce("sum", (R,), (load(new, ROWS, R),))))
        last = new
    big = program(*nodes)
    start = time.process_time()
    check_program(big)
    assert time.process_time() - start < 1.5


# -- kernels -------------------------------------------------------------------------------------------------
P, S, L = LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.LANES
ROW = value("row", 6)
OUT = value("out", 4)
BLOCK = axis("b", 3)
total = Ref("total", F32, frozenset({ROWS}))
double = Ref("double", F32, frozenset({ROWS, COLS}))
feed = Feed("acc", (x,))
put = Store(Y, (ROWS.index(), COLS.index()), x)


def kernel(*body: Loop | Stage, scratch: bool = False, **flags: bool) -> Kernel:
    """Reads x, writes y; ``x_written`` and so on change a flag."""
    params = tuple(
        Param(v, flags.get(f"{v}_read", v is X), flags.get(f"{v}_written", v is not X))
        for v in (X, Y, OUT)
        if v is not OUT or "out_written" in flags
    )
    return Kernel("k", params, (), (ROW,) if scratch else (), body)


def rows(*body: Loop | Stage, **options: object) -> Loop:
    return Loop(ROWS, P, body, **options)  # type: ignore[arg-type]


def columns(*body: Loop | Stage, kind: LoopKind = L, **options: object) -> Loop:
    return Loop(COLS, kind, body, **options)  # type: ignore[arg-type]


acc = Carry("acc", "sum", (total,))
summed = columns(feed, put, carries=(acc,))

FOUND = (Indirect(IndexValue(ROWS.index()), number(4)).index(),)

BROKEN_KERNELS: list[tuple[str, Kernel]] = [
    ("x is read=True, loaded=False", kernel(rows(columns(Store(Y, put.index, const(0.0)))))),
    ("y is written=False, stored=True", kernel(rows(columns(put)), y_written=False)),
    ("neither a parameter nor scratch", kernel(rows(columns(put, Store(OUT, (ROWS.index(),), x))))),
    ("axes i1 are not in scope", kernel(rows(put))),
    ("a loop over i0 inside", kernel(rows(Loop(ROWS, S, (columns(put),))))),
    ("a parallel loop inside one that is not", kernel(Loop(ROWS, L, (columns(put, kind=P),)))),
    ("a parallel loop inside one that is not", kernel(rows(Loop(BLOCK, S, (columns(put, kind=P),))))),
    ("vectors within vectors", kernel(Loop(ROWS, L, (columns(put),)))),
    ("4 lanes in a serial loop", kernel(rows(columns(put, kind=S, lanes=4)))),
    ("no loop around carries acc", kernel(rows(columns(feed, put)))),
    ("carry acc is never updated", kernel(rows(columns(put, carries=(acc,))))),
    ("two carries are named acc", kernel(rows(columns(feed, put, carries=(acc, acc))))),
    ("no such reduction", kernel(rows(columns(feed, put, carries=(Carry("acc", "median", (total,)),))))),
    ("2 names for 1 results", kernel(rows(columns(feed, put, carries=(Carry("acc", "sum", (total, None)),))))),
    (
        "the carry gives f32",
        kernel(rows(columns(feed, put, carries=(Carry("acc", "sum", (Ref("t", I64, frozenset()),)),)))),
    ),
    (
        "local %total is not defined here",
        kernel(rows(columns(feed, put, Store(OUT, (ROWS.index(),), total), carries=(acc,))), out_written=True),
    ),
    (
        "local %double is not defined here",
        kernel(rows(columns(Let(double, x), put), columns(Store(Y, put.index, double)))),
    ),
    ("defined twice", kernel(rows(columns(Let(double, x), put), columns(Let(double, x))))),
    ("lacks axes", kernel(rows(columns(Let(Ref("d", F32, frozenset({ROWS})), x), put)))),
    ("scratch row is loaded before", kernel(rows(columns(put, Store(Y, put.index, load(ROW, COLS)))), scratch=True)),
    ("race to write out", kernel(rows(summed), Loop(ROWS, P, (Store(OUT, (ZERO,), const(1.0)),)), out_written=True)),
    ("race to write out", kernel(rows(summed), Loop(ROWS, P, (Store(OUT, FOUND, const(1.0)),)), out_written=True)),
    ("masked expression", kernel(rows(columns(Store(Y, put.index, Masked(wide, x, const(0.0))))))),
    (
        "any has no running results",
        kernel(
            rows(
                columns(
                    put,
                    Feed("acc", (wide,), (Ref("r", BOOL, frozenset({ROWS})),)),
                    carries=(Carry("acc", "any", (None,)),),
                )
            )
        ),
    ),
    ("reaches 6", kernel(rows(columns(Store(Y, (ROWS.index(), COLS.index() + 1), x))))),
]


@pytest.mark.parametrize(("problem", "broken"), BROKEN_KERNELS, ids=[p for p, _ in BROKEN_KERNELS])
def test_a_broken_rule_of_kernels_is_named(problem: str, broken: Kernel) -> None:
    with pytest.raises(InternalCheckError) as raised:
        check_kernel(broken)
    assert problem in raised.value.problem


def test_a_right_kernel_is_checked_without_printing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text repeats what expressions share: that of forty doublings would never end."""

    def printed(expr: Expr) -> str:
        raise AssertionError("an expression was printed")

    monkeypatch.setattr(Expr, "__repr__", printed)
    body = x
    for _ in range(40):
        body = op("add", body, body)
    check_kernel(kernel(rows(columns(Store(Y, put.index, body)))))


def test_nothing_races_to_write_what_has_no_elements() -> None:
    empty = value("empty", 0)
    params = (Param(X, True, False), Param(empty, False, True))
    none = axis("none", 0)
    body = Loop(none, S, (columns(Store(empty, (none.index(),), x)),))
    check_kernel(Kernel("k", params, (), (), (rows(body),)))


def test_a_right_kernel_passes() -> None:
    check_kernel(kernel(rows(summed, Store(OUT, (ROWS.index(),), total)), out_written=True))
    row = Store(ROW, (COLS.index(),), x)
    check_kernel(kernel(rows(columns(row), columns(Store(Y, put.index, load(ROW, COLS)))), scratch=True))
