"""The state of one compilation, made at its start and passed to every stage; nothing of it is global."""

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import count
from pathlib import Path

import torch

from gyrator.config import Config
from gyrator.errors import GyratorWarning
from gyrator.progress import Progress, progress_for


class Count(StrEnum):
    """What a compilation counts. A new counter is one line here."""

    # about the code
    NESTS_BEFORE_FUSION = "nests before fusion"
    NESTS_AFTER_FUSION = "nests after fusion"
    KERNELS = "generated kernels"
    LAUNCHES = "launches of kernels"
    POINTWISE = "pointwise kernels"
    PERSISTENT_REDUCTIONS = "persistent reduction kernels"  # rows stay in scratch, or in registers, between loops
    LOOPED_REDUCTIONS = "looped reduction kernels"
    SPLIT_REDUCTIONS = "split reduction kernels"  # threads, or several launches, share a row; results are merged
    COOPERATIVE_REDUCTIONS = "cooperative reduction kernels"  # blocks share a row, within one launch (GPU)
    MIX_ORDER_REDUCTIONS = "mix-order reduction kernels"  # rows and columns of one tensor
    SCANS = "scan kernels"
    SCATTERS = "scatter kernels"
    FOREACH = "foreach kernels"  # several loops that share nothing
    TEMPLATES = "template kernels"
    CPP_VECTORISED = "vectorised C++ kernels"
    CPP_CASTS = "dtype casts in C++ kernels"
    OUTER_LOOP_FUSIONS = "outer-loop fusions"
    OUTER_LOOP_INNER_KERNELS = "inner kernels of outer-loop fusions"
    OUTER_LOOP_BUFFERS = "local buffers of outer-loop fusions"
    PARALLEL_REDUCTIONS = "parallel reductions"
    LOOP_REORDERINGS = "loop reorderings"
    SCATTERS_UPON_CONSTANTS = "scatters upon constants"
    PADDED_STRIDES = "padded strides"
    EXTERN_CALLS = "extern calls"
    BYTES_ACCESSED = "bytes accessed by kernels"
    ELEMENTS = "elements written by kernels"
    ESTIMATED_NS = "estimated nanoseconds of kernels"
    # about getting it
    KERNELS_BUILT = "kernels built"
    KERNELS_CACHED = "kernels taken from the cache"
    COMPILER_RUNS = "compiler runs"
    GRAPH_CACHE_HITS = "graphs taken from the cache"
    GRAPH_CACHE_MISSES = "graphs not in the cache"


ABOUT_GETTING = frozenset([*Count][[*Count].index(Count.KERNELS_BUILT) :])
"""Counters that depend on the cache; the others are the same whether code is generated or found."""


