"""Operands of matrix products that templates compute as they load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.config import Config as Options
from gyrator.ir.program import Program
from gyrator.ir.tree import Config
from gyrator.schedule import choose
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from gyrator.schedule.products import Alternative, Question
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.acceptance import assert_matches
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.emulated import Emulator
from tests.triton.harness import on_gpu, runner
from tests.triton.test_products import blocks
from tests.triton.worker import Worker

BF16 = torch.bfloat16
WAYS = {"tiled": blocks(), "split": blocks(SPLIT_K=3, SHARE=8), "wide": blocks(BLOCK_K=64)}


def computing(question: Question) -> tuple[Alternative, ...]:
    """An answer to every question: the template that computes most by itself."""
    return (min((a for a in question.alternatives if a.backend == "triton"), key=lambda a: len(a.units)),)


def plan_of(program: Program, config: Config) -> Plan:
    options = Options(check="every", max_autotune=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "gpu_configs", lambda product, gpu: [("tiled", config)])
        return schedule(program, Session(options, torch.device("cuda")), Gpu(), ask=computing).plan


def check(
    fn: Callable[..., Tensor], args: list[Tensor], interpreter: Worker, config: Config, *, dynamic: bool = False
) -> None:
    """One kernel, a template, within twice eager's own error of the result in float64."""
    low = lowered(fn, *args, BF16, dynamic=dynamic)
    plan = plan_of(on_gpu(low.program), config)
    assert [k.tiling.category for k in plan.kernels if k.tiling] == ["template"]
    (got,) = run_plan(plan, [*args, BF16], low.constants, runner(interpreter))
    assert isinstance(got, Tensor)
    wide = [a.double() if a.is_floating_point() else a for a in args]
    assert_matches(got, fn(*args, BF16), fn(*wide, torch.float64), slack=4)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def bytes_of(*shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def scaled_after(x: Tensor, w: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    return (x @ w.to(dtype).t()) * s


def scaled_before(x: Tensor, w: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    return x @ (w.to(dtype) * s[:, None]).t()


def in_groups(x: Tensor, w: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    """A scale for each row and ten columns."""
    groups = w.view(w.shape[0], -1, 10).to(dtype) * s[:, :, None]
    return torch.relu(x @ groups.view(w.shape).t())


def two_in_a_byte(x: Tensor, w: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    both = torch.stack((w & 15, w >> 4), -1).view(w.shape[0], -1)
    return x @ ((both.to(dtype) - 8) * s[:, None]).t()


def both_cast(x: Tensor, w: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.sigmoid(torch.addmm(b, x.to(dtype), w.to(dtype)))


def activated(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros past the end of k must not become other numbers."""
    return (x.to(dtype) + 1) @ torch.exp(w).t()


def left_of_columns(w: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    return w.t().to(dtype) @ x


def batched(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bmm(x, w.to(dtype).transpose(1, 2)) * 0.5


def squared(x: Tensor, dtype: torch.dtype) -> Tensor:
    y = x.to(dtype)
    return y @ y.t()


CASES: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "scales after": (scaled_after, [random(3, 70, dtype=BF16), bytes_of(40, 70), random(40, dtype=BF16)]),
    "scales before": (scaled_before, [random(3, 70, dtype=BF16), bytes_of(41, 70), random(41, dtype=BF16)]),
    "two rows": (scaled_before, [random(2, 96, dtype=BF16), bytes_of(20, 96), random(20, dtype=BF16)]),
    "one row": (
        lambda x, w, s, dtype: x @ (w.to(dtype) * s),
        [random(1, 96, dtype=BF16), bytes_of(96, 20), random(20, dtype=BF16)],
    ),
    "one column": (
        lambda x, w, s, dtype: scaled_before(x.t(), w, s, dtype),
        [random(64, 17, dtype=BF16), bytes_of(1, 64), random(1, dtype=BF16)],
    ),
    "two columns": (scaled_before, [random(17, 64, dtype=BF16), bytes_of(2, 64), random(2, dtype=BF16)]),
    "bytes without sign": (
        scaled_before,
        [random(3, 70, dtype=BF16), bytes_of(20, 70, dtype=torch.uint8), random(20, dtype=BF16)],
    ),
    "groups": (in_groups, [random(18, 70, dtype=BF16), bytes_of(33, 70), random(33, 7, dtype=BF16)]),
    "two in a byte": (
        two_in_a_byte,
        [random(5, 64, dtype=BF16), bytes_of(20, 32, dtype=torch.uint8), random(20, dtype=BF16)],
    ),
    "both": (both_cast, [random(19, 45), random(45, 21), random(21, dtype=BF16)]),
    "an activation": (activated, [random(18, 50), random(20, 50, dtype=BF16)]),
    "left": (left_of_columns, [bytes_of(70, 40), random(70, 5, dtype=BF16)]),
    "a batch": (batched, [random(3, 5, 40, dtype=BF16), bytes_of(3, 18, 40)]),
    "with itself": (squared, [random(18, 40)]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_operands_that_are_computed(case: str, way: str, interpreter: Worker) -> None:
    check(*CASES[case], interpreter, WAYS[way])


@pytest.mark.parametrize("case", ["scales before", "left", "a batch"])
def test_sizes_may_change(case: str, interpreter: Worker) -> None:
    check(*CASES[case], interpreter, WAYS["tiled"], dynamic=True)


def test_operands_that_are_one_number(interpreter: Worker) -> None:
    """Nothing else than the sum says how long it is."""

    def filled(x: Tensor, dtype: torch.dtype) -> Tensor:
        y = torch.full(x.shape, 0.5, dtype=dtype)
        return y @ y.t()

    check(filled, [random(18, 40)], interpreter, WAYS["tiled"], dynamic=True)


def test_whole_programs_of_few_rows_run_with_templates(interpreter: Worker, tmp_path: Path) -> None:
    """Without a trial: an activation after few rows, and parts of k where there are few columns too."""
    emulator = Emulator(tmp_path, interpreter)

    def fn(x: Tensor, v: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return torch.relu(x @ v.to(BF16).t() * s) @ w.to(BF16).t()

    args = [random(3, 40, dtype=BF16), bytes_of(2200, 40), bytes_of(30, 2200), random(2200, dtype=BF16) / 1000]
    got, plain = torch.compile(fn, backend=emulator.backend)(*args), fn(*args)
    torch.testing.assert_close(got, plain, rtol=3e-2, atol=3e-2 * plain.abs().max().item())
    (made,) = emulator.printed
    assert [k.category for k in made.kernels] == ["template"] * 2
    assert ["SPLIT_K" in dict(k.configs[0].blocks) for k in made.kernels] == [False, True]


COMPILED = {
    "weights of 8 bits": (scaled_before, torch.int8, blocks(BLOCK_N=32, BLOCK_K=256), 4, 4),
    "a part of k": (scaled_before, torch.int8, blocks(BLOCK_N=64, BLOCK_K=128, SPLIT_K=2, SHARE=8), 4, 4),
    "many rows": (scaled_before, torch.int8, blocks(BLOCK_M=64, BLOCK_N=128, BLOCK_K=64, GROUP_M=8), 4, 4),
    "weights in float32": (both_cast, torch.float32, blocks(BLOCK_N=32, BLOCK_K=128), 4, 4),
}


@pytest.mark.parametrize("name", COMPILED)
def test_templates_with_prologues_compile_without_spilling(name: str, compiler: Worker) -> None:
    fn, dtype, config, warps, stages = COMPILED[name]
    config = Config(config.blocks, warps, stages)
    rows = dict(config.blocks)["BLOCK_M"]
    x = torch.empty(rows, 4096, dtype=torch.float32 if fn is both_cast else BF16)
    w, s = torch.empty(4096, 4096, dtype=dtype), torch.empty(4096, dtype=BF16)
    (kernel,) = map(print_triton, plan_of(on_gpu(lowered(fn, x, w, s, BF16).program), config).kernels)
    built = compiler.compile(kernel, config, 90)
    assert built.spills == 0 and built.shared <= Gpu().shared_bytes
    assert "cp.async" in built.ptx and ("wgmma" if rows == 64 else "mma.sync") in built.ptx


def test_operands_of_several_loads_fit_into_shared_memory(compiler: Worker) -> None:
    """As where a vision transformer merges patches: few columns, rows of four parts."""

    def merged(x: Tensor, w: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for i in range(2) for j in range(2)]
        return torch.cat(parts, -1).flatten(1, 2) @ w

    low = lowered(merged, random(64, 32, 32, 32), random(128, 64))
    plan = schedule(on_gpu(low.program), Session(Options(), torch.device("cuda")), Gpu()).plan
    (kernel,) = [kernel for kernel in plan.kernels if kernel.tiling and kernel.tiling.category == "template"]
    printed = print_triton(kernel)
    for config in printed.configs:
        assert compiler.compile(printed, config, 90).shared <= Gpu().shared_bytes


def test_a_third_config_is_tried_for_few_rows() -> None:
    """It was up to 1.2 times as fast on an H200; where columns are few it was never the fastest."""

    def rows(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.to(BF16).t()

    def columns(x: Tensor, w: Tensor) -> Tensor:
        return w.to(BF16) @ x.t()

    x, w = torch.empty(32, 2048, dtype=BF16), torch.empty(8192, 2048, dtype=torch.int8)
    for fn, tried in ((rows, 3), (columns, 2)):
        plan = schedule(on_gpu(lowered(fn, x, w).program), Session(Options(), torch.device("cuda")), Gpu()).plan
        assert [len(kernel.tiling.configs) for kernel in plan.kernels if kernel.tiling] == [tried]
