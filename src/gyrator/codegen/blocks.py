"""A kernel's text on its way, whatever language it is in: blocks of lines, and what is known in each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from gyrator.ir.expr import Expr, Ref, count_uses
from gyrator.ir.index import Atom, Index
from gyrator.ir.tree import Loop, Stage, walk_exprs

Key: TypeAlias = Expr | Atom | Index


@dataclass(frozen=True, slots=True)
class Printed:
    """Abstract: a printed value, with its text and the block it may live in."""

    text: str
    depth: int = 0


TermT = TypeVar("TermT", bound=Printed)


@dataclass(slots=True)
class Lines(Generic[TermT]):
    """Abstract: a block being printed, with its lines and what is known in it."""

    depth: int
    lines: list[str] = field(default_factory=list)
    terms: dict[Key, TermT] = field(default_factory=dict)


LinesT = TypeVar("LinesT", bound=Lines)  # type: ignore[type-arg]


class Blocks(Generic[TermT, LinesT]):
    """Abstract: a stack of blocks, into which a printer of ``body`` writes."""

    def __init__(self, body: Iterable[Loop | Stage], outermost: LinesT) -> None:
        self.blocks: list[LinesT] = [outermost]
        self._uses = count_uses(walk_exprs(body))

    @property
    def block(self) -> LinesT:
        """The innermost block."""
        return self.blocks[-1]

    def emit(self, line: str) -> None:
        """Append a line to the innermost block."""
        self.block.lines.append(line)

    def bind(self, key: Key, term: TermT) -> None:
        """From now on, to the end of the term's block, ``key`` prints as ``term``."""
        self.blocks[term.depth].terms[key] = term

    def find(self, key: Key) -> TermT | None:
        """What ``key`` was bound to, if it still holds."""
        return next((block.terms[key] for block in reversed(self.blocks) if key in block.terms), None)

    def is_used(self, ref: Ref) -> bool:
        """Whether anything reads the local."""
        return self._uses[ref] > 0
