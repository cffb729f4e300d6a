"""Jobs of a build: what becomes of them when the session that began them fails."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest
import torch

from gyrator.config import Config
from gyrator.runtime.build import Jobs
from gyrator.session import Session


def session() -> Session:
    return Session(Config(), torch.device("cpu"), "test")


def test_a_failure_ends_jobs_at_work_and_those_that_wait_do_nothing() -> None:
    ended, begun, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert ended.wait(60)

    calls = {"first": work, "second": lambda: done.append("second")}
    with pytest.raises(ZeroDivisionError), session() as at:
        jobs = Jobs(ended.set, at.child("part")).start(calls, 1)
        assert begun.wait(60)
        raise ZeroDivisionError
    assert not wait(jobs.values(), timeout=60).not_done
    assert jobs["first"].exception() is None and jobs["second"].cancelled()
    assert not done


def test_what_ended_before_a_failure_is_left_alone() -> None:
    ends: list[str] = []
    with pytest.raises(ZeroDivisionError), session() as at:
        jobs = Jobs(lambda: ends.append("end"), at).start({"only": lambda: 7}, 1)
        assert jobs["only"].result(60) == 7
        raise ZeroDivisionError
    assert not ends


def test_without_a_failure_jobs_go_on_after_the_session() -> None:
    goes_on = threading.Event()
    with session() as at:
        jobs = Jobs(lambda: None, at).start({"only": lambda: goes_on.wait(60)}, 1)
    goes_on.set()
    assert jobs["only"].result(60)
