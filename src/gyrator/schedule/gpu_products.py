"""Matrix products on a GPU whose sides are no multiples of 16 bytes: libraries have no fast kernels for them.

The logits of 8,192 tokens over 50,257 words take 6.7 ms on an H200, over 50,264 words 0.9 ms. So operands get zeros
where such a side ends, and results elements that nobody reads:

    y[m, 50257] = mm(x, w)   →   w' = nest[i, j<50264] j < 50257 ? w[i, j] : 0;  y'[m, 50264] = mm(x, w')
"""

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

import torch

from gyrator.ir.expr import Const, Expr, IndexValue, Masked, Op, Value
from gyrator.ir.index import ONE, ZERO, Axis, Index, const, contiguous_strides, product
from gyrator.ir.program import Extern, Nest, Node, Pointwise, Program, Scatter, View, defines, shown_values, views
from gyrator.origin import Origins
from gyrator.schedule.gpu_gemm import WORTH
from gyrator.schedule.pad import ROW_BYTES, copied
from gyrator.schedule.simplify import reading, rewrite_root
from gyrator.schedule.volume import volume
from gyrator.session import Count, Counters

PER_BYTE = 150
"""Operations of a product that are worth each byte of an operand that is copied: slow kernels take five times as
long as fast ones."""

Shape = tuple[Index, Index]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A whole value as a matrix: its last dimension is the columns, or the rows if ``transposed``."""

    view: View
    transposed: bool

    def of(self, value: Value, shape: Shape) -> View:
        """The same window on a value with other sides."""
        step = value.shape[-1]
        return replace(self.view, value=value, shape=shape, strides=(ONE, step) if self.transposed else (step, ONE))


@dataclass(frozen=True, slots=True)
class _Product:
    """``left[m, k] @ right[k, n]``, and the sides that it gets: ``shape`` m by n, ``inner`` k."""

    left: _Matrix
    right: _Matrix
    shape: Shape
    inner: Index

    def sides(self) -> Iterator[tuple[_Matrix, Shape]]:
        """Its operands with the shapes that they get."""
        yield self.left, (self.shape[0], self.inner)
        yield self.right, (self.inner, self.shape[1])


@dataclass(slots=True)
class _Wide:
    """Values by their wider forms, and zero-padded copies by what they are of. Private to one run of the pass."""

    values: dict[Value, Value] = field(default_factory=dict)
    copies: dict[tuple[Value, tuple[Index, ...]], Value] = field(default_factory=dict)


def widen_products(program: Program, counters: Counters, unpadded: Collection[Value] = ()) -> Program:
    """Lengthen badly aligned sides of large products of 16-bit matrices.

    Operands that a pointwise nest makes are made wider, others copied; what the caller sees is copied back. Refuses
    products that have a template (``unpadded``), with symbolic sides, of windows on other values, or too small for
    their copies, and values that other operators read.
    """
    products = {node: p for node in program.nodes if isinstance(node, Extern) and (p := _product(node)) is not None}
    products = {node: p for node, p in products.items() if node.out[0] not in unpadded}
    if not products:
        return program
    wide = _Wide()
    _widen(program, products, wide)
    shown = shown_values(program)
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Nest):
            nodes.append(_nest(node, wide.values))
        elif node in products:
            nodes += _call(node, products[node], wide)
        else:
            nodes.append(node)
        nodes += [copied(v, wide.values[v], node.origins) for v in defines(node) if v in wide.values and v in shown]
    counters.add(Count.PADDED_STRIDES, len(wide.values) + len(wide.copies))
    return replace(program, nodes=tuple(nodes))


# -- what is widened ---------------------------------------------------------------------------------------
def _product(node: Extern) -> _Product | None:
    """The product that a call is, with its new sides; None if they are the old ones, or it is not worth it."""
    if node.op not in ("aten.mm.default", "aten.addmm.default") or node.out[0] is None:
        return None
    left, right = (_matrix(a) if isinstance(a, View) else None for a in node.args[-2:])
    if left is None or right is None or node.out[0].device.type != "cuda" or node.out[0].dtype.itemsize != 2:
        return None
    m, k = left.view.shape
    n = right.view.shape[1]
    new = _Product(left, right, (_longer(m) if left.transposed else m, _longer(n)), _longer(k))
    if (new.shape, new.inner) == ((m, n), k) or volume((m, k, n), 1) * 2 < WORTH:
        return None
    if len(node.args) == 3 and new.shape != (m, n) and _vector(node.args[0]) is None:
        return None
    return new


def _matrix(view: View) -> _Matrix | None:
    value = view.value
    if len(view.shape) != 2 or len(value.shape) < 2 or view.offset is not ZERO or view.dtype is not None:
        return None
    if value.strides != contiguous_strides(value.shape):
        return None
    rows, row = product(value.shape[:-1]), value.shape[-1]
    if (view.shape, view.strides) == ((rows, row), (row, ONE)):
        return _Matrix(view, transposed=False)
    return _Matrix(view, transposed=True) if (view.shape, view.strides) == ((row, rows), (ONE, row)) else None


def _vector(bias: object) -> View | None:
    """A bias that is a whole value of one dimension."""
    whole = isinstance(bias, View) and bias.dtype is None and bias.offset is ZERO and len(bias.value.shape) == 1
    return bias if isinstance(bias, View) and whole and bias.shape == bias.value.shape else None


def _longer(side: Index) -> Index:
    count, step = side.value, ROW_BYTES // 2
    return side if count is None else const(-(-count // step) * step)


def _widen(program: Program, products: dict[Extern, _Product], wide: _Wide) -> None:
    """Choose the values that get wider, and drop the products that copies of operands would cost too much."""
    made = {n.out[0] for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Pointwise)}
    while True:
        free = made - _read_otherwise(program, products)
        dear = [node for node, p in products.items() if not _pays(program, node, p, free)]
        if not dear:
            break
        for node in dear:
            del products[node]
    for node, p in products.items():
        for matrix, shape in p.sides():
            if shape != matrix.view.shape and _only_columns(matrix, shape) and matrix.view.value in free:
                value = matrix.view.value
                wide.values[value] = _resized(value, (*value.shape[:-1], shape[not matrix.transposed]))
        (out,) = node.out
        assert out is not None
        wide.values[out] = _resized(out, p.shape)


def _read_otherwise(program: Program, products: Mapping[Extern, _Product]) -> set[Value | None]:
    """Values that others than nests and these products need as they are."""
    bad: set[Value | None] = set(shown_values(program))
    for node in program.nodes:
        if isinstance(node, Nest):
            bad |= {node.root.into} if isinstance(node.root, Scatter) else set()
        else:
            matrices = [m.view for m, _ in products[node].sides()] if node in products else []
            bad |= {v.value for v in views(node) if v not in matrices}
    return bad


def _pays(program: Program, node: Extern, p: _Product, free: Set[Value | None]) -> bool:
    """Whether the operands that must be copied can be, at little cost, and no operator reads the result."""
    if any(v.value is node.out[0] for n in program.nodes if isinstance(n, Extern) for v in views(n)):
        return False
    cost = 0
    for matrix, shape in p.sides():
        value = matrix.view.value
        if shape != matrix.view.shape and not (value in free and _only_columns(matrix, shape)):
            if len(value.shape) != 2 and not _only_columns(matrix, shape):
                return False
            cost += volume(shape, 1) * 2
    return cost * PER_BYTE <= volume((*p.shape, p.inner), 1) * 2


def _only_columns(matrix: _Matrix, shape: Shape) -> bool:
    """Whether only the value's last dimension gets longer."""
    return shape[matrix.transposed] is matrix.view.shape[matrix.transposed]


