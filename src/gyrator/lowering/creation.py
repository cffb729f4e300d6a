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


LOWERINGS: Family = {
    **rows(lambda b, out, size, value, **_: _scalar(b, out, value), "full full_like"),
    **rows(_scalar, "scalar_tensor"),
    **rows(_empty, "empty empty_strided new_empty_strided empty_permuted", "default memory_format"),
    **rows(lambda b, out, end, **_: _range(b, out), "arange"),
    **rows(lambda b, out, start, end, step=1, **_: _range(b, out, start, step), "arange", "start start_step"),
    prims.iota.default: lambda b, out, length, *, start, step, **_: _range(b, out, start, step),
}
