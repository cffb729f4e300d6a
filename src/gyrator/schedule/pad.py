"""Longer rows for matrices of products on a GPU: libraries are slow where rows end between multiples of 16 bytes.

Rows of large matrices begin at such multiples. The logits of a vocabulary of 30,522 words are rows of 61,044 bytes in
bfloat16; with every row 12 bytes longer their product and those of their gradient take a third of the time. Only the
steps between rows change, so that nothing else computes differently.

Large 16-bit products need sides of whole 16 bytes too: the logits of 8,192 tokens over 50,257 words take 6.7 ms on an
H200, over 50,264 words 0.9 ms. So operands get zeros where such a side ends, and results elements that nobody reads:

    y[m, 50257] = mm(x, w)   →   w' = nest[i, j<50264] j < 50257 ? w[i, j] : 0;  y'[m, 50264] = mm(x, w')
"""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import torch

from gyrator.ir.expr import Const, IndexValue, Load, Masked, Op, Value
from gyrator.ir.index import ONE, ZERO, Axis, Index, const, contiguous_strides, product
from gyrator.ir.program import Extern, Nest, Pointwise, Program, Scatter, View, addressed, defines, shown_values, views
from gyrator.origin import Origins
from gyrator.schedule.gpu_gemm import ROW_BYTES, WORTH
from gyrator.schedule.volume import bytes_of, volume
from gyrator.session import Count, Counters

LARGE = 1 << 20
"""Bytes of a value from which on longer steps are worth it."""
PER_BYTE = 150
"""Operations of a product that are worth each byte of an operand that is copied: slow kernels take five times as
long as fast ones."""

PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"})
"""Calls whose last two arguments are matrices. They take and give rows of any steps."""

Shape = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A whole value as a matrix, whose last dimension is the columns, or the rows if ``transposed``; and the sides that
    it gets."""

    view: View
    transposed: bool
    sides: tuple[Index, Index]

    @property
    def stays(self) -> bool:
        """Whether it has those sides."""
        return self.sides == self.view.shape

    @property
    def only_columns(self) -> bool:
        """Whether at most the value's last dimension gets longer."""
        return self.sides[self.transposed] is self.view.shape[self.transposed]

    @property
    def shape(self) -> Shape:
        """That of a value with those sides."""
        rows, columns = self.sides[::-1] if self.transposed else self.sides
        old = self.view.value.shape
        return (rows, columns) if len(old) == 2 else (*old[:-1], columns)

    def of(self, value: Value) -> View:
        """The same window on a value with those sides."""
        step = value.strides[-2]
        strides = (ONE, step) if self.transposed else (step, ONE)
        return replace(self.view, value=value, shape=self.sides, strides=strides)


Products = dict[Extern, tuple[_Operand, _Operand]]


@dataclass(slots=True)
class _Longer:
    """Products that get longer sides, values by their longer forms, and zero-padded copies by what they are of. Private
    to one run of the pass."""

    products: Products
    values: dict[Value, Value]
    copies: dict[tuple[Value, Shape], Value] = field(default_factory=dict)


def pad_rows(
    program: Program, counters: Counters, *, everywhere: bool = False, unpadded: Collection[Value] = ()
) -> Program:
    """Lengthen the sides of large 16-bit products, and the steps between rows of other large matrices of products.

    Before: ``y: f32[4096, 50257]@[50257, 1] = addmm(b, x, w)``; after: ``… @[50260, 1]``. Operands that a pointwise
    nest makes are made with longer sides, others copied. What the caller sees keeps sides and strides: such a product
    is padded too, and copied.

    Refuses what a template makes (``unpadded``), what is no whole value, has symbolic sides, or is read by other
    operators; sides of products too small for their copies; steps in values of less than 1 MiB, of scatters, and of
    what the caller sees and no product makes. ``everywhere`` lengthens steps also in what only nests read.
    """
    long = _longer_sides(program, unpadded)
    long.values |= _longer_steps(program, long, everywhere, unpadded)
    if not long.values and not long.products:
        return program
    shown = shown_values(program)
    nodes: list[Nest | Extern] = []
    for node in program.nodes:
        nodes += [_filled(node.renamed(long.values))] if isinstance(node, Nest) else _call(node, long)
        padded = [(v, long.values[v]) for v in defines(node) if v in long.values and v in shown]
        nodes += [_copied(v.shape, new, v, node.origins) for v, new in padded]
    counters.add(Count.PADDED_STRIDES, len(long.values) + len(long.copies))
    return replace(program, nodes=tuple(nodes))


def _needed(program: Program, matrices: Mapping[Extern, Sequence[View]]) -> set[Value]:
    """Values that something needs as they lie in memory, but for those ``matrices`` of products."""
    found: set[Value] = set()
    for node in program.nodes:
        if isinstance(node, Extern):
            found |= {v.value for v in views(node) if v not in matrices.get(node, ())}
        else:
            found |= addressed(node)
    return found


