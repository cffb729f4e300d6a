"""Functions on one score of flex_attention, which tests of several devices share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Mod = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def late(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The first 150 rows attend to nothing."""
    return (i >= j) & (i - j < 70) & (i >= 150)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (j - i) * torch.exp2(-(h + 1.0))


def softcap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5)
