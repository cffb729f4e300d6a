"""What seeing costs a compile: ``python -m benchmarks.explain_cost --json FILE``.

The training step of a BERT of two layers is compiled with an empty cache, plain and by ``explain`` without timing,
in turns. ``recording`` is the part of a plain compile that only makes and stores what can be explained later: with
everything switched off it is all that seeing costs. Figures are CPU seconds, compilers included, the least of all
turns, since other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import gyrator
from benchmarks.compile_time import bert
from benchmarks.measure import machine
from gyrator import backend, pipeline

RECORDING = (
    (pipeline, "describe"), (pipeline, "to_json"), (pipeline, "graph_compiled"),
    (backend, "program_record"), (backend, "to_json"), (backend, "program_compiled"),
)  # fmt: skip
"""What runs in every compile only so that it can be explained."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a compile, of one that is explained, and of recording within the first."""

    layers: int
    plain: float
    explained: float
    recording: float

    def line(self) -> str:
        """The figures for a reader."""
        more, off = self.explained / self.plain - 1, self.recording / self.plain
        return (
            f"BERT of {self.layers} layers: {self.plain:.2f} s, explained {self.explained:.2f} s ({more:+.1%}); "
            f"recording {1e3 * self.recording:.0f} ms ({off:.1%})"
        )


def cpu_seconds() -> float:
    """Of this process and of the compilers that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def compiled(layers: int, *, explained: bool) -> float:
    """CPU seconds of one compile of forward and backward, capture included."""
    torch._dynamo.reset()
    model, batch = bert(layers)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"cache_dir": folder, "progress": "off"}
        start = cpu_seconds()
        if explained:
            gyrator.explain(model, options=options, timing=False, **batch)
        else:
            torch.compile(model, backend="gyrator", options=options)(**batch)
        return cpu_seconds() - start


@contextmanager
def recording_timed() -> Iterator[list[float]]:
    """A list that takes the CPU seconds of every call of what records."""
    found: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                found.append(time.thread_time() - start)

        return call

    before: list[tuple[ModuleType, str, Any]] = [(m, name, getattr(m, name)) for m, name in RECORDING]
    for module, name, function in before:
        setattr(module, name, timed(function))
    try:
        yield found
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def measured(layers: int, turns: int) -> Cost:
    """The least of several turns each, after one that counts for nothing."""
    compiled(1, explained=True)
    plain, explained, recording = [], [], []
    for _ in range(turns):
        plain.append(compiled(layers, explained=False))
        explained.append(compiled(layers, explained=True))
        with recording_timed() as spent:
            compiled(layers, explained=False)
        recording.append(sum(spent))
    return Cost(layers, min(plain), min(explained), min(recording))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints a line and writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explain_cost", description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    cost = measured(options.layers, options.turns)
    print(cost.line())
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "cost": asdict(cost)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
