"""A report: everything that `explain` found, as plain data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gyrator.report.record import GraphRecord, KernelRecord, ProgramRecord, StepRecord
from gyrator.runtime.profile import Peaks
from gyrator.runtime.triton_tune import Variant
from gyrator.session import Timing


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
