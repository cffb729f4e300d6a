"""What a kernel does, read from its loop tree: its kind, loops, loads and stores, operations and traffic."""

from collections import Counter
from dataclasses import dataclass
from math import prod

from gyrator.ir import tree
from gyrator.ir.expr import Expr, Load, Op, Random, Value, indirect_values, walk_all
from gyrator.ir.tree import Attend, Contract, Kernel, Loop, LoopKind, Stage, Store, Update, walk_loops, walk_stages
from gyrator.ir.volume import cost_of, count_of, value_bytes

BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 10e9, 50e9
"""The machine of estimated run times: about one core of a server. Only ratios of estimates mean much."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A kernel in figures. Symbolic sizes count as their hints.

    Attributes:
        kind: what it is above all; `Count` lists the kinds.
        loads, stores: places in the program text. loops, atomics, casts: likewise.
        inner_loops: loops right inside the outermost ones; two or more are a fusion of loops.
        buffers: scratch rows.
        numels: iterations along (innermost kept, other kept, reduced) axes.
        elements: what is written into memory. operations: arithmetic, roughly.
        read, written: bytes for each parameter.
        strides: for each parameter the steps with which the loops around its store walk it, outermost first."""

    kind: str
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
    """The figures of a kernel."""
    return _Walk(kernel).facts()


class _Walk:
    """Adds up one kernel. Mutable, and private to one call of `facts_of`."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.values = [param.value for param in kernel.params]
        self.loops, self.stages = [*walk_loops(kernel.body)], [*walk_stages(kernel.body)]
        self.stores = [stage for stage in self.stages if isinstance(stage, Store)]
        self.shared = any(loop.carries and loop.kind is LoopKind.PARALLEL for loop in self.loops)
        self.read, self.written = Counter[Value](), Counter[Value]()
        self.strides: dict[Value, tuple[int, ...]] = {}
        self.loads = self.casts = self.operations = 0
        self.depth = 1  # of a template's product

    def body(self, body: tuple[Loop | Stage, ...], around: tuple[Loop, ...], seen: set[Expr]) -> None:
        for item in body:
            if isinstance(item, Loop):
                self.body(item.body, (*around, item), set(seen))
            else:
                self.stage(item, around, seen)

    def stage(self, stage: Stage, around: tuple[Loop, ...], seen: set[Expr]) -> None:
        trips = prod(count_of(loop.axis.extent) for loop in around)
        if not isinstance(stage, Attend):
            self.exprs(tree.stage_exprs(stage), trips, seen)
        match stage:
            case Update(_, args):
                self.operations += trips * len(args)
            case Store():
                self.store(stage, around, trips)
            case Attend(template, axes, (query, *_)):
                sides = [count_of(n) for n in (*(axis.extent for axis in axes), query.shape[-1])]
                of_an_element = {"forward": 4, "decode": 4, "rows": 6, "columns": 8, "backward": 10}[template]
                self.operations += of_an_element * prod(sides)
            case Contract(_, left):
                self.depth = count_of(left.shape[-1])
                times = trips if stage.ends is None or not stage.batch else trips // count_of(stage.ends.shape[0])
                self.operations += 2 * times * self.depth
        for view in tree.windows(stage):
            moved = self.written if isinstance(stage, Attend) and view in stage.results else self.read
            moved[view.value] += prod(map(count_of, view.shape)) * view.value.dtype.itemsize

    def store(self, store: Store, around: tuple[Loop, ...], trips: int) -> None:
        combined = store.combine != "set"
        self.operations += trips * combined
        if store.value not in self.values:
            return
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
        self.body(self.kernel.body, (), set())
        read, written = (tuple(min(n[v], value_bytes(v)) for v in self.values) for n in (self.read, self.written))
        reduced = {loop.axis: count_of(loop.axis.extent) for loop in self.loops if loop.carries}
        kept = [*{loop.axis: count_of(loop.axis.extent) for loop in self.loops if not loop.carries}.values()] or [1]
        return KernelFacts(
            kind=self.kind(),
            vectorised=any(loop.kind is LoopKind.LANES and loop.lanes > 1 for loop in self.loops),
            parallel_reduction=self.shared,
            loads=self.loads,
            stores=len(self.stores),
            loops=len(self.loops),
            atomics=sum(store.atomic for store in self.stores),
            casts=self.casts,
            inner_loops=max((_inner_loops(loop) for loop in self.kernel.body if isinstance(loop, Loop)), default=0),
            buffers=len(self.kernel.scratch),
            numels=(kept[-1], prod(kept[:-1]), self.depth * prod(reduced.values())),
            elements=sum(n // value.dtype.itemsize for n, value in zip(written, self.values, strict=True)),
            operations=self.operations,
            read=read,
            written=written,
            strides=tuple(self.strides.get(value, ()) for value in self.values),
        )

    def kind(self) -> str:
        carries = [carry for loop in self.loops for carry in loop.carries]
        combined = [store.value in self.values for store in self.stores if store.combine != "set"]
        columns, tiling = False in combined, self.kernel.tiling
        reduces, category = bool(columns or carries), tiling.category if tiling else ""
        persistent = category == "persistent" if tiling else bool(self.kernel.scratch and carries)
        kinds = (  # the first that it is
            (any(isinstance(stage, Contract | Attend) for stage in self.stages), "template"),
            (any(isinstance(stage, Update) and stage.running for stage in self.stages), "scan"),
            (columns and carries, "mix-order reduction"),
            (self.shared or any(carry.partial for carry in carries), "split reduction"),
            (reduces and category == "cooperative", "cooperative reduction"),
            (reduces and persistent, "persistent reduction"),
            (reduces, "looped reduction"),
            (combined or any(s.value in self.values and indirect_values(s.index) for s in self.stores), "scatter"),
            (sum(isinstance(item, Loop) for item in self.kernel.body) > 1, "foreach"),
        )
        return next((kind for holds, kind in kinds if holds), "pointwise")


def _inner_loops(loop: Loop) -> int:
    """How many loops there are where the outermost ones, a chain of single loops, meet the first several."""
    inner = [item for item in loop.body if isinstance(item, Loop)]
    return _inner_loops(inner[0]) if len(inner) == len(loop.body) == 1 else len(inner)
