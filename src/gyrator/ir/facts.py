"""What is known about sizes, and how well.

============  ==========================================================================================
``Proved``    holds in every call: it follows from the bounds of the sizes
``Guarded``   holds in every call that reaches this code: torch checks it, and compiles anew where it fails
``HintOnly``  held in the call that was compiled, and may not in the next
============  ==========================================================================================

Correctness may rest on the first two alone; a hint chooses between forms that are both right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast, final

from gyrator.ir.index import Atom, Index, evaluate, is_nonnegative
from gyrator.ir.symbols import Symbols


@final
@dataclass(frozen=True, slots=True)
class Proved:
    """``index ≥ 0`` in every call."""

    index: Index


@final
@dataclass(frozen=True, slots=True)
class Guarded:
    """``index ≥ 0`` in every call that torch lets through to this code."""

    index: Index


@final
@dataclass(frozen=True, slots=True)
class HintOnly:
    """``index ≥ 0`` for the sizes that were compiled with."""

    index: Index


Fact: TypeAlias = "Proved | Guarded | HintOnly"


def nonnegative(index: Index, symbols: Symbols) -> Fact | None:
    """How well ``index ≥ 0`` is known, after asking torch for a guard where it is not proved.

    None where it is false for the sizes compiled with, or has no value there: an axis, or a size that only a run
    tells. Once torch's guards are frozen, as when backward is compiled late, it would drop a new one silently: then
    a hint stays a hint.
    """
    if is_nonnegative(index):
        return Proved(index)
    hints = cast("Mapping[Atom, int]", symbols.hints)
    if not hints.keys() >= set(index.atoms()) or evaluate(index, hints) < 0:
        return None
    env = symbols.shape_env
    if env is None or env.frozen:
        return HintOnly(index)
    guarded = evaluate(index, cast("Mapping[Atom, int]", symbols.symbolic_ints())) >= 0
    return Guarded(index) if guarded else None  # asked as a truth value, the comparison becomes a guard
