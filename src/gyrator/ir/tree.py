"""Loop trees: kernels with every decision made, ready to be printed.

A kernel is a tree of loops over stages. The scheduler decides the order of loops, what is hoisted out of which loop,
what is kept in a local or a scratch row, what runs in parallel and where vectors lie; a code generator prints.

    kernel softmax(x: f32[B, N]) -> y
      parallel i < B:
        lanes j < N  carry m = max:
          update m with x[i, j]
        lanes j < N  carry d = sum:
          let e = exp(x[i, j] - %m) row[j] = e update d with e
        lanes j < N:
          y[i, j] = row[j] / %d"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gyrator.ir.expr import Expr, Load, Ref, Value, indirect_values, walk_all
from gyrator.ir.index import Axis, Index, Size, dot
from gyrator.ir.program import View
from gyrator.origin import Origin


class LoopKind(enum.Enum):
    """How a loop runs. On a GPU ``PARALLEL`` loops form the grid and ``LANES`` the threads of a block."""

    PARALLEL = "parallel"  # iterations are independent, but for carries, which are merged
    SERIAL = "serial"
    LANES = "lanes"  # vectorised: a step handles several iterations, the rest runs one by one


@dataclass(frozen=True, slots=True)
class Let:
    """Name the value of an expression for the rest of this loop's body, inner loops included."""

    name: Ref
    expr: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """``value[index] = expr`` or, with ``combine`` other than ``set``, ``value[index] combine= expr``.
    ``atomic``: other iterations of a parallel loop may hit the same element."""

    value: Value
    index: tuple[Index, ...]
    expr: Expr
    combine: str = "set"
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """Feed one iteration's ``args`` to the carry named ``carry``.
    ``running`` names the carry's results just after this update (a scan reads them; otherwise empty): of equal
    extremes the last one stays (cummax), in other loops the first (argmax)."""

    carry: str
    args: tuple[Expr, ...]
    running: tuple[Ref | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Contract:
    """``name = Σ_k left[…, m, k] · right[…, k, n]`` for the tile of rows m and columns n of the loops around it.

    The text of the template of that name computes it; the stages that follow in the same body, its epilogue, read the
    local ``name``, whose dtype is the accumulator's. ``batch`` (none or one), ``row`` and ``column`` are axes of loops,
    ``inner`` is k. ``blocks`` are a C++ template's numbers (see :mod:`cpu_gemm`); a GPU kernel has them in its tiling.
    ``elements``, if there are any, say what an element of each operand is, over all these axes; then ``left`` and
    ``right`` lie nowhere. ``ends`` are those of groups, of k if there is a batch of as many results, else of rows."""

    name: Ref
    left: View
    right: View
    batch: tuple[Axis, ...]
    row: Axis
    column: Axis
    inner: Axis
    template: str
    blocks: tuple[tuple[str, int], ...] = ()
    elements: tuple[Expr, ...] = ()
    ends: View | None = None

    @property
    def rows_in_groups(self) -> bool:
        """Whether ``ends`` are those of rows."""
        return self.ends is not None and not self.batch


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention by the template of that name (see :mod:`gyrator.schedule.attention`), a whole kernel.
    ``axes`` are batch, head, row and column of the scores, ``functions`` expressions over them and the locals ``score``
    and ``grad``. ``results`` are None where nobody wants them; ``natural``: the logarithms among them, else to base 2.
    ``blocks`` are the numbers of the template in C++ (:mod:`gyrator.schedule.cpu_attention`)."""

    template: str
    axes: tuple[Axis, ...]
    operands: tuple[View, ...]
    lists: tuple[View, ...]
    results: tuple[View | None, ...]
    functions: tuple[Expr, ...]
    sides: tuple[int, int]
    scale: float
    natural: bool = False
    blocks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Carry:
    """A reduction carried by a loop: a row of ``REDUCTIONS`` with its results, readable after the loop.
    If the vectors lie along an axis *outside* the carrying loop, each lane has its own accumulator.
    ``partial``: another kernel combines the results."""

    name: str
    kind: str
    results: tuple[Ref | None, ...]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """``for axis in range(extent)``. ``lanes`` is the vector length of a ``LANES`` loop, ``grain`` the estimated cost
    of an iteration of a ``PARALLEL`` loop, in cheap instructions: by it the loop decides at run time if threads pay."""

    axis: Axis
    kind: LoopKind
    body: tuple[Loop | Stage, ...]
    carries: tuple[Carry, ...] = ()
    lanes: int = 1
    grain: int = 0


Stage = Let | Store | Update | Contract | Attend


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor argument of a kernel. ``written``/``read`` say how it is used; two params never alias unless
    both are the same storage updated in place at the same index (``alias`` names the other one). ``last``: a large
    value of which nothing is read later, so that it need not stay in a cache."""

    value: Value
    read: bool
    written: bool
    alias: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run a tiled kernel: the size of each block by name (powers of two), warps and stages.

    Among the blocks, ``STAGES`` says over how many iterations of a serial loop the loads of one are spread, ``PARTS``
    how many programs share a row. ``registers``: the most that a thread has on average, of a text whose warps have
    roles of their own and share them out (:mod:`gyrator.templates.hopper`); 0 for all other texts."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int = 1
    registers: int = 0


@dataclass(frozen=True, slots=True)
class Tile:
    """A program handles ``block`` (a name in ``Config.blocks``) iterations of the loop over ``axis`` at once.
    ``whole``: the block covers the axis, in one step whose values stay in registers for later loops over that axis."""

    axis: Axis
    block: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel runs on a GPU: which loops run in blocks, and candidates for the block sizes, the best guess first.

    ``PARALLEL`` loops form the grid, one program per iteration unless tiled; tiled ``LANES`` loops run
    within a program. ``wide``: positions may pass 2³¹ and need 64 bits; else they do where ``below``, which depends on
    sizes, does. ``category`` names the kind of kernel and ``hint`` is about how many elements it handles. ``other`` is
    another way to compute the same: rows in blocks where whole ones are not surely faster, a text for all GPUs where
    there is one for this."""

    tiles: tuple[Tile, ...]
    configs: tuple[Config, ...]
    category: str
    wide: bool = False
    below: tuple[Index, ...] = ()
    hint: int = 0
    other: Tiling | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of tensors and sizes. ``scratch`` values are rows private to one iteration of the parallel loops."""

    name: str
    params: tuple[Param, ...]
    sizes: tuple[Size, ...]
    scratch: tuple[Value, ...]
    body: tuple[Loop | Stage, ...]
    origins: tuple[Origin, ...] = ()
    tiling: Tiling | None = None


def walk_stages(body: Iterable[Loop | Stage]) -> Iterator[Stage]:
    """Every stage of a tree in the order of its text."""
    for item in body:
        if isinstance(item, Loop):
            yield from walk_stages(item.body)
        else:
            yield item


def walk_loops(body: Iterable[Loop | Stage]) -> Iterator[Loop]:
    """Every loop of a tree in the order of its text."""
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from walk_loops(item.body)


def stage_exprs(stage: Stage) -> tuple[Expr, ...]:
    """The expressions that a stage computes: values, and the run-time values within a store's index."""
    match stage:
        case Let(_, expr):
            return (expr,)
        case Store(_, index, expr):
            return (expr, *indirect_values(index))
        case Update(_, args):
            return args
        case Contract():
            return stage.elements
        case Attend():
            return stage.functions


def walk_exprs(body: Iterable[Loop | Stage]) -> Iterator[Expr]:
    """The expressions of every stage of a tree."""
    for stage in walk_stages(body):
        yield from stage_exprs(stage)


def loads_in(body: Iterable[Loop | Stage]) -> tuple[Load, ...]:
    """Each distinct load in a tree."""
    return tuple(dict.fromkeys(load for expr in walk_exprs(body) for load in expr.loads()))


def indices_in(body: Sequence[Loop | Stage]) -> Iterator[Index]:
    """Every index that a tree computes, the last element that a template reads included."""
    yield from (loop.axis.extent for loop in walk_loops(body))
    seen: set[Expr] = set()
    for stage in walk_stages(body):
        if isinstance(stage, Store):
            yield from stage.index
        elif isinstance(stage, Contract):
            yield stage.inner.extent
        for w in windows(stage):
            yield from (*w.shape, *w.strides, w.offset, dot(tuple(n - 1 for n in w.shape), w.strides) + w.offset)
        for root in stage_exprs(stage):
            for expr in walk_all(root, seen):
                yield from expr.indices()


def windows(stage: Stage) -> tuple[View, ...]:
    """The windows on tensors that a template reads or writes; none for any other stage."""
    if isinstance(stage, Attend):
        return (*stage.operands, *stage.lists, *(view for view in stage.results if view is not None))
    if not isinstance(stage, Contract) or stage.elements:
        return ()
    return (stage.left, stage.right, *(() if stage.ends is None else (stage.ends,)))


def written(body: Iterable[Loop | Stage]) -> frozenset[Value]:
    """The values stored anywhere in a tree."""
    return frozenset(s.value for s in walk_stages(body) if isinstance(s, Store))


def touched(body: Iterable[Loop | Stage]) -> tuple[Value, ...]:
    """The values loaded or stored anywhere in a tree, in the order of its text."""
    found: dict[Value, None] = {}
    for stage in walk_stages(body):
        found |= dict.fromkeys(load.value for e in stage_exprs(stage) for load in e.loads())
        found |= {stage.value: None} if isinstance(stage, Store) else {}
        found |= {window.value: None for window in windows(stage)}
    return tuple(found)
