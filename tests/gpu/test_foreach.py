"""Small kernels in one launch on a GPU: an optimizer step is a handful of launches."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

MOST_LAUNCHES = 8


@pytest.mark.parametrize("foreach", [True, False])
def test_adam_over_100_parameters_is_a_handful_of_launches(foreach: bool) -> None:
    torch.manual_seed(0)
    shapes = [(17 * k + 1,) if k % 3 else (k + 1, 129) for k in range(100)]
    ours = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    eager = [p.detach().double().requires_grad_() for p in ours]
    first, second = torch.optim.Adam(ours, lr=0.1, foreach=foreach), torch.optim.Adam(eager, lr=0.1)
    step = torch.compile(first.step, backend="gyrator")
    for _ in range(3):
        for p, q in zip(ours, eager, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.double()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            step()
            torch.cuda.synchronize()
        second.step()
    for p, q in zip(ours, eager, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-4, atol=1e-4)
    ran = [event.name for event in recorded.events() if event.device_type == DeviceType.CUDA]
    assert 0 < len(ran) <= MOST_LAUNCHES, ran
