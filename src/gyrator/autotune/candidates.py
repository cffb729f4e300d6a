"""What competes in a choice, and what became of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Parameters: TypeAlias = "Mapping[str, str | int | bool]"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute what a choice is about. ``backend`` is its family; ``key`` says what name and parameters do
    not; ``start`` begins to build it and returns what waits for the folder of its wrapper. The others must agree with
    the results of that which is ``plain``, by default the first."""

    name: str
    backend: str
    key: str
    parameters: Parameters
    start: Callable[[], Callable[[], Path]]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a candidate: milliseconds of a call, or why there are none. Neither: it was taken untimed."""

    name: str
    backend: str
    parameters: Parameters
    milliseconds: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a choice was about, and all trials: the best first, those that failed last. ``known``: from the records."""

    title: str
    trials: tuple[Trial, ...]
    known: bool = False


def table(choice: Choice) -> str:
    """A choice for the terminal: ``AUTOTUNE op(shapes)``, rows best first, then what failed and why."""
    best = next((trial.milliseconds for trial in choice.trials if trial.milliseconds), 0.0)
    width = max((len(trial.name) for trial in choice.trials), default=0)
    lines = [f"AUTOTUNE {choice.title}" + (" (times of an earlier run)" if choice.known else "")]
    for trial in choice.trials:
        took = trial.milliseconds
        result = trial.failure.partition("\n")[0] or "taken untimed"
        if took:
            parameters = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
            result = f"{took:.4f} ms {100 * best / took:5.1f}%  {parameters}".rstrip()
        lines.append(f"  {trial.name:{width}} {result}")
    return "\n".join(lines)
