"""Products of groups of rows, each by a matrix of its own, as experts are called; also in float64."""

from __future__ import annotations

import torch
import transformers.integrations.moe  # noqa: F401  # registers transformers' operator
from torch import Tensor

ENDS = {
    "even": [7, 14, 21, 28],
    "some are empty": [0, 16, 16, 28],
    "one has all": [0, 0, 28, 28],
    "many": [17, 17, 18, 35],
}
"""Where four groups of rows end."""


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """``x[m] @ w[group of m]``; torch has it for bfloat16 alone."""
    if x.dtype == torch.bfloat16:
        return torch._grouped_mm(x, w, offs=ends)
    firsts = [0, *ends.tolist()[:-1]]
    return torch.cat([x[a:b] @ m for a, b, m in zip(firsts, ends.tolist(), w, strict=True)])


def operands(ends: list[int], k: int = 40, n: int = 24) -> list[Tensor]:
    """Rows, one matrix for each group, and where the groups end."""
    generator = torch.Generator().manual_seed(k)
    x, w = (torch.randn(s, generator=generator).bfloat16() for s in ((ends[-1], k), (len(ends), k, n)))
    return [x, w, torch.tensor(ends, dtype=torch.int32)]


def transposed(x: Tensor, w: Tensor, ends: Tensor) -> list[Tensor]:
    """The same operands, with matrices whose columns are contiguous."""
    return [x, w.transpose(1, 2).contiguous().transpose(1, 2), ends]


def up(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The product alone."""
    return grouped(x, w, ends)


def down(x: Tensor, w: Tensor, ends: Tensor, share: Tensor) -> Tensor:
    """What follows the product."""
    return torch.tanh(grouped(x, w, ends)) * share[:, None]


def looped(x: Tensor, w: Tensor, ends: Tensor, share: Tensor) -> Tensor:
    """As transformers calls experts where torch does not; rows behind the last group are 0."""
    return torch.cos(torch.ops.transformers.grouped_mm_fallback(x, w, ends)) * share[:, None]


def of_rows(y: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The gradient of rows, by that of the result."""
    return grouped(y, w.transpose(1, 2), ends)


def of_matrices(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the matrices."""
    if x.dtype == torch.bfloat16:
        return torch._grouped_mm(x.t(), y, offs=ends) * 2
    firsts = [0, *ends.tolist()[:-1]]
    return torch.stack([x[a:b].t() @ y[a:b] * 2 for a, b in zip(firsts, ends.tolist(), strict=True)])
