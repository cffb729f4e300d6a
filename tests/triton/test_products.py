"""Templates of matrix products: what they give in Triton's interpreter, and what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.config import Config as Options
from gyrator.ir.program import Program
from gyrator.ir.tree import Config
from gyrator.schedule import choose
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from gyrator.schedule.products import Answer, Question
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import on_gpu, runner
from tests.triton.worker import Worker


def last(question: Question) -> tuple[Answer, ...]:
    """An answer to every question: the last alternative, which is a template."""
    return (Answer(question.alternatives[-1], 1.0),)


def plan_of(program: Program, template: str, config: Config) -> Plan:
    """The plan with every product computed by that template, and what follows fused."""
    options = Options(check="every", max_autotune=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "gpu_configs", lambda product, gpu: [(template, config)])
        return schedule(program, Session(options, torch.device("cuda")), Gpu(), ask=last).plan


def blocks(**more: int) -> Config:
    """A config of small blocks."""
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 2, "ALLOW_TF32": 0}
    return Config(tuple((sizes | more).items()), 4, 2)


TEMPLATES = {
    "tiled": blocks(),
    "persistent": blocks(PROGRAMS=2),
    "split": blocks(SPLIT_K=3, FAN=4),
    "split in slices": blocks(BLOCK_K=32, SPLIT_K=2, FAN=2, SLICES=2),
    "split as a tree": blocks(SPLIT_K=5, FAN=2),
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
        assert isinstance(got, Tensor) and got.dtype == plain.dtype
        scale = right.double().pow(2).mean().sqrt()
        allowed = 2 * (plain.double() - right.double()).pow(2).mean().sqrt() + 4 * torch.finfo(got.dtype).eps * scale
        assert (got.double() - right.double()).pow(2).mean().sqrt() <= allowed
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
    return (x @ w).view(3, 11, 2, 10).permute(0, 2, 1, 3).contiguous() * 0.5


def batched(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.baddbmm(r, x, w.transpose(1, 2)) * 2


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_compute_what_eager_computes(template: str, interpreter: Worker) -> None:
    config = TEMPLATES[template]
    check(mm, [random(33, 70), random(70, 20)], config, interpreter)
    check(bias_relu_residual, [random(33, 80), random(80, 20), random(20), random(33, 20)], config, interpreter)
    check(batched, [random(3, 17, 40), random(3, 20, 40), random(3, 17, 20)], config, interpreter)
    check(heads, [random(33, 48), random(48, 20)], config, interpreter)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("template", ["tiled", "split in slices"])
def test_sums_are_in_float32(template: str, dtype: torch.dtype, interpreter: Worker) -> None:
    args = [random(5, 300, dtype=dtype), random(300, 37, dtype=dtype), random(5, 37, dtype=dtype)]
    check(scaled_addmm, args, TEMPLATES[template], interpreter)
    check(lambda x, w, r: (torch.sigmoid(x @ w) * r).float(), args, TEMPLATES[template], interpreter)


def test_operands_may_lie_in_any_way(interpreter: Worker) -> None:
    config = TEMPLATES["tiled"]
    for left in (random(19, 40), random(40, 19).t(), random(40, 38)[:, ::2].t(), random(19, 80)[:, 10:50]):
        for right in (random(40, 21), random(21, 40).t()):
            check(mm, [left, right], config, interpreter)


def test_a_product_that_others_read_is_stored_beside_the_results_of_its_epilogue(interpreter: Worker) -> None:
    check(two_results, [random(20, 40), random(40, 30)], TEMPLATES["tiled"], interpreter)


def test_integers_are_exact(interpreter: Worker) -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((18, 70), (70, 33)))
    low = lowered(torch._int_mm, x, w)
    plan = plan_of(on_gpu(low.program), "tiled", blocks(BLOCK_K=32))
    (got,) = run_plan(plan, [x, w], low.constants, runner(interpreter))
    assert isinstance(got, Tensor) and torch.equal(got, (x.int() @ w.int()))
