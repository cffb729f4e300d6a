"""The text of a foreach kernel: loops side by side, each program runs a block of one of them.

Loops whose text differs in pointers and extents alone share it. Which are meant follows from the program's number:

    pid = tl.program_id(0)
    if (pid >= 0) & (pid < 7):
        x = x_0; y = y_0; n = 2500; first = 0
        here = pid >= 3
        x = tl.where(here, x_1, x); y = tl.where(here, y_1, y); n = tl.where(here, 4000, n); …
        i = (pid - first) * XBLOCK + tl.arange(0, XBLOCK)
        tl.store(y + i, tl.exp(tl.load(x + i, i < n)), i < n)

Branches would not be faster: compilers turn them into selections, and hold all pointers in registers for these."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gyrator.codegen.triton_source import Pointer

VECTOR = 16
"""Loops share text only if their extents are alike in being a multiple of so many elements, which move at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A printed loop: its text, with names for its pointers, ``n`` for its extent, ``first`` for its first program."""

    lines: tuple[str, ...]
    pointers: tuple[tuple[str, Pointer], ...]
    extent: int
    programs: int


def side_by_side(parts: Iterable[Part]) -> tuple[list[str], int]:
    """The body of a kernel, and how many programs it runs."""
    alike: dict[Hashable, list[Part]] = {}
    for part in parts:
        types = tuple((name, pointer.dtype) for name, pointer in part.pointers)
        alike.setdefault((part.lines, types, part.extent % VECTOR == 0), []).append(part)
    text, first = ["pid = tl.program_id(0)"], 0
    for found in alike.values():
        starts = [*accumulate((part.programs for part in found), initial=first)]
        text.append(f"if (pid >= {first}) & (pid < {starts[-1]}):")
        text += [f"    {line}" for line in (*_chosen(found, starts), *found[0].lines)]
        first = starts[-1]
    return text, first


def _chosen(parts: Sequence[Part], starts: Sequence[int]) -> list[str]:
    known: dict[str, str] = {}
    text: list[str] = []
    for part, start in zip(parts, starts, strict=False):
        now = {name: pointer.name for name, pointer in part.pointers} | {"n": str(part.extent), "first": str(start)}
        new = {name: value for name, value in now.items() if known.get(name) != value}
        text += [f"here = pid >= {start}"] if known else []
        text += [f"{name} = {f'tl.where(here, {value}, {name})' if known else value}" for name, value in new.items()]
        known = now
    return text
