"""Ops that make tensors from numbers: full, empty, arange, scalar_tensor, and random tensors.

Random numbers are counter-based, element ``k`` of a draw being a function of the draw's seed and ``k``. All seeds of a
graph come from one call at its first draw, ``gyrator.seeds.default(n, device) → int64[n]``: a run draws from torch's
generator once, and draws at different places of a program have equal text."""

from functools import partial
from typing import Any

import torch

from gyrator.autograd import ops
from gyrator.ir.build import cast, constant, number, op
from gyrator.ir.expr import Expr, IndexValue, Random
from gyrator.ir.index import Coords, Index, IndexLike, as_index, linear
from gyrator.lowering.builder import Builder, Family, Meta, named_rows, rows
from gyrator.lowering.refs import Operand, TensorRef, element

aten, prims = torch.ops.aten, torch.ops.prims


def _full(b: Builder, out: Meta, value: Operand) -> Any:
    """A tensor filled with one number; one that integers cannot hold is left to the call, which raises."""
    if isinstance(value, int | float) and not out.dtype.is_floating_point and constant(value, out.dtype).value != value:
        return NotImplemented
    return b.full(out, value)


def _range(b: Builder, out: Meta, start: Operand = 0, step: Operand = 1) -> TensorRef:
    """``start + i·step``: integers of truncated numbers, exact; floats in float64 if either number is a fraction."""
    first, by = _whole(start), _whole(step)
    if first is not None and by is not None:
        return b.pointwise(out, lambda at: cast(number(at[0] * by + first, torch.int64), out.dtype))

    def body(at: Coords) -> Expr:
        wide = torch.float64 if out.dtype.is_floating_point else torch.int64
        return op("add", op("mul", cast(IndexValue(at[0]), wide), element(step, (), wide)), element(start, (), wide))

    return b.pointwise(out, body)


def _whole(value: Operand) -> Index | None:
    if isinstance(value, Index):
        return value
    return as_index(int(value)) if isinstance(value, (int, float)) and value == int(value) else None


def _drawn(b: Builder, out: Meta, kind: str, seed: Expr, dtype: torch.dtype, *bounds: Operand) -> TensorRef:
    """Numbers of ``dtype``: element ``k``, in row-major order, is number ``k`` of the seed's sequence."""
    limits = tuple([element(o, (), torch.int64) for o in bounds])
    return b.pointwise(out, lambda at: Random(kind, seed, linear(at, out.shape), dtype, limits))


def _fraction(kind: str, b: Builder, out: Meta, *_: Any, generator: object = None, **__: Any) -> Any:
    if generator is not None or not out.dtype.is_floating_point:
        return NotImplemented
    return _drawn(b, out, kind, b.seed(out.device), out.dtype)


def _randint(b: Builder, out: Meta, *args: Any, **_: Any) -> TensorRef:
    """``randint([low], high, size)`` and ``randint_like(x, [low], high)``."""
    *low, high = [a for a in args if not isinstance(a, (TensorRef, list))]
    return _drawn(b, out, "randint64", b.seed(out.device), torch.int64, *(low or [0]), high)


def _seeded(kind: str, b: Builder, out: Meta, size: object, seeds: TensorRef, slot: IndexLike, *_: Any) -> TensorRef:
    return _drawn(b, out, kind, seeds.load((as_index(slot),)), out.dtype)


def _empty(b: Builder, out: Meta, *_: Any, **__: Any) -> TensorRef:
    """Zeros, which cost nothing where they are inlined; in torch's deterministic mode what eager fills memory with."""
    return b.full(out, torch.empty((), dtype=out.dtype, device="cpu").item() if b.deterministic else 0)


RANDOM = {**named_rows(_fraction, "rand randn"), **rows(_randint, "randint randint_like", "default low low_dtype")}
"""Those that take seeds of this program."""

LOWERINGS: Family = {
    **RANDOM,
    **rows(lambda b, out, *given, **_: _full(b, out, given[-1]), "full full_like scalar_tensor"),
    **rows(_empty, "empty empty_strided new_empty_strided empty_permuted", "default memory_format"),
    aten._efficientzerotensor.default: lambda b, out, *_, **__: b.full(out, 0),
    **rows(lambda b, out, end, **_: _range(b, out), "arange"),
    **rows(lambda b, out, start, end, step=1, **_: _range(b, out, start, step), "arange", "start start_step"),
    prims.iota.default: lambda b, out, length, *, start, step, **_: _range(b, out, start, step),
    ops.rand: partial(_seeded, "rand"),
    ops.randn: partial(_seeded, "randn"),
}
