"""Longer rows for matrices of products on a GPU: libraries are slow where rows end between multiples of 16 bytes.

Rows of large matrices begin at such multiples. The logits of a vocabulary of 30,522 words are rows of 61,044 bytes in
bfloat16; with every row 12 bytes longer their product and those of their gradient take a third of the time. Only the
steps between rows change, so that nothing else computes differently.

Large 16-bit products need sides of whole 16 bytes too: the logits of 8,192 tokens over 50,257 words take 6.7 ms on an
H200, over 50,264 words 0.9 ms. So operands get zeros where such a side ends, and results elements that nobody reads:

    y[m, 50257] = mm(x, w)   →   w' = nest[i, j<50264] j < 50257 ? w[i, j] : 0;  y'[m, 50264] = mm(x, w')"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from gyrator.ir import program as ir
from gyrator.ir.build import axes_of, both, within
from gyrator.ir.expr import Const, Load, Masked, Value
from gyrator.ir.index import ONE, ZERO, Axis, Coords, Index, const, contiguous_strides, is_less, product
from gyrator.ir.program import Extern, Nest, Pointwise, Program, Scatter, View, addressed, defines, shown_values, views
from gyrator.ir.volume import bytes_of, volume
from gyrator.origin import Origins
from gyrator.schedule.gpu_gemm import ROW_BYTES, WORTH
from gyrator.session import Count, Counters

LARGE = 1 << 20
"""Bytes of a value from which on longer steps are worth it."""
PER_BYTE = 150
"""Operations of a product that are worth a byte of a copied operand: slow kernels take five times as long as fast."""
PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"})
"""Calls whose last two arguments are matrices. They take and give rows of any steps."""


@dataclass(frozen=True, slots=True)
class _Longer:
    """A whole value as a vector or matrix, its new sides and shape. ``way`` is -1 if its last dimension is the rows."""

    view: View
    way: int
    sides: Coords
    shape: Coords

    @property
    def of_more_rows(self) -> bool:
        """Whether more than the value's last dimension gets longer."""
        return self.shape[:-1] != self.view.value.shape[:-1]

    def of(self, value: Value) -> View:
        """The same window on a value with those sides."""
        strides = value.strides[-len(self.sides) :]
        return replace(self.view, value=value, shape=self.sides, strides=strides[:: self.way])


@dataclass(slots=True)
class _Plan:
    """Products with the last of their arguments, which get longer sides; values by their longer forms, and zero-padded
    copies by what they are of. Private to one run of the pass."""

    products: dict[Extern, tuple[_Longer, ...]]
    values: dict[Value, Value]
    copies: dict[tuple[Value, Coords], Value] = field(default_factory=dict)


def pad_rows(
    program: Program, counters: Counters, *, everywhere: bool = False, unpadded: Collection[Value] = ()
) -> Program:
    """Lengthen the sides of large 16-bit products, and the steps between rows of other large matrices of products.

    Before: ``y: f32[4096, 50257]@[50257, 1] = addmm(b, x, w)``; after: ``… @[50260, 1]``. Operands that a pointwise
    nest makes are made with longer sides, others copied. What the caller sees keeps its sides and strides, by a copy.

    Refuses what a template makes (``unpadded``), what is no whole value, has symbolic sides, or is read by other
    operators; sides of products too small for their copies; steps in values of less than 1 MiB, of scatters, and of
    what the caller sees and no product makes. ``everywhere`` lengthens steps also in what only nests read."""
    long = _longer_sides(program, unpadded)
    long.values |= _longer_steps(program, long, everywhere, unpadded)
    if not long.values and not long.products:
        return program
    shown = shown_values(program)
    nodes: list[Nest | Extern] = []
    for node in program.nodes:
        nodes += [_filled(node.renamed(long.values))] if isinstance(node, Nest) else _call(node, long)
        padded = [(v, long.values[v]) for v in defines(node) if v in long.values and v in shown]
        nodes += [copied(v.shape, new, v, node.origins) for v, new in padded]
    counters.add(Count.PADDED_STRIDES, len(long.values) + len(long.copies))
    return replace(program, nodes=tuple(nodes))


def free_results(program: Program) -> set[Value]:
    """What nests make that may lie elsewhere."""
    nests = [n for n in program.nodes if isinstance(n, Nest) and not isinstance(n.root, Scatter)]
    return {v for n in nests for v in defines(n)} - shown_values(program)


