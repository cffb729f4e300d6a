"""Random numbers in Triton kernels: those of the reference interpreter, in runs of four, across them and alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.schedule import loops
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker


def half(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


# A program, the shape of its argument, and whether four elements share a call of Philox.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], bool]] = {
    "a tile": (lambda x: torch.where(torch.rand(x.shape) < 0.3, x, 0), (1001,), True),
    "rows": (lambda x: (torch.rand_like(x) * x).sum(1), (37, 68), True),
    "rows of odd lengths": (lambda x: (torch.rand_like(x) * x).sum(1), (37, 67), False),
    "rows amid 16 bytes": (lambda x: (torch.rand_like(y := x[:, 1:8193]) * y).sum(1), (3, 8200), False),
    "columns": (lambda x: (torch.rand_like(x) * x).sum(0), (40, 68), False),
    "transposed": (lambda x: (torch.rand_like(x) * x).t().contiguous() + 1, (36, 44), True),
    "read across": (lambda x: torch.rand(x.shape[::-1], dtype=torch.half) + x.t(), (36, 44), False),
    "three numbers": (lambda x: torch.rand(x.shape, dtype=torch.bfloat16), (3,), True),
    "float64": (lambda x: torch.rand(x.shape, dtype=torch.float64), (100,), False),
    "normal": (lambda x: torch.randn(x.shape), (102,), True),
    "normal, read across": (lambda x: torch.randn(x.shape[::-1], dtype=torch.half) + x.t(), (36, 44), False),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_reference(case: str, interpreter: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "TILE_BYTES", 0)
    fn, shape, _ = CASES[case]
    plan = gpu_plan(on_gpu(lowered(fn, half(*shape)).program))
    torch.manual_seed(7)
    want = run_plan(plan, [half(*shape)])
    torch.manual_seed(7)
    got = run_plan(plan, [half(*shape)], launch=runner(interpreter))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("case", CASES)
def test_four_elements_share_a_call_where_a_tile_counts_up(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "TILE_BYTES", 0)
    fn, shape, shared = CASES[case]
    plan = gpu_plan(on_gpu(lowered(fn, half(*shape)).program))
    assert any("_of_run" in print_triton(kernel).source for kernel in plan.kernels) is shared
