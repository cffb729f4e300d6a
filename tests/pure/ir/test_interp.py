"""The reference interpreter against torch: reductions, scans, scatters, masks, externs, kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gyrator.errors import IndexOutOfRange
from gyrator.ir.check import check_kernel, check_program
from gyrator.ir.evaluate import OutOfRange, reduce_dims, scan_dim, start
from gyrator.ir.expr import Checked, Expr, IndexValue, Load, Masked, Random, Ref, Value
from gyrator.ir.index import ONE, ZERO, Axis, Indirect, Size
from gyrator.ir.index import const as number
from gyrator.ir.interp import run_program
from gyrator.ir.philox import integers, philox, rand, randn
from gyrator.ir.program import Derived, Extern, Input, Nest, Pointwise, Program, Reduce, Root, Scan, Scatter, View
from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Carry, Kernel, Let, Loop, LoopKind, Param, Store, Update
from tests.interp_tree import merge, run_kernel
from tests.pure.ir.examples import axis, between, const, load, op, value, whole

F32, I64 = torch.float32, torch.int64
i, j, r, q = axis("i0", 4), axis("i1", 6), axis("r0", 6), axis("r1", 4)
x, y = value("x", 4, 6), value("y", 4, 6)
row = value("row", 4)


def special() -> Tensor:
    data = torch.randint(-4, 5, (4, 6), generator=torch.Generator().manual_seed(1)).float() / 2
    data[1, 2], data[2, 0], data[3, 5] = math.nan, math.inf, -math.inf
    return data


def run(root: Root, axes: tuple[Axis, ...], *out: Value | None, given: Tensor) -> tuple[Tensor, ...]:
    """The results of one nest over ``x``."""
    shown = tuple(whole(v) for v in out if v is not None)
    program = Program("p", (Input(x),), (Nest(out, axes, root),), shown)
    check_program(program)
    outputs = run_program(program, [given]).outputs
    return tuple(o for o in outputs if isinstance(o, Tensor))


# -- reductions ----------------------------------------------------------------------------------------------
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda t: t.sum(1),
    "prod": lambda t: t.prod(1),
    "max": lambda t: t.amax(1),
    "min": lambda t: t.amin(1),
    "logaddexp": lambda t: t.logsumexp(1),
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduction_over_the_last_dimension(kind: str) -> None:
    (result,) = run(Reduce(kind, (r,), (load(x, i, r),)), (i,), row, given=special())
    torch.testing.assert_close(result, REDUCTIONS[kind](special()), equal_nan=True)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_extremes_take_nan_first_and_the_first_of_equals(kind: str) -> None:
    at = value("at", 4, dtype=I64)
    body = (load(x, i, r), IndexValue(r.index()))
    best, where = run(Reduce(kind, (r,), body), (i,), row, at, given=special())
    expected = getattr(torch, kind)(special(), 1)
    assert torch.equal(where, expected)
    torch.testing.assert_close(best, special().gather(1, expected[:, None])[:, 0], equal_nan=True)


def test_any_and_all() -> None:
    flags = value("flags", 4, dtype=torch.bool)
    positive = op("gt", load(x, i, r), const(0.0))
    data = special().nan_to_num(0)
    assert torch.equal(run(Reduce("any", (r,), (positive,)), (i,), flags, given=data)[0], (data > 0).any(1))
    assert torch.equal(run(Reduce("all", (r,), (positive,)), (i,), flags, given=data)[0], (data > 0).all(1))


def test_welford_and_softmax_over_both_dimensions() -> None:
    data, scalar = torch.randn(4, 6), [value(n) for n in ("a", "b", "c")]
    body = (load(x, q, r),)
    mean, m2, count = run(Reduce("welford", (q, r), body), (), *scalar, given=data)
    torch.testing.assert_close(mean, data.mean())
    torch.testing.assert_close(m2 / count, data.var(unbiased=False))
    top, total = run(Reduce("softmax", (q, r), body), (), *scalar[:2], given=data)
    torch.testing.assert_close(top, data.max())
    torch.testing.assert_close(total, (data - data.max()).exp().sum())


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all", "logaddexp", "welford"])
def test_no_elements_give_the_start(kind: str) -> None:
    dtype = torch.bool if kind in ("any", "all") else F32
    state = reduce_dims(kind, (torch.empty(3, 0, dtype=dtype),), 1)
    for got, wanted in zip(state, start(kind, dtype), strict=True):
        assert torch.equal(got, wanted.expand(3))


@pytest.mark.parametrize("kind", ["sum", "max", "argmax", "argmin", "welford", "softmax", "logaddexp"])
@pytest.mark.parametrize("split", [1, 3, 5])
def test_merging_parts_is_reducing_the_whole(kind: str, split: int) -> None:
    data = special().nan_to_num(0, posinf=4, neginf=-math.inf)
    args = (data, torch.arange(6).expand(4, 6)) if kind.startswith("arg") else (data,)
    if kind == "welford":
        args = (data.clamp(min=-9),)
    parts = [reduce_dims(kind, tuple(a[:, s] for a in args), 1) for s in (slice(split), slice(split, 6))]
    for got, wanted in zip(merge(kind, *parts), reduce_dims(kind, args, 1), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


# -- scans ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logaddexp"])
def test_scan(kind: str) -> None:
    torch_name = {"sum": "cumsum", "prod": "cumprod", "logaddexp": "logcumsumexp"}
    (result,) = run(Scan(kind, j, (load(x, i, j),)), (i, j), y, given=special())
    if kind in torch_name:
        expected = getattr(torch, torch_name[kind])(special(), 1)
    else:
        expected = getattr(torch, f"cum{kind}")(special(), 1).values
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_scan_of_extremes_takes_the_last_of_equals() -> None:
    best, at = scan_dim("argmax", (torch.tensor([1.0, 3.0, 3.0, 2.0]), torch.arange(4)), 0)
    assert best.tolist() == [1, 3, 3, 3] and at.tolist() == [0, 1, 2, 2]


# -- scatters ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
def test_scatter_combines_points_that_meet(combine: str) -> None:
    """Every column is folded onto column 0 and 1."""
    root = Scatter(x, (i.index(), j.index() % 2), load(x, i, j), combine)
    data = special().nan_to_num(0, 2, -2)
    (result,) = run(root, (i, j), y, given=data)
    how = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[combine]
    at = (torch.arange(6) % 2).expand(4, 6)
    torch.testing.assert_close(result, data.scatter_reduce(1, at, data, how, include_self=True))


# -- masks and run-time indices ------------------------------------------------------------------------------
def shifted(body: Callable[[Expr, Load], Expr]) -> Tensor:
    at = j.index() - 1
    return run(Pointwise(body(between(0, at, 6), load(x, i, at))), (i, j), y, given=special())[0]


def test_masked_loads_read_nothing_outside() -> None:
    by_mask = shifted(lambda mask, inner: Masked(mask, inner, const(7.0)))
    by_load = shifted(lambda mask, inner: replace_mask(inner, mask))
    expected = torch.cat([torch.full((4, 1), 7.0), special()[:, :5]], 1)
    torch.testing.assert_close(by_mask, expected, equal_nan=True)
    torch.testing.assert_close(by_load, expected, equal_nan=True)


def replace_mask(inner: Load, mask: Expr) -> Load:
    return Load(inner.value, inner.index, mask, 7.0)


def test_a_load_out_of_range_without_a_mask_is_a_broken_program() -> None:
    beyond = Nest((y,), (i, j), Pointwise(load(x, i, (j.index() * 3) // 2)))
    with pytest.raises(OutOfRange, match=r"x\[i0, .*\]: .* is 6, extent 6"):
        run_program(Program("p", (Input(x),), (beyond,), (whole(y),)), [special()])


def gather(index: list[int], mask: Expr | None = None) -> Tensor:
    idx = value("idx", 4, dtype=I64)
    at = Indirect(Checked(load(idx, i), number(6), mask), number(6)).index()
    nest = Nest((row,), (i,), Pointwise(load(x, i, at)))
    program = Program("p", (Input(x), Input(idx)), (nest,), (whole(row),))
    (result,) = run_program(program, [special(), torch.tensor(index)]).outputs
    assert isinstance(result, Tensor)
    return result


def test_checked_indices_wrap_and_are_checked() -> None:
    torch.testing.assert_close(gather([0, 2, -6, -1]), special()[[0, 1, 2, 3], [0, 2, 0, 5]], equal_nan=True)
    with pytest.raises(IndexOutOfRange, match="index 6 is out of bounds"):
        gather([0, 6, 1, 1])
    with pytest.raises(IndexError):
        gather([0, -7, 1, 1])


def test_an_index_is_checked_only_where_its_mask_holds() -> None:
    assert gather([0, 2, 1, 99], between(0, i.index(), 3))[:3].isfinite().tolist() == [True, False, True]


# -- random --------------------------------------------------------------------------------------------------
def test_philox_gives_the_published_numbers() -> None:
    """Known answers of the authors' implementation for an all-zero key and counter."""
    words = philox(torch.tensor(0), torch.tensor(0))
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_numbers_have_their_distribution() -> None:
    drawn = (torch.tensor(3), torch.arange(40_000))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        u = rand(*drawn, dtype).double()
        assert float(u.min()) >= 0 and float(u.max()) < 1
        assert abs(float(u.mean()) - 0.5) < 0.01 and abs(float(u.std()) - 12**-0.5) < 0.01
        n = randn(*drawn, dtype).double()
        assert n.isfinite().all() and abs(float(n.mean())) < 0.02 and abs(float(n.std()) - 1) < 0.02
        for fours in (u.view(-1, 4), n.view(-1, 4)):  # they share a call
            assert float((torch.corrcoef(fours.T) - torch.eye(4)).abs().max()) < 0.05
    d = integers(philox(*drawn), torch.tensor(-3), torch.tensor(7))
    assert d.unique().tolist() == list(range(-3, 7))


