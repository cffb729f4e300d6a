"""What nests are built of: typed expressions (constants, casts, conditions), and a shape's axes, coordinates and the
way back from a position. Half precision is computed in float32: an op casts its arguments up, computes, and casts its
result down, one rounding per ATen op as in eager's own kernels."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Masked, Op, Scalar
from gyrator.ir.index import ONE, ZERO, Axis, Coords, Index, div_mod, is_less, is_nonnegative
from gyrator.ir.ops import OPS, Rule
from gyrator.torch_compat import float8_saturates

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""What is of these types is moved and converted."""
HALF = (torch.bfloat16, torch.float16, *FLOAT8)
COMPUTED = frozenset({
    *HALF, torch.float64, torch.float32, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
})  # fmt: skip
"""The dtypes that nests compute in; ops on others stay extern calls."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic for a result of ``dtype`` runs in: float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


def constant(value: Scalar, dtype: torch.dtype) -> Const:
    """A literal of ``dtype``, converted as torch does a Python number: integers wrap, large floats become infinite."""
    if dtype == torch.bool:
        return Const(bool(value), dtype)
    if dtype.is_floating_point:
        held = value if holds(dtype, value) else torch.tensor(value, dtype=torch.float64).to(dtype)
        return Const(float(held), dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return Const(int(torch.tensor(value, dtype=torch.float64).to(dtype)), dtype)
    info = torch.iinfo(dtype)
    return Const((int(value) - info.min) % (1 << info.bits) + info.min, dtype)


def holds(dtype: torch.dtype, value: object) -> bool:
    """Whether a number, if ``value`` is one, is within the range of a type. Floats may be infinite."""
    if dtype.is_complex or not isinstance(value, (int, float, complex)):
        return True
    if isinstance(value, complex) or dtype.is_floating_point:
        return not isinstance(value, complex) and not torch.finfo(dtype).max < abs(value) < math.inf
    most = 1 << 8 * dtype.itemsize - dtype.is_signed
    return -most <= value < most


def cast(expr: Expr, dtype: torch.dtype) -> Expr:
    """``expr`` converted to ``dtype`` as ``Tensor.to`` does; constants are converted now."""
    if expr.dtype == dtype:
        return expr
    if dtype == torch.float8_e4m3fn and not isinstance(expr, Const) and not float8_saturates():
        wide = cast(expr, torch.float32)
        too_large = op("gt", op("abs", wide), like(wide, 464.0))
        expr = op("where", too_large, op("copysign", like(wide, math.nan), wide), wide)
    if isinstance(expr, Const):
        return Const(torch.tensor(expr.value, dtype=expr.dtype).to(dtype).item(), dtype)
    return Op("cast", (expr,), dtype)


def number(value: Expr | Index | Scalar, dtype: torch.dtype) -> Expr:
    """A number as an expression of ``dtype``."""
    if isinstance(value, Expr):
        return cast(value, dtype)
    if isinstance(value, Index):
        known = value.value
        return constant(known, dtype) if known is not None else cast(IndexValue(value), dtype)
    return constant(value, dtype)


def op(name: str, *args: Expr) -> Op:
    """An op of the table; the result's dtype follows from its rule. Casts are made by :func:`cast`."""
    rule = OPS[name].rule
    return Op(name, args, torch.bool if rule is Rule.COMPARE or rule is Rule.LOGICAL else args[-1].dtype)


def like(expr: Expr, value: Scalar) -> Const:
    """The literal ``value`` in ``expr``'s dtype."""
    return constant(value, expr.dtype)


def both(conditions: Iterable[Expr]) -> Expr:
    """The conjunction of bool expressions; true if there are none."""
    terms = list(conditions)
    return reduce(lambda a, b: op("logical_and", a, b), terms) if terms else Const(True, torch.bool)


def within(position: Coords, shape: Coords) -> list[Expr]:
    """The conditions that a position is in a tensor of ``shape``, those that are not proved."""
    return [c for i, size in zip(position, shape, strict=True) for c in between(i, ZERO, size)]


def between(index: Index, low: Index, high: Index) -> list[Expr]:
    """The conditions of ``low ≤ index < high`` that are not proved."""
    conditions: list[Expr] = []
    if not is_nonnegative(index - low):
        conditions.append(op("ge", IndexValue(index), number(low, torch.int64)))
    if not is_less(index, high):
        conditions.append(op("lt", IndexValue(index), number(high, torch.int64)))
    return conditions


def masked(conditions: Sequence[Expr], body: Expr, other: Scalar = 0) -> Expr:
    """``body`` where all conditions hold, else the literal ``other``; just ``body`` if there are none."""
    return Masked(both(conditions), body, constant(other, body.dtype)) if conditions else body


@lru_cache(maxsize=1024)
def axes_of(prefix: str, shape: tuple[Index, ...]) -> tuple[Axis, ...]:
    """One axis per dimension: ``i0 < shape[0]``, ``i1 < shape[1]``, … for the prefix ``i``."""
    return tuple([Axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape)])


@lru_cache(maxsize=1024)
def coords_of(axes: tuple[Axis, ...]) -> Coords:
    """The axes as indices; an axis of extent 1 is 0."""
    return tuple([ZERO if a.extent is ONE else a.index() for a in axes])


def split_position(position: Index, extents: Sequence[Index]) -> list[Index]:
    """The row-major coordinates of a linear position within ``extents``; it must lie in range."""
    coords: list[Index] = []
    for extent in reversed(extents[1:]):
        position, inner = div_mod(position, extent)
        coords.append(inner)
    if extents:
        coords.append(position)
    return coords[::-1]


def nested_order(shape: Sequence[Index], strides: Sequence[Index]) -> list[int] | None:
    """The dimensions of more than one element, widest stride first, if each stride spans what is inner."""
    order: list[int] = []
    left = [k for k, extent in enumerate(shape) if extent is not ONE]
    span = ONE
    while left:
        inner = [k for k in left if all(is_nonnegative(strides[j] - strides[k]) for j in left)]
        if not inner or not is_nonnegative(strides[inner[-1]] - span):
            return None
        k = inner[-1]
        span = span + (shape[k] - 1) * strides[k]
        order.insert(0, k)
        left.remove(k)
    return order
