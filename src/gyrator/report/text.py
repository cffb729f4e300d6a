"""A report as text for the terminal."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.filesize import decimal as size_text
from rich.markup import escape
from rich.table import Table

from gyrator.report.data import GraphReport, KernelRecord, ProgramReport, ReportData, roofline

ROWS = 12
"""Most rows of a table; the rest is counted."""


def text(report: ReportData) -> str:
    """All of a report that fits on a few screens."""
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=False)
    graphs = list(report.graphs())
    kernels = sum(len(graph.record.kernels) for graph in graphs)
    calls = sum(step.kind == "extern" for graph in graphs for step in graph.record.steps)
    console.print(
        f"[bold]{escape(report.function)}[/]: {len(report.programs)} captured, {len(graphs)} graphs, "
        f"{kernels} kernels, {calls} calls of operators; ready after {report.seconds:.2f} s"
    )
    for program in report.programs:
        _program(console, program)
        for graph in program.graphs:
            _graph(console, graph, report)
    _compile_time(console, report)
    return out.getvalue()


def _program(console: Console, program: ProgramReport) -> None:
    ended = f"; ended at {program.place}: {program.ended}" if program.ended else ""
    source = "from the cache" if program.cached else f"compiled ({program.missed or 'not looked up'})"
    console.print(f"\n[bold]{program.name}[/] {escape(source)}{escape(ended)}", highlight=False)
    if program.recompiled:
        console.print(f"  compiled again because {escape(program.recompiled)}", highlight=False)
    record, kept = program.record, program.record.kept
    if kept:
        saved = sum(k.saved for k in kept)
        console.print(
            f"  for backward: {saved} values saved ({size_text(record.saved_bytes)}; all that it reads would be "
            f"{size_text(record.default_bytes)}), {len(kept) - saved} recomputed"
        )
        rows = [("saved" if k.saved else "recomputed", k.value, size_text(k.bytes), k.reason, k.place) for k in kept]
        _table(console, "", ("", "value", "size", "why", "place"), rows)


def _graph(console: Console, graph: GraphReport, report: ReportData) -> None:
    record, seconds = graph.record, graph.kernel_seconds()
    source = "from the cache" if graph.cached else f"compiled ({graph.missed or 'not looked up'})"
    console.print(f"\n[bold]{record.name}[/] {escape(source)}; {escape(graph.wrapper)}", highlight=False)

    def row(kernel: KernelRecord) -> Sequence[str]:
        took, facts = seconds.get(kernel.name), kernel.facts
        share = f"{roofline(kernel, took, report.peaks):.0%}" if took and report.peaks else ""
        figures = f"{kernel.launches}", size_text(facts.bytes), f"{facts.operations:,}", _us(took), share
        return kernel.name, facts.kind, *figures, (*kernel.places, "")[0]

    kernels = map(row, record.kernels)
    _table(console, "kernels", ("kernel", "kind", "n", "bytes", "operations", "us", "roof", "from"), kernels)
    externs = [(step, took) for step, took in graph.timed_steps() if step.kind == "extern"]
    calls = [(s.name, size_text(s.bytes), _us(took), s.why, (*s.places, "")[0]) for s, took in externs]
    _table(console, "calls of operators", ("operator", "bytes", "us", "why", "from"), calls)
    timed = [(name, c) for name, candidates in graph.candidates.items() for c in candidates]
    tried = [(name, c.config, _us(c.milliseconds, 1e3) or "refused", "x" if c.chosen else "") for name, c in timed]
    _table(console, "configs that were timed", ("kernel", "config", "us", "chosen"), tried)
    chosen = [(c.title, t.name, _us(t.milliseconds, 1e3), t.failure) for c in record.choices for t in c.trials]
    _table(console, "candidates, the chosen first", ("choice", "candidate", "us", "why not"), chosen)
    apart = sorted(record.unfused, key=lambda pair: -pair.bytes)
    pairs = [(u.producer, u.reader, size_text(u.bytes), u.reason, u.reader_place) for u in apart]
    _table(console, "not fused", ("producer", "reader", "bytes", "why", "reader's place"), pairs)
    held, peak = [(h.value, size_text(h.bytes), h.place) for h in record.holders], max(record.memory, default=0)
    _table(console, f"memory at the peak of {size_text(peak)}", ("value", "bytes", "from"), held)


def _us(time: float | None, unit: float = 1e6) -> str:
    """Microseconds of a time in seconds, or in another unit; nothing where it is not known."""
    return f"{time * unit:.1f}" if time else ""


def _compile_time(console: Console, report: ReportData) -> None:
    rows = [(f"{'  ' * stage.depth}{stage.name}", f"{stage.seconds * 1e3:.1f}") for stage in report.stages()]
    _table(console, f"compile time, {report.accounted():.0%} of it in stages", ("stage", "ms"), rows, most=200)
    builds = sorted((b for g in report.graphs() for b in g.builds), key=lambda b: -b.seconds)
    runs = [(build.name, f"{build.seconds * 1e3:.0f}") for build in builds]
    _table(console, "compiler runs", ("kernels", "ms"), runs)


def _table(console: Console, title: str, head: Sequence[str], rows: Iterable[Sequence[str]], most: int = ROWS) -> None:
    rows = list(rows)
    if not rows:
        return
    table = Table(*head, title=title or None, title_justify="left", box=None, pad_edge=False)
    for row in rows[:most]:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    if len(rows) > most:
        console.print(f"… and {len(rows) - most} more")
