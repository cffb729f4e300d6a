"""Overlays: on a processor, what ends before the largest result is written lies in that result's memory.

    allocate a; launch f(x, a); b = mm(a, w); free a; allocate y; launch g(b, y); return y
    →
    allocate y; allocate a  within y; launch f(x, a); b = mm(a, w); free a; launch g(b, y); return y

Otherwise the layers of a language model leave blocks behind that are too small for its logits: a pool keeps them, and a
call takes both.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gyrator.ir.expr import Value
from gyrator.ir.program import shown_views, views
from gyrator.schedule.plan import Allocate, Call, Free, Plan, Step, held

_ALIGN = 64
"""Bytes: a cache line."""


@dataclass(frozen=True, slots=True)
class _Guest:
    """A value whose memory is in use, under whatever names, from step `start` to step `end`; `size` is in bytes."""

    value: Value
    start: int
    end: int
    size: int


def overlay(plan: Plan) -> Plan:
    """The plan with an overlay on its largest result, offsets at multiples of 64 bytes.

    Leaves the plan as it is where a size is a symbol, where nothing of the result's dtype ends before it is written,
    and where over 1% more would be held at once because the result is allocated earlier (a pool keeps more without it).
    """
    fresh = {s.value: at for at, s in enumerate(plan.steps) if isinstance(s, Allocate) and s.upon is None}
    shown = {view.value for view in shown_views(plan.outputs)}
    host = max((v for v in fresh if v in shown), key=_bytes, default=None)
    if host is None or host.device.type != "cpu" or min(map(_bytes, fresh)) < 0:
        return plan
    before = plan.steps[: fresh[host]]
    guests = [guest for guest in _guests(before) if guest.value.dtype == host.dtype]
    offsets = _offsets(guests, _bytes(host))
    if not offsets:
        return plan
    steps = [s for s in plan.steps if not isinstance(s, Allocate) or s.value is not host]
    steps.insert(min(fresh[value] for value in offsets), Allocate(host))
    for at, step in enumerate(steps):
        if isinstance(step, Allocate) and step.value in offsets:
            steps[at] = Allocate(step.value, host, offsets[step.value] // host.dtype.itemsize)
    found = replace(plan, steps=tuple(steps))
    return found if _peak(found) <= 1.01 * _peak(plan) else plan


def _bytes(value: Value) -> int:
    """Bytes from a value's first to its last element; -1 where that is not known."""
    nbytes = value.nbytes.value
    return -1 if nbytes is None else nbytes


def _peak(plan: Plan) -> int:
    return max((total for total, _ in held(plan, _bytes)), default=0)


def _guests(steps: Sequence[Step]) -> Iterator[_Guest]:
    """What is allocated and freed within these steps, in the order in which it is freed. What an operator returns may
    lie in the memory of its arguments, as the result of a branch does that returns its operand."""
    lies: dict[Value, Collection[Value]] = {}  # by each name the first values in its memory
    names, start = Counter[Value](), dict[Value, int]()
    for at, step in enumerate(steps):
        new: dict[Value, Collection[Value]] = {}
        match step:
            case Allocate(value, None):
                new, start[value] = {value: {value}}, at
            case Allocate(value, upon) if upon is not None:
                new = {value: lies.get(upon, ())}
            case Call(extern, into=False):
                given = (*(view.value for view in views(extern)), *(value for _, value in extern.mutates))
                memories = {memory for value in given for memory in lies.get(value, ())}
                new = {value: memories for value in extern.out if value is not None}
            case Free(value):
                for memory in lies.pop(value, ()):
                    names[memory] -= 1
                    if not names[memory]:
                        yield _Guest(memory, start[memory], at, _bytes(memory))
        lies |= new
        names.update(memory for memories in new.values() for memory in memories)


def _offsets(guests: Iterable[_Guest], room: int) -> dict[Value, int]:
    """Where each guest lies, in bytes: in the lowest gap between those there at the same time. One that fits in no gap
    is left out."""
    offsets: dict[Value, int] = {}
    here: list[tuple[int, int, int]] = []  # first byte, byte after the last, last step
    for guest in sorted(guests, key=lambda guest: guest.start):
        here = sorted(place for place in here if place[2] > guest.start)
        at = 0
        for begin, end, _ in here:
            if begin - at >= guest.size:
                break
            at = max(at, end)
        if at + guest.size <= room:
            offsets[guest.value] = at
            here.append((at, -(-(at + guest.size) // _ALIGN) * _ALIGN, guest.end))
    return offsets
