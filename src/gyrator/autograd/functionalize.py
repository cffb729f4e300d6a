"""Functionalisation while recording: mutation of tensors becomes new values.

Every tensor of the program is an `Alias`: a chain of views of a root, the tensor that owns the memory. A write to an
alias makes a new value of the root, by the inverses of the views; other aliases are viewed anew when they are read:

    y = x + 1                          y0 = add(x, 1)
    v = y[0]                     →     v0 = select(y0, 0, 0)
    v.mul_(2)                          v1 = mul(v0, 2);  y1 = select_scatter(y0, v1, 0, 0)
    return y.sum()                     sum(y1)"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from gyrator import torch_compat
from gyrator.autograd.builder import Args, GraphBuilder, Kwargs, mapped
from gyrator.autograd.symbols import expression
from gyrator.autograd.views import IDENTITY_VIEWS, ViewCall, alone, inverse
from gyrator.errors import UnsupportedOperator

aten = torch.ops.aten


@dataclass(slots=True, eq=False)
class Root:
    """A tensor that owns memory: its present value in the graph, and how many times it was written.

    Attributes:
        input: its position among the graph's inputs.
        pinned: the graph names places in its memory by their distance from the memory's start."""

    node: Node
    tensor: Tensor
    input: int | None = None
    generation: int = 0
    pinned: bool = False


@dataclass(slots=True, eq=False)
class Alias:
    """A tensor of the program: a root, or a view of another alias. `node` holds its value as of `generation`."""

    root: Root
    parent: "Alias | None"
    view: ViewCall | None
    node: Node
    generation: int = field(init=False)

    def __post_init__(self) -> None:
        self.generation = self.root.generation


def new_root(node: Node, tensor: Tensor, input: int | None = None) -> Alias:
    """The alias of a tensor that owns its memory; `input` is its position among the graph's inputs."""
    return Alias(Root(node, tensor, input), None, None, node)


def read(alias: Alias, build: GraphBuilder) -> Node:
    """The node that holds the alias's present value; views are replayed where a write made it stale."""
    root = alias.root
    if alias.generation != root.generation:
        if alias.parent is None or alias.view is None:
            alias.node = root.node
        else:
            view = alone(alias.view, alias.node)
            node = viewed(alias.parent, view, build)
            alias.node = node if view.index is None else build.result(node, view.index)
        alias.generation = root.generation
    return alias.node


def write(alias: Alias, value: Node, build: GraphBuilder, *, even: bool = False) -> None:
    """Gives the alias the value `value`, and its root and everything between the values that follow from it. Where the
    alias shows an element in several places, only a write is possible that is `even`: the same in all places."""
    chain, link = list[tuple[Alias, Node]](), alias
    value = build.converted(value, alias.node.meta["val"].dtype)  # its own: x.add_(float64), x.gt_(0)
    if repeats := bool(_repeated(alias.root.tensor)):  # an input that was expanded
        chain.append((alias, value))
        value = _scattered(chain, build, even=even)
    while not repeats and link.parent is not None and link.view is not None:
        chain.append((link, value))
        old = read(link.parent, build)
        if (call := inverse(link.view, old, value)) is None:
            value = _scattered(chain, build, even=even)
            break
        value = _sized_like(_call_view(*call, {}, build), old, build)
        link = link.parent
    root = alias.root
    torch_compat.set_number_behind(root.tensor, None)
    wanted, given = root.node.meta["val"], value.meta["val"]
    wanted = wanted if wanted.ndim == given.ndim else root.tensor  # an `out` of no elements was resized
    alike = wanted is given or all(guard_or_false(a == b) for a, b in zip(wanted.stride(), given.stride(), strict=True))
    alike = alike or guard_or_false(wanted.numel() <= 1)
    root.node = value if alike else build.restrided(value, wanted)  # later views count on the layout
    root.generation += 1
    for written, node in chain:
        if written.node.meta["val"] is node.meta["val"]:
            written.node, written.generation = node, root.generation


