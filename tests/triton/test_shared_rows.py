"""Few long rows: several programs share each, and exchange what they reduce within one launch.

Triton's interpreter runs the programs one after the other, once more for each exchange (see `worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.metrics.kernels import facts_of
from gyrator.schedule import gpu_reductions
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.pure.lowering.harness import lowered
from tests.rows import layer_norm, layer_norm_backward, softmax
from tests.run_plan import run_plan
from tests.triton.emulated import Emulator
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker, programs

F64 = torch.float64
SMALL = Gpu(processors=12)


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the interpreter takes no long time for are worth sharing."""
    monkeypatch.setattr(gpu_reductions, "MIN_SHARED", 50)
    monkeypatch.setattr(gpu_reductions, "MIN_PART", 16)
    monkeypatch.setattr(gpu_reductions, "LEAST_SHARED", 0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def plan_of(fn: Callable[..., Any], args: tuple[Tensor, ...], gpu: Gpu = SMALL) -> tuple[Plan, dict[str, Tensor]]:
    low = lowered(fn, *args)
    return gpu_plan(on_gpu(low.program), gpu), dict(low.constants)


def categories(plan: Plan) -> list[str]:
    return [kernel.tiling.category for kernel in plan.kernels if kernel.tiling is not None]


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum(-1, keepdim=True)
    return x / (total.abs() + 1), total


def of_every_kind(x: Tensor) -> tuple[Tensor, ...]:
    """One number of each kind for a row, and what follows from all."""
    flags = x > 3
    found = (x.amax(-1), x.amin(-1), x.sum(-1), (x * 1e-3 + 1).prod(-1), x.var(-1), x.logsumexp(-1))
    return *found, flags.any(-1), (~flags).all(-1), x.argmax(-1), x.argmin(-1)


def cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t, reduction="none")


def batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def of_integers(i: Tensor) -> tuple[Tensor, ...]:
    return i.sum(-1), i.amax(-1), i.argmin(-1), (i > 5).sum(-1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "softmax": (softmax, (random(3, 64),)),
    "softmax of ragged rows": (softmax, (random(2, 75, dtype=torch.bfloat16),)),
    "log softmax of one row": (lambda x: torch.log_softmax(x, -1), (random(125),)),
    "layer norm": (layer_norm, (random(2, 65), random(65), random(65))),
    "layer norm backward": (layer_norm_backward, (random(2, 64), random(2, 64), random(64))),
    "sum, and what follows from it": (normalised, (random(4, 66),)),
    "every kind": (of_every_kind, (random(2, 67),)),
    "cross entropy": (cross_entropy, (random(3, 73, dtype=torch.bfloat16), torch.tensor([0, 72, 5]))),
    "all elements": (lambda x: x - x.mean(), (random(3, 5, 7),)),
    "rows of several dimensions": (batch_norm, (random(3, 4, 5, 7),)),
    "float64": (softmax, (random(2, 256, dtype=F64),)),
    "integers": (of_integers, (torch.arange(150).reshape(2, -1) * 79 % 107,)),
}


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("case", CASES)
def test_programs_that_share_rows_compute_what_eager_computes(case: str, interpreter: Worker) -> None:
    fn, args = CASES[case]
    plan, constants = plan_of(fn, args)
    assert set(categories(plan)) == {"cooperative"}
    results = run_plan(plan, [a.clone() for a in args], constants, runner(interpreter))
    eager = fn(*args)
    for got, wanted in zip(results, eager if isinstance(eager, tuple) else (eager,), strict=True):
        assert isinstance(got, Tensor)
        close = 1e-2 if wanted.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(got, wanted, rtol=close, atol=close)


@pytest.mark.usefixtures("short_rows")
def test_of_equal_extremes_the_first_counts_whichever_part_it_lies_in(interpreter: Worker) -> None:
    x = torch.zeros(3, 64)
    x[0, [17, 33, 63]] = 5
    x[1, [15, 16]] = torch.nan
    x[2] = -torch.inf
    fn = lambda x: (x.argmax(-1), x.argmin(-1))  # noqa: E731
    plan, _ = plan_of(fn, (x,))
    assert categories(plan) == ["cooperative"]
    results = run_plan(plan, [x.clone()], launch=runner(interpreter))
    assert [r.tolist() for r in results if isinstance(r, Tensor)] == [[17, 15, 0], [0, 15, 0]]


