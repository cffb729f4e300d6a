"""Strides: which ones a gradient is expected with, and copies with given ones."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false

from gyrator.ir.evaluate import copy_into


def tangent_strides(result: Tensor) -> tuple[Any, ...]:
    """The strides a result's gradient is expected with: its own where dense, as autograd makes it, else contiguous; so
    too for symbolic sizes and transposed sequences: norms and products, which mostly come next, give such gradients."""
    static = all(type(n) is int for n in (*result.shape, *result.stride()))
    transposed = result.ndim == 3 and result.stride(1) == 1
    own = static and not transposed and is_non_overlapping_and_dense_or_false(result)
    return result.stride() if own else contiguous_strides(result.shape)


def contiguous_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides; a dimension of size 0 counts as 1, as in torch."""
    counts = [max(size, 1) if isinstance(size, int) else size for size in reversed(shape[1:])]
    return tuple(reversed([*accumulate(counts, mul, initial=1)][: len(shape)]))


def copied(x: Tensor, strides: Sequence[Any]) -> Tensor:
    """A copy with these strides."""
    return copy_into(torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device), x)
