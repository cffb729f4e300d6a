"""Lazily viewed tensors: what lowering passes from op to op.

A view (``transpose``, ``view``, ``expand``, ``x[1:]``) is no node of the program. It composes the index map from the
viewed tensor's axes to the value's coordinates: ``x.t()[2:]`` of an ``x[M, N]`` has coordinates ``(d1, d0 + 2)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from gyrator.ir.expr import Expr, Load, Op, Value
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, substitute

Coords: TypeAlias = "tuple[Index, ...]"


@dataclass(frozen=True, slots=True)
class TensorRef:
    """``value`` seen through an index map.

    ``coords`` has one index per dimension of ``value``, written in the view's axes ``d0 < shape[0]``, ``d1 < shape[1]``, ….
    A ``dtype`` other than the value's, of the same width, reinterprets the bits.
    """

    value: Value
    shape: tuple[Index, ...]
    coords: Coords
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    @property
    def rank(self) -> int:
        return len(self.shape)

    def is_whole(self) -> bool:
        """True if this is the value itself: same shape, same order, same dtype."""
        value = self.value
        return (
            self.dtype == value.dtype and self.shape == value.shape and self.coords == view_coords(self.shape)
        )

    def at(self, where: Sequence[Index]) -> Coords:
        """The value's coordinates of the view's element ``where``."""
        direct: dict[Index, Index] = {}
        atoms: dict[Atom, Index] = {}
        for k, extent in enumerate(self.shape):
            if extent is not ONE:
                axis = Axis(f"d{k}", extent)
                atoms[axis] = direct[axis.index()] = where[k]
        return tuple([direct.get(c) or (substitute(c, atoms) if c.terms else ZERO) for c in self.coords])

    def view(self, shape: tuple[Index, ...], inner: Sequence[Index]) -> TensorRef:
        """The view whose element at axes ``d0, d1, …`` of ``shape`` is this one's element at ``inner``."""
        return TensorRef(self.value, shape, self.at(inner), self.dtype)

    def load(self, where: Sequence[Index]) -> Expr:
        """The element at ``where``, broadcast as torch does: missing leading dimensions, and those of size 1."""
        skip = len(where) - len(self.shape)
        if skip or ONE in self.shape:
            where = [ZERO if extent is ONE else i for extent, i in zip(self.shape, where[skip:], strict=True)]
        loaded = Load(self.value, self.at(where))
        return loaded if self.dtype == self.value.dtype else Op("bitcast", (loaded,), self.dtype)


def whole(value: Value) -> TensorRef:
    """The view of all of ``value``."""
    return TensorRef(value, value.shape, view_coords(value.shape), value.dtype)


def view_coords(shape: Sequence[Index]) -> Coords:
    """``(d0, d1, …)``, with 0 for a dimension of size 1."""
    return coords_of(axes_of("d", shape))


def axes_of(prefix: str, shape: Sequence[Index]) -> tuple[Axis, ...]:
    """One axis per dimension: ``i0 < shape[0]``, ``i1 < shape[1]``, … for the prefix ``i``."""
    return tuple([Axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape)])


def coords_of(axes: Sequence[Axis]) -> Coords:
    """The axes as indices; an axis of extent 1 is 0."""
    return tuple([ZERO if a.extent is ONE else a.index() for a in axes])
