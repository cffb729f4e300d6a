"""Plans give eager's results on programs that stress one mechanism each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pure.schedule.harness import gradients, scheduled

r = torch.randn
CASES: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "sheet with parts": (lambda a: (a.exp(), a.exp().sum(0)), (r(200, 70),)),
    "sheet split into blocks of rows": (lambda a: a.sum(0), (r(1024, 80),)),
    "split row": (lambda a: (a.sum(), a.var(), a.std()), (r(300, 300),)),
    "strips": (lambda a: a.var(0), (r(40, 70),)),
    "strips split into blocks of rows": (lambda a: torch.var_mean(a, 0), (r(1024, 80),)),
    "sums of channels in rows": (
        lambda a: (a.sum((0, 2, 3)), a.var((0, 2, 3))), (r(4, 24, 30, 30).to(memory_format=torch.channels_last),),
    ),
    "scratch row read after it is stored": (
        lambda a, g: gradients(
            lambda p: (v := F.gelu(p)).relu().expand(2, *p.shape) * v.square().clamp(max=2).exp(), [a], g
        ),
        (r(2, 3, 4), r(2, 2, 3, 4)),
    ),
    "scan over columns": (lambda a: torch.cumsum(a, 0) * 2, (r(13, 17),)),
    "scan behind what is computed again": (
        lambda a: (m := (c := a.cumsum(0)) > 0.5, (w := c.masked_fill(m, -1.0)) - w.mean(0, keepdim=True)),
        (r(13, 17),),
    ),
    "scan over rows": (lambda a: torch.cumsum(a, -1) + a, (r(13, 17),)),
    "argmax": (lambda a: (a.argmax(-1), a.max(-1).values), (r(4, 31),)),
    "empty": (lambda a: (a + 1, a.sum(1)), (r(3, 0),)),
    "empty rows and columns": (
        lambda a: (a.atan().sum((0, -1)) > 0, a.atan().sum(1), a.all()), (r(0, 0),),
    ),
    "index along an expanded dimension": (
        lambda a, i: torch.where(a[i] > 0, a[i], 1.0), (r(7, 3).expand(2, 7, 3), torch.tensor([0, 1, 1])),
    ),
    "scalar": (lambda a: a * 2 + 1, (r(()),)),
    "size one": (lambda a: a.sum(-1) + a.amax((1, 2)).unsqueeze(-1), (r(4, 3, 1),)),
    "transposed": (lambda a, b: a.t() + b, (r(12, 20), r(20, 12))),
    "large transposed operands": (
        lambda a, b, c: (a.t() + b * 2 - a.t().contiguous(), (b + c).t().contiguous() * 3),
        (r(130, 150), r(150, 130), r(130)),
    ),
    "large permuted": (lambda a, b: a.permute(2, 0, 1) * b, (r(6, 50, 130), r(130, 6, 50))),
    "embedding": (lambda i, w: F.embedding(i, w) * 3, (torch.randint(0, 9, (4, 3)), r(9, 6))),
    "accumulate": (
        lambda a, i, v: torch.index_put(a, (i,), v, accumulate=True), (r(9, 4), torch.tensor([1, 1, 2, 8,
        1]), r(5, 4)),
    ),
    "scatter upon a constant, of an index that is short along other dimensions": (
        lambda a, i: torch.zeros_like(a).scatter_add(0, i, a), (r(3, 40), torch.randint(0, 3, (1, 36))),
    ),
    "scatter then read": (
        lambda a, i: (torch.scatter(a * 1, 1, i, 7.0) + 1).sum(1), (r(5, 6), torch.randint(0, 6, (5, 2))),
    ),
    "layer norm backward": (
        lambda a, w, b, g: gradients(lambda *p: F.layer_norm(p[0], (33,), p[1], p[2]), [a, w, b], g),
        (r(70, 33), r(33), r(33), r(70, 33)),
    ),
    "softmax of several rows kept": (lambda a: torch.log_softmax(a, -1).exp().cumsum(-1), (r(6, 40),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_eager(name: str) -> None:
    fn, args = CASES[name]
    scheduled(fn, args)


@pytest.mark.parametrize(
    "name", ["sheet with parts", "strips", "scan over rows", "transposed", "large permuted", "layer norm backward"]
)
def test_plan_with_symbolic_sizes_equals_eager(name: str) -> None:
    fn, args = CASES[name]
    if name == "layer norm backward":

        def fn(a: Tensor, w: Tensor, b: Tensor, g: Tensor) -> object:
            return gradients(lambda *p: F.layer_norm(p[0], (w.shape[0],), p[1], p[2]), [a, w, b], g)

    scheduled(fn, args, dynamic=True)
