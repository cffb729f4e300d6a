"""View operators and what each one's inverse is.

A write to a view becomes a new value of the tensor it views: `inverse(old parent, new view) → new parent`.
For `v = p[:, 2]; v.mul_(3)` that is `p' = select_scatter(p, v * 3, 1, 2)`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

Call = tuple[OpOverload, tuple[Any, ...]]
"""An operator with its arguments, nodes for tensors."""


@dataclass(frozen=True)
class ViewCall:
    """One application of a view operator to a parent.

    Attributes:
        op: the operator; its first argument is the parent.
        args, kwargs: the other arguments.
        index: which result, for operators that return several; None for one.
        tracks_grad: whether autograd was on when it was made, which a repetition of it must respect."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    index: int | None = None
    tracks_grad: bool = field(default=True, compare=False)


Inverse = Callable[[ViewCall, Node, Node], Call | None]
"""(the view, its parent's old value, its own new value) → the call that gives the parent's new value."""
IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})
"""Views with the parent's own shape: in a functional graph they are the parent."""


def inverse(view: ViewCall, parent: Node, written: Node) -> Call | None:
    """The call that gives the parent's new value from its old one and the view's new one.

    None where the operator is not known; `as_strided_scatter` on the root serves then."""
    view = alone(view, written)
    return rule(view, parent, written) if (rule := _INVERSES.get(view.op)) is not None else None


def alone(view: ViewCall, part: Node) -> ViewCall:
    """The view that makes nothing but the one of several results that `view` is: a slice for a part of a split."""
    if view.index is None or view.op not in (aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default):
        return view
    if view.op is aten.unbind.int:
        return ViewCall(aten.select.int, ((*view.args, 0)[0], view.index), {})
    size, dim = (*view.args, 0)[:2]
    start = sum(size[: view.index]) if isinstance(size, Sequence) else size * view.index
    return ViewCall(aten.slice.Tensor, (dim, start, start + part.meta["val"].shape[dim]), {})


def _reshape_back(view: ViewCall, parent: Node, written: Node) -> Call:
    return aten.view.default, (written, tuple(parent.meta["val"].shape))


def _permute_back(view: ViewCall, parent: Node, written: Node) -> Call:
    rank = parent.meta["val"].dim()
    dims = [dim % rank for dim in view.args[0]]
    return aten.permute.default, (written, [dims.index(dim) for dim in range(rank)])


def _slice_back(view: ViewCall, parent: Node, written: Node) -> Call | None:
    whole = all(isinstance(n, int) for n in view.args) and view.args[1:] in ((0, sys.maxsize), (0, sys.maxsize, 1))
    return (aten.alias.default, (written,)) if whole else _scattered(aten.slice_scatter.default)(view, parent, written)


def _by(op: OpOverload) -> Inverse:
    """The inverse by an operator that needs nothing but the view."""
    return lambda view, parent, written: (op, (written,))


def _scattered(op: OpOverload) -> Inverse:
    """The inverse by an operator that takes the view's own arguments after the two tensors."""
    return lambda view, parent, written: (op, (parent, written, *view.args))


def _expand_back(view: ViewCall, parent: Node, written: Node) -> Call | None:
    return _reshape_back(view, parent, written) if written.meta["val"].numel() == parent.meta["val"].numel() else None


_INVERSES: Mapping[OpOverload, Inverse] = {
    **dict.fromkeys((aten.view.default, aten._reshape_alias.default, aten._unsafe_view.default), _reshape_back),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _reshape_back),
    aten.expand.default: _expand_back,
    aten.unsqueeze.default: lambda view, parent, written: (aten.squeeze.dim, (written, view.args[0])),
    aten.permute.default: _permute_back,
    aten.transpose.int: lambda view, parent, written: (aten.transpose.int, (written, *view.args)),
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.slice.Tensor: _slice_back,
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.view.dtype: lambda view, parent, written: (aten.view.dtype, (written, parent.meta["val"].dtype)),
    aten.view_as_real.default: _by(aten.view_as_complex.default),
    aten.view_as_complex.default: _by(aten.view_as_real.default),
    **dict.fromkeys(IDENTITY_VIEWS, _by(aten.alias.default)),
    **{op: _by(op) for op in (aten.t.default, aten._conj.default, aten._neg_view.default)},
}
