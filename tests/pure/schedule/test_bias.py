"""Biases of matrix products on a processor are added where the products are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gyrator.config import Config
from gyrator.ir.program import Extern
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.pure.schedule.harness import scheduled

LAYER = (torch.randn(5, 7), torch.randn(9, 7), torch.randn(9))


def relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w, b))


def test_the_kernel_that_reads_a_product_adds_its_bias() -> None:
    found = scheduled(relu, LAYER)
    (call, _) = found.units
    assert isinstance(call, Extern) and call.op == "aten.mm.default" and len(found.plan.kernels) == 1


def calls(fn: Callable[..., object], *args: Tensor, dynamic: bool = False) -> list[str]:
    found = scheduled(fn, args, dynamic=dynamic)
    return [unit.op.split(".")[1] for unit in found.units if isinstance(unit, Extern)]


def test_what_a_kernel_and_the_caller_read_is_stored_with_the_bias() -> None:
    assert calls(lambda *args: (y := F.linear(*args), torch.relu(y)), *LAYER) == ["mm"]


def test_sizes_may_be_symbols_and_rows_in_a_batch() -> None:
    assert calls(relu, torch.randn(2, 5, 7), *LAYER[1:], dynamic=True) == ["mm"]


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(F.linear, id="the caller alone reads it"),
        pytest.param(lambda *args: torch.relu(y := F.linear(*args)) @ y.t(), id="a call reads it too"),
        pytest.param(lambda x, w, b: torch.addmm(b, x, w.t(), beta=2).relu(), id="a scaled bias"),
        pytest.param(lambda x, w, b: torch.addmm(b[:1], x, w.t()).relu(), id="one number"),
        pytest.param(lambda x, w, b: torch.addmm(b[None].expand(5, 9), x, w.t()).relu(), id="a bias of rows"),
    ],
)
def test_the_library_adds_the_bias_otherwise(fn: Callable[..., Tensor]) -> None:
    assert calls(fn, *LAYER)[0] == "addmm"


def test_narrow_types_keep_their_bias_which_the_library_rounds_with_the_product() -> None:
    assert calls(lambda *args: relu(*args).float(), *(a.to(torch.bfloat16) for a in LAYER)) == ["addmm"]


@pytest.mark.parametrize("options", [{"max_autotune": True}, {"numerics": "eager"}], ids=lambda o: next(iter(o)))
def test_candidates_and_eagers_numbers_have_the_whole_product(options: dict[str, bool | str]) -> None:
    config = replace(Config(), **options)
    found = schedule(lowered(relu, *LAYER).program, Session(config, torch.device("cpu")))
    assert [unit.op for unit in found.units if isinstance(unit, Extern)] == ["aten.addmm.default"]