@pytest.mark.parametrize("span", [1, 10, 2**40 + 1, 2**62 + 5, 2**63 - 1])
def test_integers_are_an_unsigned_remainder(span: int) -> None:
    bits = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    words = (torch.tensor([b & 0xFFFFFFFF for b in bits]), torch.tensor([b >> 32 for b in bits]))
    drawn = integers((*words, *words), torch.tensor(0), torch.tensor(span))
    assert drawn.tolist() == [b % span for b in bits]


def test_a_draw_depends_on_seed_and_offset_alone() -> None:
    first = Random("rand", const(5, I64), i.index() * 6 + j.index(), F32)
    turned = Random("rand", const(5, I64), j.index() + i.index() * 6, F32)
    (a,), (b,) = (run(Pointwise(e), (i, j), y, given=special()) for e in (first, turned))
    assert torch.equal(a, b) and a.unique().numel() == 24


# -- programs ------------------------------------------------------------------------------------------------
def test_outputs_have_the_strides_of_their_values() -> None:
    turned = replace_strides(y, (ONE, number(4)))
    (result,) = run(Pointwise(load(x, i, j)), (i, j), turned, given=special())
    assert result.stride() == (1, 4)
    torch.testing.assert_close(result, special(), equal_nan=True)


def replace_strides(v: Value, strides: tuple[object, ...]) -> Value:
    return Value(v.name, v.shape, v.dtype, strides, v.device)  # type: ignore[arg-type]


