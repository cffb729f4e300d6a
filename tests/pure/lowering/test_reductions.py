"""Reductions and scans against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pure.lowering.harness import check, lowered, tensor

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
ANY: dict[str, Callable[[Tensor], Any]] = {
    "sum of all": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "sum of columns, kept": lambda x: x.sum(0, keepdim=True),
    "sum in double": lambda x: x.sum(1, dtype=torch.float64),
    "amax": lambda x: x.amax(1),
    "amin of two": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "max with index": lambda x: x.max(1),
    "min with index, kept": lambda x: x.min(0, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(),
    "prod": lambda x: x.prod(0),
    "prod as bool": lambda x: x.prod(0, dtype=torch.bool),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "count_nonzero": lambda x: x.count_nonzero(1),
}
FLOAT: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x.mean(),
    "mean, kept": lambda x: x.mean((0, 1), keepdim=True),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(0),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(),
    "norm 1": lambda x: x.norm(1, dim=0),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, (7,)),
    "softmax backward": lambda x: torch.ops.aten._softmax_backward_data(x, x.softmax(1), 1, x.dtype),
    "log_softmax backward": lambda x: torch.ops.aten._log_softmax_backward_data(x, x.log_softmax(1), 1, x.dtype),
}


def runs(fn: Callable[[Tensor], Any], x: Tensor) -> bool:
    try:
        fn(x)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", ANY)
def test_reductions_of_every_dtype(case: str, dynamic: bool) -> None:
    for dtype in DTYPES:
        x = tensor(5, 7, dtype=dtype)
        if runs(ANY[case], x):
            check(ANY[case], x, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", FLOAT)
def test_reductions_of_floats(case: str, dynamic: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(FLOAT[case], tensor(5, 7, dtype=dtype), dynamic=dynamic)


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x.sum(0), tensor(0, 4)),
        (lambda x: x.mean(), tensor(0)),
        (lambda x: x.prod(1), tensor(4, 0)),
        (lambda x: x.sum(), tensor()),
        (lambda x: x.argmax(), tensor()),
        (lambda x: x.max(0), tensor()),
        (lambda x: x.var(), tensor(1)),
        (lambda x: x.sum(1), tensor(3, 1, 4)),
        (lambda x: x.argmax(1), tensor(3, 1)),
        (lambda x: x.any(dim=()), tensor(3, 4, dtype=torch.bool)),
        (lambda x: x.cumsum(0), tensor()),
        (lambda x: x.cumsum(1), tensor(3, 0)),
        (lambda x: x.logcumsumexp(1), tensor(3, 5)),
    ],
)
def test_edges(fn: Callable[[Tensor], Any], x: Tensor) -> None:
    check(fn, x)


def test_nan_and_ties_as_in_eager() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0], [float("nan"), 1.0, 5.0, float("nan")]])
    check(lambda x: (x.max(1), x.argmax(1), x.argmin(1), x.amax(1), x.cummax(1), x.max()), x)


def test_decomposed_softmax_is_five_nests() -> None:
    low = lowered(lambda x: F.softmax(x, 1), tensor(3, 5))
    assert [type(n.root).__name__ for n in low.program.nodes] == [
        "Reduce",
        "Pointwise",
        "Pointwise",
        "Reduce",
        "Pointwise",
    ]


def test_variance_is_one_pass() -> None:
    low = lowered(lambda x: torch.var_mean(x, 1), tensor(3, 5))
    assert [n.root.kind for n in low.program.nodes if hasattr(n.root, "kind")] == ["welford"]
