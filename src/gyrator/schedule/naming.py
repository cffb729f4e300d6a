"""Canonical kernels: equal work has equal text, so that the twelve layers of a model share their kernels.

Parameters are renamed by what they hold and where they first appear, axes by their order, locals by what
defines them; the kernel's name is its title and a digest of everything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gyrator.ir.expr import Expr, Load, Ref, Value, rewrite
from gyrator.ir.index import Atom, Axis, Index, Size, substitute
from gyrator.ir.tree import Carry, Kernel, Let, Loop, Param, Stage, Store, Update
from gyrator.origin import Origin
from gyrator.schedule.canonical import stem_of


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel and the values its parameters stand for, in order."""

    kernel: Kernel
    args: tuple[Value, ...]


def canonical(
    body: tuple[Loop | Stage, ...],
    scratch: tuple[Value, ...],
    params: tuple[tuple[Value, bool, bool], ...],
    origins: tuple[Origin, ...],
    title: str,
) -> Built:
    """Rename everything in a body. ``params`` are (value, read, written)."""
    names = _Names()
    values = {v: _renamed(v, names.fresh(stem_of(v.name))) for v, _, _ in params}
    values |= {v: _renamed(v, names.fresh(stem_of(v.name))) for v in scratch}
    axes: dict[Atom, Index] = {}
    _name_axes(body, axes)
    renamer = _Renamer(values, axes, names)
    tree = renamer.stages(body)
    rows = tuple(renamer.value(v) for v in scratch)
    new = tuple(Param(renamer.value(v), read, written) for v, read, written in params)
    sizes = tuple(sorted(_sizes(tree, new, rows), key=lambda s: s.name))
    digest = hashlib.sha256(describe(tree, new, sizes, rows).encode()).hexdigest()[:10]
    kernel = Kernel(f"{_identifier(title)}_{digest}", new, sizes, rows, tree, origins)
    return Built(kernel, tuple(v for v, _, _ in params))


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")[:60] or "kernel"


def _renamed(value: Value, name: str) -> Value:
    return Value(name, value.shape, value.dtype, value.strides, value.device)


class _Names:
    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, stem: str) -> str:
        name, n = stem, 2
        while name in self._taken:
            name, n = f"{stem}_{n}", n + 1
        self._taken.add(name)
        return name


def _name_axes(stages: tuple[Loop | Stage, ...], axes: dict[Atom, Index]) -> None:
    for stage in stages:
        if isinstance(stage, Loop):
            if stage.axis not in axes:
                extent = substitute(stage.axis.extent, axes)
                axes[stage.axis] = Axis(f"i{len(axes)}", extent).index()
            _name_axes(stage.body, axes)


class _Renamer:
    """Rewrites a body. Private to one call of :func:`canonical`."""

    def __init__(self, values: dict[Value, Value], axes: dict[Atom, Index], names: _Names) -> None:
        self._values, self._axes, self._names = values, axes, names
        self._refs: dict[str, str] = {}
        self._carries: dict[str, str] = {}

    def value(self, value: Value) -> Value:
        new = self._values[value]
        shape = tuple(substitute(i, self._axes) for i in new.shape)
        return Value(new.name, shape, new.dtype, tuple(substitute(i, self._axes) for i in new.strides), new.device)

    def stages(self, stages: tuple[Loop | Stage, ...]) -> tuple[Loop | Stage, ...]:
        return tuple(self._stage(s) for s in stages)

    def _stage(self, stage: Loop | Stage) -> Loop | Stage:
        match stage:
            case Loop():
                carries = tuple(self._carry(c) for c in stage.carries)
                return Loop(
                    self._axis(stage.axis),
                    stage.kind,
                    self.stages(stage.body),
                    carries,
                    stage.lanes,
                    stage.grain,
                    stage.reverse,
                )
            case Let(name, expr):
                value = self._expr(expr)
                return Let(self._ref(name), value)
            case Store(value, index, expr, combine, mask, atomic):
                at = tuple(self._index(i) for i in index)
                return Store(
                    self.value(value), at, self._expr(expr), combine, None if mask is None else self._expr(mask), atomic
                )
            case Update(carry, args, running):
                new = tuple(self._expr(a) for a in args)
                return Update(self._carries[carry], new, tuple(None if r is None else self._ref(r) for r in running))
        raise TypeError(stage)

    def _carry(self, carry: Carry) -> Carry:
        self._carries[carry.name] = self._names.fresh(stem_of(carry.name) + "_acc")
        results = tuple(None if r is None else self._ref(r) for r in carry.results)
        return Carry(self._carries[carry.name], carry.kind, results, carry.last_wins)

    def _axis(self, axis: Axis) -> Axis:
        ((monomial, _),) = self._axes[axis].terms
        (new,) = monomial
        assert isinstance(new, Axis)
        return new

    def _ref(self, ref: Ref) -> Ref:
        if ref.name not in self._refs:
            self._refs[ref.name] = self._names.fresh(stem_of(ref.name))
        return Ref(self._refs[ref.name], ref.dtype, frozenset(self._axis(a) for a in ref.scope if a in self._axes))

    def _index(self, index: Index) -> Index:
        return rewrite_index(index, self._expr, self._axes)

    def _expr(self, expr: Expr) -> Expr:
        def swap(e: Expr) -> Expr | None:
            if isinstance(e, Load):
                return Load(self.value(e.value), e.index, e.mask, e.other)
            return self._ref(e) if isinstance(e, Ref) else None

        return rewrite(expr, swap, self._axes)


