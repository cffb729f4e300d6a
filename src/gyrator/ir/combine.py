"""What the reductions and scans of :data:`gyrator.ir.ops.REDUCTIONS` mean, in torch.

A *state* is the tuple of a reduction's results. ``reduce_dims`` turns elements into a state, ``start`` is the state
of no elements.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from gyrator.ir.ops import REDUCTIONS, identity

State: TypeAlias = "tuple[Tensor, ...]"


def start(kind: str, dtype: torch.dtype) -> State:
    """The state of no elements; ``dtype`` is that of an element."""
    if kind == "welford":
        return tuple(torch.zeros((), dtype=dtype) for _ in range(3))
    if kind == "softmax":
        return torch.tensor(-math.inf, dtype=dtype), torch.zeros((), dtype=dtype)
    first = torch.tensor(identity(kind, dtype), dtype=dtype)
    return (first, torch.zeros((), dtype=torch.int64)) if REDUCTIONS[kind].inputs == 2 else (first,)


def reduce_dims(kind: str, args: State, first: int) -> State:
    """Reduce over the dimensions from ``first`` on. All of ``args`` have one shape."""
    shape, dtype = args[0].shape, args[0].dtype
    if 0 in shape[first:]:
        return tuple(s.expand(shape[:first]).clone() for s in start(kind, dtype))
    return _reduce_last(kind, tuple(a.reshape(*shape[:first], math.prod(shape[first:])) for a in args))


def _reduce_last(kind: str, args: State) -> State:
    x = args[0]
    if kind in _PLAIN:
        return (_PLAIN[kind](x),)
    match kind:
        case "argmax" | "argmin":
            best = x.amax(-1) if kind == "argmax" else x.amin(-1)
            same = equal(x, best.unsqueeze(-1))
            return best, torch.where(same, args[1], torch.iinfo(torch.int64).max).amin(-1)
        case "welford":
            return _welford(x)
        case "softmax":
            top = x.amax(-1)
            return top, torch.exp(x - top.unsqueeze(-1)).sum(-1)
    raise ValueError(f"no such reduction: {kind}")


_PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1, dtype=x.dtype),
    "prod": lambda x: x.prod(-1, dtype=x.dtype),
    "max": lambda x: x.amax(-1),
    "min": lambda x: x.amin(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "logaddexp": lambda x: torch.logsumexp(x, -1),
}
"""Reductions of one value to one result."""


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality in which NaN equals itself."""
    return (a == b) | ((a != a) & (b != b))


def _welford(x: Tensor) -> State:
    wide = x.double()
    mean = wide.mean(-1)
    deviations = ((wide - mean.unsqueeze(-1)) ** 2).sum(-1)
    count = torch.full_like(mean, x.shape[-1])
    return mean.to(x.dtype), deviations.to(x.dtype), count.to(x.dtype)


def scan_dim(kind: str, args: State, dim: int) -> State:
    """Inclusive scan along ``dim``; for ``argmax``/``argmin`` the later of equal elements wins."""
    x = args[0]
    if x.shape[dim] == 0:
        return tuple(a.clone() for a in args)
    match kind:
        case "sum":
            return (x.cumsum(dim, dtype=x.dtype),)
        case "prod":
            return (x.cumprod(dim, dtype=x.dtype),)
        case "max" | "min" | "argmax" | "argmin":  # NaN stays extreme, and of equal elements the later wins
            best, at = x.cummax(dim) if kind.endswith("max") else x.cummin(dim)
            return best, *(numbers.gather(dim, at) for numbers in args[1:])
        case "logaddexp":
            return (torch.logcumsumexp(x, dim),)
        case "sort" | "sort_descending":
            return tuple(torch.sort(x, dim=dim, stable=True, descending=kind != "sort"))
    raise ValueError(f"{kind} is no scan")


def combine_into(flat: Tensor, index: Tensor, source: Tensor, combine: str) -> None:
    """``flat[index] = source``, or add, mul, max or min into it; repeated indices count every time."""
    match combine:
        case "set":
            flat[index] = source
        case "add":
            flat.index_put_((index,), source, accumulate=True)
        case "mul" | "max" | "min":
            how = {"mul": "prod", "max": "amax", "min": "amin"}[combine]
            flat.scatter_reduce_(0, index, source, how, include_self=True)
        case _:
            raise ValueError(f"no such way to combine: {combine}")
