"""Choosing among candidates: those that compete are built at the same time, timed, recorded, ranked and shown."""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch

from gyrator.autotune.parts import Builder
from gyrator.autotune.sandbox import NO_ANSWER, Sandboxes
from gyrator.cache.key import source_digest
from gyrator.cache.store import Json, digest
from gyrator.ir.program import Extern, output_values
from gyrator.ir.text import canonical_text
from gyrator.ir.volume import count_of
from gyrator.runtime.workers import WorkerEnded
from gyrator.schedule.products import Alternative, Question, product_of
from gyrator.torch_compat import float32_matmul_precision

T = TypeVar("T")
Parameters = Mapping[str, str | int | bool]

UNTIMED = (("cpp",), ("subgraph",))
"""Families that are taken without timing if no other may compete: the first candidate, the best guess."""


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
    milliseconds: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What a choice was about, and all trials: the best first, those that failed last. ``known``: from the records."""

    title: str
    trials: tuple[Trial, ...]
    known: bool


@dataclass(frozen=True, slots=True)
class Tuner:
    """The choices of one graph on ``device``. Times are kept where ``builder`` keeps kernels."""

    builder: Builder
    device: torch.device
    sandboxes: Sandboxes
    choices: list[Choice] = field(default_factory=list)

    def ask(self, question: Question) -> tuple[Alternative, ...]:
        """Answers a schedule: alternatives become programs of their own, timed on random inputs."""
        part, ways = question.program, question.alternatives
        plain = max(ways, key=lambda a: len(a.units))  # nothing is fused with the product
        starts = {a.name: partial(self.builder.start_units, part, a.units) for a in ways}
        candidates = [Candidate(a.name, a.backend, "", dict(a.parameters), starts[a.name], a is plain) for a in ways]
        dims = [n for i in part.inputs if i.value is not None for n in (*i.value.shape, *i.value.strides)]
        sizes = sorted({(s.name, s.lo, s.hi or "", s.hint or 0) for n in dims for s in n.sizes()}, key=str)
        products = [p for node in part.nodes if isinstance(node, Extern) and (p := product_of(node)) is not None]
        work = [prod(count_of(n) for n in (*p.shape, p.left.shape[-1])) for p in products]
        about = f"{canonical_text(part.nodes, output_values(part.outputs))}\n{sizes}"
        ranked = self.rank(question.title, about, sum(work) or 1, candidates, question.panels)
        of = {alternative.name: alternative for alternative in ways}
        return tuple(of[candidate.name] for candidate in ranked)

    def rank(
        self, title: str, about: str, size: int, candidates: Sequence[Candidate], panels: Sequence[Sequence[int]] = ()
    ) -> tuple[Candidate, ...]:
        """The candidates that can be used, best first; they are given the best guess first.

        ``title`` names op and shapes, ``about`` all else that times depend on beside the machine and the candidates.
        ``size`` is M·N·K: a family does not compete below the least that its option says. ``panels``: see Question."""
        session, config = self.builder.session, self.builder.session.config
        least = {"triton": config.triton_min_gemm_size, "cpp": config.cpp_min_gemm_size}
        least["subgraph"] = config.subgraph_min_gemm_size
        competing = [c for c in candidates if c.backend in config.gemm_backends and size >= least.get(c.backend, 0)]
        rivals = len(competing) > 1 or any(c.backend != "aten" for c in competing)
        choice = Choice(title, tuple(map(_trial, competing[:1])), known=False)
        if rivals and config.gemm_backends not in UNTIMED:
            with session.stage("autotune"):
                choice = self._time(title, about, competing, panels)
        if rivals:
            self.choices.append(choice)
            if not config.autotune_silent and config.gemm_backends not in UNTIMED:
                print(table(choice), file=sys.stderr)
        by_name = {c.name: c for c in competing}
        ranked = tuple(by_name[t.name] for t in choice.trials if not t.failure)
        if not ranked:
            why = "; ".join(f"{t.name}: {t.failure}" for t in choice.trials) or "no family that is allowed has one"
            session.warn(f"{title}: no candidate is viable, so the library is called ({why})")
        return ranked

    def _time(self, title: str, about: str, candidates: Sequence[Candidate], panels: Sequence[Sequence[int]]) -> Choice:
        config, stores, on_gpu = self.builder.session.config, self.builder.stores, self.device.type == "cuda"
        store, target = stores.times, self.builder.targets.key()
        device = torch.cuda.get_device_name(self.device) if on_gpu else torch.backends.cpu.get_cpu_capability()
        threads = min(config.threads or torch.get_num_threads(), torch.get_num_threads())
        settings = {"threads": threads, "precision": float32_matmul_precision()}
        versions = (torch.__version__, torch.version.cuda, source_digest(), target, device, os.cpu_count())
        key = digest(repr((about, [(c.name, c.key, *c.parameters.items()) for c in candidates], settings, versions)))
        if (entry := store.find(key, warn=lambda _: None)) is not None:
            return Choice(title, _ranked(candidates, entry.notes["trials"]), known=True)
        built = dict(_built(sorted(candidates, key=lambda c: not c.plain), config.builders))
        folders = {name: folder for name, folder in built.items() if isinstance(folder, Path)}
        found: dict[str, Json] = {name: folder for name, folder in built.items() if isinstance(folder, str)}
        try:
            asked = {**settings, "store": str(stores.root), "panels": panels}
            took = self.sandboxes.time([*folders.values()], self.device, asked, config)
        except WorkerEnded as problem:
            return Choice(title, _ranked(candidates, dict.fromkeys(built, str(problem))), known=False)
        found |= zip(folders, took, strict=True)
        if not any(str(trial).startswith(NO_ANSWER) for trial in took):  # the machine may have been busy
            store.put(key, {}, {"title": title, "trials": found})
        trials = _ranked(candidates, found)
        if config.autotune_log is not None:
            about_all = {"choice": title, "key": key, "device": device}
            with config.autotune_log.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps({**about_all, **asdict(t)}) + "\n" for t in trials)
        return Choice(title, trials, known=False)


def _built(candidates: Sequence[Candidate], most: int) -> Iterator[tuple[str, Path | str]]:
    """Each candidate's folder, or why it cannot be built; ``most`` are on their way at once."""
    begun = ((candidate.name, _attempt(candidate.start)) for candidate in candidates)
    waiting = deque(islice(begun, most))
    while waiting:
        name, wait = waiting.popleft()
        yield name, wait if isinstance(wait, str) else _attempt(wait)
        waiting.extend(islice(begun, 1))


def _attempt(step: Callable[[], T]) -> T | str:
    try:
        return step()
    except Exception as error:  # whatever is wrong with a candidate costs that candidate
        return f"{type(error).__name__}: {error}".partition("\n  try:")[0]


def _ranked(candidates: Sequence[Candidate], found: Mapping[str, Any]) -> tuple[Trial, ...]:
    trials = [_trial(candidate, found[candidate.name]) for candidate in candidates]
    return tuple(sorted(trials, key=lambda t: (t.milliseconds is None, t.milliseconds or 0.0)))


def _trial(candidate: Candidate, found: float | str | None = None) -> Trial:
    took, failure = (None, found) if isinstance(found, str) else (found, "")
    return Trial(candidate.name, candidate.backend, candidate.parameters, took, failure)


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
