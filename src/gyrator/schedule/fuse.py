"""Fusion: which nests become one kernel."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise, product

from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Coords
from gyrator.ir.program import Extern, Nest, Program, Reduce, Scan, Scatter, bodies, defines, edges, uses
from gyrator.ir.volume import bytes_of, cost_of
from gyrator.schedule.gpu import Gpu, gpu_refusal
from gyrator.schedule.gpu_mix import mix
from gyrator.schedule.gpu_reductions import shared_blocks
from gyrator.schedule.group import Group, Refused, crossing_reads, join, singleton, waits_for_reduction
from gyrator.schedule.layout import across_rows
from gyrator.schedule.split import WIDE
from gyrator.schedule.units import Units

MAX_VALUES = 48
MIN_ROWS, BIG_ROW = 8, 1 << 15
DEEPEST = 100
"""Operations (on a processor, cheap instructions) in a row from which on they take longer than a way through memory."""
Nests = Mapping[int, Nest]
"""The nests of a program by their positions among its nodes."""
Slower = Callable[[Program, Group, Group, Group], Refused | None]
"""Refuses to make a third group of two if that was measured to be slower."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one pair that shares a value: fused, or refused with the reason."""

    first: Nest
    second: Nest
    shared: Value
    verdict: Refused | None


def fuse(
    program: Program, most: int, slower: Slower | None = None, gpu: Gpu | None = None
) -> tuple[tuple[Group | Extern, ...], tuple[Decision, ...]]:
    """Join nests into groups of ``most`` nests at most, greedily by bytes saved, then nearness: the program's nodes as
    groups and externs, in an order that respects data flow, and every decision made.

    Candidates are a producer with a reader of its result, two readers of one value, and on a GPU reductions of two
    results of one group that have one shape, as last steps of sums: they save a launch. A join is legal
    where the iteration spaces unify (see :mod:`align`), every read of a result within the group is at the
    reader's own iteration, and no other unit lies between the two; it is refused where it would serialise a
    long row, or stride through memory, or make a kernel too large, or where ``slower`` says so."""
    nests = {p: node for p, node in enumerate(program.nodes) if isinstance(node, Nest)}
    state = _State(program, nests, most, slower, gpu)
    decisions: dict[tuple[int, int, Value], Decision] = {}
    for p, q, value in _candidates(nests):
        decisions[p, q, value] = Decision(nests[p], nests[q], value, state.attempt(p, q, value))
    for (p, q, value), decision in list(decisions.items()):
        on_gpu = decision.first.on_gpu and decision.second.on_gpu
        if decision.verdict is not None and on_gpu and state.attempt(p, q, value, mix=True) is None:
            decisions[p, q, value] = replace(decision, verdict=None)
    for (p, value), (q, other) in state.reductions_alike():
        state.attempt(p, q, value, other)
    return tuple(state.steps()), tuple(decisions.values())


def _candidates(nests: Nests) -> list[tuple[int, int, Value]]:
    """Pairs of nests that share a value, by their positions: first those that save most bytes, then the nearest."""
    producer = {v: p for p, nest in nests.items() for v in defines(nest)}
    readers: dict[Value, list[int]] = {}
    for position, nest in nests.items():
        for value in uses(nest):
            readers.setdefault(value, []).append(position)
    found: list[tuple[int, int, int, Value]] = []
    for value, positions in readers.items():
        size, made = bytes_of(value), producer.get(value)
        if made is not None:
            found += [(2 * size + 1, made, q, value) for q in positions]
        found += [(size, p, q, value) for p, q in pairwise(positions)]
    return [(p, q, value) for _, p, q, value in sorted(found, key=lambda c: (-c[0], c[2] - c[1], c[1], c[3].name))]


