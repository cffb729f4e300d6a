"""Wrappers: what a plan becomes in Python, run with stand-ins for kernels."""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from gyrator.autograd.interface import BoxedCallable
from gyrator.codegen.texts import broken
from gyrator.codegen.wrapper import BuiltKernel, print_wrapper
from gyrator.errors import OutputMismatch
from gyrator.ir.expr import Const, Load, Op, Value
from gyrator.ir.index import ONE, ZERO, Axis, Index, Size, const, contiguous_strides
from gyrator.ir.program import Derived, Extern, Input, Item, View
from gyrator.ir.tree import Kernel, Loop, LoopKind, Param, Store
from gyrator.origin import Origin
from gyrator.runtime.load import Runtime, load
from gyrator.runtime.pool import Pool
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Launch, Plan, full_view

F32 = torch.float32
S = Size("s0", 2)


def value(name: str, *shape: int | Index, dtype: torch.dtype = F32) -> Value:
    sizes = tuple(const(s) if isinstance(s, int) else s for s in shape)
    return Value(name, sizes, dtype, contiguous_strides(sizes))


def add_kernel(size: Index, number: float = 1.0) -> Kernel:
    x, y, i = value("x", size), value("y", size), Axis("i0", size)
    at = (i.index(),)
    body = Store(y, at, Op("add", (Load(x, at), Const(number, F32)), F32))
    sizes = tuple(sorted(size.sizes(), key=repr))
    params = (Param(x, True, False), Param(y, False, True))
    origin = Origin("model.py", 7, "forward", "aten.add.Tensor")
    return Kernel("add_0", params, sizes, (), (Loop(i, LoopKind.SERIAL, (body,)),), (origin,))


@dataclass
class StandIn:
    """A runtime whose kernels are Python functions on addresses."""

    kernels: dict[str, Callable[..., int]]
    real: Runtime = field(default_factory=lambda: Runtime(Path("nowhere"), Pool()))

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def kernel(self, library: str, symbol: str, count: int, sites: object = ()) -> Callable[..., int]:
        return self.kernels[symbol]


def floats(address: int, count: int) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * count).from_address(address)


def add_one(x: int, y: int, *sizes_and_threads: int) -> int:
    count = sizes_and_threads[0] if len(sizes_and_threads) > 1 else 4
    floats(y, count)[:] = [v + 1 for v in floats(x, count)]
    return 0


def bound(
    plan: Plan, constants: dict[str, torch.Tensor] | None = None, shown: tuple[int, ...] = ()
) -> tuple[str, BoxedCallable]:
    text = print_wrapper(plan, {k.name: BuiltKernel("lib", k.name) for k in plan.kernels}, shown=shown)
    namespace: dict[str, object] = {"__name__": "wrapper"}
    exec(text, namespace)
    runtime = StandIn({"add_0": add_one}, Runtime(Path("nowhere"), Pool(), constants or {}))
    return text, namespace["bind"](runtime)  # type: ignore[operator]


def test_launch_allocates_frees_and_empties_the_list_of_inputs() -> None:
    x, y, z = value("x", 4), value("y", 4), value("z", 4)
    steps = (
        Allocate(y), Launch("add_0", (x, y)), Free(x), Allocate(z), Launch("add_0", (y, z)), Free(y),
    )  # fmt: skip
    text, call = bound(Plan("g", (Input(x),), steps, (full_view(z),), (add_kernel(const(4)),)))
    args = [torch.zeros(4)]
    (result,) = call(args)
    assert args == []
    assert torch.equal(result, torch.full((4,), 2.0))
    assert "# model.py:7 in forward: aten.add.Tensor" in text
    assert text.index("del x") < text.index("z = empty")


def test_sizes_come_from_inputs_and_are_passed_to_kernels() -> None:
    s = S.index()
    x, y = value("x", s), value("y", s)
    steps = (Allocate(y), Launch("add_0", (x, y), (s,)), Free(x))
    derived = (Derived(S, "x", "shape[0]"), Derived(Size("d0"), "", "s0 // 2"))
    plan = Plan("g", (Input(x),), steps, (full_view(y), s * 2 + 1, Size("d0").index()), (add_kernel(s),), (), derived)
    _, call = bound(plan)
    result, double, half = call([torch.zeros(6)])
    assert torch.equal(result, torch.ones(6))
    assert (double, half) == (13, 3)


