"""Views against eager: they add no node, and what leaves the graph has eager's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.ir.text import program_text
from tests.pure.lowering.harness import check, lowered, tensor

CASES: dict[str, Callable[..., Any]] = {
    "a chain of views": lambda x: x.transpose(0, 2)[1:, ::2].reshape(-1, 4).flip(0) + 1,
    "merge leading dimensions": lambda x: x.view(24, 10) + 1,
    "merge all after a transpose": lambda x: x.view(4, 60).t().reshape(-1) * 1,
    "split and permute": lambda x: x.view(4, 2, 3, 10).permute(0, 2, 1, 3) + 0,
    "None, ellipsis and squeeze": lambda x: x.permute(2, 0, 1)[None, ..., 1:3].squeeze(0) + 0,
    "select from the end": lambda x: x[1] + x[-1],
    "slice from the end": lambda x: x[:, -3:] + 0,
    "slice with a step": lambda x: x[1::2, :, 2:9:3] + 0,
    "unfold": lambda x: x.unfold(1, 3, 2) + 0,
    "diagonal": lambda x: x.diagonal(1, 0, 1) + x.diagonal(-1, 1, 0),
    "split": lambda x: [t + 1 for t in x.split(4, 2)],
    "unbind": lambda x: [t + 1 for t in x.unbind(0)],
    "chunk": lambda x: [t * 1 for t in x.chunk(3, 1)],
    "as_strided of an input": lambda x: x.as_strided((3, 4), (2, 3), 5) + 1,
    "as_strided of a result": lambda x: (x + 1).as_strided((3, 4), (2, 3), 5) + 1,
    "as_strided of a transposed tensor": lambda x: x.transpose(0, 2).as_strided((3, 2), (2, 1), 1) + 1,
    "bits": lambda x: x.view(torch.int32) + 1,
    "bits of a constant": lambda x: x.view(torch.int32) + torch.full((10,), 1.5).view(torch.int32),
    "expand and merge": lambda x: x.reshape(4, -1, 1, 3).expand(4, 20, 2, 3).reshape(8, 60) + 0,
    "views that leave": lambda x: (
        x.view(torch.int32),
        x.mT,
        x[1],
        x[:, 1:],
        x.view(10, 24),
        x[None].expand(3, 4, 6, 10),
    ),
    "contiguous": lambda x: x.movedim(0, 1).contiguous(),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "tril and triu": lambda x: x.tril(1) + x.triu(),
    "squeeze": lambda x: x[:, :1].squeeze(1) + x[:1].squeeze()[0],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES)
def test_views(case: str, dynamic: bool) -> None:
    check(CASES[case], tensor(4, 6, 10), dynamic=dynamic)


def test_a_view_of_a_view_is_one_index_map() -> None:
    low = lowered(lambda x: x.view(2, 5, 4, 16).transpose(1, 2)[:, :, 1:] + 0, tensor(2, 5, 64))
    (nest,) = low.program.nodes
    assert str(nest.root.body) == "arg0_1[i0, i2 + 1, 16*i1 + i3] + 0.0"


def test_symbolic_sizes_split_as_constants_do() -> None:
    low = lowered(lambda x: x.view(-1, 768).view(x.shape[0], x.shape[1], 12, 64) + 0, tensor(3, 5, 768), dynamic=True)
    (nest,) = low.program.nodes
    assert str(nest.root.body) == "arg0_1[i0, i1, 64*i2 + i3] + 0.0"


def test_an_extern_call_gets_a_strided_window_not_a_copy() -> None:
    low = lowered(lambda x, y: x.t()[1:] @ y.view(6, 4), tensor(6, 5), tensor(24))
    (call,) = low.program.nodes
    assert [(str(a.strides), str(a.offset)) for a in call.args] == [("(1, 5)", "1"), ("(4, 1)", "0")]


def test_what_is_no_strided_window_is_copied_once() -> None:
    low = lowered(lambda x, y: (x.t().reshape(5, 6) @ y, y @ x.t().reshape(5, 6)), tensor(6, 5), tensor(6, 5))
    assert sum("copy" in v.name or "clone" in v.name for n in low.program.nodes for v in n.out) <= 2


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.cat([x, y, x], 1),
        lambda x, y: torch.stack([x, y], 1),
        lambda x, y: torch.cat([x] * 8) + 1,
        lambda x, y: torch.cat([x[:0], y, x[:, :7]]),
        lambda x, y: torch.cat([x, torch.empty(0)]),
        lambda x, y: F.pad(x, (1, 2, -1, 3), value=0.5),
        lambda x, y: torch.stack([x.sum(), y.mean()]),
        lambda x, y: F.pad(torch.cat([x, y]), (1, 2)) * 3,
        lambda x, y: F.pad(x[:, :0], (2, 1), value=2.0),
        lambda x, y: x.flip(0, 1),
    ],
)
def test_joins_and_pads(fn: Callable[..., Any], dynamic: bool) -> None:
    check(fn, tensor(5, 7), tensor(5, 7, dtype=torch.bfloat16), dynamic=dynamic)


def test_cat_of_many_inputs_stays_a_call() -> None:
    check(lambda x: torch.cat([x + k for k in range(9)]), tensor(2, 3), externs=["aten.cat.default"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.arange(7) + x,
        lambda x: torch.arange(0, 3.5, 0.5) + x,
        lambda x: torch.arange(10, 3, -1) + x,
        lambda x: torch.full_like(x, 2.5) + torch.ones(7) + torch.zeros_like(x),
        lambda x: torch.eye(5, 7) + x,
        lambda x: torch.linspace(0, 1, 7) + x,
        lambda x: x.new_full((3,), True, dtype=torch.bool),
        lambda x: torch.arange(x.shape[0]) * x.shape[1],
    ],
)
def test_creation(fn: Callable[..., Any]) -> None:
    check(fn, tensor(5, 7))
    check(fn, tensor(5, 7), dynamic=True)


@pytest.mark.parametrize("start", [lambda n: n, lambda n: -n])
def test_a_start_that_torch_guarded_is_not_cut_off(start: Callable[[int], int]) -> None:
    low = check(lambda x, y: x[start(y.shape[0]) :] + 0, tensor(10), tensor(4), dynamic=True)
    assert "min(" not in program_text(low.program) and "max(" not in program_text(low.program)