def _resized(value: Value, shape: tuple[Index, ...], suffix: str = "wide") -> Value:
    return Value(f"{value.name}_{suffix}", shape, value.dtype, contiguous_strides(shape), value.device)


# -- the new nodes -----------------------------------------------------------------------------------------
def _nest(nest: Nest, wide: Mapping[Value, Value]) -> Nest:
    """The nest reading, and if it makes one, writing wide values: zeros where the old ones end."""

    nest = replace(nest, root=rewrite_root(nest.root, reading(wide)))
    value = nest.out[0]
    if value is None or value not in wide or not isinstance(nest.root, Pointwise):
        return nest
    return _filled(nest, nest.root.body, wide[value])


def _filled(nest: Nest, body: Expr, out: Value) -> Nest:
    """``out[…, j] = j < n ? body : 0``, likewise along the other axes of ``nest`` that are shorter than ``out``."""
    axes = tuple(Axis(a.name, size) for a, size in zip(nest.axes, out.shape, strict=True))
    new = body.substitute({old: axis.index() for old, axis in zip(nest.axes, axes, strict=True)})
    for old, axis in zip(nest.axes, axes, strict=True):
        if old.extent is not axis.extent:
            inside = Op("lt", (IndexValue(axis.index()), Const(old.extent.value or 0, torch.int64)), torch.bool)
            new = Masked(inside, new, Const(0.0, body.dtype))
    return replace(nest, out=(out,), axes=axes, root=Pointwise(new))


def _call(node: Extern, p: _Product, wide: _Wide) -> Iterator[Node]:
    """The copies that a product still needs, then the product."""
    args: list[View] = []
    for matrix, shape in p.sides():
        value = wide.values.get(matrix.view.value, matrix.view.value)
        if shape == matrix.view.shape or (value is not matrix.view.value and _only_columns(matrix, shape)):
            args.append(matrix.of(value, shape))
        else:
            rows, columns = (shape[1], shape[0]) if matrix.transposed else shape
            new = (rows, columns) if len(value.shape) == 2 else (*value.shape[:-1], columns)
            yield from _copy(matrix.view.value, new, wide, node.origins)
            args.append(matrix.of(wide.copies[matrix.view.value, new], shape))
    bias = _vector(node.args[0]) if len(node.args) == 3 else None
    before: list[object] = list(node.args[:-2])
    if bias is not None and bias.shape != (p.shape[1],):
        yield from _copy(bias.value, (p.shape[1],), wide, node.origins)
        long = wide.copies[bias.value, (p.shape[1],)]
        before = [replace(bias, value=long, shape=long.shape)]
    (out,) = node.out
    assert out is not None
    yield replace(node, out=(wide.values[out],), args=(*before, *args))  # type: ignore[arg-type]


def _copy(value: Value, shape: tuple[Index, ...], wide: _Wide, origins: Origins) -> Iterator[Nest]:
    """A copy of ``value`` with zeros up to ``shape``, unless there is one."""
    if (value, shape) in wide.copies:
        return
    wide.copies[value, shape] = _resized(value, shape, f"filled{len(wide.copies)}")
    plain = copied(value, wide.values.get(value, value), origins)
    assert isinstance(plain.root, Pointwise)
    yield _filled(plain, plain.root.body, wide.copies[value, shape])
