"""A session: what it counts, times, warns and writes, each on its own."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch

from gyrator.config import Config
from gyrator.errors import GyratorWarning
from gyrator.session import Count, Session


def session(dump: Path | None = None) -> Session:
    return Session(Config(dump=dump, progress="off"), torch.device("cpu"), name="forward")


def test_two_sessions_share_nothing() -> None:
    one, two = session(), session()
    one.counters.add(Count.KERNELS)
    assert (one.counters[Count.KERNELS], two.counters[Count.KERNELS]) == (1, 0)


def test_counters_add_up_over_threads() -> None:
    counters = session().counters
    threads = [
        threading.Thread(target=lambda: [counters.add(Count.KERNELS_BUILT) for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.all() == {"KERNELS_BUILT": 4000}


def test_counters_are_read_while_threads_still_count() -> None:
    counters = session().counters
    counting = threading.Thread(target=lambda: [counters.add_extern(f"aten.op{i}") for i in range(20_000)])
    counting.start()
    while counting.is_alive():
        counters.about_code()
    counting.join()
    assert len(counters.about_code()) == 20_001


def test_externs_are_counted_in_total_and_by_name() -> None:
    counters = session().counters
    for op in ("aten.sort", "aten.mm", "aten.mm"):
        counters.add_extern(op)
    assert counters[Count.EXTERN_CALLS] == 3
    assert list(counters.externs().items()) == [("aten.mm", 2), ("aten.sort", 1)]


def test_stages_nest_and_are_listed_as_they_began(tmp_path: Path) -> None:
    with session(tmp_path) as run:
        with run.stage("schedule"):
            with run.stage("inline"):
                pass
            with run.stage("fuse"):
                pass
        with run.stage("codegen"):
            pass
    assert [(t.name, t.depth) for t in run.timings] == [
        ("schedule", 0), ("inline", 1), ("fuse", 1), ("codegen", 0),
    ]  # fmt: skip
    outer, *inner, _ = run.timings
    assert outer.seconds >= sum(t.seconds for t in inner)
    (times,) = tmp_path.rglob("*_times.txt")
    assert times.read_text().splitlines()[1].endswith("ms    inline")


def test_stages_of_a_part_lie_within_the_stage_around_them_unless_they_are_kept_apart() -> None:
    run = session()
    part, candidate = run.child("forward"), run.child("candidate", apart=True)
    with run.stage("forward graph"), part.stage("lower"), candidate.stage("print kernels"):
        pass
    assert [(t.name, t.depth) for t in run.timings] == [("forward graph", 0), ("lower", 1)]
    assert [(t.name, t.depth) for t in part.timings] == [("lower", 0)]


def test_a_stage_that_fails_is_timed_too() -> None:
    run = session()
    with pytest.raises(KeyError), run.stage("lower"):
        raise KeyError
    with run.stage("next"):
        pass
    assert [(t.name, t.depth) for t in run.timings] == [("lower", 0), ("next", 0)]


def test_a_warning_is_said_once() -> None:
    run = session()
    with pytest.warns(GyratorWarning, match="no C\\+\\+ compiler") as caught:
        run.warn("no C++ compiler")
        run.warn("no C++ compiler")
    assert len(caught) == 1


def test_sessions_of_one_process_say_nothing_twice() -> None:
    told: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("first", "second"):
            Session(Config(progress="off"), torch.device("cpu"), name, told=told).warn("CUDA graphs do not work yet")
    assert [str(warning.message) for warning in caught] == ["CUDA graphs do not work yet"]


def test_dumps_are_numbered_and_runs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = session(tmp_path), session(tmp_path)
    assert first.dump is not None and second.dump is not None
    assert first.dump.write("captured", "a").name == "00_captured.txt"
    assert first.dump.write("after fuse", "b", suffix="py").name == "01_after_fuse.py"
    assert second.dump.folder == tmp_path / "forward.1"
    assert (tmp_path / "forward" / "01_after_fuse.py").read_text() == "b\n"
    session(tmp_path)  # which writes nothing
    assert len([*tmp_path.iterdir()]) == 2
