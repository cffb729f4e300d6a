"""What C++, Triton and Python are printed with alike: comments, long lines, sums of indices."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from textwrap import TextWrapper

from gyrator.ir.index import Atom, Index, Size
from gyrator.ir.tree import Kernel
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
    """A line as several, broken after commas within its brackets, or else after an opening one; each further line
    starts with four spaces.

    Comments and deletions stay as they are, and so does a piece without a place to break at."""
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
    indexing = [o for o in kernel.origins if any(word in o.op for word in words)]
    return next(iter([*indexing, *kernel.origins]), None)


def ordered_terms(index: Index) -> list[tuple[int, list[Atom]]]:
    """The terms of an address from the outermost dimension inwards, what is subtracted last: the coefficient of each,
    and its atoms, sizes last."""
    terms = sorted(index.terms, key=lambda term: (term[1] < 0, -len(term[0]), -abs(term[1])))
    return [(c, sorted(monomial, key=lambda atom: isinstance(atom, Size))) for monomial, c in terms]


def sum_text(terms: Sequence[tuple[int, Sequence[str]]]) -> str:
    """A sum of products; each term is its coefficient and the texts of its other factors."""
    text = ""
    for c, factors in terms:
        product = " * ".join([*factors, *([str(abs(c))] if abs(c) != 1 or not factors else [])])
        if text:
            text += f" {'-' if c < 0 else '+'} {product}"
        else:
            text = f"-{product}" if c < 0 else product
    return text or "0"
