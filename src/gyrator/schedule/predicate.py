"""Masks into loads: after this pass no ``Masked`` is left."""

from functools import cache

from gyrator.ir.build import op, within
from gyrator.ir.expr import Checked, Expr, Load, Masked, map_indirect
from gyrator.ir.index import Index, is_nonnegative
from gyrator.ir.ops import identity
from gyrator.ir.program import Program, map_nests
from gyrator.ir.simplify import Rule


def predicate(program: Program, rule: Rule) -> Program:
    """Push masks down to the loads that need them.

    Before: ``masked(1 <= i <= N, load(x, i-1), 0)``; after: ``load(x, i-1, mask = 1 <= i <= N, other = 0)``.
    Where the body is more than a load, the mask stays as a ``where`` too. A load proved to be in range everywhere needs
    no mask, if the value has elements. The same load outside the mask is another node: the memo has both."""
    return map_nests(program, lambda nest: (nest.map(_Pusher(rule).expr),))


class _Pusher:
    def __init__(self, rule: Rule) -> None:
        self._rule, self.expr = rule, cache(self._push)

    def index(self, index: Index, cond: Expr | None) -> Index:
        return map_indirect(index, lambda e: self.expr(e, cond))

    def _push(self, expr: Expr, cond: Expr | None = None) -> Expr:
        match expr:
            case Masked(mask, body, other):
                here = self.expr(mask, cond)
                kept = self.expr(body, self._both(cond, here))
                if isinstance(kept, Load) and kept.mask is here:
                    return Load(kept.value, kept.index, here, other.value)
                return self._simple(op("where", here, kept, other))
            case Load(value, index, mask, other):
                at = tuple(self.index(i, cond) for i in index)
                inner = None if mask is None else self.expr(mask, cond)
                full = all(is_nonnegative(size - 1) for size in value.shape)
                if cond is not None and (within(at, value.shape) or not full):
                    unread = identity("sum", value.dtype) if inner is None else other
                    return Load(value, at, self._both(cond, inner), unread)
                return Load(value, at, inner, other)
            case Checked(arg, size, mask):
                inner = None if mask is None else self.expr(mask, cond)
                return self._simple(Checked(self.expr(arg, cond), size, self._both(cond, inner)))
        children = tuple(self.expr(c, cond) for c in expr.children())
        return self._simple(expr.rebuild(children, tuple(self.index(i, cond) for i in expr.indices())))

    def _both(self, a: Expr | None, b: Expr | None) -> Expr | None:
        if a is None or b is None:
            return b if a is None else a
        return self._simple(op("logical_and", a, b))

    def _simple(self, expr: Expr) -> Expr:
        return self._rule(expr) or expr
