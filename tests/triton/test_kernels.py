"""Kernels as Triton: what they give in Triton's interpreter, and what the compiler makes of them.

The same functions are traced small, to be interpreted and compared with eager, and large, to be compiled for
compute capabilities 8.0 and 9.0 with registers and spills counted. Triton runs in processes of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_source import SizeArgument
from gyrator.codegen.wrapper import fits_text
from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Config, LoopKind, walk_loops
from gyrator.ir.volume import iterations, volume
from gyrator.runtime.targets import print_forms, print_with_room
from gyrator.runtime.triton_build import Wanted
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.emulated import Emulator
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

BF16 = torch.bfloat16
Shape = tuple[int, ...]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def half(*shape: int) -> Tensor:
    return floats(*shape, dtype=BF16)


def numbers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def layer_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x, g32 = x.float(), g.float()
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + 1e-5)
    h, gw = (x - mean) * scale, g32 * w
    dx = (gw - h * (gw * h).mean(-1, keepdim=True) - gw.mean(-1, keepdim=True)) * scale
    return dx.to(g.dtype), (g32 * h).sum(0), g32.sum(0)


def several_reductions(x: Tensor) -> tuple[Tensor, ...]:
    flags = x > 1
    return x.argmax(-1), x.argmin(0), x.amax(0), x.prod(-1), x.var(-1), flags.any(-1), flags.all(0), x.sum()


def scans(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumsum(-1), x.cumprod(0), *x.cummax(-1), x.logcumsumexp(-1)


def indices(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    rows, column = x[: i.shape[0]], i[:, None]
    largest = x.scatter_reduce(0, column, rows * 2, "amax")
    return x[i] * 2, x.index_add(0, i, rows), x.gather(0, column), largest


def integers(i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    return (i // (j + 1), i % (j + 1), i - 7 & j, (i - 9) // 4, (i - 9) % 4, i << 2, (i - 20) >> 1, i.to(torch.int8))


def channels_last(*shape: int) -> Tensor:
    return floats(*shape).to(memory_format=torch.channels_last)


def windows(x: Tensor) -> tuple[Tensor, ...]:
    """Of equal elements and of NaNs the first one counts."""
    x = torch.where(x > 2, torch.nan, x.round())
    best, where = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    return best, where, F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def casts(x: Tensor) -> tuple[Tensor, ...]:
    return x.half(), x.to(BF16), x.to(torch.int32), x.bool(), x.double() * 0.1, (x * 3).to(torch.int64)


PROGRAMS: dict[Callable[..., Any], Callable[[bool], tuple[Tensor, ...]]] = {
    rms_norm: lambda big: (half(4096, 8192), half(8192)) if big else (half(5, 70), half(70)),
    layer_norm: lambda big: (half(64, 4096), floats(4096), floats(4096)) if big else (half(5, 70), *[floats(70)] * 2),
    layer_norm_backward: lambda big: (
        (half(8192, 384), half(8192, 384), floats(384)) if big else (half(70, 40), half(70, 40), floats(40))
    ),
    several_reductions: lambda big: (floats(2000, 3000) if big else floats(9, 70),),
    scans: lambda big: (floats(64, 8192) if big else floats(3, 70),),
    indices: lambda big: (floats(500, 768), numbers(500, 400)) if big else (floats(9, 6), numbers(9, 7)),
    integers: lambda big: (numbers(30, 999), numbers(30, 999)) if big else (numbers(30, 99), numbers(30, 99)),
    casts: lambda big: (floats(4096, 100) if big else floats(9, 7),),
}
PROGRAMS |= {
    lambda x: torch.softmax(x, -1): lambda big: (half(512, 16384) if big else half(5, 70),),
    lambda x: torch.softmax(x, 0): lambda big: (floats(1000, 1000) if big else floats(70, 40),),
    lambda x: F.gelu(x + 1) * 0.5: lambda big: (half(4096, 4096) if big else half(9, 70),),
    lambda x, y: x.t() + y: lambda big: (
        (floats(2048, 1024), floats(1024, 2048)) if big else (floats(150, 140), floats(140, 150))
    ),
    lambda x, t: F.cross_entropy(x.float(), t): lambda big: (
        (half(512, 50000), numbers(50000, 512)) if big else (half(6, 70), numbers(70, 6))
    ),
    lambda x: F.batch_norm(x, None, None, training=True): lambda big: (
        floats(64, 64, 28, 28) if big else floats(4, 3, 7, 7),
    ),
    lambda x: F.max_pool2d(x, 2): lambda big: (floats(8, 64, 56, 56) if big else floats(2, 3, 8, 8),),
    windows: lambda big: (channels_last(8, 64, 56, 56) if big else channels_last(2, 3, 9, 7),),
    lambda x: torch.var_mean(x, (0, 2, 3)): lambda big: (
        channels_last(64, 64, 28, 28) if big else channels_last(8, 5, 64, 64),
    ),
    lambda x: torch.cat([x, x[:, :3]], 1).relu().flip(0): lambda big: (floats(900, 800) if big else floats(9, 8),),
}
NAMES = [fn.__name__ if fn.__name__ != "<lambda>" else f"lambda{k}" for k, fn in enumerate(PROGRAMS)]


@pytest.mark.parametrize("fn", PROGRAMS, ids=NAMES)
def test_kernels_give_what_eager_gives(fn: Callable[..., Any], interpreter: Worker) -> None:
    args = PROGRAMS[fn](False)
    low = lowered(fn, *args)
    plan = gpu_plan(on_gpu(low.program))
    results = run_plan(plan, [a.clone() for a in args], low.constants, runner(interpreter))
    eager = fn(*args)
    for got, wanted in zip(results, [eager] if isinstance(eager, Tensor) else eager, strict=True):
        assert isinstance(got, Tensor)
        close = 1e-2 if wanted.dtype == BF16 else 2e-5
        torch.testing.assert_close(got, wanted, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("fn", [torch.erf, torch.tanh])
def test_cheap_functions_of_16_bits_are_right_to_their_rounding(
    fn: Callable[[Tensor], Tensor], interpreter: Worker
) -> None:
    """Against float64: half a unit in the last place, and for erf 4e-5; exactly 1 far out, NaN for NaN."""
    x = torch.cat([torch.linspace(-8, 8, 4001), torch.tensor([0.0, 1e-4, -1e-3, 3.04, 3.06, 1000, -1000, torch.nan])])
    x = x.half()
    low = lowered(fn, x)
    plan = gpu_plan(on_gpu(low.program))
    assert "_16(" in print_triton(plan.kernels[0]).source
    (got,) = run_plan(plan, [x.clone()], low.constants, runner(interpreter))
    assert isinstance(got, Tensor)
    exact = fn(x.double())
    allowed = exact.abs() * 2.0**-11 + (4e-5 if fn is torch.erf else 1e-6)
    assert bool(((got.double() - exact).abs() <= allowed)[:-1].all()) and bool(got[-1].isnan())
    assert got[-3].item() == 1.0 and got[-2].item() == -1.0


@pytest.mark.parametrize("fn", PROGRAMS, ids=NAMES)
def test_kernels_compile_without_spilling(fn: Callable[..., Any], compiler: Worker) -> None:
    plan = gpu_plan(on_gpu(lowered(fn, *PROGRAMS[fn](True)).program))
    for number, kernel in enumerate(plan.kernels):
        printed = print_triton(kernel)
        built = compiler.compile(printed, printed.configs[0], 90 if number % 2 else 80)
        assert built.spills == 0, printed.source
        assert built.registers * printed.configs[0].num_warps * 32 <= 65_536
        assert built.shared <= 48 << 10


@pytest.mark.parametrize(("arch", "early"), [(90, True), (90, False), (80, False)])
def test_early_kernels_wait_for_what_was_launched_before(arch: int, early: bool, compiler: Worker) -> None:
    kernels = gpu_plan(on_gpu(lowered(lambda x: (x * 2, x.sum(0)), half(512, 4096)).program)).kernels
    for kernel in kernels:
        printed = print_triton(kernel, early=early)
        assert printed.early is early
        ptx = compiler.compile(printed, printed.configs[0], arch).ptx
        assert ("griddepcontrol.wait" in ptx) is early
        first = min(ptx.index(access) for access in ("ld.global", "st.global"))
        assert not early or ptx.index("griddepcontrol.wait") < first


def test_a_row_that_fits_is_read_once(compiler: Worker) -> None:
    (kernel,) = gpu_plan(on_gpu(lowered(lambda x: torch.softmax(x, -1), half(512, 16384)).program)).kernels
    printed = print_triton(kernel)
    assert printed.source.count("tl.load(") == 1 and "for " not in printed.source
    ptx = compiler.compile(printed, printed.configs[0], 90).ptx
    assert "ld.global.v4" in ptx.replace(".b32", "") or "ld.global" in ptx


@pytest.mark.parametrize("fn", [rms_norm, layer_norm, lambda x: torch.softmax(x, -1), lambda x: x.var(-1)])
def test_rows_that_fit_can_also_be_run_through_in_blocks(fn: Callable[..., Any], interpreter: Worker) -> None:
    """The same parameters and grid; only how a program walks through its rows differs."""
    shapes = {rms_norm: [(3, 2500), (2500,)], layer_norm: [(3, 2500), (2500,), (2500,)]}.get(fn, [(3, 2500)])
    args = [floats(*shape) for shape in shapes]
    low = lowered(fn, *args)
    plan = gpu_plan(on_gpu(low.program))
    (kernel,) = plan.kernels
    both = print_forms(kernel)
    assert both.other is not None and (both.category, both.other.category) == ("persistent", "looped")
    assert both.params == both.other.params and both.grid == both.other.grid
    assert "for " in both.other.source and "for " not in both.source
    assert both.other.configs[0].blocks[-1][1] < 2500
    blocked = replace(kernel, tiling=kernel.tiling and kernel.tiling.other)
    (got,) = run_plan(replace(plan, kernels=(blocked,)), [a.clone() for a in args], low.constants, runner(interpreter))
    torch.testing.assert_close(got, fn(*args), rtol=2e-5, atol=2e-5)


def test_short_rows_and_columns_have_one_form() -> None:
    for fn, x in ((lambda x: torch.softmax(x, -1), floats(99, 500)), (lambda x: x.sum(0), floats(60, 5000))):
        assert [print_forms(k).other for k in gpu_plan(on_gpu(lowered(fn, x).program)).kernels] == [None]


def test_a_transposed_read_gets_a_tile_with_two_sides() -> None:
    program = on_gpu(lowered(lambda x, y: x.t() + y, floats(2048, 1024), floats(1024, 2048)).program)
    (kernel,) = gpu_plan(program).kernels
    assert kernel.tiling is not None
    assert [t.block for t in kernel.tiling.tiles] == ["YBLOCK", "XBLOCK"]


def weights_along_rays(density: Tensor, step: Tensor) -> Tensor:
    passed = torch.exp(-density.relu() * step)
    return (1 - passed) * torch.cumprod(F.pad(passed[:, :-1], (1, 0), value=1.0), -1)


def shares_with_the_last(a: Tensor, b: Tensor) -> Tensor:
    both = torch.tanh(a + b)
    return both + F.pad(both[:, :-1], (1, 0))


@pytest.mark.parametrize("fn", [weights_along_rays, shares_with_the_last])
def test_what_is_read_at_two_places_is_computed_twice_rather_than_stored(
    fn: Callable[..., Any], interpreter: Worker
) -> None:
    x, y = floats(33, 40), floats(33, 40)
    plan = gpu_plan(on_gpu(lowered(fn, x, y).program))
    assert len(plan.kernels) == 1
    (got,) = run_plan(plan, [x, y], launch=runner(interpreter))
    torch.testing.assert_close(got, fn(x, y), rtol=2e-5, atol=2e-5)


def nearest(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y) ** 2).sum(-1).argmin(-1)


def distances(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y).abs().sum(-1)


@pytest.mark.parametrize(
    ("fn", "shapes", "loops"),
    [
        (nearest, [(70, 3), (40, 3)], ["argmin"]),
        (nearest, [(70, 8), (40, 8)], ["argmin"]),
        (distances, [(70, 3), (40, 3)], []),
        (distances, [(70, 4), (40, 4)], ["sum"]),
        (lambda x: x.unfold(1, 16, 2).amax(-1), [(40, 200)], []),
        (lambda x: x.unfold(1, 16, 8).amax(-1), [(40, 200)], ["max"]),
    ],
    ids=["nearest-of-3", "nearest-of-8", "distances-of-3", "distances-of-4", "near-windows", "far-windows"],
)
def test_short_rows_are_written_out_where_lanes_would_be_idle_or_apart(
    fn: Callable[..., Any], shapes: list[tuple[int, ...]], loops: list[str], interpreter: Worker
) -> None:
    args = [floats(*shape) for shape in shapes]
    plan = gpu_plan(on_gpu(lowered(fn, *args).program))
    assert [carry.kind for k in plan.kernels for loop in walk_loops(k.body) for carry in loop.carries] == loops
    (got,) = run_plan(plan, args, launch=runner(interpreter))
    torch.testing.assert_close(got, fn(*args), rtol=2e-5, atol=2e-5)


def pull(points: Tensor) -> Tensor:
    apart = points - points[:, None]
    return (apart * ((apart**2).sum(-1, keepdim=True) + 0.1) ** -1.5).sum(1)


def test_distances_of_pairs_are_computed_where_they_are_read(interpreter: Worker) -> None:
    x = floats(70, 3)
    plan = gpu_plan(on_gpu(lowered(pull, x).program))
    assert len(plan.kernels) == 1 and "pow(" not in kernel_text(plan.kernels[0])
    (got,) = run_plan(plan, [x], launch=runner(interpreter))
    torch.testing.assert_close(got, pull(x.double()).float(), rtol=2e-5, atol=2e-5)


def test_what_is_made_of_windows_is_no_window_of_its_own() -> None:
    """The exponentials of maxima are computed once, with the maxima, not in each window that they are in."""
    fn = lambda x: x.unfold(-1, 5, 1).amax(-1).exp().unfold(-1, 5, 1).sum(-1)  # noqa: E731
    plan = gpu_plan(on_gpu(lowered(fn, floats(64, 2048)).program))
    assert [kernel_text(kernel).count("exp(") for kernel in plan.kernels] == [1, 0]


def test_short_rows_within_longer_ones_are_rows_though_what_is_subtracted_is_no_row(interpreter: Worker) -> None:
    fn = lambda x: x.view(40, -1, 20).log_softmax(-1)  # noqa: E731
    x = floats(40, 60)
    plan = gpu_plan(on_gpu(lowered(fn, x).program))
    assert [len([*walk_loops(kernel.body)]) > 2 for kernel in plan.kernels] == [True]
    (got,) = run_plan(plan, [x], launch=runner(interpreter))
    torch.testing.assert_close(got, fn(x), rtol=2e-5, atol=2e-5)


def test_rows_that_lie_across_memory_are_read_in_tiles(compiler: Worker) -> None:
    fn = lambda p, x: torch.softmax(p + x.transpose(1, 2), -1)  # noqa: E731
    low = lowered(fn, half(1500, 512), half(8, 512, 1500))
    (kernel,) = gpu_plan(on_gpu(low.program)).kernels
    printed = print_triton(kernel)
    tiles = [config for config in printed.configs if dict(config.blocks).get("XBLOCK", 1) >= 16]
    assert tiles and all(compiler.compile(printed, config, 90).spills == 0 for config in tiles)


@pytest.mark.parametrize(
    ("fn", "exact"),
    [
        (lambda x: (x / 7).floor(), True),
        (lambda x: (x / x.abs()).to(torch.int64), True),
        (lambda x: torch.div(x, x.abs() + 2, rounding_mode="trunc"), True),
        (lambda x: x / 7 == 1, True),
        (lambda x: x.reciprocal() == 0.1, True),
        (lambda x: (x / x.abs()).clamp(-1) >= x, True),
        (lambda x: x.var(-1), True),
        (lambda x: x / x.abs() + 1, False),
        (lambda x: x / 7 > 0, False),
        (lambda x: torch.where(x == -torch.inf, 0, x / 7), False),
        (lambda x: torch.where(torch.rand(300, 7) > 0.1, x / 7, 0), False),
    ],
)
def test_quotients_that_are_rounded_are_exact(fn: Callable[..., Any], exact: bool, compiler: Worker) -> None:
    (kernel,) = gpu_plan(on_gpu(lowered(fn, floats(300, 7)).program)).kernels
    printed = print_triton(kernel)
    assert ("div.rn.f32" in compiler.compile(printed, printed.configs[0], 90).ptx) is exact


def test_kernels_name_the_users_line_where_an_index_is_out_of_range() -> None:
    (kernel,) = gpu_plan(on_gpu(lowered(lambda x, i: x[i], floats(9, 6), numbers(9, 7)).program)).kernels
    printed = print_triton(kernel)
    assert printed.asserts and "index out of range: " in printed.source


def test_sums_over_rows_and_columns_of_the_same_tensors_read_them_once(interpreter: Worker) -> None:
    """Mix-order reduction: dx, dw and db of a layer norm from one kernel, and one to add up partial sums."""
    args = PROGRAMS[layer_norm_backward](True)
    large = gpu_plan(on_gpu(lowered(layer_norm_backward, *args).program))
    first, last = large.kernels
    source = print_triton(first).source
    assert source.count("tl.load(") == 3 and source.count("tl.store(") == 3
    assert first.tiling is not None and last.tiling is not None
    assert last.tiling.hint < first.tiling.hint / 10
    assert len(last.tiling.configs) == 1  # it is over before it could be timed
    small = half(256, 256), half(256, 256), floats(256)
    program = on_gpu(lowered(layer_norm_backward, *small).program)
    plan = gpu_plan(program, Gpu(processors=2))
    assert len(plan.kernels) == 2
    results = run_plan(plan, [a.clone() for a in small], launch=runner(interpreter))
    for got, wanted in zip(results, layer_norm_backward(*small), strict=True):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)


def test_rows_of_which_some_lie_across_memory_are_summed_apart_from_columns() -> None:
    """A program for each row would read one number of every 32 bytes: there are several rows in a tile."""
    args = floats(128, 256, 768), floats(128, 768, 256)
    program = lowered(lambda x, y: ((x + y.mT).sum(-1), x.sum((0, 1))), *args).program
    rows, *columns = gpu_plan(on_gpu(program)).kernels
    assert rows.tiling is not None and min(dict(c.blocks)["XBLOCK"] for c in rows.tiling.configs) >= 16
    assert len(columns) == 2


def adaptive_norm_backward(g: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    gs = g * scale[:, None]
    dx = gs - gs.mean(-1, keepdim=True) - x * (gs * x).mean(-1, keepdim=True)
    return dx, (g * x).sum(1), g.sum(1)


def test_sums_of_a_stack_of_rows_are_split_where_stacks_are_few(interpreter: Worker) -> None:
    args = floats(3, 96, 300), floats(3, 96, 300), floats(3, 300)
    plan = gpu_plan(on_gpu(lowered(adaptive_norm_backward, *args).program), Gpu(processors=4))
    assert len(plan.kernels) == 2
    grid = [loop.axis for loop in walk_loops(plan.kernels[0].body) if loop.kind is LoopKind.PARALLEL]
    assert iterations(grid) == 18  # of 16 rows each
    results = run_plan(plan, [a.clone() for a in args], launch=runner(interpreter))
    for got, wanted in zip(results, adaptive_norm_backward(*args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


def test_stacks_whose_rows_have_no_even_parts_are_summed_as_columns() -> None:
    """Not by a program or two: 197 tokens have no parts."""
    args = floats(8, 197, 768), floats(8, 197, 768), floats(8, 768)
    plan = gpu_plan(on_gpu(lowered(adaptive_norm_backward, *args).program))
    assert len(plan.kernels) > 1


def test_rows_past_those_of_a_tile_are_left_to_the_programs_whose_they_are(interpreter: Worker) -> None:
    """Results take the memory of gradients, 65 programs the rows in turns, of tiles of 4: some rows would be read when
    they are results."""

    def backward(g: Tensor, x: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return layer_norm_backward(g @ m, x, w)

    args = [floats(1043, 64), floats(1043, 64).sin(), floats(64), floats(64, 64)]
    plan = gpu_plan(on_gpu(lowered(backward, *args).program))
    assert any(param.alias for param in plan.kernels[0].params)
    for got, wanted in zip(run_plan(plan, args, launch=runner(interpreter)), backward(*args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_rows_of_several_dimensions_are_run_through_in_one_loop(interpreter: Worker) -> None:
    """Blocks of rows do not end within the inner dimension, so that a block is one loop."""

    def backward(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = x.float() - x.float().mean(-1, keepdim=True)
        wide = g.float()
        return (wide - h * (wide * h).mean(-1, keepdim=True)).bfloat16(), (wide * h).sum((0, 1)), wide.sum((0, 1))

    for shape in ((8, 1500, 512), (64, 197, 512)):
        plan = gpu_plan(on_gpu(lowered(backward, half(*shape), half(*shape)).program))
        sources = [print_triton(kernel).source for kernel in plan.kernels]
        assert sources[0].count("tl.load(") == 2 and sources[0].count("for ") == 1
    small = half(4, 60, 256), half(4, 60, 256)
    plan = gpu_plan(on_gpu(lowered(backward, *small).program), Gpu(processors=2))
    assert len(plan.kernels) == 2
    results = run_plan(plan, [a.clone() for a in small], launch=runner(interpreter))
    for got, wanted in zip(results, backward(*small), strict=True):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=2e-2)


def test_places_in_large_tensors_are_computed_in_64_bits_from_a_loop_over_rows() -> None:
    """Triton counts such a loop in 32 bits, and the element where a row begins needs more."""
    with FakeTensorMode():
        x = torch.empty(132 * 4600, 4096, dtype=BF16)
        low = lowered(lambda x: (x.sum(0), x - x.float().mean(1, keepdim=True)), x)
    (kernel,) = [k for k in gpu_plan(on_gpu(low.program)).kernels if k.scratch]
    (row,) = re.findall(r"for (\w+) in tl.range", source := print_triton(kernel).source)
    assert f"tl.cast({row}, tl.int64) * " in source and f"{row} *" not in source


def test_a_transposition_before_norms_is_a_kernel_with_a_tile_of_two_sides() -> None:
    """Reductions then read rows; a gather is none."""

    def norm(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        h = x.transpose(1, 2).contiguous().float()
        return ((h - h.mean(-1, keepdim=True)) * 2).bfloat16(), x[at].sum(-1)

    at = torch.arange(8)
    plan = gpu_plan(on_gpu(lowered(norm, half(8, 2560, 1500), at).program))
    tilings = [kernel.tiling for kernel in plan.kernels]
    assert sorted(
        [t.block for t in tiling.tiles] for tiling in tilings if tiling and tiling.category == "pointwise"
    ) == [["YBLOCK", "XBLOCK"]]


@pytest.mark.parametrize("channels", [96, 512, 2048])
def test_short_rows_that_lie_across_memory_are_reduced_as_they_lie(channels: int, interpreter: Worker) -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), (channels,)).permute(0, 3, 1, 2)

    (kernel,) = gpu_plan(on_gpu(lowered(norm, half(16, channels, 40, 40)).program)).kernels
    assert kernel.tiling and max(dict(config.blocks)["XBLOCK"] for config in kernel.tiling.configs) >= 16
    x = half(2, channels, 3, 5)
    (got,) = run_plan(gpu_plan(on_gpu(lowered(norm, x).program)), [x], launch=runner(interpreter))
    torch.testing.assert_close(got, norm(x), rtol=2e-2, atol=2e-2)


def test_long_rows_that_something_else_reads_first_are_transposed_before() -> None:
    def residual(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = x.transpose(1, 2).contiguous() + y
        return h, h.float().softmax(-1)

    copied, _ = gpu_plan(on_gpu(lowered(residual, half(8, 768, 1500), half(8, 1500, 768)).program)).kernels
    assert copied.tiling and [tile.block for tile in copied.tiling.tiles] == ["YBLOCK", "XBLOCK"]


@pytest.mark.parametrize(("rows", "last"), [(1 << 14, True), (1 << 10, False)])
def test_what_is_large_and_read_for_the_last_time_does_not_stay_in_the_cache(rows: int, last: bool) -> None:
    x = torch.empty(rows, 1024, device="meta")
    (once,) = gpu_plan(on_gpu(lowered(lambda x: x.sum(-1), x).program)).kernels
    assert ("evict_first" in print_triton(once).source) is last
    first, *_ = gpu_plan(on_gpu(lowered(lambda x: x / x.norm(dim=0), x).program)).kernels
    assert "evict_first" not in print_triton(first).source


@pytest.mark.parametrize(("rows", "fn"), [(1 << 18, lambda x: x.sum(-1)), (1 << 14, lambda x: x.softmax(-1))])
def test_what_is_very_large_or_leads_to_as_much_is_read_as_usual(rows: int, fn: Callable[..., Any]) -> None:
    """Such kernels are slower with a hint to the cache."""
    (kernel,) = gpu_plan(on_gpu(lowered(fn, torch.empty(rows, 1024, device="meta")).program)).kernels
    assert "evict_first" not in print_triton(kernel).source


def test_places_that_symbolic_sizes_decide_are_computed_in_32_bits_where_launches_find_that_they_fit() -> None:
    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (1, 0)) + 1

    (kernel,) = gpu_plan(on_gpu(lowered(padded, torch.randn(30, 70), dynamic=True).program)).kernels
    printed = print_triton(kernel)
    assert "int64" not in printed.source and "int64" in printed.plain
    (text,) = fits_text(printed)
    assert text.startswith("fits=lambda ") and text.endswith(" < 2147418112")
    fits = eval(text.removeprefix("fits="))
    assert fits(1 << 15, (1 << 16) - 5) and not fits(1 << 15, 1 << 16)
    many = torch.empty(1 << 16, 1 << 15, dtype=torch.int8)
    (kernel,) = gpu_plan(on_gpu(lowered(padded, many, dynamic=True).program)).kernels
    assert "int64" in print_triton(kernel).source and not fits_text(print_triton(kernel))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_between_pixels_are_computed_in_32_bits(mode: str, interpreter: Worker, tmp_path: Path) -> None:
    """Without checks, too: they are clamped."""

    def resized(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, size=(11, 14), mode=mode)

    torch._dynamo.reset()
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    emulator = Emulator(tmp_path, interpreter)
    torch.testing.assert_close(torch.compile(resized, backend=emulator.backend)(x), resized(x), rtol=1e-5, atol=1e-6)
    (source,) = [kernel.source for printed in emulator.printed for kernel in printed.kernels]
    assert "int64" not in source and "assert" not in source


@pytest.mark.parametrize("aligned", [False, True], ids=["borders", "aligned"])
@pytest.mark.parametrize("name", ["upsample_bilinear2d_backward", "upsample_bicubic2d_backward"])
def test_gradients_of_resampling(name: str, aligned: bool, interpreter: Worker) -> None:
    """Where an input's first output lies before the first one, too: its number is a quotient below zero."""
    backward = getattr(torch.ops.aten, name).default
    for new, factors in (((10, 14), (2.0, 2.0)), ((8, 9), (None, 1.3)), ((3, 4), (None, None))):

        def gradient(g: Tensor, new: Any = new, factors: Any = factors) -> Tensor:
            return backward(g, new, [2, 3, 5, 7], aligned, *factors)

        g = floats(2, 3, *new)
        (found,) = run_plan(gpu_plan(on_gpu(lowered(gradient, g).program)), [g], launch=runner(interpreter))
        torch.testing.assert_close(found.double(), gradient(g.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", [3, 4, 12])
def test_products_of_tiny_matrices(side: int, interpreter: Worker, tmp_path: Path) -> None:
    def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ b, a.mT @ (b * 2).mT

    torch._dynamo.reset()
    args = (floats(37, side, side), floats(37, side, side).sin())
    emulator = Emulator(tmp_path, interpreter)
    found = torch.compile(products, backend=emulator.backend)(*args)
    for got, exact in zip(found, products(*(x.double() for x in args)), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)
    assert emulator.printed[0].kernels


@pytest.mark.parametrize(("rows", "columns", "kernels"), [(4096, 4096, 3), (4096, 1 << 15, 1), (1024, 4096, 2)])
def test_what_follows_from_long_columns_is_apart_where_few_programs_have_columns(
    rows: int, columns: int, kernels: int
) -> None:
    """A program has 32 columns, and reads short pieces of memory. Sums of few columns are in two steps anyway."""
    low = lowered(lambda x: x - x.mean(0), torch.empty(rows, columns, device="meta"))
    assert len(gpu_plan(on_gpu(low.program)).kernels) == kernels


def test_what_follows_from_statistics_of_few_columns_is_a_kernel_of_its_own() -> None:
    """Batch norm: the sums' last step takes 16 programs, the large result all multiprocessors."""

    def batch_norm(x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x.float(), 0, correction=0)
        return ((x.float() - mean) * torch.rsqrt(variance + 1e-5)).bfloat16()

    plan = gpu_plan(on_gpu(lowered(batch_norm, half(12544, 256)).program))
    tilings = [kernel.tiling for kernel in plan.kernels]
    assert [t and t.category for t in tilings] == ["looped", "persistent", "pointwise"]


def test_a_masked_gradient_is_kept_as_narrow_as_it_is() -> None:
    """Not as the wider numbers that its three readers compute with."""

    def backward(g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.where(y <= 0, 0, g).float()
        return wide.sum(0), (wide * x).sum(0), (wide - wide.sum(0) * x).bfloat16()

    plan = gpu_plan(on_gpu(lowered(backward, *[half(12544, 256)] * 3).program))
    large = {p.value.dtype for k in plan.kernels for p in k.params if volume(p.value.shape) == 12544 * 256}
    assert large == {BF16}


def test_softmax_of_rows_that_are_all_alike(interpreter: Worker) -> None:
    x = floats(2, 8, 900)
    fn = lambda x: torch.softmax(torch.full_like(x, 2.0) * 3, 1) + x  # noqa: E731
    plan = gpu_plan(on_gpu(lowered(fn, x, dynamic=True).program))
    assert any("softmax_next" in print_triton(kernel).source for kernel in plan.kernels)
    (got,) = run_plan(plan, [x], launch=runner(interpreter))
    torch.testing.assert_close(got, fn(x))


def test_softmax_of_a_long_row_reads_it_twice(interpreter: Worker) -> None:
    """Once for maximum and sum together, once for the result, which finds part of the row in the cache."""

    def plan_of(x: Tensor) -> Plan:
        return gpu_plan(on_gpu(lowered(lambda x: torch.softmax(x, -1), x).program))

    (kernel,) = plan_of(half(256, 40000)).kernels
    source = print_triton(kernel).source
    assert source.count("tl.load(") == 2 and "evict_last" in source
    assert source.count('cache_modifier=".cs"') == 1  # what is stored does not take the cache from it
    x = floats(2, 40000)
    (got,) = run_plan(plan_of(x), [x.clone()], launch=runner(interpreter))
    torch.testing.assert_close(got, torch.softmax(x, -1))


def test_a_kernel_for_coordinate_descent_is_right_with_larger_blocks(interpreter: Worker) -> None:
    """All configs' blocks divide the length, so that a kernel without room needs no mask."""
    x = floats(3 * 512)
    plan = gpu_plan(on_gpu(lowered(lambda x: x.sin() + 1, x).program))
    (kernel,) = plan.kernels
    printed = print_with_room(print_triton, kernel)
    assert printed.configs == print_triton(kernel).configs
    assert printed.room == (("XBLOCK", 4 * max(dict(c.blocks)["XBLOCK"] for c in printed.configs)),)
    for block in (64, 1024, 2048):
        out = torch.full((4 * 512,), 7.0)
        pointers = dict(zip([p.name for p in printed.params], (x, out), strict=True))
        interpreter.run(printed, pointers, {}, Config((("XBLOCK", block),), 4))
        torch.testing.assert_close(out, torch.cat([x.sin() + 1, torch.full((512,), 7.0)]))


def test_sums_down_columns_stay_in_float32_beside_sums_over_rows(interpreter: Worker) -> None:
    """The parts that programs leave behind: on a CPU such rows of totals are float64."""

    def both(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        y = x.float() * g.float()
        return y - y.sum(-1, keepdim=True), y.sum((0, 1, 2))

    args = half(4, 24, 24, 32), half(4, 24, 24, 32)
    low = lowered(both, *args)
    plan = gpu_plan(on_gpu(low.program))
    assert not any("f64" in kernel_text(kernel) for kernel in plan.kernels)
    got = run_plan(plan, list(args), low.constants, runner(interpreter))
    torch.testing.assert_close(got, list(both(*args)), rtol=1e-3, atol=1e-3)


SIZED: dict[str, tuple[Callable[[Tensor], Tensor], int, bool]] = {
    "rows of a softmax": (lambda x: torch.softmax(x, -1), 1, False),
    "its columns": (lambda x: torch.softmax(x, -1), 2, True),
    "batch before rows": (lambda x: F.layer_norm(x, (64,)), 0, False),
    "rows that become columns": (lambda x: x.transpose(1, 2).contiguous() + 1, 1, True),
    "images of them": (lambda x: x.transpose(1, 2).contiguous() + 1, 0, False),
    "a position in rows": (lambda x: x + torch.arange(x.shape[1])[:, None], 1, False),
    "halves of columns": (lambda x: x.view(4, 32, 2, -1).sum(2), 2, True),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_kernel_relies_on_a_size_only_if_that_tells_what_lies_side_by_side(
    name: str, interpreter: Worker, tmp_path: Path
) -> None:
    """So that a batch of another length needs no kernel anew; where it does matter, 8 of 16 bits are moved at once."""
    fn, dim, matters = SIZED[name]
    emulator = Emulator(tmp_path, interpreter, trees=True)
    for size, by in ((64, 16), (40, 8), (36, None)):
        torch.compiler.reset()
        x = floats(*(4, 32, 64)[:dim], size, *(4, 32, 64)[dim + 1 :])
        torch._dynamo.mark_dynamic(x, dim)
        torch.testing.assert_close(torch.compile(fn, backend=emulator.backend)(x), fn(x))
        for kernel in emulator.printed.pop().kernels:
            relied = Wanted(kernel, frozenset(), None).relied
            found = {relied.get(at) for at, p in enumerate(kernel.params) if isinstance(p, SizeArgument)}
            assert found == {by if matters else None}


UNEVEN: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "one block": (lambda x: x * 2 + 1, [(7, 43)]),
    "several blocks": (lambda x: x * 2 + 1, [(67, 1023)]),
    "rows apart": (lambda x: x[:, :1001] * 2, [(5, 1008)]),
    "across rows": (lambda x, y: x.t() + y, [(264, 301), (301, 264)]),
    "long rows": (lambda x: torch.softmax(x.float(), -1).half(), [(3, 33003)]),
    "long rows of a padded tensor": (lambda x: torch.softmax(x[:, 1:33002], -1), [(3, 33008)]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", UNEVEN)
def test_what_ends_within_16_bytes_is_stored_apart(name: str, dynamic: bool, interpreter: Worker) -> None:
    """Else nothing is stored 16 bytes at once: 0.4 Gi elements of bfloat16 took four times as long."""
    fn, shapes = UNEVEN[name]
    inputs = [half(*shape) for shape in shapes]
    plan = gpu_plan(on_gpu(lowered(fn, *inputs, dynamic=dynamic).program), Gpu(processors=1))
    (got,) = run_plan(plan, [x.clone() for x in inputs], launch=runner(interpreter))
    torch.testing.assert_close(got, fn(*inputs))
    if name != "across rows" and not (dynamic and "rows" in name):
        printed = print_triton(plan.kernels[-1])
        assert "rt.store_apart(" in printed.source
        assert ("rt.store_apart(" in printed.plain) is (name in ("one block", "several blocks", "long rows"))
        assert printed.plain != printed.source  # what is not aligned is not read beyond its end


def test_a_row_that_begins_amid_16_bytes_ends_where_it_does_though_blocks_divide_it(interpreter: Worker) -> None:
    """Steps begin where 16 bytes do, before the row, and so the last one lies beyond it."""
    x = floats(3, 8200)

    def rows(x: Tensor) -> Tensor:
        return x[:, 1:8193].sum(1)

    plan = gpu_plan(on_gpu(lowered(rows, x).program), Gpu(processors=1))
    (got,) = run_plan(plan, [x.clone()], launch=runner(interpreter))
    torch.testing.assert_close(got, rows(x), rtol=1e-4, atol=1e-4)
