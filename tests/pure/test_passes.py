"""The pass runner: order, checks, dumps, times and blame, on the simplest program: a tuple of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyrator.config import Config
from gyrator.errors import InternalCheckError, UnsupportedInput
from gyrator.origin import Origin
from gyrator.passes import Pass, blame, run_passes
from gyrator.session import Session

Numbers = tuple[int, ...]
PLACE = Origin("model.py", 7, "forward", "aten.add")


def session(check: str = "every", dump: Path | None = None) -> Session:
    return Session(Config(check=check, dump=dump, progress="off"), torch.device("cpu"))


def positive(program: Numbers) -> None:
    if any(n <= 0 for n in program):
        raise ValueError(f"{min(program)} is not positive")


double = Pass[Numbers]("double", lambda p: tuple(2 * n for n in p), leaves=positive)
negate = Pass[Numbers]("negate", lambda p: tuple(-n for n in p), leaves=positive)
keep = Pass[Numbers]("keep", lambda p: p, leaves=positive)


def test_passes_run_in_order() -> None:
    seven = Pass[Numbers]("append", lambda p: (*p, 7))
    assert run_passes((1, 2), [double, seven], session()) == (2, 4, 7)


def test_a_broken_spec_names_the_pass_that_broke_it() -> None:
    with pytest.raises(InternalCheckError, match=r"after pass 'negate': ValueError: -2 is not positive"):
        run_passes((1,), [double, negate, double], session("every"))


def test_only_the_last_pass_is_checked_at_borders() -> None:
    assert run_passes((1,), [negate, negate], session("borders")) == (1,)
    with pytest.raises(InternalCheckError, match="after pass 'negate'"):
        run_passes((1,), [double, negate], session("borders"))
    assert run_passes((1,), [double, negate], session("off")) == (-2,)


def test_a_spec_that_knows_the_node_passes_it_on() -> None:
    def spec(program: Numbers) -> None:
        raise InternalCheckError("", "reads itself", where=PLACE, node="%3 = add(%3)")

    with pytest.raises(InternalCheckError) as caught:
        run_passes((1,), [Pass[Numbers]("fuse", lambda p: p, leaves=spec)], session())
    text = str(caught.value)
    assert "after pass 'fuse': reads itself" in text
    assert "model.py:7 in forward (aten.add)" in text
    assert "node: %3 = add(%3)" in text


def test_a_pass_that_fails_is_named_with_the_node_it_worked_on() -> None:
    def run(program: Numbers) -> Numbers:
        with blame("%3 = add(%1, %2)", PLACE):
            return (program[9],)

    with pytest.raises(InternalCheckError) as caught:
        run_passes((1,), [Pass[Numbers]("lower", run)], session())
    assert caught.value.pass_name == "lower"
    assert caught.value.node == "%3 = add(%1, %2)"
    assert caught.value.where == PLACE
    assert "IndexError" in caught.value.problem


def test_an_error_meant_for_the_user_goes_through_unchanged() -> None:
    def run(program: Numbers) -> Numbers:
        with blame("%1"):
            raise UnsupportedInput("a sparse tensor")

    with pytest.raises(UnsupportedInput, match=r"a sparse tensor cannot be compiled[\s\S]*try: "):
        run_passes((1,), [Pass[Numbers]("lower", run)], session())


def test_only_passes_that_changed_the_program_are_dumped(tmp_path: Path) -> None:
    with session(dump=tmp_path) as run:
        run_passes((1,), [double, keep, double], run, text=lambda p: f"numbers {p}")
    folder = tmp_path / "graph"
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["00_double.txt", "01_double.txt", "02_times.txt"]
    assert (folder / "01_double.txt").read_text() == "numbers (4,)\n"
    assert "check keep" in (folder / "02_times.txt").read_text()


def test_every_pass_is_timed() -> None:
    run = session("off")
    run_passes((1,), [double, keep], run)
    assert [t.name for t in run.timings] == ["double", "keep"]
    assert all(t.seconds >= 0 for t in run.timings)
