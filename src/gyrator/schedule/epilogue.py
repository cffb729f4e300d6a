"""What follows a matrix product element by element, in one group with it.

    y = mm(x, w); z = relu(y) + r    →    group (i, j): y = acc[i, j], z = relu(y) + r[i, j]

The product is a nest like any other. What it reads, the *accumulator*, is a local of the kernel, which the template
fills; it lies nowhere, so its device is "meta"."""

import torch

from gyrator.ir.expr import Const, Expr, Load, Value
from gyrator.ir.index import contiguous_strides
from gyrator.ir.program import Nest, Pointwise
from gyrator.lowering.refs import axes_of
from gyrator.lowering.typed import cast, op
from gyrator.origin import Origin
from gyrator.schedule.group import Group, Refused, crossing_reads, join, singleton
from gyrator.schedule.products import Product
from gyrator.schedule.prologue import coordinates

FIRST = -1
"""The position of the product among the members: before all others."""


def accumulator(product: Product) -> Value:
    """The sums over k of a product's elements, in the type in which they are summed."""
    out = product.out
    dtype = torch.float32 if out.dtype.is_floating_point else torch.int32
    return Value("acc", product.shape, dtype, contiguous_strides(product.shape), torch.device("meta"))


def product_group(product: Product, epilogue: Group | None, origins: tuple[Origin, ...] = ()) -> Group | Refused:
    """The product's nest, joined with the group that follows it.

    Refuses a group that runs over more or other elements than the product's, or that reduces or scatters."""
    nest = _nest(product, origins)
    group = singleton(nest, FIRST)
    if epilogue is None:
        return group
    if not all(isinstance(m.nest.root, Pointwise) and m.nest.on_gpu == nest.on_gpu for m in epilogue.members):
        return Refused("what follows the product is not elementwise")
    joined: Group | Refused = Refused("nothing reads the product")
    reads = [(m, load) for m in epilogue.members for load in m.loads if load.value is product.out]
    for member, load in reads[:4]:
        joined = join(group, epilogue, group.members[0].coordinates(), member.read(load), product.out.shape)
        if isinstance(joined, Group) and joined.pointwise:
            return crossing_reads(joined, frozenset((FIRST,))) or joined
    return joined if isinstance(joined, Refused) else Refused("they iterate over different ranges")


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
    number = factor if expr.dtype.is_floating_point else int(factor)
    return op("mul", expr, Const(number, expr.dtype))
