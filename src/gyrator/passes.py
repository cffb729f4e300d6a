"""The pass runner: run, time, check, dump what changed, and blame. Every stage is a list of named passes over one data
type. A pass is a pure function; it declares the spec that its result satisfies, and the runner checks that it does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import fx

from gyrator.errors import GyratorError, InternalCheckError
from gyrator.origin import Origin
from gyrator.session import Session

P = TypeVar("P")


class RuleBroken(Exception):
    """A representation breaks a rule; the text says which."""


@dataclass(frozen=True)
class Pass(Generic[P]):
    """A named step from program to program, and the spec that its result satisfies: a function that checks a program
    and raises an exception whose text says which rule is broken, and where."""

    name: str
    run: Callable[[P], P]
    leaves: Callable[[P], None] | None = None


def run_passes(program: P, passes: Sequence[Pass[P]], session: Session, *, text: Callable[[P], str] = str) -> P:
    """The program after all passes, in order.

    After each pass the spec it leaves is checked with `check="every"`; with `check="borders"` only after
    the last one. `text` prints a program for dumps, which are written after a pass that changed it.

    Raises: InternalCheckError if a pass failed or broke its spec; it names the pass, and node and line where known. Any
    other GyratorError that a pass raised, as it was."""
    last = len(passes) - 1
    for position, step in enumerate(passes):
        before = program
        with session.stage(step.name), blame(within=step.name, how="it raised "):
            program = step.run(before)
        checked = session.config.check == "every" or (session.config.check == "borders" and position == last)
        if checked and step.leaves is not None:
            with session.stage(f"check {step.name}"), blame(within=step.name):
                step.leaves(program)
        session.keep(step.name, program)
        if session.dump is not None and program is not before:
            session.dump.write(step.name, text(program))
    return program


@contextmanager
def blame(node: object = None, where: Origin | None = None, *, within: str = "", how: str = "") -> Iterator[None]:
    """Around the work on one node, of which a failure names the text and the user's line, or around the pass or check
    that it is done `within`: a failure names that, unless it names an inner one already."""
    try:
        yield
    except InternalCheckError as error:
        name = error.pass_name or within
        raise InternalCheckError(name, error.problem, where=error.where, node=error.node) from error
    except GyratorError:
        raise
    except Exception as error:
        text = node.format_node() if isinstance(node, fx.Node) else str(node or "")
        problem = str(error) if isinstance(error, RuleBroken) else f"{how}{type(error).__name__}: {error}"
        raise InternalCheckError(within, problem, where=where, node=text) from error
