"""gyrator's own operators, which its functional graphs use where ATen has none.

    restride(x, stride)             x copied into memory with the given strides; changes no value
    seed(device)                    a new random seed from torch's generator: 0-d int64; random, so it runs once
    rand(size, seed, offset, ...)   uniform numbers in [0, 1) from Philox, a pure function of seed, offset and position
    randn(size, seed, offset, ...)  standard normal numbers, likewise
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _restride(x: Tensor, stride: Sequence[int]) -> Tensor:
    result = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
    return result.copy_(x)


def _restride_fake(x: Tensor, stride: Sequence[int]) -> Tensor:
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)


_LIBRARY = torch.library.Library("gyrator", "FRAGMENT")
_LIBRARY.define("restride(Tensor x, SymInt[] stride) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
torch.library.impl("gyrator::restride", "CompositeExplicitAutograd", _restride, lib=_LIBRARY)
torch.library.register_fake("gyrator::restride", _restride_fake, lib=_LIBRARY)

restride = torch.ops.gyrator.restride.default
