"""What a wrapper knows of the arguments of GPU kernels, and how it computes numbers of programs."""

from __future__ import annotations

import torch

from gyrator.codegen.triton_source import GridAxis, Pointer, SizeArgument, TritonKernel, Workspace
from gyrator.codegen.wrapper import argument_alignment, inputs_to_align, programs_text, updated_text
from gyrator.ir.expr import Const, Value
from gyrator.ir.index import Axis, Index, Size, const, contiguous_strides
from gyrator.ir.program import Input
from gyrator.ir.tree import Config, Kernel, Loop, LoopKind, Param, Store
from gyrator.schedule.plan import Allocate, Launch, Plan, full_view

BF16, S = torch.bfloat16, Size("s0", 2)
CONFIGS = (Config((("XBLOCK", 256),), 4), Config((("XBLOCK", 1024),), 8))


def value(name: str, *shape: int) -> Value:
    sizes = tuple(map(const, shape))
    return Value(name, sizes, BF16, contiguous_strides(sizes), torch.device("cuda", 0))


def kernel(*grid: GridAxis, sizes: tuple[Size, ...] = ()) -> TritonKernel:
    params = (Pointer("x", BF16, False), Pointer("y", BF16, True), Workspace("w", const(64), True))
    return TritonKernel("k", "", (*params, *[SizeArgument(s.name, s, True) for s in sizes]), grid, CONFIGS, "pointwise")


def plan(*steps: Allocate | Launch, inputs: tuple[Value, ...] = (), outputs: tuple[Value, ...] = ()) -> Plan:
    given = tuple(Input(value=v) for v in inputs)
    return Plan("p", given, steps, tuple(full_view(v) for v in outputs), ())


def test_alignment_follows_where_values_are_placed() -> None:
    x, fresh, over, given = (value(n, 8) for n in ("x", "fresh", "over", "given"))
    steps = (Allocate(fresh), Allocate(over, fresh), Allocate(given, x))
    for values, aligned, with_input in (((x, given), {2}, {0, 1, 2}), ((fresh, over), {0, 1, 2}, {0, 1, 2})):
        made = plan(*steps, Launch("k", values))
        assert argument_alignment(made, {"k": kernel()}) == {"k": aligned}
        assert argument_alignment(made, {"k": kernel()}, [x]) == {"k": with_input}


def test_what_lies_within_another_is_aligned_if_it_begins_at_16_bytes() -> None:
    whole, near, odd = value("whole", 64), value("near", 16), value("odd", 16)
    made = plan(
        Allocate(whole), Allocate(near, whole, const(8)), Allocate(odd, whole, const(36)), Launch("k", (near, odd))
    )
    assert argument_alignment(made, {"k": kernel()}) == {"k": {0, 2}}


def test_an_argument_is_aligned_if_it_is_at_every_launch() -> None:
    x, fresh = value("x", 8), value("fresh", 8)
    made = plan(Allocate(fresh), Launch("k", (x, fresh)), Launch("k", (fresh, fresh)))
    assert argument_alignment(made, {"k": kernel()}) == {"k": {1, 2}}


def test_only_inputs_that_kernels_read_and_nothing_returns_are_aligned() -> None:
    read, returned, updated, unread = (value(n, 8) for n in ("read", "returned", "updated", "unread"))
    new = value("new", 8)
    made = plan(
        Allocate(new, updated),
        Launch("k", (read, new)),
        Launch("k", (returned, updated)),
        inputs=(read, returned, updated, unread),
        outputs=(returned,),
    )
    assert inputs_to_align(made) == (read,)


def test_the_number_of_programs_is_a_function_of_sizes_and_blocks() -> None:
    n: Index = S.index()
    text = programs_text(kernel(GridAxis(n * 3, "XBLOCK"), GridAxis(const(5)), sizes=(S,)))
    assert text == "lambda s0, XBLOCK: -(-(3*s0) // XBLOCK) * 5"
    assert eval(text)(1000, 256) == 12 * 5
    assert eval(programs_text(kernel(GridAxis(n, None), sizes=(S,))))(7, 256) == 7
    assert eval(programs_text(kernel()))(256) == 1


def test_memory_that_a_second_launch_would_change_again_is_named() -> None:
    x, y = value("x", 40), value("y", 40)
    i = Axis("i0", const(40))

    def tree(combine: str, *, alias: str | None = None) -> Kernel:
        store = Store(y, (i.index(),), Const(1.0, BF16), combine)
        params = (Param(x, True, False), Param(y, False, True, alias))
        return Kernel("k", params, (), (), (Loop(i, LoopKind.PARALLEL, (store,)),))

    assert updated_text(tree("set"), kernel()) == []
    for changing in (tree("add"), tree("set", alias="x")):
        (text,) = updated_text(changing, kernel())
        assert eval(text)[1]() == 80 and list(eval(text)) == [1]
