"""Random tensors: counter-based numbers, element ``k`` of a draw being a function of the draw's seed and ``k``.

All seeds of a graph come from one call at its first draw, ``gyrator.seeds.default(n, device) → int64[n]``:
a run draws from torch's generator once, and draws at different places of a program have equal text.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gyrator.autograd import ops
from gyrator.ir.expr import Expr, Load, Random
from gyrator.ir.index import IndexLike, as_index, contiguous_strides, dot
from gyrator.lowering.builder import Builder, Meta
from gyrator.lowering.family import Family, named_rows, rows
from gyrator.lowering.refs import Coords, TensorRef
from gyrator.lowering.typed import Operand, element


def draw(b: Builder, out: Meta, kind: str, dtype: torch.dtype, *bounds: Operand) -> Callable[[Coords], Expr]:
    """A new draw of numbers of ``dtype`` as a function of the place."""
    seeds, slot = b.seed(out.device)
    limits = tuple([element(o, (), torch.int64) for o in bounds])
    return _numbered(out, kind, Load(seeds, (slot,)), dtype, limits)


def _numbered(
    out: Meta, kind: str, seed: Expr, dtype: torch.dtype, limits: tuple[Expr, ...] = ()
) -> Callable[[Coords], Expr]:
    """Element ``k`` of the draw, in row-major order, is number ``k`` of the seed's sequence."""
    strides = contiguous_strides(out.shape)
    return lambda at: Random(kind, seed, dot(at, strides), dtype, limits)


def _fraction(kind: str, b: Builder, out: Meta, *_: Any, generator: object = None, **__: Any) -> Any:
    if generator is not None or not out.dtype.is_floating_point:
        return NotImplemented
    return b.pointwise(out, draw(b, out, kind, out.dtype))


def _randint(b: Builder, out: Meta, *args: Any, **_: Any) -> TensorRef:
    """``randint([low], high, size)`` and ``randint_like(x, [low], high)``."""
    *low, high = [a for a in args if not isinstance(a, (TensorRef, list))]
    return b.pointwise(out, draw(b, out, "randint64", torch.int64, *(low or [0]), high))


def _seeded(kind: str, b: Builder, out: Meta, size: object, seeds: TensorRef, slot: IndexLike, *_: Any) -> TensorRef:
    return b.pointwise(out, _numbered(out, kind, seeds.load((as_index(slot),)), out.dtype))


LOWERINGS: Family = {
    **named_rows(_fraction, "rand randn"),
    **rows(_randint, "randint randint_like", "default low low_dtype"),
}
"""Those that take seeds of this program."""

SEEDED: Family = {ops.rand: partial(_seeded, "rand"), ops.randn: partial(_seeded, "randn")}
