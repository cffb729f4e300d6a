"""Scans of few long rows: many programs share each in one pass over memory, and look back at what earlier ones left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_source import Workspace
from gyrator.ir.index import evaluate
from gyrator.ir.tree import Config
from gyrator.runtime.targets import print_with_room
from gyrator.runtime.triton_build import request_for
from gyrator.schedule import gpu_reductions
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.emulated import Emulator
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the interpreter takes no long time for are worth splitting."""
    monkeypatch.setattr(gpu_reductions, "MIN_SHARED", 20)
    monkeypatch.setattr(gpu_reductions, "SCAN_PARTS", (32, 64))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def plan_of(fn: Callable[..., Any], args: tuple[Tensor, ...], *, dynamic: bool = False) -> Plan:
    return gpu_plan(on_gpu(lowered(fn, *args, dynamic=dynamic).program))


def categories(plan: Plan) -> list[str]:
    return [kernel.tiling.category for kernel in plan.kernels if kernel.tiling is not None]


def backwards(x: Tensor) -> Tensor:
    """The gradient of a cumulative sum."""
    y = x.clone().requires_grad_()
    return y.flip(-1).cumsum(-1).flip(-1)


def several(x: Tensor) -> tuple[Tensor, ...]:
    """Scans of a scan and beside it, with what is read and follows in the same kernel."""
    total = (x * 2).cumsum(-1)
    return total.sin(), total.cumsum(-1) * 0.01, x.logcumsumexp(-1)


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    return *x.cummax(-1), *x.cummin(-1)


TIES = torch.tensor([1.0, 3, 3, 2, torch.nan, 3, torch.nan, 5]).repeat(9)[None]
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "one long row": (lambda x: x.cumsum(0), (random(1000),)),
    "rows": (lambda x: x.cumsum(-1) + 1, (random(5, 77),)),
    "several": (several, (random(3, 80),)),
    "products": (lambda x: (1 + x / 10).cumprod(1), (random(2, 50),)),
    "half": (lambda x: x.cumsum(-1), (random(2, 64, dtype=torch.bfloat16),)),
    "double": (lambda x: x.cumsum(-1), (random(2, 64, dtype=torch.float64),)),
    "integers": (lambda x: ((100 * x).long().cumsum(-1), (x > 0).cumsum(-1)), (random(2, 70),)),
    "extremes": (extremes, (random(3, 75),)),
    "ties and NaN": (extremes, (TIES,)),
    "nothing but the smallest": (extremes, (torch.full((1, 50), -torch.inf),)),
    "columns": (lambda x: (x.cumsum(0), x.sin().cumprod(0)), (random(90, 5),)),
    "columns of batches": (lambda x: x.cumsum(1) * 2, (random(3, 70, 4),)),
    "many columns": (lambda x: (x * 2).cumsum(0) - x, (random(77, 12),)),
    "extremes of columns": (lambda x: (*x.cummax(0), *x.cummin(0)), (random(75, 3),)),
    "places of tokens": (lambda k: torch.nn.functional.one_hot(k, 6).cumsum(0) - 1, (torch.arange(90) % 5,)),
    "infinities": (lambda x: x.logcumsumexp(-1), (torch.full((2, 40), -torch.inf),)),
}


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("case", CASES)
def test_parts_continue_what_came_before_them(case: str, interpreter: Worker) -> None:
    fn, args = CASES[case]
    plan = plan_of(fn, args)
    assert "split scan" in categories(plan) and "scan" not in categories(plan)
    results = run_plan(plan, [a.clone() for a in args], launch=runner(interpreter))
    eager = fn(*args)
    for got, wanted in zip(results, eager if isinstance(eager, tuple) else (eager,), strict=True):
        assert isinstance(got, Tensor)
        close = 2e-2 if wanted.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(got, wanted, rtol=close, atol=close, equal_nan=True)


