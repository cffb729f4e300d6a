"""What users ask about compilations: `gyrator.explain` and `gyrator.counters`."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gyrator.backend import Backend, gyrator
from gyrator.config import Config
from gyrator.report.data import GraphReport, ProgramReport, ReportData
from gyrator.report.html import page
from gyrator.report.text import text
from gyrator.report.watch import Event, GraphCompiled, kernel_tuned, record_in
from gyrator.runtime.load import WRAPPER
from gyrator.runtime.pool import Pool
from gyrator.runtime.profile import machine_peaks, step_times
from gyrator.runtime.triton_tune import Variant
from gyrator.session import Counters
from gyrator.torch_compat import ISOLATED, user_function


@dataclass(frozen=True, slots=True)
class Report:
    """What `explain` found. `str` of it, or `print`, is the text for a terminal; `data` has every figure."""

    data: ReportData

    def __str__(self) -> str:
        return text(self.data)

    def json(self) -> str:
        """All of `data` as JSON."""
        return json.dumps(asdict(self.data), indent=1)

    def html(self, path: str | Path | None = None) -> str:
        """One page with plots that needs no other file; also written to `path` if one is given.

        Raises: ToolchainMissing without the package plotly (`pip install 'gyrator[report]'`)."""
        written = page(self.data)
        if path is not None:
            Path(path).write_text(written, "utf-8")
        return written


def explain(
    function: Callable[..., object],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    dynamic: bool | None = None,
    timing: bool = True,
    **kwargs: Any,
) -> Report:
    """Compile a function or module for these arguments, or take it from the cache; tell what became of it.

    The function is called once. Backward is compiled, but not run. What the process compiled before stays as
    it is, and so does what `torch.compile` made of the same function.

    Args:
        function: a function or module, or what `torch.compile` made of one.
        args, kwargs: its arguments.
        mode, options, dynamic: as for `gyrator.compile`.
        timing: also run every kernel on random inputs to see what it takes, about half a second a graph.

    Raises: UnknownOption, InvalidOption for a wrong mode or option. What compiling or calling the function raises."""
    Config.from_options(mode, options)
    events: list[tuple[Event, float]] = []
    watcher = Backend(replace(gyrator.process, watch=lambda event: events.append((event, time.perf_counter()))))
    target = user_function(function)
    given = dict(options) if options else None
    compiled: Any = torch.compile(target, backend=watcher, mode=mode, options=given, dynamic=dynamic, **ISOLATED)  # type: ignore[call-overload]
    start = time.perf_counter()
    compiled(*args, **kwargs)
    seconds = (events[-1][1] if events else time.perf_counter()) - start
    programs = tuple(_programs([event for event, _ in events], timing))
    device = next((event.session.device.type for event, _ in events if isinstance(event, GraphCompiled)), "cpu")
    data = ReportData(
        function=getattr(target, "__qualname__", type(target).__name__),
        seconds=seconds,
        capture_seconds=max(0.0, seconds - sum(program.seconds for program in programs)),
        peaks=machine_peaks(device) if timing else None,
        programs=programs,
    )
    return Report(data)


def counters() -> Counters:
    """The counters of everything that this process compiled since it began or `gyrator.reset` was called."""
    total = Counters()
    for counted in list(gyrator.process.counted):
        total.replay(counted.all())
    return total


def _programs(events: list[Event], timing: bool) -> Iterator[ProgramReport]:
    graphs: list[GraphReport] = []
    for event in events:
        if isinstance(event, GraphCompiled):
            graphs.append(_graph(event, timing))
            continue
        yield replace(event, graphs=tuple(graphs))
        graphs = []


def _graph(event: GraphCompiled, timing: bool) -> GraphReport:
    tuned: dict[str, tuple[Variant, ...]] = {}
    return GraphReport(
        record=record_in(event.entry.folder),
        cached=event.cached,
        missed=event.session.missed,
        wrapper=str(event.entry.folder / WRAPPER),
        builds=tuple(event.session.builds),
        times=_times(event, tuned) if timing else (),
        candidates=tuned,
    )


def _times(event: GraphCompiled, tuned: dict[str, tuple[Variant, ...]]) -> tuple[float, ...]:
    """The times of a graph's steps, none where random inputs make it fail; its kernels' candidates go into `tuned`."""
    folder = event.entry.folder

    def told(name: str, candidates: Sequence[Variant], new: bool) -> None:
        tuned[name] = tuple(candidates)
        kernel_tuned(event.session.config, folder, name, candidates, new)

    try:
        return step_times(gyrator.process.runtime(event, Pool(), told))
    except Exception:  # whatever an operator thinks of random inputs
        return ()
