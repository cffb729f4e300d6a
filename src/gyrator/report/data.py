"""What is known of compilations, as plain data. Records, of kernels, steps, fusions refused and memory, are stored
beside a graph's code as JSON, so that one from the cache can be explained like a new one; reports are what `explain`
made of them. Sizes that are symbols count as the hints that a graph was compiled with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gyrator.autotune.tuner import Choice
from gyrator.metrics.kernels import KernelFacts
from gyrator.runtime.profile import Peaks
from gyrator.runtime.triton_tune import Variant
from gyrator.session import Timing

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


@dataclass(frozen=True, slots=True)
class GraphReport:
    """A compiled graph.

    Attributes:
        cached: the cache had it; otherwise `missed` says what was new.
        wrapper: where its program lies.
        builds: the compiler runs for its kernels.
        times: seconds of each launch and call of `record.steps`, on random inputs; () if not measured.
        candidates: of the kernels among whose configs the fastest was chosen, by their names."""

    record: GraphRecord
    cached: bool
    missed: str
    wrapper: str
    builds: tuple[Timing, ...]
    times: tuple[float, ...]
    candidates: Mapping[str, tuple[Variant, ...]]

    def timed_steps(self) -> Iterator[tuple[StepRecord, float | None]]:
        """Launches and calls in order, each with its seconds where measured."""
        steps = [step for step in self.record.steps if step.kind != "copy"]
        yield from zip(steps, self.times if len(self.times) == len(steps) else [None] * len(steps), strict=True)

    def kernel_seconds(self) -> dict[str, float]:
        """Seconds of one launch of each kernel, the mean of its launches, where measured."""
        found: dict[str, list[float]] = {}
        for step, seconds in self.timed_steps():
            if step.kind == "kernel" and seconds is not None:
                found.setdefault(step.name, []).append(seconds)
        return {name: sum(times) / len(times) for name, times in found.items()}


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A captured program: why it ended where it did, its graphs (forward or inference, then backward), all stages."""

    name: str
    ended: str
    place: str
    recompiled: str
    cached: bool
    missed: str
    seconds: float
    stages: tuple[Timing, ...]
    record: ProgramRecord
    graphs: tuple[GraphReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """One call of a function: its programs, what capture took (torch.compile's own work), and what the
    machine reaches where kernels were timed. `seconds` is the wall time until the last program was ready."""

    function: str
    seconds: float
    capture_seconds: float
    peaks: Peaks | None
    programs: tuple[ProgramReport, ...]

    def graphs(self) -> Iterator[GraphReport]:
        """The graphs of all programs."""
        for program in self.programs:
            yield from program.graphs

    def stages(self) -> Iterator[Timing]:
        """Every stage, after the one that it is in: capture, then program by program."""
        yield Timing("capture (torch.compile)", 0, self.capture_seconds)
        for program in self.programs:
            yield Timing(program.name, 0, program.seconds)
            yield from (replace(stage, depth=1 + stage.depth) for stage in program.stages)

    def accounted(self) -> float:
        """The share of the wall time that stages at the top account for."""
        inside = sum(stage.seconds for p in self.programs for stage in p.stages if stage.depth == 0)
        return (self.capture_seconds + inside) / self.seconds if self.seconds else 1.0


def roofline(kernel: KernelRecord, seconds: float, peaks: Peaks) -> float:
    """Which share of what the machine reaches a kernel reaches, by bytes or operations, whichever binds."""
    facts = kernel.facts
    return max(facts.bytes / peaks.bytes, facts.operations / peaks.operations) / seconds if seconds else 0.0
