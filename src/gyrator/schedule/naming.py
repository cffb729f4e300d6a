"""Names of kernels: equal work has an equal name, in every process."""

from __future__ import annotations

import hashlib
import re

from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Atom, Index, Size, substitute
from gyrator.ir.tree import Contract, Kernel, Let, Loop, Param, Stage, Store, Update, contract_sides, stage_exprs
from gyrator.origin import Origin


def named(
    body: tuple[Loop | Stage, ...],
    scratch: tuple[Value, ...],
    params: tuple[Param, ...],
    origins: tuple[Origin, ...],
    title: str,
    more: str = "",
) -> Kernel:
    """The kernel with that body; its name is its title and a digest of everything else, ``more`` included."""
    sizes = tuple(sorted(_sizes(body, params, scratch), key=lambda s: s.name))
    digest = hashlib.sha256((describe(body, params, sizes, scratch) + more).encode()).hexdigest()[:10]
    name = re.sub(r"\W+", "_", title).strip("_")[:60] or "kernel"
    return Kernel(f"{name}_{digest}", params, sizes, scratch, body, origins)


def _sizes(stages: tuple[Loop | Stage, ...], params: tuple[Param, ...], scratch: tuple[Value, ...]) -> set[Size]:
    found: set[Size] = set()
    for value in (*(p.value for p in params), *scratch):
        for index in (*value.shape, *value.strides):
            found |= index.sizes()
    for stage in stages:
        if isinstance(stage, Loop):
            found |= stage.axis.extent.sizes() | _sizes(stage.body, (), ())
            continue
        for index in stage.index if isinstance(stage, Store) else contract_sides(stage):
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
            exprs = [] if isinstance(stage, Loop) else [number(e) for e in stage_exprs(stage)]
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
                case Contract():
                    lines.append(f"{depth} {stage}")

    visit(stages, 0)
    return "\n".join(lines)


def _shallow(index: Index, numbers: dict[Expr, int]) -> str:
    """An index as text in which run-time values are their numbers."""
    mapping: dict[Atom, Index] = {a: Size(f"<{numbers[a.value]}>").index() for a in index.indirects()}
    return str(substitute(index, mapping))
