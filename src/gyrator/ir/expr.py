"""Value expressions: what one element of a result is, as an interned tree.

``Const``, ``IndexValue``, ``Load``, ``Op``, ``Masked``, ``Checked`` and ``Random`` are what lowering writes; ``Ref``
names a local of a kernel and appears only in loop trees. Expressions are strictly typed: an ``Op``'s arguments have
the dtypes its row in :mod:`gyrator.ir.ops` asks for, and every conversion is an explicit ``cast``."""

# ruff: noqa: D102  (methods that implement what the base class documents)
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from hashlib import sha256
from inspect import get_annotations
from typing import Any

import torch

from gyrator.ir.index import ZERO, Atom, Axis, Index, Indirect, Size, const, contiguous_strides, dot, substitute
from gyrator.ir.intern import interned, remember

Scalar = bool | int | float


@interned
class Value:
    """An SSA value: a tensor that exactly one node defines (or an input). Names are unique within a program.
    ``strides`` (in elements) say how it lies in memory once placed; loads address it by logical coordinates."""

    name: str
    shape: tuple[Index, ...]
    dtype: torch.dtype
    strides: tuple[Index, ...]
    device: torch.device = torch.device("cpu")

    def __repr__(self) -> str:
        return self.name

    def position(self, coords: tuple[Index, ...]) -> Index:
        """Where the element at these coordinates lies in memory, in elements from the first one."""
        return dot(coords, self.strides)

    @property
    def span(self) -> Index:
        """How many elements lie from the first to the last in memory, gaps included."""
        return ZERO if ZERO in self.shape else self.position(tuple([n - 1 for n in self.shape])) + 1

    @property
    def nbytes(self) -> Index:
        """Bytes from the first to the last element in memory, gaps included."""
        return self.span * self.dtype.itemsize

    @property
    def layout(self) -> Hashable:
        """What memory it is and how it lies there: values with equal ones may take each other's place."""
        return self.shape, self.strides, self.dtype, self.device

    def derived(self, suffix: str, shape: tuple[Index, ...], dtype: torch.dtype) -> Value:
        """Another value on the same device, contiguous, named after this one."""
        return Value(f"{self.name}_{suffix}", shape, dtype, contiguous_strides(shape), self.device)


_CHILDREN = {
    "Expr": ("(self.{},)", "next(c)"), "tuple[Expr, ...]": ("self.{}", "tuple(c)"),
    "Expr | None": ("(() if self.{0} is None else (self.{0},))", "next(c, None)"),
}  # fmt: skip
_INDICES = {"Index": ("(self.{},)", "next(i)"), "tuple[Index, ...]": ("self.{}", "tuple(i)")}
"""By the type of a field of a node how its parts are read, and how they are taken from all of the node."""


class Expr:
    """Abstract: a typed scalar expression over loop axes."""

    __slots__ = ("_axes", "_loads", "_text")
    dtype: torch.dtype
    _axes: frozenset[Axis] | None
    _loads: tuple[Load, ...] | None
    _text: str | None

    def __init_subclass__(cls) -> None:
        """Write ``children``, ``indices`` and ``rebuild`` by the types of the node's fields, as rewrites call little
        else: in ``Load`` they are ``() if self.mask is None else (self.mask,)``, ``self.index``, and their inverse."""
        kinds, scope = get_annotations(cls), dict[str, Any]()
        children, indices = (
            " + ".join(parts[kind][0].format(n) for n, kind in kinds.items() if kind in parts) or "()"
            for parts in (_CHILDREN, _INDICES)
        )
        args = ", ".join((_CHILDREN | _INDICES).get(kind, ("", "self.{}"))[1].format(n) for n, kind in kinds.items())
        taken = (
            f"def rebuild(self, children, indices):\n c, i = iter(children), iter(indices)\n return type(self)({args})"
        )
        exec(f"def children(self): return {children}\ndef indices(self): return {indices}\n{taken}", scope)
        for name in ("children", "indices", "rebuild"):
            setattr(cls, name, scope[name])

    def __repr__(self) -> str:  # of a long text its digest: text repeats what expressions share
        if self._text is None:
            text = expr_text(self, _operand, str, False)
            short = text if len(text) < 2000 else f"{text[:999]}{sha256(text.encode()).hexdigest()}"
            return remember(self, "_text", short)
        return self._text

    def children(self) -> tuple[Expr, ...]:
        """The expressions written directly in this node."""
        return ()

    def indices(self) -> tuple[Index, ...]:
        """The indices written directly in this node."""
        return ()

    def operands(self) -> tuple[Expr, ...]:
        """The children, and the run-time values within the node's indices."""
        return (*self.children(), *indirect_values(self.indices()))

    def rebuild(self, children: tuple[Expr, ...], indices: tuple[Index, ...]) -> Expr:
        """The same node with other children and indices, in the order of those methods."""
        return self

    def axes(self) -> frozenset[Axis]:
        """The loop axes the value depends on."""
        if self._axes is None:
            found = frozenset[Axis]().union(*[c.axes() for c in self.children()], *[i.axes() for i in self.indices()])
            return remember(self, "_axes", found)
        return self._axes

    def loads(self) -> tuple[Load, ...]:
        """Each distinct load in the expression, those within indirect indices included."""
        if self._loads is None:
            return remember(self, "_loads", tuple([n for n in self.walk() if isinstance(n, Load)]))
        return self._loads

    def sizes(self) -> frozenset[Size]:
        return frozenset(a for node in self.walk() for i in node.indices() for a in i.atoms() if isinstance(a, Size))

    def walk(self) -> Iterator[Expr]:
        """Each distinct node once, children before parents, those within indirect indices included."""
        return walk_all(self, set())

    def substitute(self, mapping: Mapping[Atom, Index]) -> Expr:
        """Replace axes and sizes in every index."""
        return rewrite(self, lambda e: None, mapping)


