"""Reuse: on a GPU, a value of the same kind as one that has ended takes its tensor, so that nothing is allocated.

    allocate a; launch f(x, a); b = mm(a, w) into b; free a; launch g(b, y); allocate c; …
    →
    allocate a; launch f(x, a); b = mm(a, w) into b; launch g(b, y); allocate c  in place of a; free a; …

An allocation takes a processor some 2.5 us, and a small model makes a hundred in a call."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from math import inf

from gyrator.ir.expr import Value
from gyrator.ir.volume import bytes_of
from gyrator.schedule.overlay import guests
from gyrator.schedule.plan import Allocate, Free, Plan, Step, held

MOST_WAITING = 1 << 20
"""Bytes by which the peak may rise; torch's allocator takes two such blocks at once from the driver."""


def reuse(plan: Plan) -> Plan:
    """The plan with names that end later, at the allocation that takes their memory: of the same shape, strides, dtype.

    Refuses where memory that waits so would be held beyond the peak, or beyond a little more."""
    owner, steps = plan.owners(), plan.steps
    freed = {owner[s.value]: at for at, s in enumerate(steps) if isinstance(s, Free) and s.value in owner}
    ended: dict[int, list[Value]] = defaultdict(list)
    for guest in guests(steps):
        ended[guest.end].append(guest.value)
    totals = [total for total, _ in held(plan, bytes_of)]
    rooms = iter([max(totals, default=0) + MOST_WAITING - total for total in totals])
    room = [inf if isinstance(step, Allocate | Free) else next(rooms) for step in steps]
    dead: dict[Hashable, list[Value]] = defaultdict(list)
    found: dict[int, tuple[Step, ...]] = {}
    for at, step in enumerate(steps):
        if isinstance(step, Allocate) and step.upon is None:
            waiting, size = dead[step.value.layout], bytes_of(step.value)
            old = next((v for v in reversed(waiting) if min(room[freed[v] : at]) >= size), None)
            if old is not None:
                waiting.remove(old)
                end = steps[freed[old]]
                assert isinstance(end, Free)
                found |= {freed[old]: (), at: (Allocate(step.value, end.value), end)}
                room[freed[old] : at] = [left - size for left in room[freed[old] : at]]
        for value in [value for value in ended[at] if value in freed]:
            dead[value.layout].append(value)
    return replace(plan, steps=tuple(s for at, step in enumerate(steps) for s in found.get(at, (step,))))
