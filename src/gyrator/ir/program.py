"""Programs of loop nests: what lowering produces and the scheduler consumes.

A program is an ordered list of nodes in SSA form. Each node defines values; every write makes a new value (a scatter
or an update of an input is ``x@1``, never ``x`` again), so order carries no meaning beyond data flow and effects.

============  ================================================================================================
``Nest``      a loop nest with one root: ``Pointwise | Reduce | Scan | Scatter``
``Extern``    a call of a library op on strided views of values
============  ================================================================================================"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from gyrator.ir.expr import Expr, Load, Value, indirect_values, map_indirect, reading, rewrite
from gyrator.ir.index import ZERO, Axis, Index, Size
from gyrator.origin import Origin


@dataclass(frozen=True, slots=True)
class Pointwise:
    """``out[axes] = body``."""

    body: Expr


@dataclass(frozen=True, slots=True)
class Reduce:
    """``out[axes] = kind over reduced of body``; the row of ``REDUCTIONS`` says how many bodies and results.
    ``partial``: of a part of what is to be reduced; another nest combines the parts."""

    kind: str
    reduced: tuple[Axis, ...]
    body: tuple[Expr, ...]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """``out[…, k, …] = kind over j ≤ k of body[…, j, …]`` along ``axis``, one of the nest's axes.
    A scan of ``argmax``/``argmin`` gives (value, index); on ties the later index wins (torch's cummax)."""

    kind: str
    axis: Axis
    body: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of ``into``, of its shape and dtype, in which for every point of the axes element ``index`` is combined
    with ``body``: ``set`` (if several points hit one element any may win), ``add``, ``mul``, ``max`` or ``min``."""

    into: Value
    index: tuple[Index, ...]
    body: Expr
    combine: str = "set"


Root = Pointwise | Reduce | Scan | Scatter


@dataclass(frozen=True, slots=True)
class Nest:
    """One root over ``axes``. ``out`` has a value per result, None where nobody wants it.
    The shape of a result is the extents of ``axes`` in order (of ``into`` for a scatter). Axes are named
    ``i0, i1, …`` and reduced ones ``r0, r1, …`` so that equal nests have equal bodies."""

    out: tuple[Value | None, ...]
    axes: tuple[Axis, ...]
    root: Root
    origins: tuple[Origin, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the results lie on a GPU."""
        return any(v is not None and v.device.type == "cuda" for v in self.out)

    def map(self, change: Callable[[Expr], Expr]) -> Nest:
        """The nest with ``change`` applied to each of its expressions, those in a scatter's index included."""
        match self.root:
            case Pointwise(body):
                return replace(self, root=Pointwise(change(body)))
            case Reduce() | Scan() as root:
                return replace(self, root=replace(root, body=tuple(map(change, root.body))))
            case Scatter(into, at, body, combine):
                index = tuple([map_indirect(i, change) for i in at])
                return replace(self, root=Scatter(into, index, change(body), combine))

    def element(self, at: Sequence[Index], rule: Callable[[Expr], Expr | None] = lambda e: None) -> Expr:
        """What a pointwise nest computes for the element ``at``, rewritten by ``rule``."""
        return rewrite(bodies(self.root)[0], rule, dict(zip(self.axes, at, strict=True)))

    def rewritten(self, rule: Callable[[Expr], Expr | None]) -> Nest:
        """The nest with every expression rewritten by ``rule``."""
        return self.map(lambda e: rewrite(e, rule))

    def renamed(self, new: Mapping[Value, Value]) -> Nest:
        """The nest that reads and makes other values in place of some."""
        root = self.map(lambda e: reading(e, new)).root
        root = replace(root, into=new.get(root.into, root.into)) if isinstance(root, Scatter) else root
        return replace(self, out=tuple(None if v is None else new.get(v, v) for v in self.out), root=root)


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on a value: what an extern call receives and what a graph returns. Units are elements.
    ``offset`` is relative to the value's own first element."""

    value: Value
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index
    dtype: torch.dtype | None = None  # None: the value's; another one of the same width reinterprets the bits

    @property
    def complex(self) -> bool:
        """Whether it shows pairs of reals, its last dimension, as complex numbers."""
        return self.dtype is not None and self.dtype.is_complex

    @property
    def is_full(self) -> bool:
        """Whether it is its whole value, so that the value's own tensor can stand for it."""
        same = self.shape == self.value.shape and self.strides == self.value.strides
        return same and self.offset is ZERO and self.dtype in (None, self.value.dtype)


@dataclass(frozen=True, slots=True)
class Item:
    """The Python number that a 0-d view holds: a float or bool that the graph computes."""

    view: View


_Torch = torch.dtype | torch.device | torch.layout | torch.memory_format
Arg: TypeAlias = "View | Item | Index | tuple[Arg, ...] | bool | int | float | complex | str | _Torch | None"
"""An argument of an extern call; a tuple is a list."""


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of the op named ``op`` (``aten.mm.default``, ``mylib.scale.default``, ``gyrator.seeds.default``).

    ``out`` has a value per tensor result in order, None for results that are not tensors or not wanted. ``mutates``
    lists, for ops that write into arguments, (the value that an argument is a view of, its new version). ``effects``
    keeps the call alive and in order with other effects. ``scalars`` are size symbols the call defines (``item``).
    ``functions`` are those of attention on one score, for a template (:mod:`gyrator.schedule.attention`)."""

    out: tuple[Value | None, ...]
    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    mutates: tuple[tuple[Value, Value], ...] = ()
    effects: bool = False
    scalars: tuple[Size, ...] = ()
    origins: tuple[Origin, ...] = ()
    functions: tuple[Program, ...] = ()


Node = Nest | Extern


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: a tensor (``value``), a symbolic int (``size``), or one the program ignores (both None).
    With ``number`` the caller passes a Python float or bool, which becomes the 0-d ``value``; with ``complex`` a tensor
    of complex numbers, seen as pairs of reals in a last dimension."""

    value: Value | None = None
    size: Size | None = None
    number: bool = False
    complex: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """A size computed at the start of a call: of sizes, or ``shape[0]`` or ``stride(1)`` of the input ``source``."""

    size: Size
    source: str
    text: str


Output = View | Item | Index | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Update:
    """The caller sees ``value`` as the new contents of input ``target`` after the call."""

    target: Value
    value: View


@dataclass(frozen=True, slots=True)
class Program:
    """A whole graph. ``nodes`` are in an order that respects data flow; each value is defined once, before its uses.
    ``constants`` are tensors known at compile time, found among the compiled graph's by their names."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    updates: tuple[Update, ...] = ()
    constants: tuple[Value, ...] = ()
    derived: tuple[Derived, ...] = ()


def bodies(root: Root) -> tuple[Expr, ...]:
    """The expressions evaluated at each point of a nest."""
    match root:
        case Pointwise(body) | Scatter(_, _, body):
            return (body,)
        case Reduce(_, _, body) | Scan(_, _, body):
            return body


def expressions(root: Root) -> tuple[Expr, ...]:
    """All that a root computes: its bodies, and the run-time values within a scatter's index."""
    return (*bodies(root), *indirect_values(root.index if isinstance(root, Scatter) else ()))


def loads(exprs: Iterable[Expr]) -> tuple[Load, ...]:
    """Each distinct load in the expressions."""
    return tuple(dict.fromkeys(load for expr in exprs for load in expr.loads()))


def defines(node: Node) -> tuple[Value, ...]:
    """The values that ``node`` defines."""
    values = tuple(v for v in node.out if v is not None)
    return values + tuple(v for _, v in node.mutates) if isinstance(node, Extern) else values


def map_nests(program: Program, change: Callable[[Nest], Iterable[Node]]) -> Program:
    """The program with what ``change`` makes of each nest in its place."""
    changed = (change(node) if isinstance(node, Nest) else (node,) for node in program.nodes)
    return replace(program, nodes=tuple([node for nodes in changed for node in nodes]))


def arguments(node: Extern) -> list[Arg]:
    """An extern's arguments, those by name and the items of lists included."""
    args = [*node.args, *(a for _, a in node.kwargs)]
    while any(isinstance(arg, tuple) for arg in args):
        args = [item for arg in args for item in (arg if isinstance(arg, tuple) else (arg,))]
    return args


def views(node: Extern) -> tuple[View, ...]:
    """Every view among an extern's arguments."""
    return shown_views(arguments(node))


def shown_views(outputs: Iterable[Output | Arg]) -> tuple[View, ...]:
    """The views that outputs, or arguments, are or read a number from."""
    shown = (output.view if isinstance(output, Item) else output for output in outputs)
    return tuple(view for view in shown if isinstance(view, View))


def output_values(outputs: Iterable[Output]) -> frozenset[Value]:
    """The values that outputs show."""
    return frozenset(view.value for view in shown_views(outputs))


def shown_values(program: Program) -> frozenset[Value]:
    """The values that outputs and updates of inputs show."""
    return output_values(program.outputs) | {update.value.value for update in program.updates}


def addressed(node: Node) -> frozenset[Value]:
    """The values that ``node`` needs as they lie in memory: what a call reads, and what a scatter starts from."""
    if isinstance(node, Extern):
        return uses(node)
    return frozenset((node.root.into,) if isinstance(node.root, Scatter) else ())


def uses(node: Node) -> frozenset[Value]:
    """The values that ``node`` reads, an extern's mutated arguments and what a scatter starts from included."""
    if isinstance(node, Extern):
        return frozenset(v.value for v in views(node))
    return frozenset(addressed(node).union(load.value for load in loads(expressions(node.root))))


def edges(program: Program) -> Iterator[tuple[int, int]]:
    """Pairs of nodes, by position, of which the second must run later: it reads what the first defines, values or
    sizes, or both have effects. A size that a call tells may be any call's argument, and part of any derived size."""
    producer: dict[Value | Size, int] = {}
    effect: int | None = None
    telling = any(isinstance(node, Extern) and node.scalars for node in program.nodes)
    for position, node in enumerate(program.nodes):
        sizes = _sizes(node) if telling and isinstance(node, Nest) else ()
        yield from [(producer[needed], position) for needed in (*uses(node), *sizes) if needed in producer]
        producer |= dict.fromkeys(defines(node), position)
        if isinstance(node, Extern):
            acts = bool(node.effects or node.mutates or node.scalars)
            if effect is not None and (acts or telling):
                yield effect, position
            effect = position if acts else effect
            if node.scalars:
                producer |= dict.fromkeys((*node.scalars, *(derived.size for derived in program.derived)), position)


def _sizes(nest: Nest) -> frozenset[Size]:
    root = nest.root
    indices = [axis.extent for axis in (*nest.axes, *(root.reduced if isinstance(root, Reduce) else ()))]
    indices += root.index if isinstance(root, Scatter) else ()
    return frozenset[Size]().union(*[i.sizes() for i in indices], *[e.sizes() for e in expressions(root)])