def walk_all(expr: Expr, seen: set[Expr]) -> Iterator[Expr]:
    """As :meth:`Expr.walk`, skipping and recording the nodes in ``seen``: for several expressions that share nodes."""
    if expr in seen:
        return
    seen.add(expr)
    for operand in expr.operands():
        yield from walk_all(operand, seen)
    yield expr


def count_uses(roots: Iterable[Expr]) -> Counter[Expr]:
    """How many of the expressions and of the distinct nodes in them use each node."""
    uses: Counter[Expr] = Counter()
    pending = [*roots]
    while pending:
        expr = pending.pop()
        uses[expr] += 1
        if uses[expr] == 1:
            pending += expr.operands()
    return uses


@interned
class Const(Expr):
    """A literal of the given dtype. NaN and the sign of zero are kept apart."""

    value: Scalar
    dtype: torch.dtype


@interned
class IndexValue(Expr):
    """The int64 value of an index."""

    dtype = torch.int64
    index: Index


@interned
class Load(Expr):
    """The element of ``value`` at logical coordinates ``index``. With a ``mask`` it is read only where that holds, else
    ``other``, a literal of its dtype; without one the coordinates are within the shape for every iteration."""

    value: Value
    index: tuple[Index, ...]
    mask: Expr | None = None
    other: Scalar = 0

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.value.dtype


