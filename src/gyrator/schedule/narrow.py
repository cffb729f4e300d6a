"""Places that are read at run time, in 32 bits on a processor, whose vectors hold twice as many of them."""

import torch

from gyrator.ir.expr import Checked, Const, Expr, Op
from gyrator.ir.index import const
from gyrator.ir.program import Program, map_nests
from gyrator.ir.volume import fits_32_bits


def narrow_places(program: Program) -> Program:
    """Compute and check indices in 32 bits where the size they index has a bound below 2³¹.

    ``checked(i64(f), n)``  →  ``i64(checked(i32(f), n))``. A float beyond 32 bits becomes what is out of range then, as
    it was. Refused for integers of 64 bits that are loaded or computed, and on a GPU, where NaN would become 0."""
    return map_nests(program, lambda nest: (nest if nest.on_gpu else nest.rewritten(_narrowed),))


def _narrowed(expr: Expr) -> Expr | None:
    match expr:
        case Checked(arg, size, mask) if fits_32_bits(size) and (short := _in_32_bits(arg)) is not None:
            return Op("cast", (Checked(short, size, mask),), torch.int64)
    return None


def _in_32_bits(expr: Expr) -> Expr | None:
    match expr:
        case Const(int(value)) if fits_32_bits(const(value)):
            return Const(value, torch.int32)
        case Op("cast", (arg,)) if arg.dtype not in (torch.bool, torch.int64):
            return arg if arg.dtype == torch.int32 else Op("cast", (arg,), torch.int32)
        case Op("where", (mask, a, b)):
            yes, no = _in_32_bits(a), _in_32_bits(b)
            return None if yes is None or no is None else Op("where", (mask, yes, no), torch.int32)
    return None
