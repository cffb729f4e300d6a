"""Progress of long work: a bar on a terminal, a line every 5 seconds elsewhere, or silence."""

import sys
import time
from math import inf
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

QUIET_SECONDS = 1.0
"""Work shorter than this shows no bar."""

LINE_SECONDS = 5.0
"""Least time between two lines."""


class Lines:
    """Writes a line when so many seconds have passed since the last one (or since the start)."""

    def __init__(self, title: str, stream: TextIO, seconds: float = LINE_SECONDS) -> None:
        self._title, self._stream, self._seconds = title, stream, seconds
        self._start = self._last = time.monotonic()

    def update(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Write, if it is time: the work is in `stage`, `done` of `total` parts (None: not countable) are finished."""
        now = time.monotonic()
        if now - self._last >= self._seconds:
            self._last = now
            parts = f" {done} of {total}" if total is not None else ""
            print(f"{self._title}: {stage}{parts}, {now - self._start:.0f} s", file=self._stream, flush=True)

    def close(self) -> None:
        """The work is over; lines stay."""


class Bar:
    """A bar on a terminal, shown once the work has taken a second and removed when it ends."""

    def __init__(self, title: str, console: Console) -> None:
        columns = (TextColumn(f"{title}: {{task.description}}"), BarColumn(bar_width=30), MofNCompleteColumn())
        self._bar = RichProgress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._start = time.monotonic()

    def update(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Move the bar, showing it if it is time."""
        self._bar.update(self._task, description=stage, completed=done, total=total)
        if time.monotonic() - self._start >= QUIET_SECONDS:
            self._bar.start()  # once more is without effect

    def close(self) -> None:
        """Remove the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


Progress = Lines | Bar
"""Where long work reports how far it is."""


def progress_for(kind: str, title: str, stream: TextIO | None = None) -> Progress:
    """The reporter for the option `progress` (auto, bar, lines, off), writing to `stream` (stderr by default)."""
    out = sys.stderr if stream is None else stream
    if kind == "off":
        return Lines(title, out, inf)
    bar = kind == "bar" or (kind == "auto" and out.isatty())
    return Bar(title, Console(file=out)) if bar else Lines(title, out)
