"""8-bit floats on a GPU: conversions, what moves them, and products of them with scales."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.autotune.parts import Builder
from gyrator.codegen.triton import print_triton
from gyrator.config import Config as Options
from gyrator.ir.build import COMPUTED, FLOAT8
from gyrator.ir.tree import Config
from gyrator.lowering.graph import lower
from gyrator.runtime.targets import Targets
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.cpu.test_float8 import CASES, numbers
from tests.pure.lowering.harness import lowered, symbols_of, trace
from tests.run_plan import run_plan
from tests.triton import test_prologues
from tests.triton.harness import on_gpu, runner
from tests.triton.test_products import blocks, plan_of, random, titles_of
from tests.triton.worker import Worker

E4, CUDA = torch.float8_e4m3fn, torch.device("cuda")


@pytest.mark.parametrize("case", CASES)
def test_conversions_are_those_of_eager(case: str, interpreter: Worker) -> None:
    fn, low = CASES[case], lowered(CASES[case], numbers())
    plan = schedule(on_gpu(low.program), Session(Options(check="every"), CUDA), Gpu()).plan
    results = run_plan(plan, [numbers()], low.constants, runner(interpreter))
    for got, wanted in zip(results, fn(numbers()), strict=True):
        assert isinstance(got, Tensor) and got.stride() == wanted.stride()
        assert torch.equal(got.float().nan_to_num(1e9), wanted.float().nan_to_num(1e9))


@pytest.mark.parametrize("case", ["both types", "moved"])
def test_halves_of_registers_have_one_use(case: str, compiler: Worker) -> None:
    """The assembler of CUDA 12.8 forgets where a half is that is packed and read by itself as well."""
    plan = schedule(on_gpu(lowered(CASES[case], numbers()).program), Session(Options(), CUDA), Gpu()).plan
    kernel = next(k for k in map(print_triton, plan.kernels) if "rt.to_float8e4" in k.source)
    built = compiler.compile(kernel, Config((("XBLOCK", 512),), 4), 90)
    assert set(re.findall(r"cvt.rn.satfinite.e4m3x2.f32\s+([^,]+),", built.ptx)) == {"low", "high"}


def test_gpus_that_lack_them_leave_them_to_the_library() -> None:
    graph = trace(CASES["both types"], [numbers()])
    program = lower(graph, symbols=symbols_of(graph), computed=COMPUTED.difference(FLOAT8)).program
    assert {node.op for node in program.nodes if hasattr(node, "op")} == {"prims.convert_element_type.default"}
    for capability, lacks in ((89, frozenset[torch.dtype]()), (86, frozenset(FLOAT8))):
        unused: Any = None
        builder = Builder(Targets(None, None, Gpu(capability)), unused, unused, unused, None)
        assert COMPUTED - builder.computed == lacks


def of_matrices(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), sx, sw, out_dtype=torch.bfloat16, use_fast_accum=True)


def of_rows(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch._scaled_mm(x, w.t(), sx, sw, bias=b, out_dtype=torch.bfloat16))


def exact(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor, b: Tensor | None = None) -> Tensor:
    product = (x.double() @ w.double().t()) * sx * sw
    return product if b is None else F.gelu(product + b)


ARGS = {
    of_matrices: [random(32, 64).to(E4), random(48, 64).to(E4), torch.tensor(0.3), torch.tensor([1.7])],
    of_rows: [
        random(17, 96).to(E4),
        random(32, 96).to(E4),
        random(17, 1).abs(),
        random(1, 32).abs(),
        random(32).half(),
    ],
}
ARGS[of_rows][-1] = ARGS[of_rows][-1].bfloat16()


@pytest.mark.parametrize("way", [blocks(BLOCK_K=32), blocks(BLOCK_K=32, SPLIT_K=2, SHARE=8)], ids=["tiled", "split"])
@pytest.mark.parametrize("fn", ARGS)
def test_products_take_their_scales_in_the_template(
    fn: Callable[..., Tensor], way: Config, interpreter: Worker
) -> None:
    low = lowered(fn, *ARGS[fn])
    plan = plan_of(on_gpu(low.program), "tiled", way)
    assert [k.tiling.category for k in plan.kernels if k.tiling] == ["template"]
    (got,) = run_plan(plan, ARGS[fn], low.constants, runner(interpreter))
    wanted = exact(*ARGS[fn])
    assert isinstance(got, Tensor) and (got - wanted).norm() <= 4e-3 * wanted.norm()


def test_a_choice_is_named_after_its_operands() -> None:
    assert titles_of(on_gpu(lowered(of_rows, *ARGS[of_rows]).program))[0] == "_scaled_mm(17x96, 96x32, 32)"


def test_scales_of_blocks_stay_with_the_library_also_where_there_are_as_many_as_results() -> None:
    x, w = random(16, 2048).to(E4), random(16, 2048).to(E4)
    assert titles_of(on_gpu(lowered(of_matrices, x, w, torch.ones(16, 1), torch.ones(1, 16)).program))
    assert not titles_of(on_gpu(lowered(of_matrices, x, w, torch.ones(16, 16), torch.ones(16, 16)).program))


def of_bytes(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    return of_matrices(x, w.view(E4), sx, sw)


def test_bytes_that_are_viewed_as_numbers_stay_with_the_library() -> None:
    x, w, *scales = ARGS[of_matrices]
    plan = plan_of(on_gpu(lowered(of_bytes, x, w.view(torch.uint8), *scales).program), "tiled", blocks())
    assert not plan.kernels


def quantised(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    return of_matrices((x / sx).to(E4), (w / sw).to(E4), sx, sw)


def test_operands_may_be_converted_in_the_template(interpreter: Worker) -> None:
    args = [random(16, 80), random(48, 80), torch.tensor(0.02), torch.tensor(0.03)]
    low = lowered(quantised, *args)
    plan = test_prologues.plan_of(on_gpu(low.program), blocks(BLOCK_K=32, FAST=1))
    assert [k.tiling.category for k in plan.kernels if k.tiling] == ["template"]
    (got,) = run_plan(plan, args, low.constants, runner(interpreter))
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, quantised(*args), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("template", ["tiled", "described"])
@pytest.mark.parametrize("fast", [False, True])
def test_products_run_on_tensor_cores(template: str, fast: bool, compiler: Worker) -> None:
    more = ({"FAST": 1} if fast else {}) | ({"PROGRAMS": 132} if template == "described" else {})
    config = Config(blocks(BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP_M=8, **more).blocks, 8, 3)
    args = [torch.empty(2048, 4096).to(E4), torch.empty(4096, 4096).to(E4), torch.ones(()), torch.ones(())]
    plan = plan_of(on_gpu(lowered(of_matrices, *args).program), template, config)
    built = compiler.compile(print_triton(plan.kernels[0]), config, 90)
    assert built.spills == 0 and built.shared <= Gpu().shared_bytes
    assert "wgmma" in built.ptx and "e4m3.e4m3" in built.ptx
