"""What becomes one kernel, what stays apart and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.ir.expr import Const, Value
from gyrator.ir.index import ONE, Axis, const
from gyrator.ir.program import Nest, Reduce, Scatter
from gyrator.ir.tree import Loop, LoopKind, walk_loops
from gyrator.schedule.group import exclusive_axes
from tests.pure.schedule.harness import gradients, kernels, scheduled


def x(*shape: int) -> Tensor:
    return torch.randn(shape)


@pytest.mark.parametrize("dynamic", [False, True])
def test_softmax_is_one_kernel(dynamic: bool) -> None:
    assert kernels(lambda a: torch.softmax(a * 2, -1), x(5, 37), dynamic=dynamic) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_layer_norm_is_one_kernel(dynamic: bool) -> None:
    fn = lambda a, w, b: F.layer_norm(a, (a.shape[-1],), w, b)  # noqa: E731
    assert kernels(fn, x(3, 7, 33), x(33), x(33), dynamic=dynamic) == 1


def test_batch_norm_in_training_is_one_kernel() -> None:
    fn = lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True).relu()  # noqa: E731
    assert kernels(fn, x(4, 6, 5, 5), x(6), x(6)) == 1


def test_pad_and_cat_are_one_kernel() -> None:
    assert kernels(lambda a, b: torch.cat([F.pad(a, (1, 1)), b], -1), x(3, 9), x(3, 5)) == 1


def test_rotary_embedding_is_one_kernel() -> None:
    def rotate(a: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = a.chunk(2, -1)
        return a * cos + torch.cat([-second, first], -1) * sin

    assert kernels(rotate, x(2, 5, 8), x(5, 8), x(5, 8)) == 1


def test_a_view_between_producer_and_consumer_does_not_part_them() -> None:
    def heads(a: Tensor, mask: Tensor) -> Tensor:
        scores = (a * 2).view(2, 6, 4, 8).transpose(1, 2)
        return torch.softmax(scores + mask, -1).transpose(1, 2).reshape(2, 6, 32)

    assert kernels(heads, x(2, 6, 32), x(8)) == 1


def test_an_extern_call_parts_kernels() -> None:
    assert kernels(lambda a, w: torch.relu(a + 1) @ w * 3, x(5, 7), x(7, 4)) == 2


def test_a_reduction_over_other_axes_stays_apart_and_says_why() -> None:
    both = scheduled(lambda a: torch.softmax(a, 0) + torch.softmax(a, 1), (x(9, 11),))
    reasons = {d.verdict.reason for d in both.decisions if d.verdict is not None}
    assert len(both.plan.kernels) > 1
    assert any("different axes" in r or "must run between" in r for r in reasons), reasons


def test_a_long_row_is_not_serialised_by_its_epilogue() -> None:
    one = scheduled(lambda a: a / a.sum(), (x(300, 300).square(),))
    assert "one long row would run on one core" in {d.verdict.reason for d in one.decisions if d.verdict is not None}


def test_cross_entropy_backward_needs_no_scatter() -> None:
    target = torch.randint(0, 20, (8,))
    done = scheduled(
        lambda a, t: gradients(lambda z: F.cross_entropy(z, t), [a], torch.tensor(1.0)), (x(8, 20), target)
    )
    assert len(done.plan.kernels) <= 2
    assert "Scatter" not in repr(done.program.nodes)


def test_what_a_row_of_one_hot_values_costs_once_is_computed_again_for_its_elements() -> None:
    """A loss's gradient is reduced along rows, then read again: only the rows' labels need memory."""

    def gradient(labels: Tensor, grad: Tensor, a: Tensor) -> Tensor:
        kept = (labels != -100)[:, None]
        at = torch.where(kept, labels[:, None], 0)
        picked = torch.zeros_like(a).scatter(1, at, -1.0) * torch.where(kept, grad, 0.0)
        return picked - torch.exp(a) * picked.sum(1, keepdim=True)

    program = scheduled(gradient, (torch.arange(7), x(1), x(7, 100))).program
    widths = [v.shape[1].value for node in program.nodes for v in node.out if v is not None]
    assert widths.count(100) == 1  # the gradient


def test_a_bias_gradient_is_summed_where_its_summand_is_made() -> None:
    def backward(a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return gradients(lambda p, q: F.gelu(p + q), [a, b], g)

    assert kernels(backward, x(70, 33), x(33), x(70, 33)) == 1


def test_equal_layers_share_their_kernels() -> None:
    def layers(a: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            a = torch.softmax(a @ w, -1)
        return a

    done = scheduled(layers, (x(5, 7), x(7, 7)))
    assert len(done.plan.kernels) == 1
    assert sum(type(s).__name__ == "Launch" for s in done.plan.steps) == 4


def test_neighbouring_dimensions_are_one_loop() -> None:
    """A (2, 32, 6, 6) nest with a load per channel needs three loops, one without needs one."""
    channel = scheduled(lambda a, b: a + b.view(1, 32, 1, 1), (x(2, 32, 6, 6), x(32)))
    assert [e.value for e in extents(channel.plan.kernels[0].body)] == [2, 32, 36]
    flat = scheduled(lambda a: a + 1, (x(2, 32, 6, 6),))
    assert [e.value for e in extents(flat.plan.kernels[0].body)] == [2304]


def test_vectors_lie_along_contiguous_memory() -> None:
    column = scheduled(lambda a: a.sum(0), (x(50, 40),))
    lanes = [item for item in loops(column.plan.kernels[0].body) if item.kind is LoopKind.LANES]
    assert {item.axis.extent.value for item in lanes} == {40}


def loops(body: tuple[object, ...]) -> list[Loop]:
    found: list[Loop] = []
    for item in body:
        if isinstance(item, Loop):
            found += [item, *loops(item.body)]
    return found


def extents(body: tuple[object, ...]) -> list:
    return [item.axis.extent for item in loops(body)]


def test_large_images_are_scaled_by_all_cores_not_where_their_few_channels_are_added_up() -> None:
    def norm(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)

    x = torch.randn(2, 24, 60, 60).to(memory_format=torch.channels_last)
    *_, scaled = scheduled(norm, (x,)).plan.kernels
    assert [loop.kind for loop in scaled.body if isinstance(loop, Loop)] == [LoopKind.PARALLEL]


def test_a_chain_is_cut_where_arithmetic_takes_longer_than_memory() -> None:
    def chain(a: Tensor) -> Tensor:
        for _ in range(200):
            a = a.sin() + 0.5
        return a

    result = scheduled(chain, (x(64),))
    assert any("follow each other" in d.verdict.reason for d in result.decisions if d.verdict is not None)
    assert 4 <= len(result.units) <= 14


@pytest.mark.parametrize(
    ("fn", "shape", "dtype", "lanes"),
    [
        (F.gelu, (1000,), torch.float32, 64),
        (F.gelu, (1000,), torch.bfloat16, 64),
        (torch.relu, (1000,), torch.float32, 16),  # nothing waits
        (F.gelu, (3, 7, 100), torch.float32, 64),
        (lambda a: F.gelu(a[:, :50]), (30, 100), torch.float32, 16),  # rows of 50 would leave most lanes idle
        (F.gelu, (1000,), torch.float64, 16),  # these fill more registers
    ],
)
def test_functions_of_many_instructions_run_for_four_vectors_at_once(
    fn: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype, lanes: int
) -> None:
    (kernel,) = scheduled(fn, (x(*shape).to(dtype),)).plan.kernels
    assert [loop.lanes for loop in walk_loops(kernel.body) if loop.kind is LoopKind.LANES] == [lanes]


def reductions(fn: Callable[[Tensor], Tensor], a: Tensor) -> int:
    nodes = scheduled(fn, (a,)).program.nodes
    return sum(isinstance(node, Nest) and isinstance(node.root, Reduce) for node in nodes)


def test_windows_are_written_out_and_rows_are_not() -> None:
    assert reductions(lambda a: F.max_pool1d(a, 3, 2), x(1, 2, 99)) == 0
    assert reductions(lambda a: a.view(10, 10).amax(-1), x(100)) == 1
    assert reductions(lambda a: a.view(-1, 4).amax(-1), x(100)) == 0


def test_windows_whose_positions_take_many_divisions_stay_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = lambda g: torch.ops.aten._adaptive_avg_pool3d_backward(g, x(2, 3, 10, 8, 8))  # noqa: E731
    assert reductions(backward, x(2, 3, 3, 3, 3)) == 0
    assert reductions(lambda g: torch.ops.aten._adaptive_avg_pool2d_backward(g, x(2, 3, 8, 8)), x(2, 3, 3, 3)) == 0
    monkeypatch.setattr("gyrator.schedule.windows.DIVISIONS", 8)
    assert reductions(backward, x(2, 3, 3, 3, 3)) == 1


def test_the_position_of_the_largest_of_few_is_found_without_a_loop() -> None:
    assert reductions(lambda a: a.argmax(-1), x(50, 10)) == 0
    assert reductions(lambda a: a.argmax(1), x(50, 10, 3)) == 0
    assert reductions(lambda a: a.argmax(-1), x(50, 33)) == 1
    ties = x(50, 10).round()
    ties[3, 4:6] = float("nan")
    assert reductions(lambda a: a.argmax(-1), ties) == reductions(lambda a: a.argmin(-1), ties) == 0


@pytest.mark.parametrize("channels", [3, 16, 20])
def test_where_to_read_is_found_once_for_all_channels(channels: int) -> None:
    sample = lambda a, grid: F.grid_sample(a, grid, align_corners=False)  # noqa: E731
    (kernel,) = scheduled(sample, (x(2, channels, 6, 32), x(2, 5, 32, 2).tanh())).plan.kernels
    loops = list(walk_loops(kernel.body))
    assert [loop.kind for loop in loops[-2:]] == [LoopKind.LANES, LoopKind.SERIAL]
    assert loops[-1].axis.extent.value != 32
    assert (loops[-1].axis.extent.value == channels) == (channels <= 16)  # beyond it, a block of them


def test_a_product_with_a_column_is_part_of_a_kernel() -> None:
    assert kernels(lambda a, b: ((a * 2) @ b).relu(), x(6, 5, 7), x(6, 7, 1)) == 1
    assert kernels(lambda a, b: ((a * 2) @ b).relu(), x(6, 5, 1), x(6, 1, 9)) == 1
    assert kernels(lambda a, b: ((a * 2) @ b).relu(), x(6, 5, 7).bfloat16(), x(6, 7, 1).bfloat16()) == 1
    assert kernels(lambda a, b: (a * 2) @ b, x(6, 5, 7), x(6, 7, 2)) == 1  # the other one is a library's


@pytest.mark.parametrize(
    ("steps", "safe"), [((1, 4), {"a", "b"}), ((1, 2), set()), ((8, 1), {"a", "b"})], ids=["rows", "windows", "columns"]
)
def test_axes_by_which_writes_differ_are_digits_that_do_not_overlap(steps: tuple[int, int], safe: set[str]) -> None:
    """Element (2, 0) of windows of 4 that are 2 apart is (0, 1)."""
    a, b = Axis("a", const(4)), Axis("b", const(8))
    into = Value("x", (const(64),), torch.float32, (ONE,), torch.device("cpu"))
    place = a.index() * steps[0] + b.index() * steps[1]
    root = Scatter(into, (place,), Const(0.0, torch.float32), "set")
    assert {axis.name for axis in exclusive_axes(root)} == safe
    rows = Value("x", (const(8), const(8)), torch.float32, (const(8), ONE), torch.device("cpu"))
    assert {axis.name for axis in exclusive_axes(replace(root, into=rows, index=(place // 8, place % 8)))} == safe