def test_inputs_must_fit() -> None:
    program = Program("p", (Input(x),), (), (whole(x),))
    with pytest.raises(ValueError, match="strides"):
        run_program(program, [torch.randn(6, 4).T])
    with pytest.raises(ValueError, match="given"):
        run_program(program, [torch.randn(4, 5)])
    with pytest.raises(ValueError, match="0 arguments for 1 inputs"):
        run_program(program, [])


def test_sizes_come_from_shapes_and_derived_texts() -> None:
    n, d = Size("n", 1), Size("d", 0)
    v, out = value("v", n.index()), value("out", d.index(), dtype=I64)
    k = axis("i0", d.index())
    nest = Nest((out,), (k,), Pointwise(IndexValue(k.index() * n.index())))
    program = Program(
        "p", (Input(v),), (nest,), (whole(out), n.index() + 1), derived=(Derived(d, "", "math.floor(math.sqrt(n))"),)
    )
    check_program(replace(program, inputs=(Input(v), Input(size=n))))
    result, plus_one = run_program(program, [torch.zeros(10)]).outputs
    assert isinstance(result, Tensor) and result.tolist() == [0, 10, 20] and plus_one == 11


def test_externs_see_strided_views_and_mutate_new_versions() -> None:
    new, out, s = value("x@1", 4, 6), value("out", 6, 4), Size("u", 0)
    column = View(x, (number(4),), (number(6),), number(2))
    program = Program(
        "p",
        (Input(x),),
        (
            Extern((), "aten.mul_.Scalar", (column, 10), mutates=((column.value, new),)),
            Extern((out,), "aten.t.default", (whole(new),)),
            Extern((), "aten._local_scalar_dense.default", (View(new, (), (), number(2)),), scalars=(s,)),
        ),
        (whole(out), s.index()),
    )
    check_program(program)
    given = torch.arange(24.0).reshape(4, 6)
    result, scalar = run_program(program, [given]).outputs
    expected = given.clone()
    expected[:, 2] *= 10
    assert isinstance(result, Tensor) and torch.equal(result, expected.T) and scalar == 20
    assert given[0, 2] == 2


