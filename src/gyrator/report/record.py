"""What is known of a compiled graph: kernels, steps, fusions refused, memory. Stored beside its code as JSON, so that a
graph from the cache can be explained like a new one. Sizes that are symbols count as the hints that the graph was
compiled with."""

from collections.abc import Mapping
from dataclasses import dataclass

from gyrator.autotune.tuner import Choice
from gyrator.metrics.kernels import KernelFacts

Places = tuple[str, ...]
"""Lines like ``model.py:12 in forward: aten.mm.default``."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A generated kernel. `facts` are those of one launch."""

    name: str
    symbol: str
    source: str
    places: Places
    launches: int
    arguments: int
    facts: KernelFacts


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A launch of a kernel, or a call of an operator: what it computes, reads and writes (names of values).
    `why` says for a call why no kernel was generated."""

    kind: str
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes: int
    places: Places = ()
    nests: tuple[str, ...] = ()
    operations: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unfused:
    """A producer and a reader of its value that are no common kernel, and why; `mismatch`: by their indices."""

    producer: str
    reader: str
    value: str
    bytes: int
    reason: str
    producer_place: str
    reader_place: str
    mismatch: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory that is held when most is: whose it is, and the user's place."""

    value: str
    bytes: int
    place: str


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A compiled graph.

    Attributes:
        inputs, outputs: names of values.
        memory: bytes that the graph's own values hold after each step; `holders` are those at the peak.
        counters: as `Counters.about_code` writes them.
        choices: what was chosen by measurement, and from what."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[KernelRecord, ...]
    steps: tuple[StepRecord, ...]
    unfused: tuple[Unfused, ...]
    memory: tuple[int, ...]
    holders: tuple[Holder, ...]
    counters: Mapping[str, int]
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of the forward graph that backward reads or computes again, and why."""

    value: str
    saved: bool
    reason: str
    bytes: int
    place: str


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """What is known of a captured program beside its graphs: what forward keeps for backward.

    `saved_bytes` are of values that would otherwise be freed, `default_bytes` the same without recomputation."""

    kept: tuple[Kept, ...] = ()
    saved_bytes: int = 0
    default_bytes: int = 0
