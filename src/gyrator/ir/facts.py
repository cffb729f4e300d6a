"""What is known about sizes, and how well.

============  ==========================================================================================
``Proved``    holds in every call: it follows from the bounds of the sizes
``Guarded``   holds in every call that reaches this code: torch checks it, and compiles anew where it fails
``HintOnly``  held in the call that was compiled, and may not in the next
============  ==========================================================================================

Correctness may rest on the first two alone; a hint chooses tile sizes and orders, never what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, final

from gyrator.ir.index import Atom, Index, IndexLike, Size, as_index, div_mod, evaluate, is_nonnegative
from gyrator.ir.symbols import Symbols

Relation: TypeAlias = Literal["==", "<=", "<", "divides"]


@final
@dataclass(frozen=True, slots=True)
class Condition:
    """``left relation right``; ``divides``: right is a multiple of left, which is positive."""

    left: Index
    relation: Relation
    right: Index

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@final
@dataclass(frozen=True, slots=True)
class Proved:
    """The condition holds in every call."""

    condition: Condition


@final
@dataclass(frozen=True, slots=True)
class Guarded:
    """The condition holds in every call that torch lets through to this code."""

    condition: Condition


@final
@dataclass(frozen=True, slots=True)
class HintOnly:
    """The condition held for the sizes that were compiled with."""

    condition: Condition


Fact: TypeAlias = "Proved | Guarded | HintOnly"
Guard: TypeAlias = "Callable[[Condition], bool]"
_NO_HINTS: Mapping[Size, int] = MappingProxyType({})


def condition(left: IndexLike, relation: Relation, right: IndexLike) -> Condition:
    """``condition(n, "<=", 64)`` and so on."""
    return Condition(as_index(left), relation, as_index(right))


def equal(left: IndexLike, right: IndexLike) -> Condition:
    """``left == right``."""
    return condition(left, "==", right)


def divides(den: IndexLike, num: IndexLike) -> Condition:
    """``num`` is a multiple of the positive ``den``."""
    return condition(den, "divides", num)


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """Hints for sizes, and leave (or none) to add guards.

    ``guard`` asks torch to check a condition before each later call, and says whether it could. None forbids
    guards: so it must be once torch's guards are frozen, as when a backward graph is compiled late.
    """

    hints: Mapping[Size, int] = field(default_factory=lambda: _NO_HINTS)
    guard: Guard | None = None

    def hint(self, index: IndexLike, fallback: int | None = None) -> int | None:
        """The value of ``index`` in the call being compiled.

        A size without a hint (an unbacked one, known only at run time) counts as ``fallback``; without one
        the answer is None.
        """
        at = as_index(index)
        env: dict[Atom, int] = {}
        for size in at.sizes():
            value = self.hints.get(size, fallback)
            if value is None:
                return None
            env[size] = value
        return evaluate(at, env)

    def proves(self, condition: Condition) -> bool:
        """Whether the condition holds in every call, for all iterations."""
        left, right = condition.left, condition.right
        match condition.relation:
            case "==":
                return left is right
            case "<=":
                return is_nonnegative(right - left)
            case "<":
                return is_nonnegative(right - left - 1)
            case "divides":
                return is_nonnegative(left - 1) and div_mod(right, left)[1].value == 0

    def likely(self, condition: Condition) -> Proved | HintOnly | None:
        """What is known of the condition without a guard; None where hints deny it or are missing."""
        if self.proves(condition):
            return Proved(condition)
        return HintOnly(condition) if self._held(condition) else None

    def require(self, condition: Condition) -> Proved | Guarded | None:
        """A fact that correctness may rest on: a proof, or else a guard where guards are allowed.

        None where the condition is false for the sizes compiled with, a size has no hint, or no guard can be
        made; then the caller must do without.
        """
        if self.proves(condition):
            return Proved(condition)
        if self.guard is None or not self._held(condition):
            return None
        return Guarded(condition) if self.guard(condition) else None

    def _held(self, condition: Condition) -> bool:
        left, right = self.hint(condition.left), self.hint(condition.right)
        return left is not None and right is not None and _holds(condition.relation, left, right)


def _holds(relation: Relation, left: int, right: int) -> bool:
    match relation:
        case "==":
            return left == right
        case "<=":
            return left <= right
        case "<":
            return left < right
        case "divides":
            return left > 0 and right % left == 0


def facts_of(symbols: Symbols, *, may_guard: bool) -> Facts:
    """The facts of a compilation; ``may_guard`` where torch still takes guards."""
    return Facts(symbols.hints, _torch_guard(symbols) if may_guard else None)


def _torch_guard(symbols: Symbols) -> Guard | None:
    """Guards through torch's ShapeEnv: the condition is evaluated on symbolic ints, which records it."""
    env = symbols.shape_env
    if env is None:
        return None

    def guard(condition: Condition) -> bool:
        if env.frozen:  # torch would drop the guard silently
            return False
        values = symbols.symbolic_ints()
        if not {*condition.left.sizes(), *condition.right.sizes()} <= values.keys():
            return False
        lookup = cast("Mapping[Atom, int]", values)
        left, right = evaluate(condition.left, lookup), evaluate(condition.right, lookup)
        return bool(_holds(condition.relation, left, right))

    return guard
