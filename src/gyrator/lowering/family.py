"""Families of lowerings: tables from operator overload to the function that lowers it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

Lowering = Callable[..., Any]
"""``lowering(builder, meta of the result, *args, **kwargs)``; NotImplemented leaves the op to an extern call."""

Family = Mapping[OpOverload, Lowering]


def rows(lowering: Lowering, names: str, overloads: str = "default") -> Family:
    """``lowering`` for every overload that the ATen operators of these names have."""
    packets = [getattr(torch.ops.aten, name) for name in names.split()]
    return {getattr(p, o): lowering for p in packets for o in overloads.split() if o in p.overloads()}


def named_rows(lowering: Lowering, names: str, overloads: str = "default") -> Family:
    """The same with the operator's own name as the first argument."""
    return {op: row for n in names.split() for op, row in rows(partial(lowering, n), n, overloads).items()}