def _scattered(chain: list[tuple[Alias, Node]], build: GraphBuilder, *, even: bool) -> Node:
    """The root's new value, by a scatter to where the elements of a link lie, which undoes any view. The link is the
    first of the root's own type, or else of the last one's: those behind it may show an element in two places, as
    `expand` does. The chain ends with it.

    Raises: UnsupportedOperator for a type that the root cannot be viewed as, and an input whose offset varies."""
    root, view = chain[0][0].root, chain[-1][0].view or ViewCall(aten.expand.default, (), {})
    root.pinned = True
    if root.input is not None and type(root.tensor.storage_offset()) is not int:
        raise UnsupportedOperator(str(view.op), "it writes to an input whose storage offset varies")
    whole = root.node.meta["val"]
    own, *kinds = [(x.dtype, x.is_conj(), x.is_neg()) for x in (whole, *(seen.node.meta["val"] for seen, _ in chain))]
    kind = own if own in kinds else kinds[-1]
    if kind != own and (whole.itemsize != kind[0].itemsize or kind[0].is_complex or any((*own[1:], *kind[1:]))):
        raise UnsupportedOperator(str(view.op), "it writes through a view of another type")
    del chain[kinds.index(kind) + 1 :]
    window, value = chain[-1]
    shown = read(window, build).meta["val"]
    value = _once(value, shown, build) if even else value
    places = tuple(value.meta["val"].shape), tuple(shown.stride()), shown.storage_offset()
    memory = build.call(aten.view.dtype, (root.node, kind[0]), {}) if kind != own else root.node
    value = _call_view(aten.as_strided_scatter.default, (_once(memory, root.tensor, build), value, *places), {}, build)
    value = build.call(aten.view.dtype, (value, whole.dtype), {}) if kind != own else value
    return _call_view(aten.expand.default, (value, tuple(whole.shape)), {}, build) if _repeated(root.tensor) else value


def _repeated(x: Tensor) -> list[int]:
    """The dimensions along which a tensor shows the same elements."""
    steps = zip(x.stride(), x.shape, strict=True)
    return [dim for dim, (step, size) in enumerate(steps) if guard_or_false(step == 0) and guard_or_false(size > 1)]


def _once(node: Node, like: Tensor, build: GraphBuilder) -> Node:
    """A value without what a tensor of its size repeats."""
    for dim in _repeated(like):
        node = _call_view(aten.slice.Tensor, (node, dim, 0, 1), {}, build)
    return node


def _sized_like(value: Node, old: Node, build: GraphBuilder) -> Node:
    """`value` with the sizes of `old`, which a fake kernel may state otherwise: as 2 * (s // 2) instead of s."""
    wanted, given = old.meta["val"], value.meta["val"]
    if given is not wanted and [*map(expression, given.shape)] != [*map(expression, wanted.shape)]:
        value.meta["val"] = build.metadata(given.new_empty_strided(wanted.shape, given.stride()))
    return value


def viewed(parent: Alias, view: ViewCall, build: GraphBuilder) -> Node:
    """A view of a present value."""
    source, args = read(parent, build), view.args
    if view.op is aten.as_strided.default and (parent.parent is not None or args[2:] not in ((), (None,))):
        source, args = _placed(parent.root, source, *args, build=build)
    return _call_view(view.op, (source, *args), dict(view.kwargs), build)


def _placed(root: Root, source: Node, size: Any, stride: Any, offset: Any = None, *, build: GraphBuilder) -> Any:
    """What `as_strided` of a view reads: the root, as views may be copies without its gaps, or a copy as elements of
    another size. It counts from the start of memory, where the root's new values begin."""
    whole, seen, root.pinned = root.node.meta["val"], source.meta["val"], True
    start, base = (seen.storage_offset(), whole) if offset is None else (offset, root.tensor)
    start -= base.storage_offset() * base.itemsize // seen.itemsize
    if (seen.itemsize, seen.is_complex()) == (whole.itemsize, whole.is_complex()):
        alike = seen.dtype == whole.dtype and not (seen.is_conj() or seen.is_neg())
        return root.node if alike else source, (size, stride, start + whole.storage_offset())
    span = 1 + sum((n - 1) * step for n, step in zip(whole.shape, whole.stride(), strict=True))
    places = (span - span % max(1, seen.itemsize // whole.itemsize),), (1,), whole.storage_offset()
    flat = build.call(aten.clone.default, (_call_view(aten.as_strided.default, (root.node, *places), {}, build),), {})
    return build.call(aten.view.dtype, (flat, seen.dtype), {}), (size, stride, start)


def _call_view(op: Any, args: Args, kwargs: Kwargs, build: GraphBuilder) -> Node:
    """A view of a value whose layout may differ from the one it was traced with: made contiguous if it must be."""
    args, kwargs = mapped((args, kwargs), build.number)
    if op in IDENTITY_VIEWS or (op is aten.view.default and args[0].meta["val"].shape == args[1]):
        return args[0]
    try:
        return build.call(op, args, kwargs)
    except (RuntimeError, ValueError):  # a fake view raises either
        dense = build.call(aten.clone.default, (args[0],), {"memory_format": torch.contiguous_format})
        return build.call(op, (dense, *args[1:]), kwargs)