class _State:
    """The groups so far. Mutable, and private to one call of :func:`fuse`."""

    def __init__(self, program: Program, nests: Nests, most: int, slower: Slower | None, gpu: Gpu | None) -> None:
        self._program, self._nests, self._most, self._slower, self._gpu = program, nests, most, slower, gpu
        self._groups = {position: singleton(nest, position) for position, nest in nests.items()}
        self._units = Units(len(program.nodes), edges(program))

    def reductions_alike(self) -> Iterator[tuple[tuple[int, Value], tuple[int, Value]]]:
        """Pairs of reductions on a GPU, with what they read: two results of one group, of one shape."""
        group_of = {v: unit for unit, group in self._groups.items() for m in group.members for v in m.nest.out}
        last: dict[tuple[int, Coords], tuple[int, Value]] = {}
        for position, nest in self._nests.items():
            if isinstance(nest.root, Reduce) and nest.on_gpu:
                for value in sorted(uses(nest) & group_of.keys(), key=lambda v: v.name):
                    key = group_of[value], value.shape
                    if key in last and last[key][1] is not value:
                        yield last[key], (position, value)
                    last[key] = position, value

    def attempt(self, p: int, q: int, value: Value, other: Value | None = None, *, mix: bool = False) -> Refused | None:
        """Join the units of two nests that share a value, or read two alike, if good; ``mix``: rows with columns."""
        a, b = self._units.find(p), self._units.find(q)
        if a == b:
            return None
        first, second = self._groups[a], self._groups[b]
        if len(first.members) + len(second.members) > self._most:
            return Refused(f"the kernel would have more than {self._most} parts")
        places = _places(first, p, value), _places(second, q, other or value)
        joined = _join(first, second, *places, value.shape, mix)
        if isinstance(joined, Refused):
            return joined
        shared = bool(shared_blocks(joined, self._gpu))
        if not shared and (shared_blocks(first, self._gpu) or shared_blocks(second, self._gpu)):
            return Refused("the long rows of one could no longer be shared by programs")
        problem = None if mix else _check(joined, first, second, shared=shared)
        if problem is None and self._slower is not None:
            problem = self._slower(self._program, first, second, joined)
        if problem is not None:
            return problem
        if not self._units.merge(a, b):
            return Refused("another operation must run between them")
        self._groups[a] = joined
        del self._groups[b]
        return None

    def steps(self) -> Iterator[Group | Extern]:
        for unit in self._units.order():
            node = self._program.nodes[unit]
            yield node if isinstance(node, Extern) else self._groups[unit]


def _join(
    first: Group, second: Group, lefts: list[Coords], rights: list[Coords], shape: Coords, mixing: bool
) -> Group | Refused:
    """One group of both, in which an element of ``lefts`` is one of ``rights``; else why the last way is none."""
    joined: Group | Refused = Refused("they do not read the shared value by whole elements", True)
    for left, right in product(lefts, rights):
        ways = ((first, second, left, right), (second, first, right, left))  # rows and columns of a mix
        for way in ways if mixing else ways[:1]:
            joined = (mix if mixing else join)(*way, shape)
            if isinstance(joined, Group):
                return joined
    return joined


def _places(group: Group, position: int, value: Value) -> list[Coords]:
    """The coordinates, over the group's axes, at which the nest at ``position`` defines or loads ``value``."""
    member = next(m for m in group.members if m.position == position)
    if value in member.nest.out:
        return [] if isinstance(member.nest.root, Scatter) else [member.coordinates()]
    return [member.read(load) for load in islice((load for load in member.loads if load.value is value), 4)]


def _check(group: Group, first: Group, second: Group, *, shared: bool) -> Refused | None:
    if (problem := crossing_reads(group, frozenset(m.position for m in first.members))) is not None:
        return problem
    if len({v for m in group.members for v in (*uses(m.nest), *m.nest.out)}) > MAX_VALUES:
        return Refused(f"the kernel would touch more than {MAX_VALUES} tensors")
    on_gpu = group.members[0].nest.on_gpu
    if _depth(group, timed=group.pointwise and not on_gpu) > DEEPEST:
        return Refused(f"more than {DEEPEST} operations would follow each other")
    if len({m.nest.on_gpu for m in group.members}) > 1:
        return Refused("they run on different devices")
    if on_gpu:
        return gpu_refusal(group, (first, second), shared=shared)
    if group.pointwise:
        return None
    rows, row = group.sides
    reduced = {v for m in group.members if isinstance(m.nest.root, Reduce) for v in m.nest.out}
    phased = any(load.value in reduced for m in group.members if m.space is not None for load in m.loads)
    if rows < MIN_ROWS and row > BIG_ROW and (phased or not group.only_reduces):
        return Refused("one long row would run on one core")
    demoted = first.pointwise or second.pointwise
    strided = across_rows(group)
    few = strided and rows < WIDE and rows * row > 2 * BIG_ROW
    if few and not group.only_reduces and waits_for_reduction(group):
        return Refused("a few columns would run on one core")
    reduces = any(isinstance(m.nest.root, Reduce | Scan) for m in group.members)
    if strided and (phased or (demoted and not reduces)):
        return Refused("the rows would be read with a stride")
    return None


def _depth(group: Group, *, timed: bool) -> int:
    """The most nodes, or instructions that they take, on a way from what is loaded, or reduced before, to a result."""
    below: dict[Value, int] = {}
    longest = 0
    for member in group.members:
        root = member.nest.root
        before = max([below.get(load.value, 0) for load in member.loads], default=0)
        own = before + max(_steps(e, timed) for e in bodies(root))
        longest = max(longest, own)
        if not isinstance(root, Reduce | Scan):
            below |= dict.fromkeys(defines(member.nest), own)
    return longest


@lru_cache(maxsize=1 << 12)
def _steps(expr: Expr, timed: bool) -> int:
    own = max(cost_of(expr), 1) if timed else 1
    return own + max([_steps(e, timed) for e in expr.operands()], default=0)