def rewrite_index(index: Index, expr: object, axes: dict[Atom, Index]) -> Index:
    """Substitute axes, and rewrite what is within indirect indices by ``expr``."""
    assert callable(expr)
    mapping = dict(axes)
    for atom in index.indirects():
        mapping[atom] = type(atom)(expr(atom.value), substitute(atom.size, axes)).index()
    return substitute(index, mapping)


# -- describing --------------------------------------------------------------------------------------------
def _walk(stages: tuple[Loop | Stage, ...]) -> Iterator[Loop | Stage]:
    for stage in stages:
        yield stage
        if isinstance(stage, Loop):
            yield from _walk(stage.body)


def stage_exprs(stage: Loop | Stage) -> tuple[Expr, ...]:
    """The expressions written directly in a stage."""
    match stage:
        case Let(_, expr):
            return (expr,)
        case Store(_, index, expr, _, mask):
            inner = tuple(a.value for i in index for a in i.indirects())
            return (expr, *inner) if mask is None else (expr, mask, *inner)
        case Update(_, args):
            return args
    return ()


def _sizes(stages: tuple[Loop | Stage, ...], params: tuple[Param, ...], scratch: tuple[Value, ...]) -> set[Size]:
    found: set[Size] = set()
    for value in (*(p.value for p in params), *scratch):
        for index in (*value.shape, *value.strides):
            found |= index.sizes()
    for stage in _walk(stages):
        if isinstance(stage, Loop):
            found |= stage.axis.extent.sizes()
        if isinstance(stage, Store):
            for index in stage.index:
                found |= index.sizes()
        for expr in stage_exprs(stage):
            found |= expr.sizes()
    return found


_DETAILS = ("name", "kind", "value", "other", "dtype")


def describe(
    stages: tuple[Loop | Stage, ...], params: tuple[Param, ...], sizes: tuple[Size, ...], scratch: tuple[Value, ...]
) -> str:
    """Everything that a kernel's code depends on, as text: its length is linear in the distinct nodes."""
    lines: list[str] = []
    numbers: dict[Expr, int] = {}

    def number(expr: Expr) -> int:
        for node in expr.walk():
            if node not in numbers:
                children = [numbers[c] for c in node.children()]
                inner = [(str(i) if not i.indirects() else _shallow(i, numbers)) for i in node.indices()]
                head = type(node).__name__
                detail = [getattr(node, n) for n in _DETAILS if hasattr(node, n)]
                lines.append(f"{len(numbers)} {head} {detail} {children} {inner}")
                numbers[node] = len(numbers)
        return numbers[expr]

    for p in params:
        how = f"{p.read} {p.written} {p.alias}"
        lines.append(f"param {p.value.name} {p.value.shape} {p.value.strides} {p.value.dtype} {how}")
    lines += [f"scratch {v.name} {v.shape} {v.dtype}" for v in scratch] + [f"size {s.name} {s.lo}" for s in sizes]

    def visit(stages: tuple[Loop | Stage, ...], depth: int) -> None:
        for stage in stages:
            exprs = [number(e) for e in stage_exprs(stage)]
            match stage:
                case Loop(axis, kind, body, carries, lanes, grain, reverse):
                    lines.append(f"{depth} loop {axis} {axis.extent} {kind} {carries} {lanes} {grain} {reverse}")
                    visit(body, depth + 1)
                case Let(name):
                    lines.append(f"{depth} let {name} {exprs}")
                case Store(value, index, _, combine, _, atomic):
                    at = [_shallow(i, numbers) for i in index]
                    lines.append(f"{depth} store {value} {at} {combine} {atomic} {exprs}")
                case Update(carry, _, running):
                    lines.append(f"{depth} update {carry} {exprs} {running}")

    visit(stages, 0)
    return "\n".join(lines)


def _shallow(index: Index, numbers: dict[Expr, int]) -> str:
    """An index as text in which run-time values are their numbers."""
    mapping: dict[Atom, Index] = {a: Size(f"<{numbers[a.value]}>").index() for a in index.indirects()}
    return str(substitute(index, mapping))
