"""Inlining: copy a cheap producer into its readers instead of storing it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from gyrator.ir.expr import Const, Expr, Load, Masked, Op, Value, indirect_values
from gyrator.ir.index import ONE
from gyrator.ir.program import Nest, Pointwise, Program, Reduce, addressed, expressions, loads, map_nests, shown_values
from gyrator.ir.simplify import Rule
from gyrator.ir.volume import cost_of, iterations, volume
from gyrator.origin import merge
from gyrator.schedule.layout import LARGE, transposes
from gyrator.schedule.windows import overlap

MAX_NODES, MAX_LOADS = 64, 8
BALANCE, GPU_BALANCE = 4.0, 12.0
"""Cheap instructions that cost as much as moving one byte, about, on the machines we know; a GPU does both at once."""
SPARE, OVERLAP = 16, 4
"""Cheap instructions for an element while a GPU waits for memory; of how many windows one is where it does not wait."""
ROW = 32
"""Elements of a row from which on what is the same for all of them costs nothing."""
ROW_ACROSS, ONCE_ACROSS = 512, 2048
"""Elements of a row that lies across memory up to which a GPU reads a tile of rows at once, and of one that is reduced
as it is; longer ones are transposed before they are reduced."""


@dataclass(frozen=True, slots=True)
class _Reads:
    """How nests read a value: which ones, how often they load its elements in all (by size hints), by how many
    distinct loads; how long rows of it, or of what follows from it, are that are reduced; whether it, or what follows
    from it, is stored as it lies, not as a transposed copy; whether windows that overlap slide over it on a GPU;
    whether a nest on a GPU reads it elsewhere than where it computes, so that fusion does not share it."""

    nests: tuple[Nest, ...] = ()
    evaluated: int = 0
    distinct: int = 0
    row: int = 0
    stored: bool = False
    slid: bool = False
    shifted: bool = False


def inline(program: Program, rule: Rule, *, smaller: bool = False) -> Program:
    """Copy a pointwise producer P into its readers where that is cheaper than storing and loading it.

    Before: ``v1 = nest[i] x[i]*2;  v2 = nest[i] exp(v1[i])``; after: ``v2 = nest[i] exp(x[i]*2)``.

    Legal where nothing but nests needs P. Done where P has one reader that evaluates it once per element, or where
    the extra work costs less than the memory traffic it saves: ``extra work < BALANCE · bytes saved``; a GPU has time
    for SPARE instructions. Refused for bodies over 64 nodes or 8 loads, for random, indirect or, on a CPU,
    transcendental bodies that would be evaluated more often than P has elements, and for transposed copies that are
    read again and again, or of which long rows are reduced, unless what follows from them is transposed back; and on a
    GPU for what is narrower than the sums of windows it is of. Readers at the same index share it by fusion: what takes
    two large operands has one reader, on a GPU more if one of them reads it elsewhere (``exp(a·b)`` and its shift).
    ``smaller``: only what is of nothing as large as itself, as distances of pairs of points."""
    pinned = shown_values(program).union(*map(addressed, program.nodes))
    nests = [node for node in program.nodes if isinstance(node, Nest)]
    sums = {v for n in nests if any(_overlap(load, n) for load in loads(expressions(n.root))) for v in n.out if v}
    reads = _reads(program, pinned)
    producers: dict[Value, Nest] = {}

    def inlined(nest: Nest) -> tuple[Nest, ...]:
        nest = _with_producers(nest, producers, rule)
        root, value = nest.root, nest.out[0]
        large = smaller and any(volume(load.value.shape) >= iterations(nest.axes) for load in loads(expressions(root)))
        kept = large or value in pinned
        if isinstance(root, Pointwise) and value in reads and _wanted(root.body, nest, reads[value], sums, kept):
            producers[value] = nest
            return (nest,) if value in pinned else ()
        return (nest,)

    return map_nests(program, inlined)


def _with_producers(node: Nest, producers: Mapping[Value, Nest], rule: Rule) -> Nest:
    read = [producers[load.value] for load in loads(expressions(node.root)) if load.value in producers]
    if not read:
        return node

    def replace_load(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.value in producers:
            inner = producers[expr.value].element(expr.index, rule)
            return inner if expr.mask is None else Masked(expr.mask, inner, Const(expr.other, expr.dtype))
        return rule(expr)

    return replace(node.rewritten(replace_load), origins=merge(node.origins, *(nest.origins for nest in read)))


def _reads(program: Program, pinned: Set[Value]) -> dict[Value, _Reads]:
    """Who reads what. A cast to a wider type will be done by its readers, which then read what it is of."""
    found: dict[Value, _Reads] = {}
    for node in [node for node in reversed(program.nodes) if isinstance(node, Nest)]:
        reduced = node.root.reduced if isinstance(node.root, Reduce) else ()
        points = iterations((*node.axes, *reduced))
        after = _Reads() if node.out[0] is None else found.get(node.out[0], _Reads())
        own = after if _widens(node) and after.nests else None
        row = max(after.row, iterations(reduced))
        kept = not isinstance(node.root, Pointwise) or after.stored or node.out[0] in pinned
        stored = kept and not isinstance(node.root, Reduce) and not transposes(node)
        for load in loads(expressions(node.root)):
            old = found.get(load.value, _Reads())
            elsewhere = any(not monomial for index in load.index for monomial, _ in index.terms)
            shifted = node.on_gpu and (elsewhere or points != volume(load.value.shape))
            new = own or _Reads((node,), points, 1, slid=_overlap(load, node), shifted=shifted)
            nests = old.nests if old.nests[-1:] == new.nests else (*old.nests, *new.nests)
            added = (old.evaluated + new.evaluated, old.distinct + new.distinct, max(old.row, row))
            flags = (old.stored or stored, old.slid or new.slid, old.shifted or new.shifted)
            found[load.value] = _Reads(nests, *added, *flags)
    return found


def _overlap(load: Load, nest: Nest) -> bool:
    """Whether a load on a GPU reads windows that slide over a value, more elements than that has."""
    return nest.on_gpu and isinstance(nest.root, Reduce) and overlap(load, nest, nest.root) > 1


def _widens(nest: Nest) -> bool:
    match nest.root:
        case Pointwise(Op("cast", (Load() as source,), dtype)):
            return dtype.itemsize > source.dtype.itemsize
    return False


def _wanted(body: Expr, nest: Nest, reads: _Reads, sums: Set[Value], pinned: bool) -> bool:
    if isinstance(body, Const):
        return True
    most = ONCE_ACROSS if any(isinstance(n.root, Reduce) for n in reads.nests) else ROW_ACROSS
    elements = iterations(nest.axes)
    if pinned or (reads.row > most and reads.stored and transposes(nest)):
        return False
    if reads.evaluated >= max(ROW * elements, LARGE) and transposes(nest, least=0):
        return False
    if any(load.value in sums and load.dtype.itemsize > body.dtype.itemsize for load in body.loads()):
        return False
    if sum(1 for _ in body.walk()) > MAX_NODES or len(body.loads()) > MAX_LOADS:
        return False
    wide = [axis for axis in nest.axes if axis.extent is not ONE]
    row = wide[-1] if wide and iterations((wide[-1],)) >= ROW else None
    nodes = [node for node in body.walk() if row is None or row in node.axes()]  # computed for each element of a row
    cost = sum(map(_cost, nodes))
    dear = any(_cost(node) > 8 for node in nodes if not (nest.on_gpu and isinstance(node, Op)))
    big_loads = sum(len({a for i in load.index for a in i.axes()}) == len(wide) for load in body.loads())
    if len(reads.nests) == reads.distinct == 1 and reads.evaluated <= elements:
        return True
    times = max(reads.evaluated // max(elements, 1), 1) if reads.slid else 1
    again = len(reads.nests) > 1 and big_loads > 1 + reads.shifted
    if nest.on_gpu and cost * times <= SPARE and big_loads <= 1:
        return True
    if times >= OVERLAP or (dear and reads.evaluated > elements) or again:
        return False
    saved = body.dtype.itemsize * (elements + min(reads.evaluated, len(reads.nests) * elements))
    extra = cost * max(reads.evaluated - elements, 0)
    if nest.on_gpu:
        return extra < GPU_BALANCE * saved
    return extra < BALANCE * saved and (cost <= 8 or reads.evaluated <= elements)


def _cost(node: Expr) -> int:
    return 20 * bool(indirect_values(node.index)) if isinstance(node, Load) else cost_of(node)
