"""Short rows are sorted by kernels on a GPU, with what comes before and after: as torch sorts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.config import Config
from gyrator.schedule.plan import Call
from tests.triton.emulated import Emulator, print_for_gpu
from tests.triton.worker import Worker


@pytest.fixture
def emulator(tmp_path: Path, interpreter: Worker) -> Emulator:
    torch._dynamo.reset()
    return Emulator(tmp_path, interpreter)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, high: int = 9) -> Tensor:
    """With ties, and NaN, infinities and both zeros where there are."""
    x = torch.randint(-high, high, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::7], x.view(-1)[3::11], x.view(-1)[5::13], x.view(-1)[1::6] = torch.nan, torch.inf, -torch.inf, -0.0
    return x


CASES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "floats": (lambda x: x.sort(dim=-1, stable=True), numbers(5, 37)),
    "descending": (lambda x: x.sort(dim=-1, descending=True, stable=True), numbers(5, 37)),
    "half": (lambda x: x.sort(dim=-1, descending=True, stable=True), numbers(3, 32, dtype=torch.bfloat16)),
    "integers": (lambda x: x.sort(dim=-1, stable=True), numbers(4, 20, dtype=torch.int32, high=2**31 - 1)),
    "bytes": (lambda x: x.sort(dim=-1, descending=True, stable=True), numbers(4, 20, dtype=torch.uint8)),
    "columns": (lambda x: x.sort(dim=0, stable=True), numbers(18, 6)),
    "one row": (lambda x: x.sort(stable=True), numbers(50)),
    "with neighbours": (lambda x: ((y := (x * 2).sort(dim=-1, stable=True))[0] + 1, y[1] * 3), numbers(5, 37)),
    "argsort": (lambda x: x.argsort(dim=-1, stable=True), numbers(5, 37)),
    "constants": (lambda x: (torch.ones_like(x).sort(stable=True)[1], x.sort(stable=True)[0]), numbers(5, 37)),
    "largest": (lambda x: x.topk(4)[0], numbers(6, 30)),
    "smallest": (lambda x: x.topk(3, dim=0, largest=False)[0], numbers(12, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_sorted_as_torch_does(case: str, emulator: Emulator) -> None:
    fn, x = CASES[case]
    found, wanted = torch.compile(fn, backend=emulator.backend)(x), fn(x)
    for got, right in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)
    (made,) = emulator.printed
    assert not any(isinstance(step, Call) for step in made.plan.steps)
    assert "rt.sort(" in "".join(kernel.source for kernel in made.kernels)


def test_of_the_largest_the_positions_are_right(emulator: Emulator) -> None:
    x = torch.randn(6, 30)
    found, wanted = torch.compile(lambda x: x.topk(4), backend=emulator.backend)(x), x.topk(4)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("x", [torch.randn(2, 513), torch.randn(2, 9).double(), torch.ones(2, 1)])
def test_other_rows_are_left_to_the_library(x: Tensor, emulator: Emulator) -> None:
    found = torch.compile(lambda x: x.sort(dim=-1, stable=True), backend=emulator.backend)(x)
    torch.testing.assert_close(found[0], x.sort(dim=-1)[0])
    assert any(isinstance(step, Call) for made in emulator.printed for step in made.plan.steps)


@pytest.mark.parametrize(("arch", "length", "dtype"), [(80, 64, torch.bfloat16), (90, 256, torch.float32)])
def test_sorting_kernels_do_not_spill(arch: int, length: int, dtype: torch.dtype, compiler: Worker) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(8, length, dtype=dtype, device="cuda")]
        graph = make_fx(lambda x: x.sort())(*given)
    (kernel,) = print_for_gpu(graph, given, Config(check="every")).kernels
    assert compiler.compile(kernel, kernel.configs[0], arch).spills == 0
