"""Random tensors: counter-based numbers, element ``k`` of a draw being a function of the draw's seed and
``k``.

All seeds of a graph come from one call at its first draw, ``gyrator.seeds.default(n, device) → int64[n]``:
a run draws
from torch's generator once, and draws at different places of a program have equal text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from gyrator.ir.expr import Expr, Load, Random
from gyrator.ir.index import contiguous_strides, dot
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import Operand, element, like, op

aten = torch.ops.aten

DIGITS: Mapping[torch.dtype, int] = {torch.bfloat16: 8, torch.float16: 11}
"""Significant bits of half precision: a uniform number is cut to so many bits, or it would round up to 1."""


def draw(b: Builder, out: Meta, kind: str, *bounds: Operand) -> Callable[[Coords], Expr]:
    """A new draw as a function of the place, in float32 (float64 for a float64 result) or int64."""
    seeds, slot = b.seed(out.device)
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    if kind == "randint64":
        dtype = torch.int64
    strides = contiguous_strides(out.shape)
    limits = tuple([element(o, (), torch.int64) for o in bounds])
    return lambda at: Random(kind, Load(seeds, (slot,)), dot(at, strides), dtype, limits)


def _uniform_draw(b: Builder, out: Meta) -> Callable[[Coords], Expr]:
    drawn, digits = draw(b, out, "rand"), DIGITS.get(out.dtype)

    def cut(at: Coords) -> Expr:
        number = drawn(at)
        scale = like(number, 2.0 ** (digits or 0))
        return op("div", op("floor", op("mul", number, scale)), scale)

    return drawn if digits is None else cut


def _rand(b: Builder, out: Meta, *_: Any, generator: object = None, **__: Any) -> Any:
    if generator is not None or not out.dtype.is_floating_point:
        return NotImplemented
    return b.pointwise(out, _uniform_draw(b, out))


def _randn(b: Builder, out: Meta, *_: Any, generator: object = None, **__: Any) -> Any:
    if generator is not None or not out.dtype.is_floating_point:
        return NotImplemented
    return b.pointwise(out, draw(b, out, "randn"))


def _randint(b: Builder, out: Meta, high: Operand, *_: Any, **__: Any) -> TensorRef:
    return b.pointwise(out, draw(b, out, "randint64", 0, high))


def _randint_low(b: Builder, out: Meta, low: Operand, high: Operand, *_: Any, **__: Any) -> TensorRef:
    return b.pointwise(out, draw(b, out, "randint64", low, high))


def _randint_like(b: Builder, out: Meta, x: TensorRef, high: Operand, **_: Any) -> TensorRef:
    return _randint(b, out, high)


def _randint_like_low(
    b: Builder, out: Meta, x: TensorRef, low: Operand, high: Operand, **_: Any
) -> TensorRef:
    return _randint_low(b, out, low, high)


def _uniform(
    b: Builder, out: Meta, x: TensorRef, low: float = 0.0, high: float = 1.0, generator: object = None
) -> Any:
    """``rand·(high − low) + low``."""
    if generator is not None:
        return NotImplemented
    return b.pointwise(out, _affine(draw(b, out, "rand"), high - low, low))


def _normal(
    b: Builder, out: Meta, x: TensorRef, mean: float = 0.0, std: float = 1.0, generator: object = None
) -> Any:
    """``randn·std + mean``."""
    if generator is not None:
        return NotImplemented
    return b.pointwise(out, _affine(draw(b, out, "randn"), std, mean))


def _affine(drawn: Callable[[Coords], Expr], scale: float, shift: float) -> Callable[[Coords], Expr]:
    def body(at: Coords) -> Expr:
        number = drawn(at)
        return op("add", op("mul", number, like(number, scale)), like(number, shift))

    return body


LOWERINGS: Mapping[OpOverload, Callable[..., Any]] = {
    aten.rand.default: _rand,
    aten.rand_like.default: _rand,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn,
    aten.randint.default: _randint,
    aten.randint.low: _randint_low,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like_low,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
}
