"""Few long rows: several programs share each, and exchange what they reduce within one launch.

Triton's interpreter runs the programs one after the other, once more for each exchange (see `worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.schedule import gpu_shared
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

F64 = torch.float64
SMALL = Gpu(processors=12)


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the interpreter takes no long time for are worth sharing."""
    monkeypatch.setattr(gpu_shared, "MIN_SHARED", 200)
    monkeypatch.setattr(gpu_shared, "MIN_PART", 64)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def plan_of(fn: Callable[..., Any], args: tuple[Tensor, ...], gpu: Gpu = SMALL) -> tuple[Plan, dict[str, Tensor]]:
    low = lowered(fn, *args)
    return gpu_plan(on_gpu(low.program), gpu), dict(low.constants)


def categories(plan: Plan) -> list[str]:
    return [kernel.tiling.category for kernel in plan.kernels if kernel.tiling is not None]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def layer_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Two reductions, then two that wait for them."""
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + 1e-5)
    h, gw = (x - mean) * scale, g * w
    return (gw - h * (gw * h).mean(-1, keepdim=True) - gw.mean(-1, keepdim=True)) * scale


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
    "softmax": (softmax, (random(3, 256),)),
    "softmax of ragged rows": (softmax, (random(2, 301, dtype=torch.bfloat16),)),
    "log softmax of one row": (lambda x: torch.log_softmax(x, -1), (random(500),)),
    "layer norm": (layer_norm, (random(2, 260), random(260), random(260))),
    "layer norm backward": (layer_norm_backward, (random(2, 256), random(2, 256), random(256))),
    "sum, and what follows from it": (normalised, (random(4, 257),)),
    "every kind": (of_every_kind, (random(2, 270),)),
    "cross entropy": (cross_entropy, (random(3, 290, dtype=torch.bfloat16), torch.tensor([0, 289, 5]))),
    "all elements": (lambda x: x - x.mean(), (random(3, 10, 14),)),
    "rows of several dimensions": (batch_norm, (random(3, 4, 10, 14),)),
    "float64": (softmax, (random(2, 256, dtype=F64),)),
    "integers": (of_integers, (torch.arange(600).reshape(2, -1) * 79 % 1007,)),
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
