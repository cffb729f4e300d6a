"""Convolutions by templates of matrix products: patches are computed where they are loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.ir.tree import Config
from gyrator.schedule.gpu import Gpu
from tests.acceptance import assert_matches
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import on_gpu, runner
from tests.triton.test_products import TEMPLATES, blocks, plan_of, random, titles_of
from tests.triton.worker import Worker

HALF = torch.bfloat16


def images(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """Random numbers, channels last."""
    return random(*shape, dtype=dtype).movedim(1, -1).contiguous().movedim(-1, 1)


def in_steps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, b, stride=2, padding=1))


def with_residual(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.conv2d(x, w, padding="same") + r)


def with_gaps(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, w, padding=(2, 0), dilation=(2, 1))
    return y, y.mul(2).half()


def of_pixels(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.tanh(F.conv2d(x, w, b)) * r


def of_some_pixels(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, stride=2)


def in_one_dimension(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.conv1d(x, w, b, padding=1))


def in_three(x: Tensor, w: Tensor) -> Tensor:
    return F.conv3d(x, w, padding=1) + 1


CASES: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], list[Tensor]]] = {
    "in steps": (in_steps, [images(2, 16, 9, 9), images(20, 16, 3, 3), random(20, dtype=HALF)]),
    "a residual": (with_residual, [images(2, 5, 6, 7), images(18, 5, 5, 3), images(2, 18, 6, 7)]),
    "gaps": (with_gaps, [images(1, 8, 7, 9), images(3, 8, 3, 3)]),
    "pixels": (of_pixels, [images(2, 24, 5, 4), images(20, 24, 1, 1), random(20, dtype=HALF), images(2, 20, 5, 4)]),
    "some pixels": (of_some_pixels, [images(2, 24, 5, 4), images(20, 24, 1, 1)]),
    "one channel": (of_some_pixels, [images(2, 1, 9, 4), images(20, 1, 3, 2)]),
    "one dimension": (in_one_dimension, [images(2, 8, 33), images(20, 8, 3), random(20, dtype=HALF)]),
    "three dimensions": (in_three, [images(1, 4, 3, 4, 5), images(6, 4, 3, 3, 3)]),
}


def check(case: str, way: str, interpreter: Worker, *, dynamic: bool = False) -> None:
    fn, args = CASES[case]
    low = lowered(fn, *args, dynamic=dynamic)
    plan = plan_of(on_gpu(low.program), "tiled", TEMPLATES[way])
    assert [k.tiling.category for k in plan.kernels if k.tiling] == ["template"]
    results = run_plan(plan, args, low.constants, runner(interpreter))
    eager, exact = fn(*args), fn(*(a.double() for a in args))
    for got, plain, right in zip(results, *(r if isinstance(r, tuple) else (r,) for r in (eager, exact)), strict=True):
        assert isinstance(got, Tensor) and got.stride() == plain.stride()
        assert_matches(got, plain, right, slack=4)


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_and_what_follows_is_one_kernel(case: str, interpreter: Worker) -> None:
    check(case, "tiled", interpreter)


@pytest.mark.parametrize("way", ["persistent", "split"])
def test_convolutions_in_other_ways(way: str, interpreter: Worker) -> None:
    check("a residual", way, interpreter)
    check("pixels", way, interpreter)


def test_a_choice_is_named_after_its_operands() -> None:
    for case, title in (("in steps", "2x16x9x9, 20x16x3x3, 20"), ("pixels", "2x24x5x4, 20x24x1x1, 20")):
        program = on_gpu(lowered(CASES[case][0], *CASES[case][1]).program)
        assert titles_of(program)[0] == f"convolution({title})"


@pytest.mark.parametrize("case", ["in steps", "pixels"])
def test_sizes_may_change(case: str, interpreter: Worker) -> None:
    check(case, "tiled", interpreter, dynamic=True)


def grouped(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, groups=2)


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w)


def one_number_for_all_sides(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.aten.convolution(x, w, None, [2], [1], [1], False, [0], 1)


@pytest.mark.parametrize(
    "fn, args",
    [
        (grouped, [images(1, 8, 5, 5), images(4, 4, 3, 3)]),
        (one_number_for_all_sides, [images(1, 8, 5, 5), images(4, 8, 3, 3)]),
        (transposed, [images(1, 8, 5, 5), images(8, 4, 3, 3)]),
        (of_some_pixels, [random(1, 8, 5, 5, dtype=HALF), images(4, 8, 3, 3)]),  # channels that lie apart
        (of_some_pixels, [images(1, 8, 5, 5, dtype=torch.float32), images(4, 8, 3, 3, dtype=torch.float32)]),
    ],
)
def test_other_convolutions_stay_with_the_library(fn: Callable[..., Tensor], args: list[Tensor]) -> None:
    plan = plan_of(on_gpu(lowered(fn, *args).program), "tiled", blocks())
    assert not [k for k in plan.kernels if k.tiling and k.tiling.category == "template"]


@pytest.mark.parametrize("stride, kernel", [(1, 3), (2, 3), (2, 1)])
def test_patches_are_copied_by_whole_vectors(stride: int, kernel: int, compiler: Worker) -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(F.conv2d(x, w, b, stride=stride, padding=kernel // 2))

    config = Config(blocks(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8).blocks, 8, 4)
    args = [images(4, 256, 28, 28), images(128, 256, kernel, kernel), random(128, dtype=HALF)]
    (kernel_,) = map(print_triton, plan_of(on_gpu(lowered(fn, *args).program), "tiled", config).kernels)
    built = compiler.compile(kernel_, config, 90)
    assert built.spills == 0 and built.shared <= Gpu().shared_bytes
    assert "cp.async.cg.shared.global" in built.ptx and "wgmma" in built.ptx