def needed(program: Program, matrices: Mapping[Extern, Sequence[View]]) -> set[Value]:
    """Values that something needs as they lie in memory, but for those ``matrices`` of products."""
    calls = [node for node in program.nodes if isinstance(node, Extern)]
    others = {view.value for call in calls for view in views(call) if view not in matrices.get(call, ())}
    return others.union(*(addressed(node) for node in program.nodes if isinstance(node, Nest)))


def _longer_sides(program: Program, unpadded: Collection[Value]) -> _Plan:
    """The products that are worth it, with their results and those arguments that can be made longer at once."""
    found = {node: a for node in program.nodes if isinstance(node, Extern) and (a := _longer_arguments(node))}
    products = {node: args for node, args in found.items() if node.out[0] not in unpadded}
    made = {n.out[0] for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Pointwise)}
    while True:
        matrices = {node: [a.view for a in args] for node, args in products.items()}
        free = made - shown_values(program) - needed(program, matrices)
        dear = [node for node, args in products.items() if not _pays(program, node, args, free)]
        if not dear:
            break
        products = {node: args for node, args in products.items() if node not in dear}
    long = _Plan(products, {})
    for node, args in products.items():
        shapes = {a.view.value: a.shape for a in args if a.view.value in free and not a.of_more_rows}
        shapes |= dict.fromkeys(defines(node), (args[-2].sides[0], args[-1].sides[1]))
        long.values |= {v: v.derived("padded", n, v.dtype) for v, n in shapes.items() if n != v.shape}
    return long


def _longer_arguments(node: Extern) -> tuple[_Longer, ...]:
    """A product's matrices with new sides, and its bias if the result gets some; none if none change, pay or can be."""
    out = node.out[0] if node.op in ("aten.mm.default", "aten.addmm.default") else None
    if out is None or out.device.type != "cuda" or out.dtype.itemsize != 2:
        return ()
    left, right = node.args[-2:]
    if not isinstance(left, View) or not isinstance(right, View):
        return ()
    (m, k), n = left.shape, right.shape[1]
    new = (m if left.strides[1] is ONE else _even(m), _even(k), _even(n))
    if new == (m, k, n) or volume((m, k, n), 1) * 2 < WORTH:
        return ()
    args = (left, right) if (new[0], new[2]) == (m, n) else node.args
    found = [_longer(a, sides) for a, sides in zip(reversed(args), (new[1:], new[:2], new[2:]), strict=False)]
    return () if None in found else tuple([a for a in reversed(found) if a is not None])


def _longer(arg: ir.Arg, sides: Coords) -> _Longer | None:
    """An argument with those sides; None for no whole value, or if one of three dimensions or more gets more rows."""
    if not isinstance(arg, View) or arg.offset is not ZERO or arg.dtype is not None:
        return None
    old, way = arg.value.shape, 1 if arg.strides[-1:] == (ONE,) else -1
    if arg.value.strides != contiguous_strides(old) or not len(arg.shape) == len(sides) <= len(old):
        return None
    whole, new = (product(old[:-1]), old[-1])[-len(sides) :], sides[::way]
    if (arg.shape[::way], arg.strides[::way]) != (whole, contiguous_strides(whole)):
        return None
    if len(old) == len(sides):
        return _Longer(arg, way, sides, new)
    return _Longer(arg, way, sides, (*old[:-1], new[-1])) if new[:-1] == whole[:-1] else None


