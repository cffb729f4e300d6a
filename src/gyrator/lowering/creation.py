"""Ops that make tensors from numbers: full, empty, arange, scalar_tensor."""

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


def _empty(b: Builder, out: Meta, *_: Any, **__: Any) -> TensorRef:
    """Zeros, which cost nothing where they are inlined."""
    return b.full(out, constant(0, out.dtype))


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


LOWERINGS: Family = {
    **rows(_full, "full full_like"),
    **rows(_scalar, "scalar_tensor"),
    **rows(_empty, "empty empty_strided new_empty_strided empty_permuted", "default memory_format"),
    **rows(_arange, "arange"),
    **rows(_arange_from, "arange", "start start_step"),
    prims.iota.default: _iota,
}
