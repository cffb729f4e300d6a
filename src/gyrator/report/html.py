"""A report as one HTML page with plots, everything within it."""

import json
import linecache
import re
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from gyrator.optional import require
from gyrator.report.data import Places, ReportData, roofline
from gyrator.report.diagram import TEMPLATES, diagram

AROUND = 2
"""Lines of the user's program shown before and after the one that a kernel comes from."""

_PLACE = re.compile(r"^(?P<file>.+):(?P<line>\d+) in ")
Plot = dict[str, Any]


def page(report: ReportData) -> str:
    """The page. Raises: ToolchainMissing without the package plotly."""
    plotly = require("plotly", "offline")
    graphs = [
        {"number": n, "report": g, "seconds": g.kernel_seconds(), "diagram": Markup(diagram(g.record, f"#g{n}-"))}
        for n, g in enumerate(report.graphs())
    ]
    plots = {"time": _compile_time(report), "points": _points(report), "roof": _roof(report), "memory": _memory(report)}
    return TEMPLATES.get_template("page.html.jinja").render(
        report=report,
        graphs=graphs,
        plots=Markup(json.dumps(plots).replace("</", "<\\/")),
        plotly=Markup(plotly.get_plotlyjs()),
        roofline=roofline,
        user_lines=_user_lines,
    )


def _user_lines(places: Places) -> Iterator[tuple[str, str]]:
    """For each place its line, and the user's program there."""
    for place in places:
        match = _PLACE.match(place)
        source = ""
        if match is not None:
            line = int(match["line"])
            span = range(max(1, line - AROUND), line + AROUND + 1)
            shown = [(n, linecache.getline(match["file"], n)) for n in span]
            source = "".join(f"{'>' if n == line else ' '}{n:5d}  {text}" for n, text in shown if text)
        yield place, source


def _compile_time(report: ReportData) -> Plot:
    """Stages by number, each with the number of the one around it."""
    rows: list[tuple[str, str, str, float]] = [("all", "all", "", report.seconds)]
    around = ["all"]
    for number, stage in enumerate(report.stages()):
        rows.append((str(number), stage.name, around[stage.depth], stage.seconds))
        around[stage.depth + 1 :] = [str(number)]
    return dict(zip(("ids", "labels", "parents", "values"), zip(*rows, strict=True), strict=True))


def _points(report: ReportData) -> Plot:
    """Each timed kernel by operations a byte and a second."""
    points = [
        (number, kernel, seconds)
        for number, graph in enumerate(report.graphs())
        for took in [graph.kernel_seconds()]
        for kernel in graph.record.kernels
        if (seconds := took.get(kernel.name)) and kernel.facts.bytes and kernel.facts.operations
    ]
    return {
        "x": [kernel.facts.operations / kernel.facts.bytes for _, kernel, _ in points],
        "y": [kernel.facts.operations / seconds / 1e9 for _, kernel, seconds in points],
        "text": [kernel.name for _, kernel, _ in points],
        "customdata": [f"g{number}-{kernel.name}" for number, kernel, _ in points],
    }


def _roof(report: ReportData) -> Plot:
    if report.peaks is None:
        return {}
    most, speed = report.peaks.operations, report.peaks.bytes
    reach = [0.01, most / speed, 1000.0]
    return {"x": reach, "y": [min(x * speed, most) / 1e9 for x in reach]}


def _memory(report: ReportData) -> Sequence[Plot]:
    """Megabytes after each step of each graph."""
    return [
        {"name": record.name, "y": [n / 1e6 for n in record.memory], "text": [step.name for step in record.steps]}
        for record in (graph.record for graph in report.graphs())
    ]
