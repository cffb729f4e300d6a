"""From a product and what follows it element by element to a kernel: one group of both, loops over the tiles of the
result, a template in each, then the rest.

    y = mm(x, w); z = relu(y) + r    →    group (i, j): y = acc[i, j], z = relu(y) + r[i, j]    →

    parallel row < M
      parallel column < N
        %acc = contract x[row, :], w[:, column] by tiled        a program of a GPU: BLOCK_M rows, BLOCK_N columns
        z[row, column] = relu(%acc) + r[row, column]

The product is a nest of the group like any other. What it reads, the *accumulator*, is a local of the kernel, which the
template fills; it lies nowhere, so its device is "meta"."""

from dataclasses import replace

import torch

from gyrator.ir.build import axes_of, cast, op
from gyrator.ir.expr import Const, Expr, Load, Ref, Value, reading, rewrite
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, contiguous_strides, substitute
from gyrator.ir.program import Nest, Pointwise, View
from gyrator.ir.simplify import Rule
from gyrator.ir.tree import Config, Contract, Kernel, Loop, Param, touched
from gyrator.origin import Origin, merge
from gyrator.schedule.align import digits_of, radix
from gyrator.schedule.canonical import Canonical, named
from gyrator.schedule.cpu_gemm import block_product
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_gemm import tile_product
from gyrator.schedule.group import Group, crossing_reads, join, singleton
from gyrator.schedule.kernel import Body, Built, Writer, title_of
from gyrator.schedule.loops import Shape, Style
from gyrator.schedule.products import Product, Templated, product_of
from gyrator.schedule.prologue import coordinates, element

FIRST = -1
"""The position of the product among the members: before all others."""


def accumulator(product: Product) -> Value:
    """The sums over k of a product's elements, in the type in which they are summed."""
    dtype = torch.float32 if product.out.dtype.is_floating_point else torch.int32
    return Value("acc", product.shape, dtype, contiguous_strides(product.shape), torch.device("meta"))


def product_group(product: Product, epilogue: Group | None, origins: tuple[Origin, ...] = ()) -> Group | None:
    """The product's nest, joined with the group that follows it.

    Refuses (None) a group that runs over more or other elements than the product's, or that reduces or scatters."""
    nest = _nest(product, origins)
    group = singleton(nest, FIRST)
    if epilogue is None:
        return group
    if not all(isinstance(m.nest.root, Pointwise) and m.nest.on_gpu == nest.on_gpu for m in epilogue.members):
        return None
    for member, load in [(m, load) for m in epilogue.members for load in m.loads if load.value is product.out][:4]:
        joined = join(group, epilogue, group.members[0].coordinates(), member.read(load), product.out.shape)
        if isinstance(joined, Group) and joined.pointwise:
            return None if crossing_reads(joined, frozenset((FIRST,))) else joined
    return None


def _nest(product: Product, origins: tuple[Origin, ...]) -> Nest:
    """``out[…, m, n] = alpha · acc[…, m, n] · scales + beta · bias[…, m, n]``; of a convolution ``out[b, n, y, x]``."""
    axes = axes_of("i", product.out.shape)
    at = tuple(a.index() for a in axes)
    total = accumulator(product)
    expr = _scaled(Load(total, at if product.window is None else product.window.cell(at)), product.alpha)
    for scale in product.scales:
        expr = op("mul", expr, Load(scale.value, coordinates(scale, at)))
    if product.bias is not None:
        bias = cast(Load(product.bias.value, coordinates(product.bias, at)), total.dtype)
        expr = op("add", expr, _scaled(bias, product.beta))
    return Nest((product.out,), axes, Pointwise(cast(expr, product.out.dtype)), origins)


def _scaled(expr: Expr, factor: float) -> Expr:
    if factor == 1:
        return expr
    return op("mul", expr, Const(factor if expr.dtype.is_floating_point else int(factor), expr.dtype))


