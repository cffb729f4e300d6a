"""Templates of matrix products: what they give in Triton's interpreter, and what the compiler makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gyrator.codegen.triton import print_triton
from gyrator.config import Config as Options
from gyrator.ir.program import Program
from gyrator.ir.tree import Config
from gyrator.schedule import choose, stage
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
from tests.triton.worker import Worker


def taken(question: Question) -> tuple[Alternative, ...]:
    """An answer to every question: the first template, with what follows it if that is asked."""
    return (next(a for a in question.alternatives if a.backend == "triton"),)


def plan_of(program: Program, template: str, config: Config) -> Plan:
    """The plan with every product computed by that template, and what follows fused."""
    options = Options(check="every", max_autotune=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "gpu_configs", lambda product, gpu: [(template, config)])
        return schedule(program, Session(options, torch.device("cuda")), Gpu(), ask=taken).plan


def titles_of(program: Program) -> list[str]:
    """What is asked of a program's products."""
    titles = list[str]()

    def asked(question: Question) -> tuple[Alternative, ...]:
        titles.append(question.title)
        return question.alternatives

    schedule(program, Session(Options(max_autotune=True), torch.device("cuda")), Gpu(), ask=asked)
    return titles


def blocks(**more: int) -> Config:
    """A config of small blocks."""
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 2, "ALLOW_TF32": 0}
    return Config(tuple((sizes | more).items()), 4, 2)


TEMPLATES = {
    "tiled": blocks(),
    "persistent": blocks(PROGRAMS=2),
    "split": blocks(SPLIT_K=3, SHARE=8),
    "split to single rows": blocks(SPLIT_K=17, SHARE=1),
}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def check(fn: Callable[..., Any], args: list[Tensor], config: Config, interpreter: Worker, kernels: int = 1) -> Plan:
    """Computed by the template alone, and within twice eager's own error of the exact result."""
    low = lowered(fn, *args)
    plan = plan_of(on_gpu(low.program), "tiled", config)
    assert [k.tiling.category for k in plan.kernels if k.tiling] == ["template"] * kernels
    results = run_plan(plan, args, low.constants, runner(interpreter))
    eager, exact = fn(*args), fn(*(a.double() for a in args))
    for got, plain, right in zip(results, *(r if isinstance(r, tuple) else (r,) for r in (eager, exact)), strict=True):
        assert isinstance(got, Tensor)
        assert_matches(got, plain, right, slack=4)
    return plan


def mm(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def bias_relu_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.relu(torch.addmm(b, x, w)) + r


def scaled_addmm(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.addmm(r, x, w, beta=0.5, alpha=2.0)


def two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y, torch.tanh(y)


def heads(x: Tensor, w: Tensor) -> Tensor:
    """The rows are split and permuted after the product."""
    return (x @ w).view(2, 9, 2, 10).permute(0, 2, 1, 3).contiguous() * 0.5


def batched(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.baddbmm(r, x, w.transpose(1, 2)) * 2


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_compute_what_eager_computes(template: str, interpreter: Worker) -> None:
    config = TEMPLATES[template]
    check(mm, [random(18, 90), random(90, 13)], config, interpreter)
    check(bias_relu_residual, [random(7, 80), random(80, 20), random(20), random(7, 20)], config, interpreter)
    check(batched, [random(2, 9, 40), random(2, 18, 40), random(2, 9, 18)], config, interpreter)
    check(heads, [random(18, 40), random(40, 20)], config, interpreter)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("template", ["tiled", "split"])
def test_sums_are_in_float32(template: str, dtype: torch.dtype, interpreter: Worker) -> None:
    args = [random(5, 300, dtype=dtype), random(300, 37, dtype=dtype), random(5, 37, dtype=dtype)]
    check(scaled_addmm, args, TEMPLATES[template], interpreter)
    check(lambda x, w, r: (torch.sigmoid(x @ w) * r).float(), args, TEMPLATES[template], interpreter)


def test_operands_may_lie_in_any_way(interpreter: Worker) -> None:
    config = TEMPLATES["tiled"]
    for left in (random(19, 40), random(40, 19).t(), random(40, 38)[:, ::2].t(), random(19, 80)[:, 10:50]):
        for right in (random(40, 21), random(21, 40).t()):
            check(mm, [left, right], config, interpreter)


def test_a_bias_may_lie_with_gaps(interpreter: Worker) -> None:
    args = [random(7, 30), random(30, 20), random(40)[::2], random(7, 20)]
    check(bias_relu_residual, args, TEMPLATES["tiled"], interpreter)


def test_a_product_that_others_read_is_stored_beside_the_results_of_its_epilogue(interpreter: Worker) -> None:
    check(two_results, [random(20, 40), random(40, 30)], TEMPLATES["tiled"], interpreter)


def test_integers_are_exact(interpreter: Worker) -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((18, 70), (70, 33)))
    low = lowered(torch._int_mm, x, w)
    plan = plan_of(on_gpu(low.program), "tiled", blocks(BLOCK_K=32))
    (got,) = run_plan(plan, [x, w], low.constants, runner(interpreter))
    assert isinstance(got, Tensor) and torch.equal(got, (x.int() @ w.int()))


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float16)


def bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w))