def test_an_extern_may_be_given() -> None:
    program = Program("p", (Input(x),), (Extern((y,), "mine.twice", (whole(x),)),), (whole(y),))
    (result,) = run_program(program, [torch.ones(4, 6)], externs={"mine.twice": lambda t: t * 2}).outputs
    assert isinstance(result, Tensor) and torch.equal(result, torch.full((4, 6), 2.0))


# -- kernels -------------------------------------------------------------------------------------------------
B, N = Size("B", 0), Size("N", 0)
ki, kj = Axis("i", B.index()), Axis("j", N.index())
kx, ky = value("x", B.index(), N.index()), value("y", B.index(), N.index())
kx_ij = load(kx, ki, kj)
P, S, L = LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.LANES


def ref(name: str, *axes: Axis, dtype: torch.dtype = F32) -> Ref:
    return Ref(name, dtype, frozenset(axes))


def softmax_kernel(inner: LoopKind) -> Kernel:
    scratch, lanes = value("row", N.index()), 8 if inner is L else 1
    top, e, total = ref("top", ki), ref("e", ki, kj), ref("total", ki)
    at = (ki.index(), kj.index())
    first = Loop(kj, inner, (Update("max_", (kx_ij,)),), (Carry("max_", "max", (top,)),), lanes)
    stages = (Let(e, op("exp", op("sub", kx_ij, top))), Store(scratch, at[1:], e), Update("sum_", (e,)))
    second = Loop(kj, inner, stages, (Carry("sum_", "sum", (total,)),), lanes)
    third = Loop(kj, inner, (Store(ky, at, op("div", load(scratch, kj), total)),), (), lanes)
    params = (Param(kx, True, False), Param(ky, False, True))
    return Kernel("softmax", params, (B, N), (scratch,), (Loop(ki, P, (first, second, third), grain=900),))


def online_softmax_kernel() -> Kernel:
    top, total = ref("top", ki), ref("total", ki)
    first = Loop(kj, S, (Update("both", (kx_ij,)),), (Carry("both", "softmax", (top, total)),))
    result = op("div", op("exp", op("sub", kx_ij, top)), total)
    second = Loop(kj, L, (Store(ky, (ki.index(), kj.index()), result),), (), 16)
    params = (Param(kx, True, False), Param(ky, False, True))
    return Kernel("online", params, (B, N), (), (Loop(ki, P, (first, second)),))


KERNELS = [softmax_kernel(L), softmax_kernel(S), online_softmax_kernel()]


@pytest.mark.parametrize("kernel", KERNELS, ids=["lanes", "serial", "online"])
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (0, 4), (2, 0)], ids=str)
def test_softmax_kernels(kernel: Kernel, shape: tuple[int, int]) -> None:
    check_kernel(kernel)
    given, out = torch.randn(shape), torch.full(shape, math.nan)
    run_kernel(kernel, {"x": given, "y": out}, {B: shape[0], N: shape[1]})
    torch.testing.assert_close(out, torch.softmax(given, 1))


def test_vectors_around_a_serial_loop_have_an_accumulator_each() -> None:
    out, total = value("out", N.index()), ref("total", kj)
    inner = Loop(ki, S, (Update("acc", (kx_ij,)),), (Carry("acc", "sum", (total,)),))
    body = Loop(kj, L, (inner, Store(out, (kj.index(),), total)), (), 8)
    kernel = Kernel("columns", (Param(kx, True, False), Param(out, False, True)), (B, N), (), (body,))
    check_kernel(kernel)
    given, result = torch.randn(5, 9), torch.zeros(9)
    run_kernel(kernel, {"x": given, "out": result}, {B: 5, N: 9})
    torch.testing.assert_close(result, given.sum(0))


