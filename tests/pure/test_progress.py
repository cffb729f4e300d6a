"""Progress: a bar on a terminal, lines elsewhere, silence on request."""

from __future__ import annotations

import io
from typing import final

import pytest
from rich.console import Console

from gyrator import progress
from gyrator.progress import Bar, Lines, progress_for


@final
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees; tests move it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_kind_follows_the_option_and_the_stream() -> None:
    assert isinstance(progress_for("auto", "gyrator", Terminal()), Bar)
    assert isinstance(progress_for("auto", "gyrator", io.StringIO()), Lines)
    assert isinstance(progress_for("bar", "gyrator", io.StringIO()), Bar)
    assert isinstance(progress_for("lines", "gyrator", Terminal()), Lines)


def test_a_line_is_written_every_five_seconds(clock: list[float]) -> None:
    out = io.StringIO()
    lines = Lines("gyrator graph", out)
    for second in range(12):
        clock[0] = 100.0 + second
        lines.update("building", second, 20)
    assert out.getvalue() == "gyrator graph: building 5 of 20, 5 s\ngyrator graph: building 10 of 20, 10 s\n"


def test_silence_on_request(clock: list[float]) -> None:
    out = Terminal()
    silent = progress_for("off", "gyrator graph", out)
    clock[0] += 3600.0
    silent.update("building", 1, 20)
    silent.close()
    assert out.getvalue() == ""


def test_short_work_shows_no_bar(clock: list[float]) -> None:
    out = Terminal()
    bar = Bar("gyrator", Console(file=out, force_terminal=True))
    bar.update("lowering")
    bar.close()
    assert out.getvalue() == ""


def test_long_work_shows_a_bar_and_removes_it(clock: list[float]) -> None:
    out = Terminal()
    bar = Bar("gyrator", Console(file=out, force_terminal=True, width=100))
    bar.update("lowering")
    clock[0] += 2.0
    bar.update("building", 3, 10)
    bar.close()
    assert "gyrator: building" in out.getvalue()
    assert "3/10" in out.getvalue()
    bar.close()