@pytest.mark.usefixtures("short_rows")
def test_groups_of_parts_are_as_good_as_parts(interpreter: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """More parts than a program looks at one by one."""
    for parts, dim, x in ((2, 1, random(1, 262)), (4, 0, random(262, 2))):
        monkeypatch.setattr(gpu_reductions, "SCAN_PARTS", (parts,))
        results = run_plan(plan_of(lambda x, dim=dim: x.cummax(dim), (x,)), [x.clone()], launch=runner(interpreter))
        for got, wanted in zip(results, x.cummax(dim), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.usefixtures("short_rows")
def test_scans_from_the_end_and_sizes_that_change(interpreter: Worker, tmp_path: Path) -> None:
    emulator = Emulator(tmp_path, interpreter)
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.cumsum(-1) * x, backend=emulator.backend, dynamic=True)
    for shape in ((3, 50), (2, 17), (4, 131)):
        x = random(*shape).requires_grad_()
        expected, tangent = x.cumsum(-1) * x, random(*shape)
        torch.testing.assert_close(function(x), expected)
        (got,) = torch.autograd.grad(function(x), x, tangent)
        torch.testing.assert_close(got, torch.autograd.grad(expected, x, tangent)[0], rtol=1e-5, atol=1e-5)
    assert all("split scan" in [k.category for k in made.kernels] for made in emulator.printed)


@pytest.mark.usefixtures("short_rows")
def test_a_scan_in_place(interpreter: Worker, tmp_path: Path) -> None:
    emulator = Emulator(tmp_path, interpreter)
    torch._dynamo.reset()
    x = random(2, 100)
    expected = x.cumsum(-1)
    torch.compile(lambda x: x.cumsum_(-1), backend=emulator.backend)(x)
    torch.testing.assert_close(x, expected)


LARGE: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "sum": (lambda x: x.cumsum(-1), (10_000_000,), torch.float32),
    "half": (lambda x: x.cumsum(-1), (4, 1 << 20), torch.bfloat16),
    "log": (lambda x: x.logcumsumexp(-1), (4, 1 << 20), torch.float32),
    "extremes": (lambda x: x.cummax(-1), (4, 1 << 20), torch.float32),
    "columns": (lambda x: x.cumsum(0), (1 << 20, 64), torch.float32),
    "extremes of columns": (lambda x: x.cummax(0), (1 << 20, 8), torch.float32),
}


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("case", LARGE)
def test_large_kernels_read_rows_once_and_do_not_spill(case: str, arch: int, compiler: Worker) -> None:
    fn, shape, dtype = LARGE[case]
    kernel = print_triton(next(iter(plan_of(fn, (torch.empty(shape, dtype=dtype),)).kernels)))
    assert kernel.category == "split scan" and kernel.source.count("tl.load(") == 1
    assert request_for(kernel, 0, {}, arch)["options"]["launch_cooperative_grid"] is False
    configs = kernel.configs if case == "extremes" else kernel.configs[:1]
    assert all(compiler.compile(kernel, config, arch).spills == 0 for config in configs)


def test_workspaces_are_for_the_most_programs_of_any_config() -> None:
    plan = plan_of(lambda x: x.cumsum(-1), (torch.empty(3, 1 << 20),))
    kernel = print_triton(plan.kernels[0])
    parts = max(-(-(1 << 20) // dict(config.blocks)["RBLOCK"]) for config in kernel.configs)
    (nbytes,) = (evaluate(p.nbytes, {}) for p in kernel.params if isinstance(p, Workspace))
    assert nbytes >= 8 * (1 + 3 * (parts + -(-parts // 128)))


def test_rows_are_split_where_they_are_few_and_long() -> None:
    def category(fn: Callable[..., Any], *shape: int, dynamic: bool = False) -> list[str]:
        return categories(plan_of(fn, (torch.empty(shape),), dynamic=dynamic))

    cumsum: Callable[[Tensor], Tensor] = lambda x: x.cumsum(-1)  # noqa: E731
    rows = 2 * Gpu().processors
    assert category(cumsum, rows, 8192) == category(cumsum, 1 << 20) == ["split scan"]
    assert category(cumsum, rows + 1, 8192) == category(cumsum, 4, 8191) == ["scan"]
    assert category(cumsum, 4, 8192, dynamic=True) == ["split scan"]


def test_columns_are_split_where_they_are_few_and_long() -> None:
    def category(*shape: int) -> list[str]:
        return categories(plan_of(lambda x: x.cumsum(0), (torch.empty(shape),)))

    columns = 4 * Gpu().processors
    assert category(1 << 16, 3) == category(2048, columns) == ["split scan"]
    assert category(2048, columns + 8) == category(2047, columns) == ["scan"]


def test_a_split_scan_never_fuses_with_a_reduction() -> None:
    plan = plan_of(lambda x: (x.cumsum(-1), x.sum(-1)), (torch.empty(4, 65536),))
    assert categories(plan)[0] == "split scan" and len(categories(plan)) > 1
    normal = plan_of(lambda x: x.cumsum(-1) / x.abs().amax(-1, keepdim=True), (torch.empty(4, 65536),))
    assert "split scan" in categories(normal) and "scan" not in categories(normal)


def test_no_larger_tiles_are_tried_than_the_memory_for_flags_is_meant_for() -> None:
    """The program that ends last clears as much as the text says."""
    (kernel,) = plan_of(lambda x: x.cumsum(0), (torch.empty(1 << 16, 64),)).kernels
    assert print_with_room(print_triton, kernel).room == ()


@pytest.mark.usefixtures("short_rows")
def test_every_config_computes_the_same(interpreter: Worker) -> None:
    x = random(2, 150)
    plan = plan_of(lambda x: x.cumsum(-1), (x,))
    (kernel,) = plan.kernels
    assert kernel.tiling is not None and len(kernel.tiling.configs) == 2
    for config in (*kernel.tiling.configs, Config((("RBLOCK", 64),), 4)):
        own = replace(kernel, tiling=replace(kernel.tiling, configs=(config,)))
        (got,) = run_plan(replace(plan, kernels=(own,)), [x.clone()], launch=runner(interpreter))
        torch.testing.assert_close(got, x.cumsum(-1))
