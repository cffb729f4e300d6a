"""What printers of C++, Triton and Python share: comments, long lines, sums of indices; and a kernel's text on its way,
in blocks of lines with what is known in each."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from textwrap import TextWrapper
from typing import Generic, TypeVar

from gyrator.ir.expr import Expr, Ref, count_uses
from gyrator.ir.index import Atom, Index, Size
from gyrator.ir.tree import Kernel, Loop, Stage, walk_exprs
from gyrator.origin import Origin, Origins, places_of

WIDTH = 110
"""Columns of generated code."""
_BREAK = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|, |\(""")
"""A string, to be passed over, or a comma or bracket."""


def origin_comments(origins: Origins, mark: str) -> list[str]:
    """A comment, begun by ``mark``, for each place in the user's program, with the operators that stand there."""
    wrapper = TextWrapper(WIDTH, initial_indent=f"{mark} ", subsequent_indent=f"{mark}   ", break_long_words=False)
    return [line for text in places_of(origins) for line in wrapper.wrap(text)]


def broken(line: str, width: int) -> list[str]:
    """A line as several, broken after commas within its brackets, or else after an opening one; further lines start
    with four spaces. Comments and deletions stay as they are, and so does a piece without a place to break at."""
    if len(line) <= width or line.startswith(("#", "del ")):
        return [line]
    places = [(m.end(), m.group()) for m in _BREAK.finditer(line) if m.group() in (", ", "(")]
    pieces, start, room = [], 0, width
    while len(line) - start > room and (
        within := places[bisect_left(places, (start + 1,)) : bisect_left(places, (start + room + 1,))]
    ):
        end = max(within, key=lambda place: (place[1] == ", ", place[0]))[0]
        pieces.append(line[start:end].rstrip())
        start, room = end, width - 4
    pieces.append(line[start:])
    return [pieces[0], *(f"    {piece}" for piece in pieces[1:])]


def checked_place(kernel: Kernel) -> Origin | None:
    """The place of the user's program to name when an index of the kernel is out of range."""
    words = ("index", "gather", "embedding", "scatter")
    return next(iter([*[o for o in kernel.origins if any(word in o.op for word in words)], *kernel.origins]), None)


Key = Expr | Atom | Index


@dataclass(frozen=True, slots=True)
class Printed:
    """Abstract: a printed value, its text and the block it may live in. A ``name`` or literal may be repeated."""

    text: str
    depth: int = 0
    name: bool = field(default=False, kw_only=True)

    @property
    def operand(self) -> str:
        """The text as an operand."""
        return self.text if self.name else f"({self.text})"


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

    def sum_of(self, index: Index, atom: Callable[[Atom], TermT]) -> tuple[str, list[TermT]]:
        """The text of an address, from the outermost dimension inwards and what is subtracted last; and its atoms, that
        `atom` prints, sizes last in each product."""
        text, printed = "", list[TermT]()
        for monomial, c in sorted(index.terms, key=lambda term: (term[1] < 0, -len(term[0]), -abs(term[1]))):
            factors = [atom(a) for a in sorted(monomial, key=lambda a: isinstance(a, Size))]
            printed += factors
            number = [str(abs(c))] if abs(c) != 1 or not factors else []
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + " * ".join([*(factor.operand for factor in factors), *number])
        return text or "0", printed

    def shorten(self, terms: list[TermT], room: int, named: Callable[[int], TermT], least: int = 1) -> None:
        """Gives names to the longest of terms, which have ``least`` columns, while all have no ``room`` in a line."""
        while sum(len(t.text) for t in terms) > room:
            k = max(range(len(terms)), key=lambda k: 0 if terms[k].name else len(terms[k].text))
            if terms[k].name or len(terms[k].text) < least:
                break
            terms[k] = named(k)

    def is_used(self, ref: Ref) -> bool:
        """Whether anything reads the local."""
        return self._uses[ref] > 0
