"""What a kernel does, read from its loop tree: its kind, loops, loads and stores, operations and traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from gyrator.ir import tree
from gyrator.ir.expr import Expr, Load, Op, Random, Value, walk_all
from gyrator.ir.index import Axis
from gyrator.ir.tree import Attend, Contract, Kernel, Loop, LoopKind, Stage, Store, Update, walk_stages
from gyrator.ir.volume import cost_of, count_of, value_bytes

BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 10e9, 50e9
"""The machine of estimated run times: about one core of a server. Only ratios of estimates mean much."""


class KernelKind(StrEnum):
    """What a kernel is above all."""

    POINTWISE = "pointwise"
    PERSISTENT_REDUCTION = "persistent reduction"  # rows stay in scratch memory, or in registers, between its loops
    LOOPED_REDUCTION = "looped reduction"
    SPLIT_REDUCTION = "split reduction"  # threads, or several launches, share a row; their results are merged
    COOPERATIVE_REDUCTION = "cooperative reduction"  # blocks share a row, within one launch (GPU)
    MIX_ORDER = "mix-order reduction"  # rows and columns of one tensor
    SCAN = "scan"
    SCATTER = "scatter"
    FOREACH = "foreach"  # several loops that share nothing
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A kernel in figures. Symbolic sizes count as their hints.

    Attributes:
        loads, stores: places in the program text. loops, atomics, casts: likewise.
        inner_loops: loops right inside the outermost ones; two or more are a fusion of loops.
        buffers: scratch rows.
        numels: iterations along (innermost kept, other kept, reduced) axes.
        elements: what is written into memory. operations: arithmetic, roughly.
        read, written: bytes for each parameter.
        strides: for each parameter the steps with which the loops around its store walk it, outermost first.
    """

    kind: KernelKind
    vectorised: bool
    parallel_reduction: bool
    loads: int
    stores: int
    loops: int
    atomics: int
    casts: int
    inner_loops: int
    buffers: int
    numels: tuple[int, int, int]
    elements: int
    operations: int
    read: tuple[int, ...]
    written: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        """Bytes that one launch reads and writes, if each is moved once."""
        return sum(self.read) + sum(self.written)

    @property
    def estimate(self) -> float:
        """Estimated nanoseconds of one launch: those of moving bytes or of computing, whichever are more."""
        return 1e9 * max(self.bytes / BYTES_PER_SECOND, self.operations / OPERATIONS_PER_SECOND)


def facts_of(kernel: Kernel) -> KernelFacts:
    """Walk the tree once."""
    walk = _Walk(kernel)
    walk.body(kernel.body, (), set())
    return walk.facts()


