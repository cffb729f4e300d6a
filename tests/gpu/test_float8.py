"""8-bit floats on a GPU: conversions give eager's bits, and every candidate for a product of them is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from tests.cpu.test_float8 import CASES, numbers
from tests.gpu.test_products import candidates, random, taking

__all__ = ["taking"]

E4 = torch.float8_e4m3fn


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_eager(case: str) -> None:
    gyrator.reset()
    x = numbers().cuda()
    for mine, wanted in zip(torch.compile(CASES[case], backend="gyrator")(x), CASES[case](x), strict=True):
        assert mine.dtype == wanted.dtype and mine.stride() == wanted.stride()
        torch.testing.assert_close(mine.float(), wanted.float(), rtol=1e-6, atol=0.0, equal_nan=True)
    assert not gyrator.counters().externs()


def by_tensor(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), sx, sw, out_dtype=torch.bfloat16, use_fast_accum=True)


def by_row(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor, b: Tensor) -> Tensor:
    y = torch._scaled_mm(x, w.t(), sx, sw, bias=b, out_dtype=torch.bfloat16, use_fast_accum=True)
    return F.gelu(y)


def by_tensor_precisely(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), sx, sw, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("m, k, n", [(16, 512, 256), (272, 1040, 528), (4096, 4096, 2048)])
@pytest.mark.parametrize("fn", [by_tensor, by_tensor_precisely, by_row])
def test_every_candidate_is_as_exact_as_the_library(fn: Any, m: int, k: int, n: int, taking: Any) -> None:
    x, w = random(m, k).to(E4), random(n, k).to(E4)
    scales = [random(m, 1).abs().float(), random(1, n).abs().float()] if fn is by_row else [torch.ones(1).cuda()] * 2
    args = [x, w, *scales, *([random(n).bfloat16()] if fn is by_row else [])]
    exact = (x.double() @ w.double().t()) * scales[0] * scales[1]
    exact = F.gelu(exact + args[-1]) if fn is by_row else exact
    allowed = 2 * (fn(*args) - exact).norm()
    found = list(candidates(fn, args, taking))
    assert len(found) >= 4
    for template, config in found:
        got = taking(fn, template, config)(*args)
        assert (got - exact).norm() <= allowed, (template, config)
