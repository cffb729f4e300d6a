"""Depthwise convolutions on a GPU are loops: their sums over windows are written out and fused with what follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.config import Config
from gyrator.schedule.plan import Allocate, Call
from tests.acceptance import assert_matches
from tests.pure.lowering.harness import trace
from tests.triton.emulated import Emulator, on_gpu, print_for_gpu
from tests.triton.worker import Worker

HALF = torch.bfloat16
Function = Callable[..., Tensor]


def random(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> Tensor:
    """Random numbers, with ``last`` of images whose channels are neighbours."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return x.to(memory_format=torch.channels_last) if last else x


def each(op: Function, x: Tensor, w: Tensor, **options: object) -> Tensor:
    return op(x, w, groups=x.shape[1], **options)


def causal(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(F.conv1d(x, w, padding=w.shape[-1] - 1, groups=x.shape[1])[..., : x.shape[-1]])


def block(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return F.relu6(F.conv2d(F.relu(x), w, padding=1, groups=x.shape[1])) * r


def one_number_for_all_sides(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.aten.convolution(x, w, None, [2], [1], [1], False, [0], x.shape[1])


conv, back = partial(each, F.conv2d), partial(each, F.conv_transpose2d)
CASES: dict[str, tuple[Function, list[Tensor]]] = {
    "16 bits": (
        partial(conv, padding=1), [random(2, 16, 9, 7, dtype=HALF, last=True), random(16, 1, 3, 3, dtype=HALF)]
    ),
    "in steps": (partial(conv, padding=2, stride=2), [random(2, 6, 11, 10), random(6, 1, 5, 5)]),
    "with holes": (partial(conv, padding=(0, 4), dilation=2), [random(2, 6, 11, 9, last=True), random(6, 1, 3, 5)]),
    "a long sequence": (causal, [random(2, 6, 11), random(6, 1, 4)]),
    "volumes": (
        partial(each, F.conv3d, padding=1), [random(2, 4, 5, 6, 7, dtype=HALF), random(4, 1, 3, 3, 3, dtype=HALF)]
    ),
    "with what surrounds it": (block, [random(2, 8, 6, 6, last=True), random(8, 1, 3, 3), random(2, 8, 6, 6)]),
    "two filters for a channel": (
        partial(conv, padding=1, stride=2), [random(2, 6, 9, 9, last=True), random(12, 1, 3, 3)]
    ),
    "one number": (one_number_for_all_sides, [random(2, 4, 7, 7), random(4, 1, 3, 3)]),
    "nothing": (partial(conv, padding=1), [random(0, 4, 7, 7), random(4, 1, 3, 3)]),
    "turned": (partial(back, padding=1), [random(2, 6, 7, 5, last=True), random(6, 1, 3, 3)]),
    "turned, holes": (partial(back, padding=1, dilation=2), [random(2, 6, 7, 7), random(6, 1, 3, 3)]),
    "turned, steps": (
        partial(back, padding=1, stride=2, output_padding=1), [random(2, 6, 7, 7, last=True), random(6, 1, 3, 3)]
    ),
    "turned, steps, 16 bits": (
        partial(back, padding=3, stride=2), [random(2, 6, 7, 7, dtype=HALF), random(6, 1, 7, 7, dtype=HALF)]
    ),
    "turned, steps that leave gaps": (partial(back, stride=3), [random(2, 6, 5, 7), random(6, 1, 2, 2)]),
}  # fmt: skip


def compiled(fn: Callable[..., Any], args: list[Tensor], folder: Path, worker: Worker) -> tuple[Any, Emulator]:
    torch._dynamo.reset()
    emulator = Emulator(folder, worker)
    return torch.compile(fn, backend=emulator.backend)(*args), emulator


def calls(emulator: Emulator) -> list[Call]:
    return [step for step in emulator.printed[0].plan.steps if isinstance(step, Call)]


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_eager_without_a_call_of_the_library(
    case: str, tmp_path: Path, interpreter: Worker
) -> None:
    fn, args = CASES[case]
    got, emulator = compiled(fn, args, tmp_path, interpreter)
    assert_matches(got, fn(*args), fn(*[arg.double() for arg in args]))
    assert not calls(emulator)


@pytest.mark.parametrize("case", ["16 bits", "in steps", "a long sequence", "turned, steps"])
def test_batches_and_sides_may_change(case: str, tmp_path: Path, interpreter: Worker) -> None:
    fn, (x, w) = CASES[case]
    x = x.clone()
    for d in (0, *range(2, x.ndim)):
        torch._dynamo.mark_dynamic(x, d)
    got, emulator = compiled(fn, [x, w], tmp_path, interpreter)
    assert_matches(got, fn(x, w), fn(x.double(), w.double()))
    assert not calls(emulator)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (partial(F.conv2d, groups=2), [random(1, 8, 5, 5), random(4, 4, 3, 3)]),
        (conv, [random(1, 4, 5, 5), random(20, 1, 3, 3)]),  # five filters for a channel
        (partial(conv, padding=3), [random(1, 4, 9, 9, dtype=HALF), random(4, 1, 7, 7, dtype=HALF)]),
        (partial(conv, padding=6), [random(1, 4, 14, 14), random(4, 1, 13, 13)]),
        (partial(back, stride=2, dilation=2), [random(1, 4, 5, 5), random(4, 1, 3, 3)]),
    ],
)
def test_others_stay_with_the_library(fn: Function, args: list[Tensor], tmp_path: Path, interpreter: Worker) -> None:
    _, emulator = compiled(fn, args, tmp_path, interpreter)
    assert calls(emulator)


def gradient(x: Tensor, w: Tensor, g: Tensor, stride: int, padding: int, dilation: int = 1) -> Tensor:
    """That of filters."""
    rank = x.ndim - 2
    layout = ([stride] * rank, [padding] * rank, [dilation] * rank, False, [0] * rank, x.shape[1])
    found: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, *layout, [False, True, False])[1]
    return found