class _Walk:
    """Adds up one kernel. Mutable, and private to one call of `facts_of`."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.values = [param.value for param in kernel.params]
        self.read, self.written = Counter[Value](), Counter[Value]()
        self.strides: dict[Value, tuple[int, ...]] = {}
        self.loads = self.stores = self.atomics = self.casts = self.operations = self.loops = 0
        self.carried = self.running = self.shared = self.columns = self.vectors = self.scattered = self.partial = False
        self.depth = 1  # of a template's product
        self.reduced: dict[Axis, int] = {}
        self.kept: dict[Axis, int] = {}

    def body(self, body: tuple[Loop | Stage, ...], around: tuple[Loop, ...], seen: set[Expr]) -> None:
        for item in body:
            if isinstance(item, Loop):
                self.loop(item, around, seen)
            else:
                self.stage(item, around, seen)

    def loop(self, loop: Loop, around: tuple[Loop, ...], seen: set[Expr]) -> None:
        self.loops += 1
        self.vectors |= loop.kind is LoopKind.LANES and loop.lanes > 1
        self.carried |= bool(loop.carries)
        self.partial |= any(carry.partial for carry in loop.carries)
        self.shared |= bool(loop.carries) and loop.kind is LoopKind.PARALLEL
        axes = self.reduced if loop.carries else self.kept
        axes[loop.axis] = count_of(loop.axis.extent)
        self.body(loop.body, (*around, loop), set(seen))

    def stage(self, stage: Stage, around: tuple[Loop, ...], seen: set[Expr]) -> None:
        trips = prod(count_of(loop.axis.extent) for loop in around)
        if not isinstance(stage, Attend):
            self.exprs(tree.stage_exprs(stage), trips, seen)
        match stage:
            case Update(_, args, running):
                self.running |= bool(running)
                self.operations += trips * len(args)
            case Store():
                self.store(stage, around, trips)
            case Attend(template, axes, (query, *_)):
                sides = [count_of(n) for n in (*(axis.extent for axis in axes), query.shape[-1])]
                self.operations += {"forward": 4, "decode": 4, "rows": 6, "columns": 8}[template] * prod(sides)
            case Contract(_, left):
                self.depth = count_of(left.shape[-1])
                times = trips if stage.ends is None or not stage.batch else trips // count_of(stage.ends.shape[0])
                self.operations += 2 * times * self.depth
        for view in tree.windows(stage):
            moved = self.written if isinstance(stage, Attend) and view in stage.results else self.read
            elements = prod(count_of(n) for n in view.shape)
            moved[view.value] += elements * view.value.dtype.itemsize

    def store(self, store: Store, around: tuple[Loop, ...], trips: int) -> None:
        self.stores += 1
        self.atomics += store.atomic
        combined = store.combine != "set"
        self.operations += trips * combined
        if store.value not in self.values:
            self.columns |= combined
            return
        self.scattered |= combined or any(i.indirects() for i in store.index)
        self.written[store.value] += trips * store.value.dtype.itemsize
        self.read[store.value] += trips * store.value.dtype.itemsize * combined
        if len(store.index) == 1:
            steps = [store.index[0].coefficient(loop.axis) for loop in around]
            self.strides[store.value] = tuple(count_of(s) for s in steps if s is not None)

    def exprs(self, exprs: tuple[Expr, ...], trips: int, seen: set[Expr]) -> None:
        for root in exprs:
            for node in walk_all(root, seen):
                match node:
                    case Load(value):
                        self.loads += 1
                        self.read[value] += trips * value.dtype.itemsize
                    case Op("cast"):
                        self.casts += 1
                    case Op() | Random():
                        self.operations += trips * cost_of(node)

    def facts(self) -> KernelFacts:
        read = tuple(min(self.read[value], value_bytes(value)) for value in self.values)
        written = tuple(min(self.written[value], value_bytes(value)) for value in self.values)
        kept = list(self.kept.values()) or [1]
        elements = sum(n // value.dtype.itemsize for n, value in zip(written, self.values, strict=True))
        inner = [_inner_loops(loop) for loop in self.kernel.body if isinstance(loop, Loop)]
        return KernelFacts(
            kind=self.kind(),
            vectorised=self.vectors,
            parallel_reduction=self.shared,
            loads=self.loads,
            stores=self.stores,
            loops=self.loops,
            atomics=self.atomics,
            casts=self.casts,
            inner_loops=max(inner, default=0),
            buffers=len(self.kernel.scratch),
            numels=(kept[-1], prod(kept[:-1]), self.depth * prod(self.reduced.values())),
            elements=elements,
            operations=self.operations,
            read=read,
            written=written,
            strides=tuple(self.strides.get(value, ()) for value in self.values),
        )

    def kind(self) -> KernelKind:
        if any(isinstance(stage, Contract | Attend) for stage in walk_stages(self.kernel.body)):
            return KernelKind.TEMPLATE
        if self.running:
            return KernelKind.SCAN
        if self.columns and self.carried:
            return KernelKind.MIX_ORDER
        if self.shared or self.partial:
            return KernelKind.SPLIT_REDUCTION
        if self.columns or self.carried:
            tiling = self.kernel.tiling
            if tiling and tiling.category == "cooperative":
                return KernelKind.COOPERATIVE_REDUCTION
            persistent = tiling.category == "persistent" if tiling else bool(self.kernel.scratch) and self.carried
            return KernelKind.PERSISTENT_REDUCTION if persistent else KernelKind.LOOPED_REDUCTION
        if self.scattered:
            return KernelKind.SCATTER
        several = sum(isinstance(item, Loop) for item in self.kernel.body) > 1
        return KernelKind.FOREACH if several else KernelKind.POINTWISE


def _inner_loops(loop: Loop) -> int:
    """How many loops there are where the outermost ones, a chain of single loops, meet the first several."""
    match loop.body:
        case (Loop() as inner,):
            return _inner_loops(inner)
    return sum(isinstance(item, Loop) for item in loop.body)
