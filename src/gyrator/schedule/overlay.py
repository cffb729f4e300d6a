"""Overlays: on a processor, what ends before the largest result is written lies in that result's memory.

    allocate a; launch f(x, a); b = mm(a, w); free a; allocate y; launch g(b, y); return y
    →
    allocate y; allocate a  within y; launch f(x, a); b = mm(a, w); free a; launch g(b, y); return y

Otherwise the layers of a language model leave blocks too small for its logits: a pool keeps them, a call takes both."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, ZERO, Index, const, exact_quotient, is_nonnegative
from gyrator.ir.program import output_values, views
from gyrator.ir.volume import count_of
from gyrator.schedule.plan import Allocate, Call, Free, Plan, Step, held

_ALIGN = 64
"""Bytes: a cache line."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A value whose memory is in use, under whatever names, from step `start` to step `end`."""

    value: Value
    start: int
    end: int


def overlay(plan: Plan) -> Plan:
    """The plan with an overlay on its largest result, offsets at multiples of 64 bytes.

    Where symbolic sizes need not fit, each call asks. Leaves the plan as it is where nothing ends before the result is
    written, and where over 1% more would be held at once because the result is allocated earlier (a pool keeps more
    without it). What has another dtype lies apart where the result's strides do not let torch see it so."""
    fresh = {s.value: at for at, s in enumerate(plan.steps) if isinstance(s, Allocate) and s.upon is None}
    shown = output_values(plan.outputs)
    host = max((v for v in fresh if v in shown and _is_known(v)), key=_bytes, default=None)
    if host is None or host.device.type != "cpu":
        return plan
    before = plan.steps[: fresh[host]]
    found = [guest for guest in guests(before) if _shows(host, guest.value.dtype) and _is_known(guest.value)]
    lies = _overlaid(sorted(found, key=lambda guest: guest.start), host)
    if len(lies) < len(found):  # the order that leaves less apart: or last what is less than half of its room
        few = {g for g in found if count_of(_aligned(g.value.nbytes)) > 2 * _bytes(g.value)}
        by_size = sorted(found, key=lambda guest: (guest in few, -_bytes(guest.value)))
        lies = max(lies, _overlaid(by_size, host), key=lambda lies: sum(map(_bytes, lies)))
    if not lies:
        return plan
    others = [s for s in plan.steps if not isinstance(s, Allocate) or s.value is not host]
    steps: list[Step] = [lies.get(s.value, s) if isinstance(s, Allocate) else s for s in others]
    steps.insert(min(fresh[value] for value in lies), Allocate(host))
    laid = replace(plan, steps=tuple(steps))
    return laid if _peak(laid) <= 1.01 * _peak(plan) else plan


def _bytes(value: Value) -> int:
    """Bytes from a value's first to its last element, in the call that is compiled for."""
    return count_of(value.nbytes)


def _is_known(value: Value) -> bool:
    """Whether the value's size is known before the first step: one that an operator tells has no hint."""
    return all(size.hint is not None for size in value.nbytes.sizes())


def _shows(host: Value, dtype: torch.dtype) -> bool:
    """Whether ``Tensor.view(dtype)`` takes the host: its rows, with gaps, are whole numbers of such elements."""
    ratio = const(max(dtype.itemsize // host.dtype.itemsize, 1))
    rows = (*host.strides[:-1], *host.shape[-1:])
    whole = host.strides[-1:] == (ONE,) and all(exact_quotient(n, ratio) is not None for n in rows)
    return whole or dtype.itemsize == host.dtype.itemsize


def _peak(plan: Plan) -> int:
    return max((total for total, _ in held(plan, _bytes)), default=0)


def guests(steps: Sequence[Step]) -> Iterator[Guest]:
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
                memories = dict.fromkeys(memory for value in given for memory in lies.get(value, ()))
                new = {value: memories for value in extern.out if value is not None}
            case Free(value):
                for memory in lies.pop(value, ()):
                    names[memory] -= 1
                    if not names[memory]:
                        yield Guest(memory, start[memory], at)
        lies |= new
        names.update(memory for memories in new.values() for memory in memories)


def _overlaid(guests: Sequence[Guest], host: Value) -> dict[Value, Allocate]:
    """Each guest, in their order, in the lowest gap between those there then. One that fits in none is left out."""
    lies: dict[Value, Allocate] = {}
    places: list[tuple[Guest, Index, Index]] = []  # from which byte and to which
    room = host.nbytes
    for guest in guests:
        here = [place for place in places if place[0].start < guest.end and guest.start < place[0].end]
        for at in sorted({ZERO, *(end for _, _, end in here)}, key=count_of):
            after = at + guest.value.nbytes
            apart = (is_nonnegative(begin - after) or is_nonnegative(at - end) for _, begin, end in here)
            if count_of(after) <= count_of(room) and is_nonnegative(_aligned(after) - after) and all(apart):
                needs = None if is_nonnegative(room - after) else after
                lies[guest.value] = Allocate(guest.value, host, at // guest.value.dtype.itemsize, needs)
                places.append((guest, at, _aligned(after)))
                break
    return lies


def _aligned(end: Index) -> Index:
    """A multiple of 64 whatever the sizes are, and no less if none is negative: 16·s + 64 → 64·s + 64."""
    return end + Index(tuple((monomial, -times % _ALIGN) for monomial, times in end.terms if times % _ALIGN))