def contract_of(unit: Templated, common: Canonical, rule: Rule) -> tuple[Contract, Value, dict[Value, Value]]:
    """The product by canonical names, the value that stands for its sums in the group, and the value of each name."""
    product = product_of(unit.call)
    assert product is not None
    actual, patches = dict(common.actual), product.window if product.has_patches else None
    total = accumulator(product)

    def renamed(old: Value, wish: str) -> Value:
        known = next((name for name, value in actual.items() if value is old), None)
        number = sum(name.name.startswith(wish) for name in actual)
        name = known or replace(old, name=f"{wish}_{number}" if number else wish)
        actual[name] = old
        return name

    def computed(view: View, wish: str, sides: tuple[Axis, Axis]) -> Expr:
        at = tuple(ZERO if a.extent is ONE else a.index() for a in (*batch, *sides))
        expr = patches.patch(*at) if patches and view is product.left else element(view, at, unit.prologue, rule)
        return reading(expr, {load.value: renamed(load.value, wish) for load in expr.loads()})

    axes = [Axis(name, n) for name, n in zip(("batch", "row", "column")[-len(total.shape) :], total.shape, strict=True)]
    *batch, row, column = axes
    inner, elements = Axis("inner", product.left.shape[-1]), list[Expr]()
    operands = ((product.left, "left_operand", (row, inner)), (product.right, "right_operand", (inner, column)))
    if unit.prologue or patches:
        elements = [computed(*operand) for operand in operands]
    left, right = (replace(view, value=renamed(view.value, wish)) for view, wish, _ in operands)
    ends = product.ends and replace(product.ends, value=renamed(product.ends.value, "ends"))
    name = Ref("acc", total.dtype, frozenset(axes))
    (stands,) = (name for name, value in actual.items() if value is total)
    contract = Contract(name, left, right, tuple(batch), row, column, inner, unit.template, (), tuple(elements), ends)
    return contract, stands, actual


def build_templated(
    contract: Contract, total: Value, common: Canonical, configs: tuple[Config, ...], rule: Rule, gpu: Gpu | None
) -> Built:
    """The kernel of a product and its epilogue."""
    axes = (*contract.batch, contract.row, contract.column)
    made, read = next((m, load) for m in common.group.members for load in m.loads if load.value is total)
    digits: dict[Atom, Index] = {}
    for axis, at in zip(axes, read.index, strict=True):
        inner = radix(substitute(at, made.at), axis.extent)
        assert inner is not None
        digits |= digits_of(axis.index(), inner[::-1])
    writer = Writer(Shape(common.group, Style.TILES, axes, None, (), digits, lanes=1), common.stored, rule)
    writer.locals[total] = contract.name
    operands = {Param(writer.memory(v), True, False): v for v in touched((contract,))}

    def moved(view: View) -> View:
        return replace(view, value=writer.memory(view.value))

    def flat(e: Expr) -> Expr:
        if not isinstance(e, Load):
            return rule(e) or e
        return Load(writer.memory(e.value), (e.value.position(e.index),), e.mask, e.other)

    elements = tuple(rewrite(e, flat) for e in contract.elements)
    contract = replace(contract, left=moved(contract.left), right=moved(contract.right), elements=elements)
    contract = replace(contract, ends=contract.ends and moved(contract.ends))
    body = _after(contract, writer.body())
    params = operands | writer.params(set(touched(body)))
    origins = merge(*(m.nest.origins for m in common.group.members))
    kernel = named(Kernel(title_of(common.group), tuple(params), (), (), body, origins), str(configs))
    return Built((block_product if gpu is None else tile_product)(kernel, contract, configs), tuple(params.values()))


def _after(contract: Contract, body: Body) -> Body:
    """The loops, with the template before their innermost stages."""
    first = body[0]
    return (replace(first, body=_after(contract, first.body)),) if isinstance(first, Loop) else (contract, *body)
