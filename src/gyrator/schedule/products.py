"""Matrix products that a template may compute: what a call means, its unit in a schedule, and the open choice.

aten.addmm(bias, x, w) ; group relu          a `Question` of alternatives:
  mm          call aten.addmm; launch relu      the library and a kernel after it
  tiled_3     launch tiled+bias+relu            a template with the rest as its epilogue
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gyrator.ir.expr import Value
from gyrator.ir.program import Extern, Program, View
from gyrator.ir.tree import Config
from gyrator.schedule.group import Group


@dataclass(frozen=True, slots=True)
class Product:
    """``out[…, m, n] = alpha · Σ_k left[…, m, k] · right[…, k, n] + beta · bias`` of an extern call.

    ``left`` and ``right`` have equal batch dimensions (none or one) before their last two.
    """

    left: View
    right: View
    out: Value
    bias: View | None = None
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Templated:
    """A unit of a schedule beside groups and calls: a product computed by the template of that name.

    ``epilogue`` is a pointwise group over the product's own elements, computed on each tile before it is stored; the
    product is stored too if others read it. ``configs`` are ways to run it, the best guess first.
    """

    call: Extern
    template: str
    configs: tuple[Config, ...]
    epilogue: Group | None = None


Unit: TypeAlias = "Group | Extern | Templated"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to compute what a question is about. ``backend``: ``aten | triton | cpp``; ``parameters`` are for the
    log (block sizes, accumulator, whether K is even, grouping, stages, warps)."""

    name: str
    backend: str
    units: tuple[Unit, ...]
    parameters: tuple[tuple[str, str | int | bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """Units of a program that could be replaced by those of any of ``alternatives``. ``title`` names op and shapes,
    as in ``addmm(64x16, 16x32, 32)``."""

    title: str
    program: Program
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """An alternative and the milliseconds it was measured to take."""

    alternative: Alternative
    milliseconds: float


Ask: TypeAlias = Callable[[Question], tuple[Answer, ...]]
"""Answers best first; an alternative that failed has none. No answers: the call stays."""
