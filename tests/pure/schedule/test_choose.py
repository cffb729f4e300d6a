"""Choosing how products are computed: which calls are products, what is asked, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.ir.program import Extern
from gyrator.schedule.cpu_gemm import Cpu, cpu_configs
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_gemm import short_configs
from gyrator.schedule.group import Group
from gyrator.schedule.plan import Call, Launch
from gyrator.schedule.products import Alternative, Ask, Product, Question, Templated, product_of
from gyrator.schedule.stage import Scheduled, schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.triton.harness import on_gpu

CUDA = torch.device("cuda", 0)


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float16)


def scheduled(fn: Callable[..., Any], args: list[Tensor], ask: Ask | None = None, **options: object) -> Scheduled:
    config = Config.from_options(options={"max_autotune": True, "check": "every", **options})
    return schedule(on_gpu(lowered(fn, *args).program), Session(config, CUDA), Gpu(), ask=ask)


class Asked:
    """Answers with the alternatives named ``best`` first, in that order; notes the questions."""

    def __init__(self, *best: str) -> None:
        self.best = best
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> tuple[Alternative, ...]:
        self.questions.append(question)
        order = sorted(question.alternatives, key=lambda a: (*self.best, a.name).index(a.name))
        return tuple(order)


def product(fn: Callable[..., Any], *args: Tensor) -> Product | None:
    found = scheduled(fn, list(args), gemm_backends=("aten",), max_autotune=False)
    (call,) = (u for u in found.units if isinstance(u, Extern))
    return product_of(call)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.addmm(b, x, w))


LAYER = [half(64, 128), half(128, 256), half(256)]


def test_a_bias_has_the_shape_of_the_result() -> None:
    found = product(lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=3), half(20), half(10, 30), half(30, 20))
    assert found is not None and found.bias is not None
    assert [n.value for n in found.bias.shape] == [10, 20] and [n.value for n in found.bias.strides] == [0, 1]
    assert (found.alpha, found.beta) == (3.0, 0.5)
    column = product(torch.addmm, half(10, 1), half(10, 30), half(30, 20))
    assert column is not None and column.bias is not None and [n.value for n in column.bias.strides] == [1, 0]


def test_a_bias_that_counts_for_nothing_is_not_read() -> None:
    found = product(lambda b, x, w: torch.addmm(b, x, w, beta=0), half(20), half(10, 30), half(30, 20))
    assert found is not None and found.bias is None


def test_a_product_whose_sides_are_not_known_to_match_stays_a_call() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return x @ (w.view(w.shape[0], -1, 16) * 2).view(w.shape[0], -1).t()

    low = lowered(fn, half(512, 128), half(256, 128), dynamic=True)
    options = Config.from_options(options={"max_autotune": True, "check": "every"})
    ask = Asked("triton_mm_0")
    schedule(on_gpu(low.program), Session(options, CUDA), Gpu(), ask=ask)
    assert not ask.questions


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64])
def test_products_of_other_types_stay_calls(dtype: torch.dtype) -> None:
    x = torch.zeros(8, 8, dtype=dtype)
    call = next(u for u in scheduled(torch.mm, [x, x]).units if isinstance(u, Extern))
    assert product_of(call) is None


def test_without_an_answer_the_call_stays() -> None:
    large = [half(512, 1024), half(1024, 4096), half(4096)]
    for args, ask in ((large, None), (LAYER, lambda question: ())):
        found = scheduled(layer, args, ask)
        assert [type(u) for u in found.units] == [Extern, Group]


def test_a_product_that_costs_less_than_a_call_is_by_the_template_with_what_follows() -> None:
    (unit,) = scheduled(layer, LAYER).units
    assert isinstance(unit, Templated) and unit.epilogue is not None
    assert dict(unit.configs[0].blocks)["BLOCK_K"] == 128


@pytest.mark.parametrize(
    ("m", "k", "n", "found"),
    [
        (32, 768, 768, [(16, 16, 256)]),
        (32, 384, 768, [(16, 16, 128)]),  # blocks end where k ends
        (32, 300, 768, [(16, 16, 256)]),
        (32, 1000, 768, []),  # the last of many blocks would end in the middle
        (32, 8192, 768, []),  # each program would sum for long
        (64, 768, 32768, []),  # more programs than run at once
        (256, 768, 3072, [(128, 64, 64)]),
        (256, 3072, 768, []),  # narrow tiles would sum for long
        (6304, 256, 256, [(128, 128, 64)]),
        (6304, 512, 512, []),  # tiles larger than the fastest
    ],
)
def test_products_that_cost_less_than_a_call(m: int, k: int, n: int, found: list[tuple[int, ...]]) -> None:
    of = product(torch.mm, half(m, k), half(k, n))
    assert of is not None
    blocks = [dict(config.blocks) for config in short_configs(of, Gpu())]
    assert [(b["BLOCK_M"], b["BLOCK_N"], b["BLOCK_K"]) for b in blocks] == found


def test_a_product_of_a_transposed_matrix_is_the_librarys_unless_it_is_very_short() -> None:
    short, long = (product(torch.mm, half(k, 256).t(), half(k, 3072)) for k in (256, 768))
    assert short is not None and long is not None
    assert short_configs(short, Gpu()) and not short_configs(long, Gpu())


@pytest.mark.parametrize(
    ("m", "n", "threads", "found"),
    [
        (512, 768, 1, (140, 384)),
        (512, 3072, 2, (140, 512)),
        (512, 768, 2, (140, 384)),  # each thread all rows of one half of the columns
        (512, 256, 2, (140, 128)),
        (512, 1100, 2, (140, 288)),  # four, as three are not shared evenly
        (512, 768, 16, (140, 96)),  # parts of 48 columns are too narrow: each thread two tiles
        (16, 40, 2, (16, 48)),
    ],
)
def test_threads_get_tiles_of_as_many_columns(m: int, n: int, threads: int, found: tuple[int, int]) -> None:
    of = product(torch.mm, torch.empty(m, 64), torch.empty(64, n))
    assert of is not None
    config = next(cpu_configs(of, Cpu("avx512", threads)))
    blocks = dict(config.blocks)
    assert (blocks["BLOCK_M"], blocks["BLOCK_N"]) == found


def test_the_best_template_takes_what_follows_as_its_epilogue() -> None:
    ask = Asked("triton_addmm_3")
    found = scheduled(layer, LAYER, ask, max_epilogue_benchmarked_choices=2)
    (unit,) = found.units
    assert isinstance(unit, Templated) and unit.epilogue is not None
    plain, fused = ask.questions
    assert plain.title == "addmm(64x128, 128x256, 256)"
    assert plain.alternatives[0].backend == "aten" and isinstance(plain.alternatives[0].units[0], Extern)
    assert [a.name for a in fused.alternatives] == ["triton_addmm_3", "triton_addmm_0", "triton_addmm_3_then_epilogue"]
    assert [type(u) for u in fused.alternatives[-1].units] == [Templated, Group]
    assert not any(isinstance(step, Call) for step in found.plan.steps)
    assert sum(isinstance(step, Launch) for step in found.plan.steps) == 1


def test_a_fusion_that_is_slower_is_not_made() -> None:
    found = scheduled(layer, LAYER, Asked("triton_addmm_3_then_epilogue", "triton_addmm_3"))
    assert [type(u) for u in found.units] == [Templated, Group]
    found = scheduled(layer, LAYER, Asked("addmm_then_epilogue", "addmm"))
    assert [type(u) for u in found.units] == [Extern, Group]


def test_a_product_that_a_later_unit_uses_is_stored_too() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return torch.tanh(y) * 2, y.softmax(-1)

    found = scheduled(fn, LAYER[:2], Asked("triton_mm_0"))
    stored = [p.value.name for k in found.plan.kernels for p in k.params if p.written]
    assert any(name.startswith("mm") for name in stored)


def test_equal_questions_are_asked_once() -> None:
    def layers(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        for w in (a, b, c):
            x = torch.relu(x @ w)
        return x

    ask = Asked("triton_mm_1")
    found = scheduled(layers, [half(64, 128), *(half(128, 128) for _ in range(3))], ask)
    assert len(ask.questions) == 2
    assert [type(u) for u in found.units] == [Templated] * 3 and len(found.plan.kernels) == 1


def test_families_that_were_not_named_do_not_compete() -> None:
    ask = Asked()
    scheduled(layer, LAYER, ask, gemm_backends="aten")
    assert not ask.questions
    scheduled(layer, LAYER, ask, gemm_backends="triton")
    assert {a.backend for a in ask.questions[0].alternatives} == {"triton"}


def test_operands_of_a_template_are_not_overwritten_by_its_results() -> None:
    """A tile reads whole rows and columns, others may still need them."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.sin(x)
        return torch.relu(y @ w) + y

    found = scheduled(fn, [half(64, 64), half(64, 64)], Asked("triton_mm_0"), inplace=True)
    (kernel,) = (k for k in found.plan.kernels if k.tiling is not None and k.tiling.category == "template")
    assert all(p.alias is None for p in kernel.params)


def test_parameters_tell_the_log_how_a_template_runs() -> None:
    ask = Asked()
    scheduled(layer, LAYER, ask)
    for alternative in ask.questions[0].alternatives[1:]:
        found = dict(alternative.parameters)
        assert {"ACC_TYPE", "ALLOW_TF32", "BLOCK_M", "BLOCK_N", "BLOCK_K", "EVEN_K", "GROUP_M"} <= set(found)
        assert {"num_stages", "num_warps"} <= set(found)
