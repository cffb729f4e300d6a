"""A compiled graph as plain SVG: a box for each launch and call, with the nests fused into it, in layers downwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import networkx as nx
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.filesize import decimal

from gyrator.report.data import GraphRecord, StepRecord

_HERE = FileSystemLoader(Path(__file__).parent)
TEMPLATES = Environment(loader=_HERE, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
TEMPLATES.filters |= {"px": "{:.0f}".format, "size": decimal, "us": lambda s: "" if s is None else f"{s * 1e6:.1f}"}
LINE, PAD, GAP_X, GAP_Y, CHARACTER = 15, 8, 24, 46, 6.3
MOST_NESTS, WIDEST = 12, 44
COLOURS = {"kernel": "#dcebfa", "extern": "#fbe7cf", "copy": "#eeeeee", "end": "#e3f3df"}


@dataclass(frozen=True, slots=True)
class _Box:
    """A box: its lines of text, the colour's name, the anchor that a click goes to, and its tooltip."""

    lines: tuple[str, ...]
    kind: str
    link: str
    title: str

    @property
    def width(self) -> float:
        return CHARACTER * max(len(line) for line in self.lines) + 2 * PAD

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + PAD


def diagram(record: GraphRecord, link: str = "") -> str:
    """The SVG of a graph. `link` is put before a kernel's name to make what a click on it leads to."""
    boxes, edges = _boxes(record, link)
    at = _positions(boxes, _layers(len(boxes), edges))
    width = max((x + boxes[b].width for b, (x, _) in at.items()), default=0) + GAP_X
    height = max((y + boxes[b].height for b, (_, y) in at.items()), default=0) + GAP_X
    return TEMPLATES.get_template("diagram.svg.jinja").render(
        name=record.name,
        width=width,
        height=height,
        curves=[_curve(boxes, at, first, second) for first, second in edges],
        boxes=[(box, *at[number]) for number, box in enumerate(boxes)],
        colours=COLOURS,
        line=LINE,
        pad=PAD,
    )


def _boxes(record: GraphRecord, link: str) -> tuple[list[_Box], list[tuple[int, int]]]:
    boxes = [_Box(("inputs",), "end", "", ", ".join(record.inputs))]
    maker: dict[str, int] = dict.fromkeys(record.inputs, 0)
    edges: dict[tuple[int, int], None] = {}
    for number, step in enumerate(record.steps, start=1):
        boxes.append(_box(step, link))
        edges |= dict.fromkeys((maker.get(value, 0), number) for value in step.reads)
        maker |= dict.fromkeys(step.writes, number)
    boxes.append(_Box(("outputs",), "end", "", ", ".join(record.outputs)))
    edges |= dict.fromkeys((maker.get(value, 0), len(boxes) - 1) for value in record.outputs)
    return boxes, [(a, b) for a, b in edges if a != b]


def _box(step: StepRecord, link: str) -> _Box:
    nests = [f"· {name}" for name in step.nests[:MOST_NESTS]] if len(step.nests) > 1 else []
    more = [f"· and {len(step.nests) - MOST_NESTS} more"] if len(step.nests) > MOST_NESTS else []
    lines = tuple(t if len(t) <= WIDEST else f"{t[: WIDEST - 1]}…" for t in [step.name, *nests, *more])
    href = f"{link}{step.name}" if link and step.kind == "kernel" else ""
    return _Box(lines, step.kind, href, "\n".join([step.name, step.why, *step.places]).strip())


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Each box below all that it reads, moved so that neighbours stand near each other (the mean of their places)."""
    graph = nx.DiGraph([*((0, box) for box in range(1, count)), *edges])
    layers, near = [sorted(layer) for layer in nx.topological_generations(graph)], nx.Graph(edges).adj
    place = {box: float(k) for layer in layers for k, box in enumerate(layer)}
    for sweep in range(6):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            layer.sort(key=lambda box: fmean(place[n] for n in near.get(box, [box])))
            place |= {box: float(k) for k, box in enumerate(layer)}
    return layers


def _positions(boxes: Sequence[_Box], layers: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    widths = [sum(boxes[b].width + GAP_X for b in layer) for layer in layers]
    at: dict[int, tuple[float, float]] = {}
    y = float(GAP_X)
    for layer, width in zip(layers, widths, strict=True):
        x = GAP_X + (max(widths) - width) / 2
        for box in layer:
            at[box] = (x, y)
            x += boxes[box].width + GAP_X
        y += max(boxes[b].height for b in layer) + GAP_Y
    return at


def _curve(boxes: Sequence[_Box], at: Mapping[int, tuple[float, float]], first: int, second: int) -> str:
    x, y = at[first][0] + boxes[first].width / 2, at[first][1] + boxes[first].height
    u, v = at[second][0] + boxes[second].width / 2, at[second][1]
    bend = max(GAP_Y / 2, (v - y) / 3)
    return f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"
