"""gyrator's own operators, for what ATen has no name for.

    restride(x, stride)                x copied into memory with the given strides; changes no value
    seeds(n, device)                   n new random seeds from torch's generator, int64[n]
    rand(size, seeds, slot, ...)       uniform numbers in [0, 1): a function of seeds[slot] and the position
    randn(size, seeds, slot, ...)      standard normal numbers, likewise
    grouped_mm.out(input, weight, offs, out)   transformers' grouped_mm_fallback, into given memory

Random numbers are Philox's under the key seeds[slot]; `gyrator.ir.philox` says which is element k of a draw."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gyrator.ir import philox
from gyrator.ir.evaluate import copied


def _seeds(n: int, device: torch.device) -> Tensor:
    return torch.randint(0, 2**63 - 1, (n,), dtype=torch.int64, device=device)


def _draw(
    numbers: Callable[[Tensor, Tensor, torch.dtype], Tensor],
    size: Sequence[int], seeds: Tensor, slot: int, dtype: torch.dtype, device: torch.device,
) -> Tensor:  # fmt: skip
    count = torch.Size(size).numel()
    return numbers(seeds[slot], torch.arange(count, dtype=torch.int64, device=device), dtype).reshape(size)


def _draw_fake(size: Sequence[int], seeds: Tensor, slot: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _grouped_mm(input: Tensor, weight: Tensor, offs: Tensor, *, out: Tensor) -> Tensor:
    """The rows of each group times its matrix; zeros behind the last group. Group g ends before row offs[g]."""
    start = 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        if end > start:
            torch.mm(input[start:end], matrix, out=out[start:end])
            start = end
    out[start:].zero_()
    return out


_LIBRARY = torch.library.Library("gyrator", "FRAGMENT")


def _define(schema: str, function: Callable[..., Tensor], fake: Callable[..., Tensor], *tags: torch.Tag) -> None:
    name = "gyrator::" + schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    torch.library.impl(name, "CompositeExplicitAutograd", function, lib=_LIBRARY)
    torch.library.register_fake(name, fake, lib=_LIBRARY)


_DRAWN = "(SymInt[] size, Tensor seeds, SymInt slot, ScalarType dtype, Device device) -> Tensor"

_define("restride(Tensor x, SymInt[] stride) -> Tensor", copied, copied)
_define("seeds(SymInt n, Device device) -> Tensor", _seeds, _seeds, torch.Tag.nondeterministic_seeded)
_define("rand" + _DRAWN, partial(_draw, philox.rand), _draw_fake)
_define("randn" + _DRAWN, partial(_draw, philox.randn), _draw_fake)
_GROUPED = "(Tensor input, Tensor weight, Tensor offs, *, Tensor(a!) out) -> Tensor(a!)"
_define("grouped_mm.out" + _GROUPED, _grouped_mm, lambda *_, out: out)

restride = torch.ops.gyrator.restride.default
seeds = torch.ops.gyrator.seeds.default
rand = torch.ops.gyrator.rand.default
randn = torch.ops.gyrator.randn.default
