"""Outputs that are inputs or share memory are rebuilt as such; inputs that share memory give eager's
results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.inputs import overlapping
from gyrator.autograd.interface import interpret
from tests.pure.autograd.harness import compiled, leaf, same_as_eager


def itself(x: Tensor) -> Tensor:
    return x


def view_of_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x[1:]


def views_of_intermediate(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    return y, y.view(-1), y.t()[0]


def same_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y


def filled_by_parts(x: Tensor) -> tuple[Tensor, ...]:
    """What is made without gradients is differentiable once it was written, and so are views of before."""
    y = torch.zeros_like(x)
    part = y[:1]
    y.mul_(x)
    y[1] = x[0]
    return part, y, y.view(-1)


def written_through_detached(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.ones_like(x) * 2
    z = y.detach()
    z.mul_(x)
    return y, z, y.t(), z[0]


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.detach()


def view_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        v = y.view(-1)
    return y, v


def updated_and_viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x.view(-1), x


def split(x: Tensor) -> tuple[Tensor, ...]:
    return (x + 1).split(2)


def sliced(x: Tensor) -> Tensor:
    return (x + 1)[:, ::2]


def expanded(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True).expand(4, 4)


def expanded_constant(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tensor([1.0, 2.0]).expand(2, 2), x + 1


def made_differentiable_behind_its_source(x: Tensor) -> tuple[Tensor, ...]:
    y = x @ x
    hidden = y.detach()
    hidden.mul_(x)
    return y, hidden, y @ x, hidden[0], hidden.detach()


def rows_made_differentiable(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin()
    rows = y[1:].detach()
    rows.mul_(x[1:])
    return rows, rows.t(), y.exp()


def input_made_differentiable(x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = x.detach()
    hidden.add_(x.exp())
    return hidden, hidden[0]


def rows_overwritten_behind_autograd(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.exp()[1:].detach()
    rows.zero_()
    return rows, rows.t()


def nothing_and_numbers(x: Tensor) -> tuple[Any, ...]:
    return None, x.shape[0], x + 1, 3.5


PROGRAMS = (
    itself,
    view_of_input,
    views_of_intermediate,
    same_twice,
    detached,
    filled_by_parts,
    written_through_detached,
    view_under_no_grad,
    updated_and_viewed,
    split,
    sliced,
    expanded,
    expanded_constant,
    made_differentiable_behind_its_source,
    rows_made_differentiable,
    input_made_differentiable,
    rows_overwritten_behind_autograd,
    nothing_and_numbers,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_aliasing_is_eagers(program: Any, dynamic: bool) -> None:
    same_as_eager(program, torch.randn(4, 4), backward=False, dynamic=dynamic)


@pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if program is not updated_and_viewed],
    ids=lambda program: program.__name__,
)
def test_gradients_through_aliases_are_eagers(program: Any) -> None:
    same_as_eager(program, leaf(4, 4))


def test_several_views_of_an_input_need_no_result() -> None:
    function, graphs = compiled(lambda x: (x[0], x.t(), x + 1))
    function(torch.zeros(2, 2))
    assert len(graphs.modules["inference"].graph.output_node().args[0]) == 1


def test_writing_to_one_output_changes_the_other() -> None:
    function, _ = compiled(views_of_intermediate)
    y, flat, _ = function(torch.zeros(2, 2))
    y.fill_(9)
    assert flat.tolist() == [9, 9, 9, 9]


def test_an_output_that_is_an_input_is_the_same_object() -> None:
    function, _ = compiled(lambda x: (x, x.sin()))
    x = torch.randn(3)
    assert function(x)[0] is x


def test_no_result_is_an_alias_of_an_input_that_the_program_copied() -> None:
    function, _ = compiled(lambda x: x.to(torch.float32, copy=True))
    x = torch.ones(3)
    result = function(x)
    x.zero_()
    assert result.tolist() == [1, 1, 1]


# --- inputs ----------------------------------------------------------------------------------------


def add_to_first(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y + 1


def test_the_same_tensor_twice() -> None:
    x = leaf(4)
    same_as_eager(lambda a, b: a * b + a, x, x)


def test_overlapping_inputs_one_of_which_is_mutated() -> None:
    memory = torch.randn(12)
    same_as_eager(add_to_first, memory[:8], memory[4:], backward=False)


def test_a_later_call_with_overlapping_inputs_is_right() -> None:
    function, _ = compiled(add_to_first)
    function(torch.randn(4), torch.randn(4))
    ours, eagers = torch.arange(8.0), torch.arange(8.0)
    result = function(ours[:4], ours[2:6])
    assert torch.equal(result, add_to_first(eagers[:4], eagers[2:6]))
    assert torch.equal(ours, eagers)


def test_overlapping_inputs_that_nobody_mutates_need_no_care() -> None:
    memory = torch.randn(12)
    same_as_eager(lambda x, y: x * y, memory[:8], memory[4:], backward=False)


def test_disjoint_parts_of_one_memory_are_compiled() -> None:
    function, graphs = compiled(add_to_first)
    memory = torch.arange(8.0)
    assert torch.equal(function(memory[:4], memory[4:]), torch.arange(5.0, 9.0))
    assert torch.equal(memory[:4], 2 * torch.arange(4.0))
    assert graphs.ops("inference") == ["mul.Tensor", "add.Tensor"]


def test_parts_that_interleave_are_compiled() -> None:
    """Keys and values in one cache, as rows that lie between each other."""
    function, graphs = compiled(add_to_first)
    memory = torch.arange(12.0).view(3, 2, 2)
    assert torch.equal(function(memory[:, 0], memory[:, 1]), torch.arange(12.0).view(3, 2, 2)[:, 1] + 1)
    assert torch.equal(memory[:, 0], 2 * torch.arange(12.0).view(3, 2, 2)[:, 0])
    assert {"mul.Tensor", "add.Tensor"} <= {*graphs.ops("inference")}


SIZES = st.lists(st.integers(1, 4), min_size=3, max_size=3)
PARTS = st.tuples(SIZES, st.integers(0, 12))


@given(st.lists(st.integers(0, 7), min_size=3, max_size=3), PARTS, PARTS)
def test_parts_of_equal_strides_overlap_where_they_have_an_element_in_common(
    strides: list[int], one: tuple[list[int], int], other: tuple[list[int], int]
) -> None:
    memory = torch.arange(80)
    parts = [memory.as_strided(sizes, strides, start) for sizes, start in (one, other)]
    shared = not {*parts[0].flatten().tolist()}.isdisjoint(parts[1].flatten().tolist())
    assert overlapping(parts, [0]) == shared


def test_parts_that_lie_apart_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers write thousands of parameters, whose gradients, or they, are parts of a few tensors."""
    monkeypatch.setattr("gyrator.autograd.inputs._meet", None)
    parts = [*torch.zeros(5000, 2), torch.ones(2)]
    assert not overlapping(parts, range(len(parts)))


