"""Ops that make tensors from numbers: full, empty, arange, scalar_tensor, eye."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from gyrator.ir.expr import Expr, IndexValue
from gyrator.ir.index import Index, as_index
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import Operand, cast, constant, element, number, op

aten, prims = torch.ops.aten, torch.ops.prims


def _full(b: Builder, out: Meta, size: object, value: Operand, **_: Any) -> TensorRef:
    return b.pointwise(out, lambda at: element(value, at, out.dtype))


def _scalar(b: Builder, out: Meta, value: Operand, **_: Any) -> TensorRef:
    return b.pointwise(out, lambda at: element(value, at, out.dtype))


def _filled(value: int) -> Callable[..., TensorRef]:
    """Filled with a number; ``empty`` counts as zeros, which costs nothing where it is inlined."""
    return lambda b, out, *_, **__: b.full(out, constant(value, out.dtype))


def _range(b: Builder, out: Meta, start: Operand, step: Operand) -> TensorRef:
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
    return _range(b, out, 0, 1)


def _arange_start(b: Builder, out: Meta, start: Operand, end: Operand, **_: Any) -> TensorRef:
    return _range(b, out, start, 1)


def _arange_step(b: Builder, out: Meta, start: Operand, end: Operand, step: Operand = 1, **_: Any) -> TensorRef:
    return _range(b, out, start, step)


def _iota(b: Builder, out: Meta, length: Operand, *, start: Operand, step: Operand, **_: Any) -> TensorRef:
    return _range(b, out, start, step)


def _eye(b: Builder, out: Meta, *_: Any, **__: Any) -> TensorRef:
    def body(at: Coords) -> Expr:
        return cast(op("eq", number(at[0], torch.int64), number(at[1], torch.int64)), out.dtype)

    return b.pointwise(out, body)


def _overloads(names: str) -> list[OpOverload]:
    return [getattr(aten, n).default for n in names.split()]


_EMPTY = "zeros zeros_like new_zeros new_empty empty_like empty_strided new_empty_strided empty_permuted"

LOWERINGS: Mapping[OpOverload, Callable[..., Any]] = {
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: _full,
    **dict.fromkeys(_overloads(_EMPTY), _filled(0)),
    **dict.fromkeys(_overloads("ones ones_like new_ones"), _filled(1)),
    aten.empty.memory_format: _filled(0),
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange_start,
    aten.arange.start_step: _arange_step,
    prims.iota.default: _iota,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
}  # fmt: skip