def _resized(value: Value, shape: Shape, strides: Shape, suffix: str = "padded") -> Value:
    return Value(f"{value.name}_{suffix}", shape, value.dtype, strides, value.device)


# -- longer sides ------------------------------------------------------------------------------------------
def _longer_sides(program: Program, unpadded: Collection[Value]) -> _Longer:
    """The products that are worth it, with their results and those operands that can be made longer at once."""
    found = {node: o for node in program.nodes if isinstance(node, Extern) and (o := _operands(node)) is not None}
    products: Products = {node: o for node, o in found.items() if node.out[0] not in unpadded}
    made = {n.out[0] for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Pointwise)}
    while True:
        matrices = {node: [o.view for o in operands] for node, operands in products.items()}
        free = made - shown_values(program) - _needed(program, matrices)
        dear = [node for node, operands in products.items() if not _pays(program, node, operands, free)]
        if not dear:
            break
        for node in dear:
            del products[node]
    long = _Longer(products, {})
    for node, (left, right) in products.items():
        for operand in (left, right):
            if not operand.stays and operand.only_columns and operand.view.value in free:
                value = operand.view.value
                long.values[value] = _resized(value, operand.shape, contiguous_strides(operand.shape))
        (out,) = defines(node)
        shape = (left.sides[0], right.sides[1])
        if shape != out.shape:
            long.values[out] = _resized(out, shape, contiguous_strides(shape))
    return long


def _operands(node: Extern) -> tuple[_Operand, _Operand] | None:
    """The matrices of a product with their new sides; None if those are the old ones, or it is not worth it."""
    if node.op not in ("aten.mm.default", "aten.addmm.default") or node.out[0] is None:
        return None
    left, right = node.args[-2:]
    if node.out[0].device.type != "cuda" or node.out[0].dtype.itemsize != 2:
        return None
    if not isinstance(left, View) or not isinstance(right, View):
        return None
    flips = _is_transposed(left), _is_transposed(right)
    if flips[0] is None or flips[1] is None:
        return None
    (m, k), n = left.shape, right.shape[1]
    new = (_even(m) if flips[0] else m, _even(k), _even(n))
    if new == (m, k, n) or volume((m, k, n), 1) * 2 < WORTH:
        return None
    if len(node.args) == 3 and (new[0], new[2]) != (m, n) and _vector(node.args[0]) is None:
        return None
    return _Operand(left, flips[0], new[:2]), _Operand(right, flips[1], new[1:])


def _is_transposed(view: View) -> bool | None:
    """Whether a matrix that is a whole value has its last dimension as rows; None for another window."""
    value = view.value
    if len(view.shape) != 2 or len(value.shape) < 2 or view.offset is not ZERO or view.dtype is not None:
        return None
    if value.strides != contiguous_strides(value.shape):
        return None
    rows, row = product(value.shape[:-1]), value.shape[-1]
    if (view.shape, view.strides) == ((rows, row), (row, ONE)):
        return False
    return True if (view.shape, view.strides) == ((row, rows), (ONE, row)) else None


def _vector(bias: object) -> View | None:
    """A bias that is a whole value of one dimension."""
    whole = isinstance(bias, View) and bias.dtype is None and bias.offset is ZERO and len(bias.value.shape) == 1
    return bias if isinstance(bias, View) and whole and bias.shape == bias.value.shape else None