def test_a_value_in_place_of_another_has_its_memory() -> None:
    x, over = value("x", 4), value("x@1", 4)
    steps = (Allocate(over, x), Launch("add_0", (x, over)), Free(x), Free(over))
    text, call = bound(Plan("g", (Input(x),), steps, (), (add_kernel(const(4)),)))
    given = torch.zeros(4)
    call([given])
    assert torch.equal(given, torch.ones(4))
    assert "x_1 = x  # in place" in text


def test_a_value_within_another_begins_at_its_offset() -> None:
    x, result, early = value("x", 4), value("result", 20), value("early", 4)
    steps = (Allocate(result), Allocate(early, result, const(16)), Launch("add_0", (x, early)), Free(x), Free(early))
    text, call = bound(Plan("g", (Input(x),), steps, (full_view(result),), (add_kernel(const(4)),)))
    (found,) = call([torch.zeros(4)])
    assert torch.equal(found[16:], torch.ones(4))
    assert "early = reinterpret(result, (4,), (1,), 16)  # not written yet" in text


def test_wider_elements_within_another_begin_at_an_offset_of_theirs() -> None:
    x, early = (replace(value(name, 4), dtype=torch.int64) for name in ("x", "early"))
    result = value("result", 3, 8)
    steps = (Allocate(result), Allocate(early, result, const(8)), Copy(full_view(early), full_view(x)))
    plan = Plan("g", (Input(x),), (*steps, Free(x), Free(early)), (full_view(result),), ())
    text, call = bound(plan)
    (found,) = call([given := torch.tensor([1, -2, 1 << 40, 7])])
    assert torch.equal(found[2].view(torch.int64), given)
    assert "early = reinterpret(result.view(torch.int64), (4,), (1,), 8)  # not written yet" in text


def test_operators_get_views_lists_and_constants() -> None:
    x, out = value("x", 2, 3), value("out", 3, 4)
    turned = View(x, (const(3), const(2)), (ONE, const(3)), ZERO)
    cat = Extern((out,), "aten.cat.default", ((turned, turned), 1))
    steps = (Call(cat), Free(x))
    _, call = bound(Plan("g", (Input(x),), steps, (full_view(out), None, 7, float("inf")), ()))
    given = torch.randn(2, 3)
    result, *rest = call([given])
    assert torch.equal(result, torch.cat([given.t(), given.t()], 1))
    assert rest == [None, 7, float("inf")]


def test_results_are_written_into_given_memory() -> None:
    x, out = value("x", 2, 2), value("out", 2, 2)
    mm = Extern((out,), "aten.mm.default", (full_view(x), full_view(x)))
    text, call = bound(Plan("g", (Input(x),), (Allocate(out), Call(mm, True), Free(x)), (full_view(out),), ()))
    given = torch.randn(2, 2)
    assert torch.equal(call([given])[0], given @ given)
    assert "aten_mm_out(x, x, out=out)" in text


def test_results_in_lists_are_matched_and_unwanted_ones_dropped() -> None:
    x, second = value("x", 4), value("second", 2)
    split = Extern((None, second), "aten.split.Tensor", (full_view(x), 2))
    _, call = bound(Plan("g", (Input(x),), (Call(split), Free(x)), (full_view(second),), ()))
    assert torch.equal(call([torch.arange(4.0)])[0], torch.tensor([2.0, 3.0]))


def test_sizes_that_a_call_defines_are_read_off_its_result() -> None:
    count = Size("u0")
    x, found = value("x", 4), value("found", count.index(), 1, dtype=torch.int64)
    nonzero = Extern((found,), "aten.nonzero.default", (full_view(x),), scalars=(count,))
    item = Extern(
        (None,), "aten._local_scalar_dense.default", (full_view(value("n", dtype=torch.int64)),), scalars=(Size("u1"),)
    )
    inputs = (Input(x), Input(value("n", dtype=torch.int64)))
    steps = (Call(nonzero), Call(item))
    _, call = bound(Plan("g", inputs, steps, (full_view(found), count.index() + 1, Size("u1").index()), ()))
    result, more, number = call([torch.tensor([0.0, 1.0, 0.0, 2.0]), torch.tensor(9)])
    assert result.tolist() == [[1], [3]] and (more, number) == (3, 9)