def test_a_carry_of_an_outer_loop_counts_the_inner_iterations() -> None:
    out, total = value("out"), ref("total")
    inner = Loop(kj, L, (Update("acc", (kx_ij,)),), (), 8)
    body = (Loop(ki, P, (inner,), (Carry("acc", "sum", (total,)),)), Store(out, (), total))
    kernel = Kernel("all", (Param(kx, True, False), Param(out, False, True)), (B, N), (), body)
    check_kernel(kernel)
    given, result = torch.randn(5, 9), torch.zeros(())
    run_kernel(kernel, {"x": given, "out": result}, {B: 5, N: 9})
    torch.testing.assert_close(result, given.sum())


def test_running_results_make_a_scan() -> None:
    at = value("at", B.index(), N.index(), dtype=I64)
    best, where = ref("best", ki, kj), ref("where", ki, kj, dtype=I64)
    here = (ki.index(), kj.index())
    feed = Update("acc", (kx_ij, IndexValue(kj.index())), (best, where))
    stages = (feed, Store(ky, here, best), Store(at, here, where))
    carry = Carry("acc", "argmax", (None, None))
    body = Loop(ki, P, (Loop(kj, S, stages, (carry,)),))
    params = (Param(kx, True, False), Param(ky, False, True), Param(at, False, True))
    kernel = Kernel("cummax", params, (B, N), (), (body,))
    check_kernel(kernel)
    given = torch.randint(0, 3, (3, 8)).float()
    out, index = torch.zeros(3, 8), torch.zeros(3, 8, dtype=I64)
    run_kernel(kernel, {"x": given, "y": out, "at": index}, {B: 3, N: 8})
    expected = given.cummax(1)
    assert torch.equal(out, expected.values) and torch.equal(index, expected.indices)


def test_stores_combine_in_place() -> None:
    out = value("out", 3)
    at = (kj.index() % 3,)
    store = Store(out, at, kx_ij, "add", atomic=True)
    body = Loop(ki, P, (Loop(kj, L, (store,), (), 8),))
    kernel = Kernel("bins", (Param(kx, True, False), Param(out, False, True)), (B, N), (), (body,))
    check_kernel(kernel)
    given, result = torch.randn(4, 7), torch.ones(3)
    run_kernel(kernel, {"x": given, "out": result}, {B: 4, N: 7})
    bins = (torch.arange(7) % 3).expand(4, 7)
    expected = torch.ones(3).scatter_add(0, bins.reshape(-1), given.reshape(-1))
    torch.testing.assert_close(result, expected)


def test_scratch_rows_are_private_to_parallel_iterations() -> None:
    """Each row is stored reversed by one loop and read by the next."""
    scratch = value("row", N.index())
    back = Store(scratch, (N.index() - 1 - kj.index(),), kx_ij)
    forth = Store(ky, (ki.index(), kj.index()), load(scratch, kj))
    body = Loop(ki, P, (Loop(kj, L, (back,), (), 8), Loop(kj, L, (forth,), (), 8)))
    kernel = Kernel("flip", (Param(kx, True, False), Param(ky, False, True)), (B, N), (scratch,), (body,))
    check_kernel(kernel)
    given, out = torch.randn(3, 5), torch.zeros(3, 5)
    run_kernel(kernel, {"x": given, "y": out}, {B: 3, N: 5})
    assert torch.equal(out, given.flip(1))


def test_kernels_print_as_the_golden_file(golden: Callable[[str, str], None]) -> None:
    golden("ir/kernels.txt", "\n".join(kernel_text(k) for k in KERNELS))


def test_a_zero_dimensional_program_has_no_loops() -> None:
    s, t = value("s"), value("t")
    nest = Nest((t,), (), Pointwise(op("add", load(s), const(1.0))))
    (result,) = run_program(Program("p", (Input(s),), (nest,), (whole(t),)), [torch.tensor(2.0)]).outputs
    assert isinstance(result, Tensor) and result.shape == () and result == 3
    assert t.shape == () and ZERO.value == 0
