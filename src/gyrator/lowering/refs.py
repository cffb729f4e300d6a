"""Lazily viewed tensors: what lowering passes from op to op. A view (``transpose``, ``view``, ``expand``, ``x[1:]``) is
no node of the program. It composes the index map from the viewed tensor's axes to the value's coordinates:
``x.t()[2:]`` of an ``x[M, N]`` has coordinates ``(d1, d0 + 2)``."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from gyrator.ir.build import axes_of, cast, coords_of, number
from gyrator.ir.expr import Expr, Load, Op, Scalar, Value
from gyrator.ir.index import ONE, Atom, Axis, Coords, Index, const, substitute

TWO = const(2)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """``value`` seen through an index map: ``coords`` has one index per dimension of ``value``, in the view's axes
    ``d0 < shape[0]``, ``d1 < shape[1]``, …. A ``dtype`` other than the value's, of the same width, reinterprets the
    bits. If ``rounded``, a 16-bit float is reinterpreted as what it is: what is put in its place is rounded too.

    A view of complex numbers has a value of reals whose last dimension is (real, imaginary); ``coords`` lacks it."""

    value: Value
    shape: tuple[Index, ...]
    coords: Coords
    dtype: torch.dtype
    rounded: bool = False

    @property
    def device(self) -> torch.device:
        """Where the value lies."""
        return self.value.device

    @property
    def rank(self) -> int:
        """The number of dimensions of the view."""
        return len(self.shape)

    def is_whole(self) -> bool:
        """True if this is the value itself: same shape, same order, same dtype."""
        value = self.value
        return self.dtype == value.dtype and self.shape == value.shape and self.coords == view_coords(self.shape)

    def at(self, where: Coords) -> Coords:
        """The value's coordinates of the view's element ``where``. An index into a dimension of size 1 is 0, and stands
        beside that of another dimension, which inlining keeps, so that it is checked."""
        at = _composed(self.shape, self.coords, where)
        ones = [i for i, extent in zip(where, self.shape, strict=True) if extent is ONE and i.indirects()]
        k = next((k for k, extent in enumerate(self.value.shape) if extent is not ONE), 0)
        return (*at[:k], sum(ones, at[k]), *at[k + 1 :]) if ones and at else at

    def view(self, shape: tuple[Index, ...], inner: Coords) -> "TensorRef":
        """The view whose element at axes ``d0, d1, …`` of ``shape`` is this one's element at ``inner``."""
        return TensorRef(self.value, shape, self.at(inner), self.dtype)

    def load(self, where: Coords) -> Expr:
        """The element at ``where``, broadcast as torch does: missing leading dimensions, and those of size 1."""
        loaded = Load(self.value, self.at(where[len(where) - len(self.shape) :]))
        rounded = self.rounded and self.dtype in (torch.bfloat16, torch.float16)
        return Op("bitcast", (loaded,), self.dtype) if rounded or self.dtype != self.value.dtype else loaded


Operand = TensorRef | Expr | Index | Scalar
"""What a pointwise op takes: a tensor, or a number known now (Scalar), at the call's start (Index) or later (Expr)."""


def whole(value: Value, dtype: torch.dtype | None = None) -> TensorRef:
    """The view of all of ``value``; with a complex ``dtype``, of the numbers whose pairs of reals it holds."""
    if dtype is None or not dtype.is_complex:
        return TensorRef(value, value.shape, view_coords(value.shape), value.dtype)
    shape = value.shape[:-1]
    return TensorRef(value, shape, view_coords(shape), dtype)


def reals(x: TensorRef) -> TensorRef:
    """``view_as_real(x)``: complex numbers as pairs in a last dimension."""
    return TensorRef(x.value, (*x.shape, TWO), (*x.coords, view_coords((*x.shape, TWO))[-1]), x.value.dtype)


@lru_cache(maxsize=4096)
def _composed(shape: tuple[Index, ...], coords: Coords, where: Coords) -> Coords:
    """``coords`` with the axes of ``shape`` replaced by ``where``, except by 0 for an axis of extent 1."""
    direct: dict[Index, Index] = {}
    atoms: dict[Atom, Index] = {}
    for k, extent in enumerate(shape):
        if extent is not ONE:
            axis = Axis(f"d{k}", extent)
            atoms[axis] = direct[axis.index()] = where[k]
    return tuple([direct.get(c) or substitute(c, atoms) for c in coords])


@lru_cache(maxsize=1024)
def view_coords(shape: tuple[Index, ...]) -> Coords:
    """``(d0, d1, …)``, with 0 for a dimension of size 1."""
    return coords_of(axes_of("d", shape))


def promoting_like(operand: Operand | complex) -> torch.Tensor | Scalar | complex:
    """What torch promotes as it does the operand: a tensor with or without dimensions, or a number."""
    if isinstance(operand, TensorRef):
        return torch.empty((0,) * bool(operand.shape), dtype=operand.dtype, device="meta")
    if isinstance(operand, Expr):
        return 0.0 if operand.dtype.is_floating_point else False if operand.dtype == torch.bool else 0
    return 0 if isinstance(operand, Index) else operand


def element(operand: Operand, where: Coords, dtype: torch.dtype) -> Expr:
    """The operand's element at ``where`` as ``dtype``."""
    return cast(operand.load(where), dtype) if isinstance(operand, TensorRef) else number(operand, dtype)