def test_result_with_other_strides_is_copied_and_with_another_shape_refused() -> None:
    x = value("x", 2, 3)
    turned = Value("turned", (const(2), const(3)), F32, (ONE, const(2)))
    relu = Extern((turned,), "aten.relu.default", (full_view(x),))
    _, call = bound(Plan("g", (Input(x),), (Call(relu), Free(x)), (full_view(turned),), ()))
    given = torch.randn(2, 3)
    (result,) = call([given])
    assert result.stride() == (1, 2) and torch.equal(result, given.relu())
    wrong = Extern((value("wrong", 3, 2),), "aten.relu.default", (full_view(x),))
    _, call = bound(Plan("g", (Input(x),), (Call(wrong), Free(x)), (), ()))
    try:
        call([given])
    except OutputMismatch as error:
        assert "aten.relu.default" in str(error)
    else:
        raise AssertionError("a wrong shape went unnoticed")


def test_numbers_enter_reach_calls_and_leave() -> None:
    n, x, y = value("n", dtype=torch.float64), value("x", 4), value("y", 4)
    scaled = Extern((y,), "aten.mul.Scalar", (full_view(x), Item(full_view(n))))
    plan = Plan("g", (Input(n, number=True), Input(x)), (Call(scaled), Free(x)), (full_view(y), Item(full_view(n))), ())
    _, call = bound(plan)
    result, number = call([2.5, torch.ones(4)])
    assert torch.equal(result, torch.full((4,), 2.5)) and number == 2.5 and isinstance(number, float)


def test_result_that_only_the_user_sees_keeps_its_strides() -> None:
    x = value("x", 2, 3)
    turned = Value("turned", (const(2), const(3)), F32, (ONE, const(2)))
    relu = Extern((turned,), "aten.relu.default", (full_view(x),))
    plan = Plan("g", (Input(x),), (Call(relu), Free(x)), (full_view(turned),), ())
    assert bound(plan, shown=(0,))[1]([torch.randn(2, 3)])[0].stride() == (3, 1)
    assert bound(plan, shown=(1,))[1]([torch.randn(2, 3)])[0].stride() == (1, 2)
    twice = replace(plan, outputs=(full_view(turned), full_view(turned)))
    assert bound(twice, shown=(0,))[1]([torch.randn(2, 3)])[0].stride() == (1, 2)


def test_strides_that_an_operator_gave_reach_the_operator_that_reads_them() -> None:
    x = value("x", 2, 3)
    turned = Value("turned", (const(2), const(3)), F32, (ONE, const(2)))
    again = Value("again", (const(2), const(3)), F32, (ONE, const(2)))
    relu = Extern((turned,), "aten.relu.default", (full_view(x),))
    neg = Extern((again,), "aten.neg.default", (full_view(turned),))
    steps = (Call(relu), Free(x), Call(neg), Free(turned))
    plan = Plan("g", (Input(x),), steps, (full_view(again),), ())
    assert bound(plan, shown=(0,))[1]([torch.randn(2, 3)])[0].stride() == (3, 1)
    own = replace(neg, op="library.neg.default")
    theirs = replace(plan, steps=(*steps[:2], Call(own), Free(turned)))
    assert "(1, 2)" in print_wrapper(theirs, {}, shown=(0,))


def test_operator_that_mutates_gets_the_new_versions_memory() -> None:
    x, new = value("x", 4), value("x@1", 4)
    zero = Extern((None,), "aten.zero_.default", (full_view(x),), mutates=((x, new),))
    steps = (Allocate(new), Copy(full_view(new), full_view(x)), Call(zero))
    _, call = bound(Plan("g", (Input(x),), steps, (full_view(x), full_view(new)), ()))
    old, zeroed = call([torch.ones(4)])
    assert torch.equal(old, torch.ones(4)) and torch.equal(zeroed, torch.zeros(4))


def test_constants_survive_their_last_use() -> None:
    c, y = value("c", 4), value("y", 4)
    steps = (Allocate(y), Launch("add_0", (c, y)), Free(c))
    plan = Plan("g", (), steps, (full_view(y),), (add_kernel(const(4)),), (c,))
    _, call = bound(plan, {"c": torch.zeros(4)})
    assert torch.equal(call([])[0], call([])[0])


