"""The order of matrix products next to each other: first the one that ends what is large.

    dx = mm(g, w)           dw = mm(gᵀ, y)      # y is not needed any more, so dx may take its place
    dw = mm(gᵀ, y)    →     dx = mm(g, w)

Only neighbours change places, and only where fewer bytes are held at once.
"""

from collections.abc import Sequence

from gyrator.ir.expr import Value
from gyrator.ir.program import Extern, Program
from gyrator.ir.volume import bytes_of
from gyrator.schedule.memory import life_of
from gyrator.schedule.plan import OUT_VARIANTS
from gyrator.schedule.products import Unit, defines_of, uses_of


def order_products(units: Sequence[Unit], program: Program) -> tuple[Unit, ...]:
    """The units with products moved up past other products where that holds less memory."""
    order = list(units)
    life = life_of(program, units)
    last = {**life.last, **dict.fromkeys(life.forever, len(order))}
    for k in range(len(order) - 1):
        at = k
        while at >= 0 and _is_better(order[at + 1], order[at], at + 1, last):
            order[at], order[at + 1] = order[at + 1], order[at]
            for unit, place in ((order[at], at), (order[at + 1], at + 1)):  # the later one ends what both read
                last |= {v: place for v in uses_of(unit) if last[v] in (at, at + 1)}
            at -= 1
    return tuple(order)


def _is_better(second: Unit, first: Unit, end: int, last: dict[Value, int]) -> bool:
    """Whether two neighbours, up to the place ``end``, hold less if they change places."""
    if not (_is_product(first) and _is_product(second)) or uses_of(second) & set(defines_of(first)):
        return False
    return _most(second, first, end, last) < _most(first, second, end, last)


def _is_product(unit: Unit) -> bool:
    return isinstance(unit, Extern) and unit.op in OUT_VARIANTS


def _most(first: Unit, second: Unit, end: int, last: dict[Value, int]) -> int:
    """Bytes that two units, run in this order, need at most at once beyond what is held before."""
    ended = {v for v in uses_of(first) - uses_of(second) if last[v] in (end - 1, end)}
    made = sum(map(bytes_of, defines_of(first)))
    return max(made, made - sum(map(bytes_of, ended)) + sum(map(bytes_of, defines_of(second))))
