"""Matrix products that a template may compute: what a call means, its unit in a schedule, and the open choice."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from gyrator.ir.build import both, split_position, within
from gyrator.ir.expr import Load, Value
from gyrator.ir.index import ONE, ZERO, Index, contiguous_strides, dot, product
from gyrator.ir.program import Arg, Extern, Input, Node, Program, View, defines, shown_values, uses, views
from gyrator.ir.tree import Attend, Config
from gyrator.schedule.group import Group
from gyrator.schedule.plan import EXPERTS_IN_A_LOOP, full_view


@dataclass(frozen=True, slots=True)
class Window:
    """What slides over the ``images``, of (batch, channels, *sides), of a convolution. ``sides`` are the result's,
    ``taps`` the kernel's. With kernels of one element that step over nothing, its patches are the pixels as they lie.

        out[n, c, y, x] = Σ_k patches[(n, y, x), k] · filters[k, c]    k counts (row, column of the kernel, channel)"""

    images: Value
    sides: tuple[Index, ...]
    taps: tuple[Index, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def patch(self, row: Index, inner: Index) -> Load:
        """Element ``inner`` of patch ``row``; 0 outside of the images."""
        batch, channels, *sides = self.images.shape
        number, *place = split_position(row, (batch, *self.sides))
        *taps, channel = split_position(inner, (*self.taps, channels))
        steps = zip(place, taps, self.stride, self.padding, self.dilation, strict=True)
        at = tuple(p * stride - padding + tap * dilation for p, tap, stride, padding, dilation in steps)
        inside = within(at, tuple(sides))
        return Load(self.images, (number, channel, *at), both(inside) if inside else None, 0.0)

    def cell(self, at: tuple[Index, ...]) -> tuple[Index, Index]:
        """Which row and column of the product is the element ``at`` of the result."""
        number, column, *place = at
        return dot((number, *place), contiguous_strides((number, *self.sides))), column


@dataclass(frozen=True, slots=True)
class Product:
    """``out[…, m, n] = alpha · scales · Σ_k left[…, m, k] · right[…, k, n] + beta · bias`` of an extern call.

    ``left`` and ``right`` have equal batch dimensions (none or one) before their last two. With a ``window``, ``out``
    is the result of a convolution, and ``left`` the patches it sees, which lie nowhere unless they are pixels.
    ``fast``: sums of 8-bit floats may be less precise than float32. With ``ends``, which rise, neighbours form groups:
    of rows, ``out[m, n] = Σ_k left[m, k] · right[group of m, k, n]``, or if ``right`` is one matrix,
    ``out[g, m, n] = Σ_k left[m, k] · right[k, n]`` over the k of group g."""

    left: View
    right: View
    out: Value
    bias: View | None = None
    alpha: float = 1.0
    beta: float = 1.0
    window: Window | None = None
    scales: tuple[View, ...] = ()
    fast: bool = False
    ends: View | None = None

    @property
    def shape(self) -> tuple[Index, ...]:
        """Of the product: (…, m, n)."""
        return self.out.shape if self.ends is not None else (*self.left.shape[:-1], self.right.shape[-1])

    @property
    def rows_in_groups(self) -> bool:
        """Whether ``ends`` are those of rows."""
        return self.ends is not None and len(self.right.shape) > 2

    @property
    def has_patches(self) -> bool:
        """Whether ``left`` lies nowhere, as patches are not the pixels one after the other."""
        w = self.window
        return w is not None and ({*w.taps}, {*w.stride}, {*w.padding}) != ({ONE}, {1}, {0})


@dataclass(frozen=True, slots=True)
class Templated:
    """A unit of a schedule beside groups and calls: a product computed by the template of that name.

    ``epilogue`` is a pointwise group over the product's own elements, computed on each tile before it is stored; the
    product is stored too if others read it. ``prologue`` are groups that make operands, computed where the template
    loads them (:mod:`prologue`). ``configs`` are ways to run it, the best guess first. ``attend`` is what a call of
    attention means, which is no product and has no epilogue (:mod:`attention`)."""

    call: Extern
    template: str
    configs: tuple[Config, ...]
    epilogue: Group | None = None
    attend: Attend | None = None
    prologue: tuple[Group, ...] = ()


Unit = Group | Extern | Templated


def nodes_of(unit: Unit) -> tuple[Node, ...]:
    """The nodes of the program that a unit holds."""
    match unit:
        case Extern():
            return (unit,)
        case Group():
            return tuple(m.nest for m in unit.members)
        case Templated(call, _, _, epilogue):
            before = (node for group in unit.prologue for node in nodes_of(group))
            return (*before, call, *(() if epilogue is None else nodes_of(epilogue)))


def uses_of(unit: Unit) -> set[Value]:
    """The values that a unit reads, its own included."""
    return set().union(*(uses(n) for n in nodes_of(unit)))


def defines_of(unit: Unit) -> list[Value]:
    """The values that a unit computes."""
    return [v for n in nodes_of(unit) for v in defines(n)]


def whole_of(unit: Unit) -> frozenset[Value]:
    """What a template reads rows and columns of, while others may have stored their results."""
    if not isinstance(unit, Templated):
        return frozenset()
    found = product_of(unit.call)
    read = () if found is None else (found.left.value, found.right.value)
    return frozenset(read).union(*map(uses_of, unit.prologue))


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to compute what a question is about. ``backend``: ``aten | triton | cpp``; ``parameters`` are for the
    log (block sizes, accumulator, whether K is even, grouping, stages, warps)."""

    name: str
    backend: str
    units: tuple[Unit, ...]
    parameters: tuple[tuple[str, str | int | bool], ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that it computes."""
        return tuple(node for unit in self.units for node in nodes_of(unit))


@dataclass(frozen=True, slots=True)
class Question:
    """A part of a program, which any of ``alternatives`` computes, the best guess first.

    ``title`` names op and shapes, as in ``addmm(64x16, 16x32, 32)``. ``panels`` are inputs that hold another one in
    panels: the position of each, that of the other, and the layout."""

    title: str
    program: Program
    alternatives: tuple[Alternative, ...]
    panels: tuple[tuple[int, ...], ...] = ()


Ask = Callable[[Question], tuple[Alternative, ...]]
"""The alternatives that did not fail, the best first. None: the call stays."""

_OPS = frozenset("mm addmm bmm baddbmm _int_mm convolution _scaled_mm _grouped_mm".split()) | {EXPERTS_IN_A_LOOP}
ZEROED = (torch.float32, torch.float16)
"""Types of which a CPU's template leaves zeros behind the last group of rows; elsewhere, as ATen's, anything."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Element types of products and of attention."""


def product_of(call: Extern) -> Product | None:
    """What a call of mm, addmm, bmm, baddbmm, _int_mm, _grouped_mm or, on a GPU, convolution and _scaled_mm, on a CPU
    transformers' loop over experts, computes.

    Refuses (None) element types that differ or that no template has, sides of length 0 or not known to match, numbers
    that only a run tells, and a call for other ops."""
    op, out = call.op.removeprefix("aten.").removesuffix(".default"), call.out[0] if call.out else None
    if op not in _OPS or out is None or call.mutates:
        return None
    if any(view.dtype not in (None, view.value.dtype) for view in views(call)):
        return None
    if op in ("convolution", "_scaled_mm"):
        on_gpu = out.device.type == "cuda"
        return None if not on_gpu else _convolution(call, out) if op == "convolution" else _scaled(call, out)
    if op in ("_grouped_mm", EXPERTS_IN_A_LOOP):
        zeroed = out.device.type == "cpu" and out.dtype in ZEROED
        return _grouped(call, out) if zeroed or op == "_grouped_mm" else None
    *first, left, right = (arg if isinstance(arg, View) else None for arg in call.args)
    scales = {"alpha": 1, "beta": 1, **dict(call.kwargs)}
    alpha, beta = scales["alpha"], scales["beta"]
    if left is None or right is None or not isinstance(alpha, int | float) or not isinstance(beta, int | float):
        return None
    dtypes = {left.value.dtype, right.value.dtype}
    exact = dtypes == {torch.int8} and out.dtype == torch.int32 and op == "_int_mm"
    if not exact and (dtypes != {out.dtype} or out.dtype not in FLOATS):
        return None
    (*outer, m, k), (*others, inner, n) = left.shape, right.shape
    if (outer, k, (*outer, m, n)) != (others, inner, out.shape):
        return None
    if ZERO in (*out.shape, k) or {left.value.device, right.value.device} != {out.device}:
        return None
    bias = None
    if first and beta != 0:
        bias = None if first[0] is None else _expanded(first[0], out.shape)
        if bias is None or (bias.value.dtype, bias.value.device) != (out.dtype, out.device):
            return None
    return Product(left, right, out, bias, float(alpha), float(beta))


def _convolution(call: Extern, out: Value) -> Product | None:
    """Refuses (None) float32, which the library rounds to tf32 with less error than tensor cores do by themselves,
    transposed and grouped ones, steps that are not numbers for each side, and channels that do not lie together."""
    images, filters, bias, stride, padding, dilation, transposed, _, groups = call.args
    if not isinstance(images, View) or not isinstance(filters, View) or transposed is not False or groups != 1:
        return None
    if not {images.value.dtype, filters.value.dtype} == {out.dtype} <= {torch.bfloat16, torch.float16}:
        return None
    (batch, channels, *_), (columns, _, *taps) = images.shape, filters.shape
    given = [arg for arg in (stride, padding, dilation) if isinstance(arg, tuple)]
    sides, steps = out.shape[2:], [tuple(n for n in items if isinstance(n, int)) for items in given]
    rows, inner = product((batch, *sides)), product((*taps, channels))
    if ZERO in (*out.shape, inner) or any(len(numbers) != len(sides) for numbers in steps):
        return None
    if not (_has_channels_last(images) and _has_channels_last(filters)):
        return None
    left = View(images.value, (rows, inner), (inner, ONE), ZERO)
    right = View(filters.value, (inner, columns), (ONE, inner), ZERO)
    if isinstance(bias, View):
        bias = replace(bias, shape=out.shape, strides=(ZERO, *bias.strides, *(ZERO for _ in sides)))
    window = Window(images.value, sides, tuple(taps), *steps)
    return Product(left, right, out, bias if isinstance(bias, View) else None, window=window)


def _has_channels_last(view: View) -> bool:
    """Whether a whole value of (batch, channels, *sides) lies in the order (batch, *sides, channels)."""
    (batch, channels, *sides), (outer, inner, *steps) = view.shape, view.strides
    order = (batch, *sides, channels)
    lies = zip(order, (outer, *steps, inner), contiguous_strides(order), strict=True)
    return view.is_full and all(step is wanted or n is ONE for n, step, wanted in lies)


def _scaled(call: Extern, out: Value) -> Product | None:
    """A product of 8-bit floats with a scale for each operand, or for each row and each column."""
    left, right, *given = (arg for arg in call.args[:4] if isinstance(arg, View))
    more = _named(call, 4, "bias scale_result out_dtype use_fast_accum")
    given = [v for v in given if v.value.dtype == torch.float32 and ONE in (ONE, *v.shape)[-2:]]  # of no blocks
    scales = tuple([found for view in given if (found := _expanded(view, out.shape)) is not None])
    if len(scales) != 2 or more.get("scale_result") is not None:
        return None
    added = more.get("bias")
    bias = _expanded(added, out.shape) if isinstance(added, View) and added.value.dtype == out.dtype else None
    if out.dtype not in FLOATS or ZERO in (*out.shape, left.shape[-1]) or (bias is None and added is not None):
        return None
    return Product(left, right, out, bias, scales=scales, fast=more.get("use_fast_accum") is True)


def _grouped(call: Extern, out: Value) -> Product | None:
    """Rows of experts, each by a matrix of its group; or, on a GPU, the gradient of these matrices."""
    left, right = (arg for arg in call.args[:2] if isinstance(arg, View))
    more = _named(call, 2, "offs bias out_dtype")
    ends = more.get("offs")
    if not isinstance(ends, View) or ends.value.dtype != torch.int32 or ends.shape[0].value is None:
        return None
    (*several, m, k), (*matrices, inner, n) = left.shape, right.shape
    known = matrices == [*ends.shape] or (not matrices and out.device.type == "cuda")
    wanted = (*ends.shape, m, n) if not matrices else (m, n)
    if several or not known or (k, wanted) != (inner, out.shape) or ZERO in (*out.shape, k):
        return None
    if not {left.value.dtype, right.value.dtype} == {out.dtype} <= {*FLOATS} or more.get("bias") is not None:
        return None
    return Product(left, right, out, ends=ends)


def _named(call: Extern, first: int, names: str) -> dict[str, Arg]:
    return {**dict(zip(names.split(), call.args[first:], strict=False)), **dict(call.kwargs)}


def _expanded(view: View, shape: tuple[Index, ...]) -> View | None:
    """The view with as many dimensions as ``shape``, repeated along those that it lacks or has once."""
    missing = len(shape) - len(view.shape)
    strides = [ZERO] * missing
    for size, stride, wanted in zip(view.shape, view.strides, shape[missing:], strict=True):
        if size is not wanted and size is not ONE:
            return None
        strides.append(stride if size is wanted else ZERO)
    return replace(view, shape=shape, strides=tuple(strides))


def part_of(program: Program, units: Iterable[Unit]) -> Program:
    """The part of a program that units compute; what they read of the rest are inputs, what the rest reads, outputs."""
    inside = {id(node) for unit in units for node in nodes_of(unit)}
    nodes = [node for node in program.nodes if id(node) in inside]
    own = {value for node in nodes for value in defines(node)}
    needed = shown_values(program).union(*(uses(node) for node in program.nodes if id(node) not in inside))
    read = {value: None for node in nodes for value in uses(node) if value not in own}
    given = [i for i in program.inputs if i.value is None or i.value in read or any(n.sizes() for n in i.value.shape)]
    fresh = [Input(value) for value in read if value not in {i.value for i in program.inputs}]
    shown = tuple(full_view(value) for node in nodes for value in defines(node) if value in needed)
    return replace(program, inputs=(*given, *fresh), nodes=tuple(nodes), outputs=shown, updates=(), constants=())