LARGE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
COMPILED = {
    "tiled": ("tiled", blocks(**LARGE), 8, 3),
    "described": ("described", blocks(**LARGE, PROGRAMS=132), 8, 4),
    "split": ("tiled", blocks(BLOCK_K=128, SPLIT_K=32, SHARE=1), 4, 1),
    "split to single rows": ("tiled", blocks(BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, SPLIT_K=112, SHARE=1), 4, 4),
}


@pytest.mark.parametrize("name", COMPILED)
def test_templates_compile_without_spilling(name: str, compiler: Worker) -> None:
    template, config, warps, stages = COMPILED[name]
    config = Config(config.blocks, warps, stages)
    split = "SPLIT_K" in dict(config.blocks)
    m, k, n = (32, 28672, 32) if split else (4096, 1024, 4096)
    plan = plan_of(on_gpu(lowered(bias_gelu, half(m, k), half(k, n), half(n)).program), template, config)
    (kernel,) = (print_triton(kernel) for kernel in plan.kernels)
    if split:  # the programs that sum a tile's rows alone load and compute what follows
        before, _, after = kernel.source.partition("if part < BLOCK_M // SHARE:")
        assert "tl.load" not in before and after.count("tl.load") == 1
    built = compiler.compile(kernel, config, 90)
    assert built.spills == 0 and built.shared <= Gpu().shared_bytes
    assert built.registers * warps * 32 <= 65_536
    assert ("mma.sync" if split else "wgmma") in built.ptx
    assert ("cp.async.bulk.tensor" in built.ptx) == (template == "described")
    assert bool(kernel.plain) == (template == "described") and "describe" not in kernel.plain


def test_rows_of_a_block_of_k_may_lie_more_than_2_31_elements_apart(compiler: Worker) -> None:
    """No place in the first block is before the matrix, as those beyond 2³¹ elements would be in 32 bits."""
    with FakeTensorMode():
        x, w = half(128, 20_000_003), half(128, 16)
        low = lowered(lambda x, w: x.t() @ w, x, w)
    config = blocks(BLOCK_M=64, BLOCK_K=128)
    (kernel,) = plan_of(on_gpu(low.program), "tiled", config).kernels
    built = compiler.compile(print_triton(kernel), config, 90)
    assert "20000003;" in built.ptx and not re.search(r"add\.s64 .*, -\d{9,10};", built.ptx)


def test_matrices_of_a_batch_have_one_descriptor(compiler: Worker) -> None:
    """Rows and transposes alike, whose blocks have no dimension for the batch where they are multiplied."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(torch.bmm(x, w.transpose(1, 2)))

    config = Config(blocks(**LARGE | {"BLOCK_N": 128}, PROGRAMS=132).blocks, 8, 4)
    plan = plan_of(on_gpu(lowered(fn, half(16, 1024, 512), half(16, 2048, 512)).program), "described", config)
    (kernel,) = (print_triton(kernel) for kernel in plan.kernels)
    assert kernel.source.count("gemm.describe(") == 2
    built = compiler.compile(kernel, config, 90)
    assert built.spills == 0 and built.shared <= Gpu().shared_bytes
    assert built.ptx.count("cp.async.bulk.tensor.3d") >= 2 and "wgmma" in built.ptx


def test_whole_programs_run_with_templates(
    interpreter: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper gives a split kernel its memory, and frees operands after it."""
    monkeypatch.setattr(choose, "gpu_configs", lambda product, gpu: [("tiled", TEMPLATES["split to single rows"])])
    own = choose.choose_products
    monkeypatch.setattr(stage, "choose_products", lambda units, program, ask, *rest: own(units, program, taken, *rest))
    emulator = Emulator(tmp_path, interpreter)

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(F.relu(torch.addmm(b, x.sin(), w)) @ w.t(), -1)

    args = [random(9, 90), random(90, 20), random(20)]
    torch.testing.assert_close(torch.compile(fn, backend=emulator.backend)(*args), fn(*args), rtol=1e-4, atol=1e-5)
    (made,) = emulator.printed
    assert [k.category for k in made.kernels].count("template") == 2
    assert "mm" not in [line.split("(")[0] for line in made.wrapper.splitlines()] and "workspace(" in made.wrapper