def turned(v: Value) -> View:
    return View(v, v.shape[::-1], v.strides[::-1], ZERO)


def test_a_view_that_several_calls_read_is_made_once_and_ends_with_its_memory() -> None:
    x, y = value("x", 2, 3), value("y", 2, 3)
    outs = [value(f"out{k}", 3, 2) for k in range(3)]
    calls = [Call(Extern((out,), "aten.neg.default", (turned(v),))) for out, v in zip(outs, (x, x, y), strict=True)]
    steps = (*calls[:2], Allocate(y, x), Free(x), calls[2], Free(y))
    text, call = bound(Plan("g", (Input(x),), steps, tuple(map(full_view, outs)), ()))
    given = torch.randn(2, 3)
    assert all(torch.equal(out, -given.T) for out in call([given]))
    assert text.count("reinterpret(x") == 1 and "reinterpret(y" not in text
    assert text.count("(x_view)") == 3 and text.rindex("(x_view)") < text.index("del x, x_view, y")


def test_views_of_constants_that_calls_read_are_made_before_the_first_call_and_those_that_leave_in_each() -> None:
    c, out = value("c", 2, 3), value("out", 3, 2)
    steps = (Call(Extern((out,), "aten.neg.default", (turned(c),))), Free(c))
    plan = Plan("g", (), steps, (full_view(out), turned(c)), (), (c,))
    text, call = bound(plan, {"c": torch.randn(2, 3)})
    assert text.index("c_view = reinterpret(c, (3, 2)") < text.index("def call")
    (first, shown), (second, again) = call([]), call([])
    assert torch.equal(first, second) and torch.equal(first, -shown) and shown is not again


def test_names_are_legal_and_do_not_collide() -> None:
    x, y = value("class", 4), value("s0", S.index())
    z = value("torch", 4)
    plan = Plan(
        "g",
        (Input(size=S), Input(x), Input(y)),
        (Allocate(z), Launch("add_0", (x, z))),
        (full_view(z), full_view(y)),
        (add_kernel(const(4)),),
    )
    _, call = bound(plan)
    result, same = call([3, torch.zeros(4), torch.ones(3)])
    assert torch.equal(result, torch.ones(4)) and same.shape == (3,)


def test_text_depends_on_the_plan_alone() -> None:
    x, y = value("x", 4), value("y", 4)
    steps = (Allocate(y), Launch("add_0", (x, y)), Free(x))
    plan = Plan("g", (Input(x),), steps, (full_view(y),), (add_kernel(const(4)),))
    assert bound(plan)[0] == bound(plan)[0]


def test_long_lines_are_broken_at_commas_outside_of_strings() -> None:
    line = "f(" + ", ".join([*(f"argument_{k}" for k in range(12)), repr("a, b" * 9), '"c, d"', "last)"])
    pieces = broken(line, 40)
    assert len(pieces) > 3
    assert all(len(piece) <= 44 for piece in pieces if "a, b" not in piece)
    assert ast.dump(ast.parse("\n".join(pieces))) == ast.dump(ast.parse(line))
    for line in ("# a, b, c" * 9, "del " + "name, " * 20 + "last"):
        assert broken(line, 40) == [line]


def test_bytes_of_a_value_span_its_strides() -> None:
    assert value("x", 3, 5).nbytes.value == 60
    assert Value("x", (const(3), const(5)), F32, (const(8), ONE)).nbytes.value == (2 * 8 + 5) * 4
    assert value("x", 0, 5).nbytes.value == 0
    assert value("x", S.index()).nbytes.value is None


def test_profiled_calls_show_kernel_names() -> None:
    x, y = value("x", 4), value("y", 4)
    steps = (Allocate(y), Call(Extern((), "aten.zero_.default", (full_view(y),))), Free(x))
    text = print_wrapper(Plan("g", (Input(x),), steps, (full_view(y),), ()), {})
    call = load(text, Runtime(Path("nowhere"), Pool()))
    with torch.profiler.profile() as profile:
        call([torch.zeros(4)])
    assert any(event.key == "aten::zero_" for event in profile.key_averages())
