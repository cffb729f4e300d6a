"""What matrix products and attention read, computed where a template loads it, instead of stored before.

    w[n, k] = cast(q[n, k]); y = mm(x, w')              →    y[m, n] = Σ_k x[m, k] · cast(q[n, k])
    mask[b, 0, i, j] = j <= i & pad[b, j] != 0          →    keep(b, h, i, j) = j <= i & pad[b, j] != 0

Weights of 8 bits are so read once, as they lie; stored as 16 bits first, they cost five times the traffic."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gyrator.ir.build import axes_of, within
from gyrator.ir.expr import Expr, Load, Op, Value
from gyrator.ir.index import ONE, ZERO, Index, div_mod, dot
from gyrator.ir.ops import OPS
from gyrator.ir.program import Nest, Pointwise, View, bodies, defines
from gyrator.ir.simplify import Rule
from gyrator.ir.volume import at_most, volume
from gyrator.schedule.group import Group
from gyrator.schedule.plan import full_view
from gyrator.schedule.products import Product, Unit, defines_of, uses_of

FEW = 128
"""Most rows of a product that computes an operand without a trial. On an H200 that takes 0.25 to 0.91 of the time of
storing what is computed first (weights of 8 bits or in float32, 2048×2048 to 11008×4096); of 192 rows 0.7 to 1.2."""
DEAR = 8
"""The least cost of an operator that should not be computed by several programs without a trial."""


def producers(units: Sequence[Unit], shown: Collection[Value], *, on_gpu: bool) -> dict[Value, Group]:
    """The values that a kernel makes alone, element by element, and one unit reads."""
    read = Counter(value for unit in units for value in uses_of(unit))
    alone = [(u, u.members[0].nest) for u in units if isinstance(u, Group) and len(u.members) == 1]
    mapped = [(g, nest) for g, nest in alone if isinstance(nest.root, Pointwise) and nest.on_gpu == on_gpu]
    return {value: g for g, nest in mapped for value in defines(nest) if read[value] == 1 and value not in shown}


def prologues(product: Product, made: Mapping[Value, Group], units: Sequence[Unit]) -> tuple[Group, ...]:
    """The groups of ``made``, if still among ``units``, that make a product's operands and may be computed in it."""
    if product.ends is not None:
        return ()
    operands = (product.right,) if product.has_patches else (product.left, product.right)
    views = [view for view in operands if view.value in made]
    refused = {view.value for view in views if not may_compute(view, made[view.value].members[0].nest)}
    found = [made[value] for value in dict.fromkeys(view.value for view in views) if value not in refused]
    return tuple(group for group in found if any(unit is group for unit in units))


def may_compute(view: View, nest: Nest) -> bool:
    """Whether elements of ``view`` can be computed as ``nest`` does where they are read: by an expression of elements,
    none of which is looked up in a table, in the order and type in which they are made."""
    (body,) = bodies(nest.root)
    plain = all(isinstance(e, Load | Op) or not e.operands() for e in body.walk())
    looked_up = any(i.indirects() for e in body.walk() for i in e.indices())
    at = coordinates(view, tuple(a.index() for a in axes_of("v", view.shape)))
    return plain and not looked_up and not within(at, view.value.shape) and view.dtype in (None, view.value.dtype)


def is_cheap(nest: Nest) -> bool:
    """Whether several programs may compute the same element."""
    (body,) = bodies(nest.root)
    return all(OPS[e.name].cost < DEAR for e in body.walk() if isinstance(e, Op))


def of_few(product: Product, found: Sequence[Group]) -> tuple[Group, ...]:
    """Those of ``found`` to compute in the product without a trial, as one operand is read but once: the product has
    surely few rows, or few columns. None if that operand is not among them."""
    m, n = (most if (most := at_most(side)) is not None else FEW + 1 for side in product.shape[-2:])
    cheap = {value: group for group in found if is_cheap(group.members[0].nest) for value in defines_of(group)}
    once = (m <= FEW and product.right.value in cheap) or (n <= FEW and product.left.value in cheap)
    return tuple(cheap.values()) if once else ()


def element(view: View, at: tuple[Index, ...], prologue: Sequence[Group], rule: Rule) -> Expr:
    """The element of an operand, as the group that makes it computes it, if there is one."""
    index = coordinates(view, at)
    nests = [group.members[0].nest for group in prologue]
    maker = next((nest for nest in nests if nest.out[0] is view.value), None)
    return Load(view.value, index) if maker is None else maker.element(index, rule)


def coordinates(view: View, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """Which element of its value a view's element ``at`` is: its position in memory, by the widest steps first."""
    value, position = view.value, dot(at, view.strides) + view.offset
    found = [ZERO] * len(value.shape)
    steps = [k for k, n in enumerate(value.shape) if n is not ONE and value.strides[k] is not ZERO]
    for k in sorted(steps, key=lambda k: -volume((value.strides[k],))):
        found[k], position = div_mod(position, value.strides[k])
    return tuple(found)


def element_of(view: View, at: tuple[Index, ...], made: Mapping[Value | None, Nest], rule: Rule) -> Expr:
    """The element of a view at its place in memory, or as a nest computes it."""
    if (nest := _maker(view, made)) is None:
        return Load(view.value, (dot(at, view.strides) + view.offset,))

    def inner(e: Expr) -> Expr | None:
        return element_of(full_view(e.value), e.index, made, rule) if isinstance(e, Load) else rule(e)

    return nest.element(coordinates(view, at), inner)


def _maker(view: View, made: Mapping[Value | None, Nest]) -> Nest | None:
    """The nest that makes a view's value from less than an element for each row and column, or from what such make."""
    nest = made.get(view.value)
    if nest is None or not isinstance(nest.root, Pointwise) or not may_compute(view, nest):
        return None
    body, sides = nest.root.body, {axis for axis in nest.axes[-2:] if axis.extent is not ONE}
    whole = [load.value for load in body.loads() if sides <= load.axes()]
    plain = all(load.mask is None for load in body.loads())
    return nest if is_cheap(nest) and plain and all(_maker(full_view(value), made) for value in whole) else None