def _even(side: Index, size: int = 2) -> Index:
    """The length from ``side`` on at which rows of elements of ``size`` bytes end at a multiple of 16 bytes."""
    step = ROW_BYTES // size
    return side if side.value is None else const(-(-side.value // step) * step)


def _pays(program: Program, node: Extern, args: tuple[_Longer, ...], free: Set[Value | None]) -> bool:
    """Whether the arguments that must be copied are small, and only loads read the result."""
    if any(node.out[0] in addressed(n) for n in program.nodes):
        return False
    copied = [a.shape for a in args if a.shape != a.view.value.shape and (a.of_more_rows or a.view.value not in free)]
    cost = sum(volume(shape, 1) * 2 for shape in copied)
    return cost * PER_BYTE <= volume((*args[-2].sides, args[-1].sides[1]), 1) * 2


def _longer_steps(program: Program, long: _Plan, everywhere: bool, unpadded: Collection[Value]) -> dict[Value, Value]:
    """Other values with longer steps: those that products read or write, or ``everywhere`` all that nests make."""
    calls = [n for n in program.nodes if isinstance(n, Extern) and n.op in PRODUCTS]
    matrices = {n: [a for a in n.args[-2:] if isinstance(a, View)] for n in calls}
    made, results = free_results(program), {v for n in matrices for v in defines(n)}
    read = {a.value for n, args in matrices.items() if n not in long.products for a in args}
    candidates = (results | (made if everywhere else made & read)).difference(long.values, unpadded)
    found = {v: new for v in candidates if (new := _stepped(v)) is not None}
    fit = {n: [a for a in args if a.value not in found or _moved(a, found[a.value])] for n, args in matrices.items()}
    return {v: found[v] for v in found.keys() - needed(program, fit)}


def _stepped(value: Value) -> Value | None:
    """The value with longer steps; None if it is on a CPU, small, aligned, or not row by row in memory."""
    row = value.shape[-1] if value.shape else ZERO
    if value.device.type != "cuda" or len(value.shape) < 2 or row in (ONE, _even(row, value.dtype.itemsize)):
        return None
    if value.strides != contiguous_strides(value.shape) or bytes_of(value) < LARGE:
        return None
    longer = contiguous_strides((*value.shape[:-1], _even(row, value.dtype.itemsize)))
    return replace(value, name=f"{value.name}_padded", strides=longer)


def _moved(view: View, new: Value) -> View | None:
    """The same window on a value with longer steps between its rows; None for one that does not follow the rows."""
    row, step = view.value.shape[-1], new.strides[-2]
    places = (*view.strides, view.offset)
    within = sum((n - 1 for n, i in zip(view.shape, view.strides, strict=True) if i is ONE), ZERO)
    follows = is_less(within, row) and all(i is ONE or i // row * row is i for i in places)
    if not follows or view.dtype not in (None, view.value.dtype):
        return None
    *strides, offset = (i if i is ONE else i // row * step for i in places)
    return None if offset is ONE else replace(view, value=new, strides=tuple(strides), offset=offset)


def _filled(nest: Nest) -> Nest:
    """``out[…, j] = j < n ? body : 0``, likewise along other axes of a pointwise nest that end before its result."""
    if not isinstance(nest.root, Pointwise) or nest.out[0] is None:
        return nest
    axes = tuple(Axis(a.name, size) for a, size in zip(nest.axes, nest.out[0].shape, strict=True))
    at = tuple(axis.index() for axis in axes)
    body = nest.element(at)
    if inside := within(at, tuple(axis.extent for axis in nest.axes)):
        body = Masked(both(inside), body, Const(0.0, body.dtype))
    return replace(nest, axes=axes, root=Pointwise(body))


def copied(shape: Coords, source: Value, out: Value, origins: Origins) -> Nest:
    """``out[i, j] = source[i, j]`` within ``shape``, and zeros beyond."""
    axes = axes_of("i", shape)
    return _filled(Nest((out,), axes, Pointwise(Load(source, tuple(axis.index() for axis in axes))), origins))


def _call(node: Extern, long: _Plan) -> list[Nest | Extern]:
    """A call on longer values, after the copies with zeros that it needs and that are not made yet."""
    longer = long.products.get(node, ())
    args: list[ir.Arg] = []
    copies: list[Nest] = []
    for arg in node.args[: len(node.args) - len(longer)]:
        new = long.values.get(arg.value) if isinstance(arg, View) else None
        args.append(arg if new is None or not isinstance(arg, View) else _moved(arg, new) or arg)
    for a in longer:
        value, key = a.view.value, (a.view.value, a.shape)
        new = long.values.get(value, value)
        if new.shape != a.shape and key not in long.copies:
            long.copies[key] = value.derived(f"filled{len(long.copies)}", a.shape, value.dtype)
            copies.append(copied(value.shape, new, long.copies[key], node.origins))
        args.append(a.of(new if new.shape == a.shape else long.copies[key]))
    out = tuple(None if v is None else long.values.get(v, v) for v in node.out)
    return [*copies, replace(node, out=out, args=tuple(args))]
