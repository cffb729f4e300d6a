"""View operators: what each one's inverse is, and which in-place operators only change a tensor's metadata.

A write to a view becomes a new value of the tensor it views: `inverse(old parent, new view) → new parent`.
For `v = p[:, 2]; v.mul_(3)` that is `p' = select_scatter(p, v * 3, 1, 2)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
"""An operator with its arguments; `PARENT` and `WRITTEN` stand for the two tensors."""


@dataclass(frozen=True)
class _Slot:
    name: str


PARENT = _Slot("the old value of the viewed tensor")
WRITTEN = _Slot("the new value of the view")


@dataclass(frozen=True)
class View:
    """One application of a view operator to a parent.

    Attributes:
        op: the operator; its first argument is the parent.
        args, kwargs: the other arguments.
        index: which result, for operators that return several; None for one.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    index: int | None = None

    def apply(self, parent: Tensor) -> Tensor:
        """The view of `parent`."""
        result = self.op(parent, *self.args, **self.kwargs)
        return result if self.index is None else result[self.index]


IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})
"""Views with the parent's own shape: in a functional graph they are the parent."""

METADATA_OPS: Mapping[OpOverload, OpOverload] = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.swapaxes_.default: aten.transpose.int,
    aten.swapdims_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.as_strided_.default: aten.as_strided.default,
    aten.detach_.default: aten.detach.default,
}
"""In-place operators that turn a tensor into a view of what it was."""


def is_view(op: OpOverload) -> bool:
    """Whether results of `op` share memory with an argument that it does not write."""
    schema = op._schema
    return not schema.is_mutable and any(
        result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
    )


def inverse(view: View, parent: Tensor, written: Tensor) -> Call | None:
    """The call that gives the parent's new value from its old one and the view's new one.

    Args:
        view: how the view was made.
        parent: metadata of the parent.
        written: metadata of the view.

    Returns:
        The call, or None where the operator is not known; `as_strided_scatter` on the root serves then.
    """
    rule = _INVERSES.get(view.op)
    return rule(view, parent, written) if rule is not None else None


def strided_inverse(written: Tensor) -> Call:
    """The inverse of any view, on the root of the chain: a scatter by the view's own strides."""
    return (
        aten.as_strided_scatter.default,
        (PARENT, WRITTEN, tuple(written.shape), tuple(written.stride()), written.storage_offset()),
        {},
    )


def _argument(view: View, position: int, name: str, default: Any = None) -> Any:
    """An argument given by position (counted after the parent) or by name."""
    return view.args[position] if position < len(view.args) else view.kwargs.get(name, default)


def _reshape_back(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.view.default, (WRITTEN, tuple(parent.shape)), {}


def _permute_back(view: View, parent: Tensor, written: Tensor) -> Call:
    dims = [dim % parent.dim() for dim in view.args[0]]
    back = [dims.index(dim) for dim in range(parent.dim())]
    return aten.permute.default, (WRITTEN, back), {}


def _transpose_back(view: View, parent: Tensor, written: Tensor) -> Call:
    if parent.dim() == 0:
        return aten.alias.default, (WRITTEN,), {}
    dims = view.args if view.op is aten.transpose.int else (0, parent.dim() - 1)
    return aten.transpose.int, (WRITTEN, *dims), {}


def _t_back(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.t.default, (WRITTEN,), {}


def _unsqueeze_back(view: View, parent: Tensor, written: Tensor) -> Call:
    dim = view.args[0]
    return aten.squeeze.dim, (WRITTEN, dim), {}


def _expand_back(view: View, parent: Tensor, written: Tensor) -> Call | None:
    if written.numel() != parent.numel():
        return None
    return aten.view.default, (WRITTEN, tuple(parent.shape)), {}


def _select_back(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.select_scatter.default, (PARENT, WRITTEN, *view.args), {}


def _slice_back(view: View, parent: Tensor, written: Tensor) -> Call:
    dim, start, end, step = (
        _argument(view, position, name, default)
        for position, (name, default) in enumerate((("dim", 0), ("start", None), ("end", None), ("step", 1)))
    )
    return aten.slice_scatter.default, (PARENT, WRITTEN, dim, start, end, step), {}


def _diagonal_back(view: View, parent: Tensor, written: Tensor) -> Call:
    offset, dim1, dim2 = (
        _argument(view, position, name, default)
        for position, (name, default) in enumerate((("offset", 0), ("dim1", 0), ("dim2", 1)))
    )
    return aten.diagonal_scatter.default, (PARENT, WRITTEN, offset, dim1, dim2), {}


def _unbind_back(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.select_scatter.default, (PARENT, WRITTEN, _argument(view, 0, "dim", 0), view.index), {}


def _split_back(view: View, parent: Tensor, written: Tensor) -> Call:
    dim = _argument(view, 1, "dim", 0)
    size = view.args[0]
    assert view.index is not None
    start = sum(size[: view.index]) if isinstance(size, Sequence) else size * view.index
    return aten.slice_scatter.default, (PARENT, WRITTEN, dim, start, start + written.shape[dim], 1), {}


def _dtype_back(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.view.dtype, (WRITTEN, parent.dtype), {}


def _to_complex(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.view_as_complex.default, (WRITTEN,), {}


def _to_real(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.view_as_real.default, (WRITTEN,), {}


def _identity(view: View, parent: Tensor, written: Tensor) -> Call:
    return aten.alias.default, (WRITTEN,), {}


def _self_inverse(view: View, parent: Tensor, written: Tensor) -> Call:
    return view.op, (WRITTEN,), {}


_INVERSES: Mapping[OpOverload, Callable[[View, Tensor, Tensor], Call | None]] = {
    aten.view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten._unsafe_view.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.unsqueeze.default: _unsqueeze_back,
    aten.permute.default: _permute_back,
    aten.transpose.int: _transpose_back,
    aten.t.default: _t_back,
    aten.expand.default: _expand_back,
    aten.select.int: _select_back,
    aten.slice.Tensor: _slice_back,
    aten.diagonal.default: _diagonal_back,
    aten.unbind.int: _unbind_back,
    aten.split.Tensor: _split_back,
    aten.split_with_sizes.default: _split_back,
    aten.view.dtype: _dtype_back,
    aten.view_as_real.default: _to_complex,
    aten.view_as_complex.default: _to_real,
    aten.detach.default: _identity,
    aten.alias.default: _identity,
    aten.lift_fresh.default: _identity,
    aten._conj.default: _self_inverse,
    aten._neg_view.default: _self_inverse,
}