def _even(side: Index, size: int = 2) -> Index:
    """The length from ``side`` on at which rows of elements of ``size`` bytes end at a multiple of 16 bytes."""
    step = ROW_BYTES // size
    return side if side.value is None else const(-(-side.value // step) * step)


def _pays(program: Program, node: Extern, operands: tuple[_Operand, _Operand], free: Set[Value | None]) -> bool:
    """Whether the operands that must be copied can be, at little cost, and no operator reads the result."""
    if any(v.value is node.out[0] for n in program.nodes if isinstance(n, Extern) for v in views(n)):
        return False
    cost = 0
    for operand in operands:
        value = operand.view.value
        if not operand.stays and not (value in free and operand.only_columns):
            if len(value.shape) != 2 and not operand.only_columns:
                return False
            cost += volume(operand.sides, 1) * 2
    left, right = operands
    return cost * PER_BYTE <= volume((*left.sides, right.sides[1]), 1) * 2


# -- longer steps ------------------------------------------------------------------------------------------
def _longer_steps(program: Program, long: _Longer, everywhere: bool, unpadded: Collection[Value]) -> dict[Value, Value]:
    """Other values with longer steps: those that products read or write, or ``everywhere`` all that nests make."""
    calls = [n for n in program.nodes if isinstance(n, Extern) and n.op in PRODUCTS]
    matrices = {n: [a for a in n.args[-2:] if isinstance(a, View)] for n in calls}
    nests = [n for n in program.nodes if isinstance(n, Nest) and not isinstance(n.root, Scatter)]
    made = {v for n in nests for v in defines(n)} - shown_values(program)
    results = {v for n in matrices for v in defines(n)}
    read = {a.value for n, args in matrices.items() if n not in long.products for a in args}
    candidates = (results | (made if everywhere else made & read)).difference(long.values, unpadded)
    found = {v: new for v in candidates if (new := _stepped(v)) is not None}
    fit = {n: [a for a in args if a.value not in found or _moved(a, found[a.value])] for n, args in matrices.items()}
    return {v: found[v] for v in found.keys() - _needed(program, fit)}


def _stepped(value: Value) -> Value | None:
    """The value with longer steps; None if it is on a CPU, small, aligned, or not row by row in memory."""
    row = value.shape[-1] if value.shape else ZERO
    if value.device.type != "cuda" or len(value.shape) < 2 or row in (ONE, _even(row, value.dtype.itemsize)):
        return None
    if value.strides != contiguous_strides(value.shape) or bytes_of(value) < LARGE:
        return None
    longer = contiguous_strides((*value.shape[:-1], _even(row, value.dtype.itemsize)))
    return _resized(value, value.shape, longer)


def _moved(view: View, new: Value) -> View | None:
    """The same window on a value with longer steps between its rows; None for one that does not follow the rows."""
    row, step = view.value.shape[-1], new.strides[-2]
    places = (*view.strides, view.offset)
    if any(i is not ONE and i // row * row is not i for i in places) or view.dtype not in (None, view.value.dtype):
        return None
    *strides, offset = (i if i is ONE else i // row * step for i in places)
    return None if offset is ONE else replace(view, value=new, strides=tuple(strides), offset=offset)


# -- the new nodes -----------------------------------------------------------------------------------------
def _filled(nest: Nest) -> Nest:
    """``out[…, j] = j < n ? body : 0``, likewise along other axes of a pointwise nest that end before its result."""
    if not isinstance(nest.root, Pointwise) or nest.out[0] is None:
        return nest
    axes = tuple(Axis(a.name, size) for a, size in zip(nest.axes, nest.out[0].shape, strict=True))
    body = nest.root.body.substitute({old: axis.index() for old, axis in zip(nest.axes, axes, strict=True)})
    for old, axis in zip(nest.axes, axes, strict=True):
        if old.extent is not axis.extent:
            inside = Op("lt", (IndexValue(axis.index()), Const(old.extent.value or 0, torch.int64)), torch.bool)
            body = Masked(inside, body, Const(0.0, body.dtype))
    return replace(nest, axes=axes, root=Pointwise(body))


def _copied(shape: Shape, source: Value, out: Value, origins: Origins) -> Nest:
    """``out[i, j] = source[i, j]`` within ``shape``, and zeros beyond."""
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(shape))
    return _filled(Nest((out,), axes, Pointwise(Load(source, tuple(axis.index() for axis in axes))), origins))


def _call(node: Extern, long: _Longer) -> Iterator[Nest | Extern]:
    """A call on longer values, after the copies that it needs."""
    out = tuple(None if v is None else long.values.get(v, v) for v in node.out)
    if node not in long.products:
        moved = [_moved(a, long.values[a.value]) if isinstance(a, View) and a.value in long.values else None
                 for a in node.args]  # fmt: skip
        yield replace(node, out=out, args=tuple(new or old for new, old in zip(moved, node.args, strict=True)))
        return
    *before, _, _ = node.args
    args: list[View] = []
    for operand in long.products[node]:
        value = operand.view.value
        new = long.values.get(value, value)
        if new.shape != operand.shape:
            new = yield from _copy(value, operand.shape, long, node.origins)
        args.append(operand.of(new))
    columns = args[1].shape[1:]
    if before and (bias := _vector(before[0])) is not None and bias.shape != columns:
        new = yield from _copy(bias.value, columns, long, node.origins)
        before = [replace(bias, value=new, shape=columns)]
    yield replace(node, out=out, args=(*before, *args))


def _copy(value: Value, shape: Shape, long: _Longer, origins: Origins) -> Generator[Nest, None, Value]:
    """The copy of ``value`` with zeros up to ``shape``, which is made unless there is one."""
    if (value, shape) not in long.copies:
        new = _resized(value, shape, contiguous_strides(shape), f"filled{len(long.copies)}")
        long.copies[value, shape] = new
        yield _copied(value.shape, long.values.get(value, value), new, origins)
    return long.copies[value, shape]
