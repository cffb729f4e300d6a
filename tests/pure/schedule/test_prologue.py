"""What becomes of the kernels that make a product's operands: stored before it, or computed in its template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.ir.program import Extern
from gyrator.schedule.cpu_gemm import Cpu
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.group import Group
from gyrator.schedule.plan import Allocate, Call, Launch
from gyrator.schedule.products import Templated, Unit
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests import experts
from tests.pure.lowering.harness import lowered
from tests.pure.schedule.test_choose import CUDA, Asked, half, scheduled
from tests.triton.harness import on_gpu


def layer(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return torch.relu((x @ w.half().t()) * s)


def weights(n: int, k: int) -> Tensor:
    return torch.empty((n, k), dtype=torch.int8)


MANY = [half(512, 128), weights(256, 128), half(256)]
FEW = [half(8, 128), weights(2560, 128), half(2560)]


def kinds(units: tuple[Unit, ...]) -> list[type[Unit]]:
    return [type(unit) for unit in units]


def default(fn: Callable[..., Any], *args: Tensor, **options: object) -> tuple[Unit, ...]:
    return scheduled(fn, list(args), **options).units


def test_what_makes_an_operand_is_part_of_both_questions() -> None:
    ask = Asked("triton_mm_2_with_prologue")
    found = scheduled(layer, MANY, ask, max_epilogue_benchmarked_choices=1)
    (unit,) = found.units
    assert isinstance(unit, Templated) and unit.prologue and unit.epilogue is not None
    first, second = ask.questions
    assert [q.title for q in ask.questions] == [
        "mm(512x128, 128x256) with prologue",
        "mm(512x128, 128x256) with prologue with epilogue",
    ]
    ways = {a.name: kinds(a.units) for a in first.alternatives}
    assert ways["mm"] == [Group, Extern] and ways["triton_mm_2"] == [Group, Templated]
    assert ways["triton_mm_2_with_prologue"] == [Templated]
    described = {a.name for a in first.alternatives if ("PROGRAMS", 132) in a.parameters}
    assert not any(f"{name}_with_prologue" in ways for name in described)
    assert [kinds(a.units) for a in second.alternatives] == [[Templated], [Templated, Group]]
    assert len([s for s in found.plan.steps if isinstance(s, Launch)]) == 1
    assert not any(isinstance(step, Call) for step in found.plan.steps)


def test_a_prologue_that_is_slower_stays_a_kernel() -> None:
    assert kinds(scheduled(layer, MANY, Asked("mm", "mm_then_epilogue")).units) == [Group, Extern, Group]
    assert kinds(scheduled(layer, MANY, Asked("triton_mm_1")).units) == [Group, Templated]


def test_dear_operands_may_be_stored_and_cheap_ones_computed() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x) @ w.half().t()

    ask = Asked()
    scheduled(fn, MANY[:2], ask)
    ways = {a.name: kinds(a.units) for a in ask.questions[0].alternatives}
    assert ways["triton_mm_0_with_prologues"] == [Templated] and ways["triton_mm_0_with_prologue"] == [Group, Templated]


def test_of_few_rows_operands_are_computed_without_a_trial() -> None:
    (unit,) = default(layer, *FEW)
    assert isinstance(unit, Templated) and unit.prologue and unit.epilogue is not None
    (unit,) = default(lambda x, w: x.half() @ w.half().t(), half(8, 128).float(), FEW[1])
    assert isinstance(unit, Templated) and len(unit.prologue) == 2
    many = half(129, 4096), weights(2560, 4096), FEW[2]
    assert kinds(default(layer, *many)) == [Group, Extern, Group]
    assert kinds(default(layer, *FEW, gemm_backends=("aten",))) == [Group, Extern, Group]


def test_of_few_rows_and_columns_parts_of_k_are_summed_at_the_same_time() -> None:
    (unit,) = default(layer, half(8, 8192), weights(64, 8192), half(64))
    assert isinstance(unit, Templated) and "SPLIT_K" in dict(unit.configs[0].blocks)
    assert kinds(default(layer, half(8, 64), weights(64, 64), half(64))) == [Group, Templated]
    assert kinds(default(layer, half(8, 1 << 17), weights(64, 1 << 17), half(64))) == [Group, Extern, Group]


def read_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    v = w.half()
    return x @ v.t(), v


def looked_up(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.half()[torch.arange(2560, device=w.device) * 7 % 2560 + w[0, 0].long()].t()


def reduced(x: Tensor, w: Tensor) -> Tensor:
    return x @ torch.softmax(w.half(), -1).t()


def dear(x: Tensor, w: Tensor) -> Tensor:
    return x @ torch.tanh(w.half()).t()


@pytest.mark.parametrize("fn", [read_twice, looked_up, reduced, dear])
def test_other_operands_are_stored(fn: Callable[..., Any]) -> None:
    made, product = default(fn, *FEW[:2])[-2:]
    assert isinstance(made, Group) and isinstance(product, Templated) and not product.prologue


def test_a_product_stays_a_call_if_its_sides_are_not_known_to_match() -> None:
    def fn(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return x @ (w.view(w.shape[0], -1, 16).half() * s[:, None, None]).view(w.shape[0], -1).t()

    low = lowered(fn, *MANY[:2], half(256), dynamic=True)
    options = Config.from_options(options={"max_autotune": True, "check": "every"})
    found = schedule(on_gpu(low.program), Session(options, CUDA), Gpu(), ask=Asked("triton_mm_0_with_prologue"))
    assert kinds(found.units) == [Group, Extern]


def test_a_kernel_between_two_products_becomes_part_of_one() -> None:
    def fn(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ v.half().t()) @ w.half().t()

    units = default(fn, half(8, 128), weights(2560, 128), weights(2560, 2560))
    first, second = units
    assert isinstance(first, Templated) and first.epilogue is not None
    assert isinstance(second, Templated) and len(second.prologue) == 1


def test_what_a_template_computes_operands_from_is_not_overwritten_by_its_results() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = x @ x
        return (y.half() @ w).float() + y

    found = scheduled(fn, [half(64, 64).float(), half(64, 64)], Asked("mm_then_epilogue", "triton_mm_0_with_prologue"))
    assert kinds(found.units) == [Extern, Templated]
    placed = [s.upon for s in found.plan.steps if isinstance(s, Allocate)]
    assert placed == [None, None]


@pytest.mark.parametrize(
    ("isa", "rows", "template"), [("amx", 8, True), ("amx", 300, False), ("avx512_bf16", 8, True), ("avx512", 8, False)]
)
def test_on_a_processor_that_multiplies_bfloat16_few_rows_compute_weights_of_bytes(
    isa: str, rows: int, template: bool
) -> None:
    low = lowered(lambda x, w: torch.relu(x @ w.bfloat16().t()), torch.randn(rows, 128).bfloat16(), weights(256, 128))
    found = schedule(low.program, Session(Config(check="every"), torch.device("cpu")), cpu=Cpu(isa, 1))
    assert kinds(found.units) == ([Templated] if template else [Group, Extern, Group])


AMD = Cpu("avx512", 1, favoured=False)


def on_processor(fn: Callable[..., Any], *args: Tensor, cpu: Cpu = AMD, **options: object) -> tuple[Unit, ...]:
    session = Session(Config.from_options(options={"check": "every", **options}), torch.device("cpu"))
    return schedule(lowered(fn, *args).program, session, cpu=cpu).units


@pytest.mark.parametrize(
    ("left", "right", "template"),
    [
        ((64, 32), (32, 48), True), ((4, 8), (8, 4), True), ((3, 32), (32, 48), False), ((64, 32), (32, 3), False),
        ((6, 64, 32), (6, 32, 48), True), ((6, 64, 32), (32, 48), True),
    ],
)  # fmt: skip
def test_where_libraries_favour_other_processors_products_are_by_the_template_with_what_follows(
    left: tuple[int, ...], right: tuple[int, ...], template: bool
) -> None:
    args = torch.randn(left), torch.randn(right)
    apart = [Extern, Group]
    assert kinds(on_processor(lambda x, w: torch.relu(x @ w), *args)) == ([Templated] if template else apart)
    for cpu in (Cpu("avx512", 1), Cpu("scalar", 1, favoured=False)):
        assert kinds(on_processor(lambda x, w: torch.relu(x @ w), *args, cpu=cpu)) == apart
    assert kinds(on_processor(lambda x, w: torch.relu(x @ w), *args, gemm_backends=["aten"])) == apart
    for dtype, alike in ((torch.float16, True), (torch.bfloat16, False), (torch.float64, False)):
        found = kinds(on_processor(lambda x, w: torch.relu(x @ w), *(x.to(dtype) for x in args)))
        assert found == ([Templated] if template and alike else apart)


@pytest.mark.parametrize("groups", [2, 16])
def test_experts_in_float32_are_by_the_template_there_too(groups: int) -> None:
    operands = torch.randn(128, 32), torch.randn(groups, 32, 48)
    args = *operands, torch.full((groups,), 128, dtype=torch.int32), torch.randn(128)
    assert kinds(on_processor(experts.looped, *args)) == [Templated]
    assert Extern in kinds(on_processor(experts.looped, *args, cpu=Cpu("avx512", 1)))
    long = operands[0], operands[1], args[2].long(), args[3]
    assert Extern in kinds(on_processor(experts.looped, *long))
    shown = torch.ops.transformers.grouped_mm_fallback  # what backward needs does not come from the pool
    assert kinds(on_processor(lambda *a: shown(*a), *args[:3])) == [Extern]


def test_the_library_may_round_operands_where_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyrator.schedule.cpu_gemm.float32_matmul_precision", lambda: "medium")
    operands = torch.randn(64, 32), torch.randn(32, 48)
    assert kinds(on_processor(torch.mm, *operands)) == [Extern]
    assert kinds(on_processor(torch.mm, *(x.half() for x in operands))) == [Templated]


def test_what_makes_an_operand_stays_where_the_template_reads_it_from_memory() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return -((y + y.t()) @ w)

    units = on_processor(fn, torch.randn(32, 32), torch.randn(32, 32))
    assert kinds(units) == [Templated, Group, Templated]