GRADIENTS: dict[str, tuple[Tensor, tuple[int, ...], tuple[int, ...], bool]] = {  # image, filters, layout, whether loops
    "3 x 3": (random(2, 6, 9, 7), (6, 1, 3, 3), (1, 1), True),
    "3 x 3, neighbours": (random(2, 6, 9, 7, last=True), (6, 1, 3, 3), (1, 1), False),
    "5 x 5 in steps, neighbours": (random(2, 16, 11, 10, last=True), (16, 1, 5, 5), (2, 2), True),
    "with holes": (random(2, 6, 11, 9), (6, 1, 3, 5), (1, 4, 2), True),
    "16 bits": (random(2, 6, 9, 7, dtype=HALF), (6, 1, 3, 3), (1, 1), True),
    "7 x 7 of 16 bits, neighbours": (random(2, 6, 9, 7, dtype=HALF, last=True), (6, 1, 7, 7), (1, 3), False),
    "9 x 9 of 16 bits, neighbours": (random(2, 6, 9, 7, dtype=HALF, last=True), (6, 1, 9, 9), (1, 4), True),
    "two filters for a channel": (random(2, 6, 9, 9), (12, 1, 3, 3), (1, 1), True),
    "two filters, neighbours": (random(2, 6, 9, 9, dtype=HALF, last=True), (12, 1, 3, 3), (1, 1), True),
    "a sequence": (random(2, 6, 11), (6, 1, 4), (1, 3), True),
    "volumes": (random(2, 4, 5, 6, 7), (4, 1, 3, 3, 3), (1, 1), True),
    "nothing": (random(0, 4, 7, 7), (4, 1, 3, 3), (1, 1), True),
    "13 x 13": (random(1, 4, 14, 14), (4, 1, 13, 13), (1, 6), False),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_of_filters_are_sums_that_are_read_together(case: str, tmp_path: Path, interpreter: Worker) -> None:
    x, shape, layout, loops = GRADIENTS[case]
    w = random(*shape, dtype=x.dtype)
    stride, padding, dilation = (*layout, 1)[:3]
    y = getattr(F, f"conv{x.ndim - 2}d")(x, w, None, stride, padding, dilation, x.shape[1])
    g = random(*y.shape, dtype=x.dtype)
    got, emulator = compiled(
        partial(gradient, stride=stride, padding=padding, dilation=dilation), [x, w, g], tmp_path, interpreter
    )
    wide = [arg.double() for arg in (x, w, g)]
    assert_matches(got, gradient(x, w, g, stride, padding, dilation), gradient(*wide, stride, padding, dilation))
    assert bool(calls(emulator)) is not loops
    assert not loops or len(emulator.printed[0].kernels) == 1


@pytest.mark.parametrize("case", ["3 x 3", "5 x 5 in steps, neighbours", "a sequence"])
def test_gradients_of_filters_of_images_of_any_size(case: str, tmp_path: Path, interpreter: Worker) -> None:
    x, shape, (stride, padding), _ = GRADIENTS[case]
    x, w = x.clone(), random(*shape)
    g = torch.randn_like(getattr(F, f"conv{x.ndim - 2}d")(x, w, None, stride, padding, 1, x.shape[1]))
    for d in (0, *range(2, x.ndim)):
        torch._dynamo.mark_dynamic(x, d)
        torch._dynamo.mark_dynamic(g, d)
    got, emulator = compiled(partial(gradient, stride=stride, padding=padding), [x, w, g], tmp_path, interpreter)
    wide = [arg.double() for arg in (x, w, g)]
    assert_matches(got, gradient(x, w, g, stride, padding), gradient(*wide, stride, padding))
    assert not calls(emulator)


def test_programs_that_sum_for_large_filters_share_their_columns() -> None:
    """9 x 1,024 sums are 144 programs, too few for 132 multiprocessors where each has much to add."""
    x, w = random(64, 1024, 16, 16, dtype=HALF, last=True), random(1024, 1, 9, 9, dtype=HALF)
    graph = trace(partial(gradient, stride=1, padding=4), (x, w, x))
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    kernel, *_ = print_for_gpu(graph, on_gpu(graph, values), Config()).kernels
    blocks = dict(kernel.configs[0].blocks)
    assert [-(-(axis.extent.value or 0) // blocks[axis.block]) for axis in kernel.grid if axis.block] == [2 * 144]


@pytest.mark.parametrize(("side", "last"), [(9, True), (7, False), (3, False)])
def test_no_thread_keeps_more_sums_than_it_has_registers(
    side: int, last: bool, tmp_path: Path, compiler: Worker
) -> None:
    x, w = random(16, 64, 32, 32, last=last), random(64, 1, side, side)
    emulator = Emulator(tmp_path, compiler, trees=True)
    torch._dynamo.reset()
    torch.compile(partial(gradient, stride=1, padding=side // 2), backend=emulator.backend, dynamic=False)(x, w, x)
    kernel, *_ = emulator.printed[0].kernels
    assert compiler.compile(kernel, kernel.configs[0], 90).spills == 0


def test_large_windows_that_hardly_overlap_stay_rows(tmp_path: Path, interpreter: Worker) -> None:
    """Windows of 9 x 9 to 10 x 10, 62 µs for 44 if written out (32 x 256 x 64 x 64 on an H200)."""
    for x, category in ((random(2, 3, 64, 64), "persistent"), (random(2, 3, 20, 20), "pointwise")):
        got, emulator = compiled(partial(F.adaptive_avg_pool2d, output_size=7), [x], tmp_path, interpreter)
        assert torch.allclose(got, F.adaptive_avg_pool2d(x, 7), atol=1e-6)
        assert [kernel.category for kernel in emulator.printed[0].kernels] == [category]


def test_what_precedes_is_computed_for_each_element_of_a_window_only_if_it_is_little(
    tmp_path: Path, interpreter: Worker
) -> None:
    args = [random(2, 8, 6, 6), random(8, 1, 3, 3)]
    for before, kernels in ((F.relu, 1), (F.silu, 2)):
        _, emulator = compiled(lambda x, w, f=before: conv(f(x), w), args, tmp_path, interpreter)
        assert len(emulator.printed[0].kernels) == kernels


def test_rows_that_are_reduced_of_the_result_are_read_by_a_kernel_of_their_own(
    tmp_path: Path, interpreter: Worker
) -> None:
    args = [random(2, 8, 6, 6, last=True), random(8, 1, 3, 3)]

    def squeezed(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(conv(x, w, padding=1)).sum(1)

    got, emulator = compiled(squeezed, args, tmp_path, interpreter)
    assert_matches(got, squeezed(*args), squeezed(*[arg.double() for arg in args]))
    assert len(emulator.printed[0].kernels) == 2


def test_results_of_16_bits_are_stored_in_as_many(tmp_path: Path, interpreter: Worker) -> None:
    args = [random(2, 16, 9, 9, dtype=HALF, last=True), random(16, 1, 3, 3, dtype=HALF)]

    def excited(x: Tensor, w: Tensor) -> Tensor:
        y = F.silu(conv(x, w, padding=1))
        return y * y.mean((2, 3), keepdim=True)

    got, emulator = compiled(excited, args, tmp_path, interpreter)
    assert_matches(got, excited(*args), excited(*[arg.double() for arg in args]))
    stored = [step.value for step in emulator.printed[0].plan.steps if isinstance(step, Allocate)]
    assert stored and {value.dtype for value in stored} == {HALF}


def test_independent_ones_do_not_share_a_launch(tmp_path: Path, interpreter: Worker) -> None:
    x, w, v = random(2, 8, 6, 6), random(8, 1, 3, 3), random(8, 1, 3, 3)

    def two(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return conv(x, w), conv(x.flip(0), v)

    _, emulator = compiled(two, [x, w, v], tmp_path, interpreter)
    assert [kernel.category for kernel in emulator.printed[0].kernels] == ["pointwise"] * 2


def test_filters_that_are_read_again_and_again_are_laid_channel_beside_channel(
    tmp_path: Path, interpreter: Worker
) -> None:
    args = [random(64, 128, 12, 12, last=True), random(128, 1, 3, 3)]
    got, emulator = compiled(conv, args, tmp_path, interpreter)
    assert_matches(got, conv(*args), conv(*[arg.double() for arg in args]))
    copy, _ = emulator.printed[0].kernels
    assert "copy" in copy.name and copy.category == "pointwise"


def test_channels_that_are_neighbours_are_read_by_whole_vectors(tmp_path: Path, compiler: Worker) -> None:
    args = [random(16, 64, 56, 56, dtype=HALF, last=True), random(64, 1, 3, 3, dtype=HALF)]
    emulator = Emulator(tmp_path, compiler, trees=True)
    torch._dynamo.reset()
    torch.compile(partial(conv, padding=1), backend=emulator.backend, dynamic=False)(*args)
    *_, kernel = emulator.printed[0].kernels
    built = compiler.compile(kernel, kernel.configs[0], 90)
    assert built.spills == 0 and built.ptx.count("ld.global.v4") >= 9