IN_COMMON: list[Callable[[Tensor], tuple[Tensor, ...]]] = [
    lambda y: (y, y),
    lambda y: (y[:2], y[:, 1:]),
    lambda y: (y[1:].t(), y[:2]),
    lambda y: (y[0], y.view(-1)[2:7]),
]


@pytest.mark.parametrize("parts", IN_COMMON)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", ["both_sines", "sine_and_sum"])
def test_an_operator_sees_what_it_writes_to_memory_that_arguments_have_in_common(
    op: str, dynamic: bool, parts: Callable[[Tensor], tuple[Tensor, ...]]
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = x * 2
        return y, getattr(torch.ops.gyrator_tests, op)(*parts(y))

    same_as_eager(program, torch.rand(4, 4), backward=False, dynamic=dynamic)


def test_whether_memory_is_in_common_does_not_depend_on_lengths() -> None:
    def program(x: Tensor, tokens: Tensor, caches: Tensor) -> Tensor:
        y, (keys, values) = x * 2, caches.unbind(1)
        torch.ops.gyrator_tests.both_sines(keys, values)
        return torch.ops.gyrator_tests.sine_and_sum(y[:2], y[1:]) + torch.ops.gyrator_tests.sine_and_sum(keys, tokens)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("gyrator")
    compiled = torch.compile(program, backend=counter, dynamic=True)
    for rows in (5, 6, 9):
        given = torch.rand(rows, 3), torch.rand(rows + 4, 2), torch.rand(7, 2, 8)
        same = [x.clone() for x in given]
        torch.testing.assert_close(compiled(*given), program(*same))
        torch.testing.assert_close(given, tuple(same))
    assert counter.frame_count == 1


def test_an_operator_updates_inputs_that_have_memory_in_common() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.gyrator_tests.sine_and_sum(x[:2], x[1:])

    same_as_eager(program, torch.rand(4, 4), backward=False)


def test_memory_in_common_may_have_elements_of_several_types() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y, bytes_of_y = x * 2, (x * 2).view(torch.uint8)
        torch.ops.gyrator_tests.both_sines(y, y.view(torch.float16))
        sums = torch.ops.gyrator_tests.sine_and_sum(bytes_of_y[:, 4:].view(torch.float32), bytes_of_y[:, :4])
        return y, sums

    same_as_eager(program, torch.rand(4, 4), backward=False)


def test_memory_in_common_is_laid_out_as_changes_in_place_leave_it() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.t_()
        return y, torch.ops.gyrator_tests.sine_and_sum(y, y[2])

    same_as_eager(program, torch.rand(3, 5), backward=False)


def test_an_operator_may_return_what_it_writes_to_memory_in_common() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        torch.ops.gyrator_outs.filled(y[1:], out=y).add_(1)
        return y, torch.ops.gyrator_outs.filled(x[1:], out=x)

    same_as_eager(program, torch.rand(4, 4), backward=False)


@pytest.mark.parametrize("start", [0, 2])
def test_an_operator_that_writes_may_return_a_list(start: int) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        first, second = torch.ops.gyrator_tests.sine_and_parts(y[:2], y[start:])
        return first + second + y[:2]

    x = torch.rand(4, 4)
    torch.testing.assert_close(torch.compile(program, backend="gyrator")(x), program(x))


OUTS = torch.library.Library("gyrator_outs", "DEF")
OUTS.define("filled(Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
OUTS.impl("filled", lambda y, *, out: out.fill_(y.sum()), "CPU")
OUTS.impl("filled", lambda y, *, out: out, "Meta")


@torch.library.custom_op("gyrator_tests::sine_and_parts", mutates_args=("x",))
def sine_and_parts(x: Tensor, y: Tensor) -> list[Tensor]:
    x.sin_()
    return [y[:2] * 1, y[:2] + 1]


@sine_and_parts.register_fake
def _(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.empty_like(y[:2]), torch.empty_like(y[:2])]


@torch.library.custom_op("gyrator_tests::sine_and_sum", mutates_args=("x",))
def sine_and_sum(x: Tensor, y: Tensor) -> Tensor:
    x.sin_()
    return y.sum()


@sine_and_sum.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return y.new_empty(())


@torch.library.custom_op("gyrator_tests::both_sines", mutates_args=("x", "y"))
def both_sines(x: Tensor, y: Tensor) -> None:
    x.sin_()
    y.sin_()


def test_an_operator_that_writes_to_parts_side_by_side_is_compiled() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        torch.ops.gyrator_tests.both_sines(y[:, :1], y[:, 2:])
        return y

    same_as_eager(program, torch.ones(4, 4), backward=False)


def by_address(x: Tensor) -> Tensor:
    part = x.as_strided((2,), (1,), 4)
    part.mul_(3)
    x.add_(1)
    return part * x[:2]


def through_a_view_without_an_inverse(x: Tensor) -> Tensor:
    x.unfold(0, 2, 2)[0].mul_(2)
    return x + 0


@pytest.mark.parametrize("program", [by_address, through_a_view_without_an_inverse])
def test_a_later_call_with_inputs_at_another_offset_is_right(program: Any) -> None:
    function, _ = compiled(program)
    for offset in (3, 0, 4):
        ours, eagers = torch.arange(10.0), torch.arange(10.0)
        assert torch.equal(function(ours[offset : offset + 6]), program(eagers[offset : offset + 6]))
        assert torch.equal(ours, eagers)


def test_a_write_at_a_varying_offset_is_refused_where_it_needs_a_number() -> None:
    function, _ = compiled(through_a_view_without_an_inverse, dynamic=True)
    with pytest.raises(Exception, match="an input whose storage offset varies"):
        function(torch.arange(10.0)[3:9])


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_outside_of_an_input_is_refused(dynamic: bool) -> None:
    function, _ = compiled(lambda x: x.as_strided((2,), (1,), 0) + 1, dynamic=dynamic)
    with pytest.raises(Exception, match="reaches memory that its tensor does not span"):
        function(torch.arange(10.0)[3:])


def test_a_held_tensor_that_a_written_input_overlaps() -> None:
    held = torch.arange(4.0)
    root = torch.nn.Module()
    root.register_buffer("held", held)
    graph = torch.fx.Graph()
    x, value = graph.placeholder("x"), graph.get_attr("held")
    graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (value, 2)),))
    program = torch.fx.GraphModule(root, graph)
    function = aot_compile(program, [torch.zeros(4)], fw_compiler=interpret)
    assert function(torch.zeros(4))[0].tolist() == [0, 2, 4, 6]
    assert function(held)[0].tolist() == [2, 4, 6, 8]


def test_what_saves_a_part_of_a_value_frees_the_rest() -> None:
    function, graphs = compiled(lambda x, w: (x @ w)[:, 0].sin().exp())
    x, w = leaf(32, 32), leaf(32, 32)
    function(x, w).sum().backward()
    outputs = graphs.modules["forward"].graph.output_node().args[0]
    assert max(node.meta["val"].numel() for node in outputs) == 32
