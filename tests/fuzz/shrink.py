"""Makes a failing program small: fewer statements, outputs and arguments, while it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.programs import Program, runs

MOST_TRIALS = 60


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found within a fixed number of trials; ``fails`` says whether one fails alike.

    Only programs that eager accepts are tried. The result is ``program`` itself if nothing could be left out.
    """
    trials = 0
    found = True
    while found and trials < MOST_TRIALS:
        found = False
        for candidate in _smaller(program):
            if not runs(candidate):
                continue
            trials += 1
            if fails(candidate):
                program, found = candidate, True
                break
            if trials >= MOST_TRIALS:
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the boldest cuts first."""
    count = len(program.statements)
    if program.backward:
        yield replace(program, backward=False)
    for length in (count // 2, count // 4, 1):
        if length > 0:
            for start in range(count - length, -1, -length):
                kept = program.statements[:start] + program.statements[start + length :]
                yield _less_outputs(replace(program, statements=kept))
    if len(program.outputs) > 1:
        for index in range(len(program.outputs)):
            yield replace(program, outputs=program.outputs[:index] + program.outputs[index + 1 :])
    yield from _fewer_arguments(program)


def _less_outputs(program: Program) -> Program:
    """The program without outputs whose definition is gone; the last value stands in when none is left."""
    body = "\n".join(program.statements)

    def defined(text: str) -> bool:
        return not re.fullmatch(r"v\d+", text) or re.search(rf"^{text} = ", body, re.MULTILINE) is not None

    kept = tuple(text for text in program.outputs if defined(text))
    assigned = re.findall(r"^(v\d+) = ", body, re.MULTILINE)
    return replace(program, outputs=kept or tuple(assigned[-1:]) or tuple(program.arguments)[:1])


def _fewer_arguments(program: Program) -> Iterator[Program]:
    body = "\n".join([*program.statements, *program.outputs])
    for name in program.arguments:
        rest = {key: text for key, text in program.arguments.items() if key != name}
        used = re.search(rf"\b{name}\b", body + "\n".join(rest.values()))
        if rest and used is None:
            yield replace(program, arguments=rest)