class Counters:
    """Sums by `Count`, and how often each extern operator is called. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()  # by the names of a Count, and externs as ``extern OP``

    def all(self) -> dict[str, int]:
        """All sums: counters by their names, externs as ``extern OP``."""
        with self._lock:  # kernels are built, and counted, while others read
            return dict(self._sums)

    def add(self, what: Count, n: int = 1) -> None:
        """Add n to a counter."""
        self.replay({what.name: n})

    def add_extern(self, op: str) -> None:
        """Count a call of an operator that was not lowered, in total and by its name."""
        self.replay({Count.EXTERN_CALLS.name: 1, f"{_EXTERN}{op}": 1})

    def __getitem__(self, what: Count) -> int:
        return self._sums[what.name]

    def externs(self) -> Mapping[str, int]:
        """How often each extern operator is called, the most frequent first."""
        order = sorted(self.all().items(), key=lambda item: (-item[1], item[0]))
        return {name.removeprefix(_EXTERN): n for name, n in order if name.startswith(_EXTERN)}

    def about_code(self) -> dict[str, int]:
        """Those of `all` that a cache hit must count again."""
        getting = {what.name for what in ABOUT_GETTING}
        return {name: n for name, n in self.all().items() if name not in getting}

    def replay(self, counts: Mapping[str, int]) -> None:
        """Add what `all` or `about_code` gave."""
        with self._lock:
            self._sums.update(counts)


_EXTERN = "extern "


@dataclass(frozen=True, slots=True)
class Timing:
    """A finished stage or pass, or a compiler run, which has the names of the kernels that it built together: how deep
    it lay in others, how long it took, and when it began (seconds after the session did)."""

    name: str
    depth: int
    seconds: float
    start: float = 0.0


class DumpWriter:
    """Writes numbered text files into a folder of one session: `00_captured.txt`, `01_lowered.txt`, ..."""

    def __init__(self, parent: Path, name: str) -> None:
        self._parent, self._name, self._numbers = parent, name, count()

    @cached_property
    def folder(self) -> Path:
        """A new folder `name` in the parent, made when it is first needed; `name.1`, `name.2`, ... if that exists."""
        for attempt in count():
            folder = self._parent / (f"{self._name}.{attempt}" if attempt else self._name)
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
        return folder

    def write(self, name: str, text: str, suffix: str = "txt") -> Path:
        """Write the next file and return its path."""
        path = self.folder / f"{next(self._numbers):02d}_{name.replace(' ', '_').replace('/', '_')}.{suffix}"
        path.write_text(text if text.endswith("\n") else text + "\n", "utf-8")
        return path


class Session:
    """One compilation: its options and target, and what it counts, times, warns, writes and shows.

    `device` is the target, which need not exist on this machine. `told` are the warnings that the user has had;
    sessions that share it say nothing twice. `programs` are the results of passes by name, kept with the option
    `validate`; `builds` the compiler runs, which overlap with each other and with stages; `missed` says why the cache
    did not have it, if `why_missed` asks. Use as a context manager; `stops` are called if an exception ends it, or a
    session that it is a part of: they end what was begun and is not waited for any more."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        name: str = "graph",
        progress: Progress | None = None,
        told: set[str] | None = None,
        why_missed: bool = False,
    ) -> None:
        self.config = config
        self.device = device
        self.name = name
        self.counters = Counters()
        self.progress = progress or progress_for(config.progress, f"gyrator {name}")
        self.dump = DumpWriter(config.dump, name) if config.dump is not None else None
        self.programs: list[tuple[str, object]] = []
        self.builds: list[Timing] = []
        self.stops: list[Callable[[], object]] = []
        self.why_missed, self.missed = why_missed, ""
        self._timings: list[Timing] = []
        self._around: Session | None = None
        self._told = set() if told is None else told
        self._depth = 0
        self._start = time.perf_counter()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """End the progress display, and after an exception what still runs; a dump gets the times of the stages."""
        for stop in self.stops if failure is not None else ():
            stop()
        self.progress.close()
        if self.dump is not None:
            lines = [f"{t.seconds * 1e3:9.2f} ms  {'  ' * t.depth}{t.name}" for t in self.timings]
            self.dump.write("times", "\n".join(lines))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what runs inside, and show its name as progress. Stages nest; call from one thread."""
        self.progress.update(name)
        depth, start = self._depth, time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth = depth
            self._ended(name, depth, start, time.perf_counter() - start)

    def _ended(self, name: str, depth: int, start: float, seconds: float) -> None:
        self._timings.append(Timing(name, depth, seconds, start - self._start))
        if self._around is not None:
            self._around._ended(name, self._around._depth + depth, start, seconds)

    def child(self, name: str, *, apart: bool = False) -> "Session":
        """A session for a part of this one, with its options, target and display; its stages lie within, or `apart`."""
        part = Session(self.config, self.device, name, self.progress, self._told, self.why_missed)
        part.stops, part._around = self.stops, None if apart else self
        return part

    @contextmanager
    def building(self, kernels: Iterable[str]) -> Iterator[None]:
        """Time a compiler run. May be called from several threads."""
        start = time.perf_counter()
        yield
        self.builds.append(Timing(", ".join(kernels), 0, time.perf_counter() - start, start - self._start))

    def keep(self, name: str, program: object) -> None:
        """Keep the result of a stage or pass, if all levels are to be compared (the option `validate`)."""
        if self.config.validate:
            self.programs.append((name, program))

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The finished stages in the order in which they began."""
        return tuple(sorted(self._timings, key=lambda timing: (timing.start, timing.depth)))

    def warn(self, text: str) -> None:
        """Tell the user something. What is in `told` already is not said again."""
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, GyratorWarning, stacklevel=2)
