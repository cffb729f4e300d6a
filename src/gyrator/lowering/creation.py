"""Ops that make tensors from numbers: full, empty, arange, scalar_tensor, eye."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import Index, as_index
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.family import Family, rows
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import Operand, cast, constant, element, number, op

prims = torch.ops.prims


def _scalar(b: Builder, out: Meta, value: Operand, **_: Any) -> TensorRef:
    return b.pointwise(out, lambda at: element(value, at, out.dtype))


def _full(b: Builder, out: Meta, size: object, value: Operand, **_: Any) -> TensorRef:
    return _scalar(b, out, value)


def _filled(value: int, b: Builder, out: Meta, *_: Any, **__: Any) -> TensorRef:
    """Filled with a number; ``empty`` counts as zeros, which costs nothing where it is inlined."""
    return b.full(out, constant(value, out.dtype))


def _range(b: Builder, out: Meta, start: Operand = 0, step: Operand = 1) -> TensorRef:
    """``start + i·step``: exact for integers, in float64 if either number is a fraction."""
    first, by = _whole(start), _whole(step)
    if first is not None and by is not None:
        return b.pointwise(out, lambda at: cast(number(at[0] * by + first, torch.int64), out.dtype))

    def body(at: Coords) -> Expr:
        wide = torch.float64
        steps = op("mul", cast(IndexValue(at[0]), wide), element(step, (), wide))
        return op("add", steps, element(start, (), wide))

    return b.pointwise(out, body)


def _whole(value: Operand) -> Index | None:
    if isinstance(value, Index):
        return value
    return as_index(int(value)) if isinstance(value, (int, float)) and value == int(value) else None


def _arange(b: Builder, out: Meta, end: Operand, **_: Any) -> TensorRef:
    return _range(b, out)


def _arange_from(b: Builder, out: Meta, start: Operand, end: Operand, step: Operand = 1, **_: Any) -> TensorRef:
    return _range(b, out, start, step)


def _iota(b: Builder, out: Meta, length: Operand, *, start: Operand, step: Operand, **_: Any) -> TensorRef:
    return _range(b, out, start, step)


def _eye(b: Builder, out: Meta, *_: Any, **__: Any) -> TensorRef:
    def body(at: Coords) -> Expr:
        return cast(op("eq", number(at[0], torch.int64), number(at[1], torch.int64)), out.dtype)

    return b.pointwise(out, body)


_EMPTY = "zeros zeros_like new_zeros empty new_empty empty_like empty_strided new_empty_strided empty_permuted"

LOWERINGS: Family = {
    **rows(_full, "full full_like new_full"),
    **rows(_scalar, "scalar_tensor"),
    **rows(partial(_filled, 0), _EMPTY, "default memory_format"),
    **rows(partial(_filled, 1), "ones ones_like new_ones"),
    **rows(_arange, "arange"),
    **rows(_arange_from, "arange", "start start_step"),
    **rows(_eye, "eye", "default m"),
    prims.iota.default: _iota,
}
