"""Running sums, products and extremes along one dimension: one scan each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gyrator.ir.expr import Const, Expr, IndexValue
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.program import Scan
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.family import Family, rows
from gyrator.lowering.refs import Coords, TensorRef, axes_of, coords_of, whole
from gyrator.lowering.typed import cast, compute_dtype
from gyrator.lowering.views import dimension


def scan(
    b: Builder, out: Meta, dim: int, kind: str, bodies: Callable[[Coords], tuple[Expr, ...]], suffix: str = ""
) -> list[TensorRef]:
    """Append a scan over ``dim`` of ``out``'s shape; the bodies' dtypes decide those of the results."""
    axes = axes_of("i", out.shape)
    body = bodies(coords_of(axes))
    dtypes = [d or body[k].dtype for k, d in enumerate(REDUCTIONS[kind].results)]
    values = [b.value(out.with_dtype(d), suffix) for d in dtypes]
    b.nest(values, axes, Scan(kind, axes[dim], body))
    return [whole(v) for v in values]


def _running(kind: str, b: Builder, out: Meta, x: TensorRef, dim: int, **_: Any) -> TensorRef:
    if x.rank == 0:
        return b.copy(x, out)
    wide = compute_dtype(out.dtype)
    suffix = "" if wide == out.dtype else kind
    (total,) = scan(b, out, dimension(dim, x.rank), kind, lambda at: (cast(x.load(at), wide),), suffix)
    return b.narrowed(total, out)


def _running_extreme(kind: str, b: Builder, out: tuple[Meta, Meta], x: TensorRef, dim: int) -> Sequence[TensorRef]:
    values, indices = out
    if x.rank == 0:
        return b.copy(x, values), b.full(indices, Const(0, torch.int64))
    d = dimension(dim, x.rank)
    wide = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    best, where = scan(b, values, d, kind, lambda at: (cast(x.load(at), wide), IndexValue(at[d])), kind)
    return b.narrowed(best, values), where


LOWERINGS: Family = {
    **rows(partial(_running, "sum"), "cumsum"),
    **rows(partial(_running, "prod"), "cumprod"),
    **rows(partial(_running, "logaddexp"), "logcumsumexp"),
    **rows(partial(_running_extreme, "argmax"), "cummax"),
    **rows(partial(_running_extreme, "argmin"), "cummin"),
}
