"""Products of groups of rows (experts) by templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_source import Pointer, TritonKernel
from gyrator.config import Config as Options
from gyrator.ir.tree import Config
from gyrator.schedule.cpu_gemm import Cpu
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests import experts
from tests.acceptance import assert_matches
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import on_gpu, runner
from tests.triton.test_products import blocks, plan_of, random, titles_of
from tests.triton.worker import Worker

SPANS = """import triton
import triton.language as tl
from gyrator.templates import gemm


@triton.jit
def spans(ends, places):
    first, last = gemm.span_of_group(ends, 1, 2, 1 << 30, 1)
    tl.store(places, first * 65536)
    tl.store(places + 1, last * 65536)
"""


def check(
    fn: Callable[..., Any],
    args: list[Tensor],
    config: Config,
    interpreter: Worker,
    *,
    dynamic: bool = False,
    template: str = "tiled",
) -> None:
    low = lowered(fn, *args, dynamic=dynamic)
    plan = plan_of(on_gpu(low.program), template, config)
    assert all(f"gemm.{template}(" in print_triton(kernel).source for kernel in plan.kernels)
    assert {k.tiling.category for k in plan.kernels if k.tiling} == {"template"}
    results = run_plan(plan, args, low.constants, runner(interpreter))
    eager, exact = fn(*args), fn(*(a.double() if a.is_floating_point() else a for a in args))
    for got, plain, right in zip(results, *(r if isinstance(r, tuple) else (r,) for r in (eager, exact)), strict=True):
        assert isinstance(got, Tensor) and got.stride() == plain.stride()
        assert_matches(got, plain, right, slack=4)


@pytest.mark.parametrize(
    ("template", "config"),
    [("tiled", blocks()), ("tiled", blocks(PROGRAMS=2)), ("described", blocks(PROGRAMS=2))],
    ids=["tiled", "persistent", "described"],
)
@pytest.mark.parametrize("case", experts.ENDS)
def test_rows_meet_the_matrix_of_their_group(case: str, template: str, config: Config, interpreter: Worker) -> None:
    args = experts.operands(experts.ENDS[case])
    check(experts.up, args, config, interpreter, template=template)
    share = random(args[0].shape[0], dtype=torch.bfloat16)
    check(experts.down, [*experts.transposed(*args), share], config, interpreter, template=template)


@pytest.mark.parametrize("case", experts.ENDS)
def test_gradients_of_both(case: str, interpreter: Worker) -> None:
    x, w, ends = experts.operands(experts.ENDS[case])
    y = random(x.shape[0], 24, dtype=torch.bfloat16)
    check(experts.of_rows, [y, w, ends], blocks(), interpreter)
    check(experts.of_matrices, [x, y, ends], blocks(), interpreter)


def test_the_number_of_rows_may_change(interpreter: Worker) -> None:
    x, w, ends = experts.operands([3, 9, 12, 20])

    def with_these(x: Tensor) -> Tensor:
        return experts.grouped(x, w.to(x.dtype), ends)

    check(with_these, [x], blocks(), interpreter, dynamic=True)


def test_ends_beyond_the_rows_write_nothing_there(interpreter: Worker) -> None:
    x, w, _ = experts.operands([7, 14, 21, 28])
    low = lowered(experts.up, x, w, torch.tensor([-5, 9, 3, 99], dtype=torch.int32))
    plan = plan_of(on_gpu(low.program), "tiled", blocks())
    ends = torch.tensor([-5, 9, 3, 99], dtype=torch.int32)
    (got,) = run_plan(plan, [x, w, ends], low.constants, runner(interpreter))
    assert isinstance(got, Tensor)
    assert_matches(got[9:], x[9:] @ w[3], x[9:].double() @ w[3].double(), slack=4)


def test_a_choice_is_named_after_its_operands() -> None:
    args = experts.operands([7, 14, 21, 28])
    assert titles_of(on_gpu(lowered(experts.up, *args).program)) == ["_grouped_mm(28x40, 4x40x24)"]


@pytest.mark.parametrize("template", ["tiled", "described"])
def test_the_compiler_takes_them(template: str, compiler: Worker) -> None:
    more = {"PROGRAMS": 132} if template == "described" else {}
    config = Config(blocks(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, **more).blocks, 8, 3)
    args = experts.operands([100, 200, 300, 512], 256, 256)
    (kernel,) = map(print_triton, plan_of(on_gpu(lowered(experts.up, *args).program), template, config).kernels)
    assert compiler.compile(kernel, config, 90).spills == 0


def test_groups_of_few_rows_need_no_choice_on_a_processor_with_tiles() -> None:
    for ends, isa, kernels in (([7, 14, 21, 28], "amx", 1), ([7, 14, 21, 28], "avx512", 0), ([100, 200], "amx", 0)):
        program = lowered(experts.up, *experts.transposed(*experts.operands(ends, 256, 256))).program
        plan = schedule(program, Session(Options(), torch.device("cpu")), None, cpu=Cpu(isa, 1)).plan
        assert len(plan.kernels) == kernels


def test_groups_of_few_rows_need_no_choice() -> None:
    for ends, kernels in (([7, 14, 21, 28], 1), ([100, 200, 300, 400], 0)):
        args = experts.operands(ends, 256, 256)
        session = Session(Options(), torch.device("cuda"))
        plan = schedule(on_gpu(lowered(experts.up, *args).program), session, Gpu()).plan
        assert len(plan.kernels) == kernels


def test_places_of_a_group_in_large_operands_are_computed_in_64_bits(interpreter: Worker) -> None:
    ends, places = torch.tensor([100_000, 200_000], dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    params = Pointer("ends", torch.int32, False), Pointer("places", torch.int64, True)
    kernel = TritonKernel("spans", SPANS, params, (), (Config((), 4),), "template")
    interpreter.run(kernel, {"ends": ends, "places": places}, {}, kernel.configs[0])
    assert places.tolist() == [100_000 << 16, 200_000 << 16]