@interned
class Op(Expr):
    """A scalar operation: a row of :data:`gyrator.ir.ops.OPS` applied to arguments."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype


@interned
class Masked(Expr):
    """``body`` where ``mask`` holds, ``other`` elsewhere; no load within ``body`` happens where the mask is false.
    Pass ``predicate`` turns it into masked loads and a ``where``; code generators never see it."""

    mask: Expr
    body: Expr
    other: Const

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.body.dtype


@interned
class Checked(Expr):
    """An index read at run time, of 32 or 64 bits: negatives wrap by ``size``; out of ``[0, size)`` the call raises
    IndexError. Under a ``mask`` it is checked only where the mask holds."""

    arg: Expr
    size: Index
    mask: Expr | None = None

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.arg.dtype


@interned
class Random(Expr):
    """A counter-based random number (Philox 4x32-10): kind ``rand`` in [0, 1), ``randn`` or ``randint64``.
    ``seed`` is an int64 expression, ``offset`` numbers the element, so a draw does not depend on the loop order.
    ``args`` of ``randint64`` are the int64 bounds ``(low, high)``."""

    kind: str
    seed: Expr
    offset: Index
    dtype: torch.dtype
    args: tuple[Expr, ...] = ()


@interned
class Ref(Expr):
    """A local of a kernel (only in loop trees)."""

    name: str
    dtype: torch.dtype
    scope: frozenset[Axis]

    def axes(self) -> frozenset[Axis]:
        return self.scope


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "logical_and": "and", "logical_or": "or", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip


def expr_text(expr: Expr, show: Callable[[Expr, bool], str], index: Callable[[Index], str], within: bool) -> str:
    """An expression, in parentheses ``within`` another infix operator; ``show`` prints those in it, likewise, and
    ``index`` indices. Literals show their dtype where it is not the usual one: ``2.0`` is f32, ``2`` is i64."""
    match expr:
        case Const(value, dtype):
            return _literal(value, dtype)
        case IndexValue(i):
            return f"index({index(i)})"
        case Load(value, at, mask, other):
            text = f"{value}[{', '.join(map(index, at))}]"
            return text if mask is None else f"({text} if {show(mask, False)} else {_literal(other, expr.dtype)})"
        case Op(name, (a, b), _) if name in _INFIX:
            text = f"{show(a, True)} {_INFIX[name]} {show(b, True)}"
            return f"({text})" if within else text
        case Op("cast" | "bitcast" as name, (arg,), dtype):
            return f"{'' if name == 'cast' else 'bits_'}{short(dtype)}({show(arg, False)})"
        case Op(name, args, _):
            return f"{name}({', '.join(show(a, False) for a in args)})"
        case Masked(mask, body, other):
            return f"masked({', '.join(show(e, False) for e in (mask, body, other))})"
        case Checked(arg, size, mask):
            condition = "" if mask is None else f", if {show(mask, False)}"
            return f"checked({show(arg, False)}, {index(size)}{condition})"
        case Random(kind, seed, offset, dtype, args):
            inner = ", ".join([show(seed, False), index(offset), *(show(a, False) for a in args)])
            return f"{kind}<{short(dtype)}>({inner})"
        case Ref(name):
            return f"%{name}"
    raise TypeError(type(expr).__name__)


def _operand(expr: Expr, within: bool) -> str:
    return f"({expr})" if within and isinstance(expr, Op) and expr.name in _INFIX and len(expr.args) == 2 else str(expr)


def _literal(value: Scalar, dtype: torch.dtype) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    plain = dtype == (torch.float32 if isinstance(value, float) else torch.int64)
    return str(value) if plain else f"{value}:{short(dtype)}"


def rewrite(expr: Expr, replace: Callable[[Expr], Expr | None], mapping: Mapping[Atom, Index] | None = None) -> Expr:
    """Rebuild bottom-up: substitute ``mapping`` in indices, then put ``replace(node)`` for each node unless it is None.
    Expressions within indirect indices are rewritten too, shared nodes once."""
    memo: dict[Expr, Expr] = {}
    moved: dict[Index, Index] = {}
    atoms = mapping or {}

    def index(i: Index) -> Index:
        if (done := moved.get(i)) is None:
            done = moved[i] = map_indirect(i, visit, atoms)
        return done

    def visit(e: Expr) -> Expr:
        if (done := memo.get(e)) is None:
            old = e.children(), e.indices()
            new = tuple([visit(c) for c in old[0]]), tuple([index(i) for i in old[1]])
            rebuilt = e if new == old else e.rebuild(*new)
            done = memo[e] = replace(rebuilt) or rebuilt
        return done

    return visit(expr)


def map_indirect(index: Index, change: Callable[[Expr], Expr], mapping: Mapping[Atom, Index] | None = None) -> Index:
    """``index`` with ``mapping`` substituted, and ``change`` applied to the run-time values in it."""
    full, inner = mapping or {}, index.indirects()
    if inner:
        full = {**full, **{a: indirect(change(a.value), substitute(a.size, full)) for a in inner}}
    return substitute(index, full)


def reading(expr: Expr, new: Mapping[Value, Value]) -> Expr:
    """The expression that reads other values in place of some."""
    return with_loads(expr, lambda e: Load(new.get(e.value, e.value), e.index, e.mask, e.other))


def with_loads(expr: Expr, change: Callable[[Load], Expr]) -> Expr:
    """The expression with what ``change`` gives in the place of its loads."""
    return rewrite(expr, lambda e: change(e) if isinstance(e, Load) else None)


def indirect_values(indices: Iterable[Index]) -> tuple[Expr, ...]:
    """The values within indices that only a run tells."""
    return tuple(atom.value for i in indices for atom in i.indirects())


def indirect(value: Expr, size: Index) -> Index:
    """A run-time index in ``[0, size)``; a value that turned out to be a plain index is that index."""
    match value:
        case IndexValue(index):
            return index
        case Const(int(number)):
            return const(number)
    return Indirect(value, size).index()


_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.bool:
    "b1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8",
}  # fmt: skip


def short(dtype: torch.dtype) -> str:
    """``f32`` for torch.float32, and so on."""
    return _SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def stem_of(name: str) -> str:
    """What a value holds, without the numbers that tell it from others: ``log2_default_10`` → ``log2_default``,
    ``var_mean_10_welford`` → ``var_mean_welford``, ``arg3`` → ``arg``."""
    return re.sub(r"_\d+(?=_|$)|(?<=^arg)\d+", "", name).strip("_") or "t"