@pytest.mark.usefixtures("short_rows")
def test_every_config_computes_the_same_one_program_for_a_row_included(interpreter: Worker) -> None:
    x = random(2, 62)
    plan, _ = plan_of(layer_norm_backward, (x, x * 2, x[0]))
    (kernel,) = plan.kernels
    assert kernel.tiling is not None
    parts = [dict(config.blocks)["PARTS"] for config in kernel.tiling.configs]
    assert set(parts) == {4, 2, 1}
    wanted = layer_norm_backward(x, x * 2, x[0])
    for config in kernel.tiling.configs:
        own = replace(kernel, tiling=replace(kernel.tiling, configs=(config,)))
        (got,) = run_plan(replace(plan, kernels=(own,)), [x, x * 2, x[0]], launch=runner(interpreter))
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("read", [False, True])
def test_inputs_are_updated_in_place(read: bool, interpreter: Worker, tmp_path: Path) -> None:
    """Rows; and a number for each row, which one program writes, unless all need the old one for the rows."""

    def update(x: Tensor, scale: Tensor) -> Tensor:
        scale.mul_(0.9).add_(x.abs().amax(-1), alpha=0.1)
        x.div_(x.sum(-1, keepdim=True) * scale[:, None] if read else x.sum(-1, keepdim=True))
        return x * 2

    emulator = Emulator(tmp_path, interpreter)
    torch._dynamo.reset()
    given = [random(3, 64) + 2, random(3) + 2]
    wanted = [x.clone() for x in given]
    results = [*given, torch.compile(update, backend=emulator.backend)(*given)]
    (made,) = emulator.printed
    assert [kernel.category for kernel in made.kernels] == ["cooperative"]
    assert made.wrapper.count("empty_cuda(") == 1 + read
    for got, right in zip(results, [*wanted, update(*wanted)], strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


LARGE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], torch.dtype]] = {
    "softmax": (softmax, [(16, 131072)], torch.bfloat16),
    "long rows": (softmax, [(4, 1 << 20)], torch.bfloat16),
    "many rows": (softmax, [(64, 65536)], torch.bfloat16),
    "layer norm": (layer_norm, [(8, 65536), (65536,), (65536,)], torch.float32),
    "layer norm backward": (layer_norm_backward, [(8, 65536), (8, 65536), (65536,)], torch.float32),
    "sum, and what follows from it": (normalised, [(4, 500000)], torch.float32),
    "batch norm": (batch_norm, [(64, 64, 28, 28)], torch.float32),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_kernels_read_a_row_once_and_do_not_spill(case: str, compiler: Worker) -> None:
    fn, shapes, dtype = LARGE[case]
    plan, _ = plan_of(fn, tuple(torch.empty(shape, dtype=dtype) for shape in shapes), Gpu())
    (kernel,) = plan.kernels
    printed = print_triton(kernel)
    assert printed.category == "cooperative" and "for " not in printed.source
    assert printed.source.count("tl.load(") == len(shapes)
    for config in printed.configs:
        assert programs(printed, config, {}) <= Gpu().processors
        built = compiler.compile(printed, config, 90)
        assert built.spills == 0 and built.registers * config.num_warps * 32 <= 65_536


def test_rows_are_shared_where_one_program_is_too_few_and_all_can_run_at_once() -> None:
    def category(fn: Callable[..., Any], *shape: int) -> list[str]:
        return categories(plan_of(fn, (torch.empty(shape),), Gpu())[0])

    assert category(softmax, 66, 65536 // 2) == category(softmax, 8, 8192) == ["cooperative"]
    assert "cooperative" not in category(softmax, 67, 32768)
    assert category(softmax, 1, 16385) == ["cooperative"]
    assert category(softmax, 1, 16384) == category(softmax, 64, 8191) == ["persistent"]
    assert category(softmax, 1, 132 << 15) == ["cooperative"]
    assert "cooperative" not in category(softmax, 1, (132 << 15) + 1)
    assert "cooperative" not in category(lambda x: x / x.sum(0), 65536, 16)
    assert category(lambda x: (x.cumsum(-1), x.sum(-1)), 8, 65536) == ["split scan", "cooperative"]


def test_rows_that_are_read_once_are_split() -> None:
    """Two launches are faster than programs that wait for each other, if nothing is kept."""
    plan, _ = plan_of(lambda x: x.sum(-1), (torch.empty(4, 1 << 20),), Gpu())
    assert len(plan.kernels) == 2 and "cooperative" not in categories(plan)


def test_rows_whose_length_is_not_known_are_not_shared() -> None:
    x = torch.empty(4, 65536)
    dynamic = lowered(softmax, x, dynamic=True)
    assert "cooperative" not in categories(gpu_plan(on_gpu(dynamic.program)))


def test_kernels_count_as_what_they_are() -> None:
    def kinds(fn: Callable[..., Any], *shape: int) -> list[str]:
        plan, _ = plan_of(fn, (torch.empty(shape),), Gpu())
        return [facts_of(kernel).kind for kernel in plan.kernels]

    assert kinds(softmax, 16, 131072) == ["cooperative reduction"]
    assert kinds(lambda x: x.sum(), 1 << 24) == ["split reduction", "persistent reduction"]
    assert kinds(softmax, 4096, 4096) == ["persistent reduction"]


@pytest.mark.parametrize(("length", "wanted"), [(16384, "persistent"), (30522, "looped")])
def test_long_rows_that_are_read_once_need_no_registers_of_their_own(length: int, wanted: str) -> None:
    """The logits of a loss; a softmax of them, which reads them again, keeps them."""
    x, words = torch.empty(4096, length, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.int64)
    plan, _ = plan_of(lambda x, words: F.cross_entropy(x.float(), words), (x, words), Gpu())
    assert categories(plan)[0] == wanted
    assert categories(plan_of(softmax, (x,), Gpu())[0]) == ["persistent"]


def overlap(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    p, y = x.sigmoid(), (t > 0).float()
    return (p * y).sum(-1), p.sum(-1) + y.sum(-1)


def test_rows_that_are_only_added_up_are_read_once_and_split() -> None:
    plan, _ = plan_of(overlap, (random(16, 1 << 15), random(16, 1 << 15)), Gpu())
    assert categories(plan) == ["persistent", "persistent"]
    plan, _ = plan_of(normalised, (random(16, 1 << 15),), Gpu())
    assert categories(plan) == ["cooperative"]
