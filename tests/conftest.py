"""Options shared by the tests: which backend they compile with, how much of a sweep they run."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo

pytest_plugins = ["tests.tiers"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gyrator")
    group.addoption("--backend", default="gyrator", help="torch.compile backend under test")
    group.addoption("--fuzz", type=int, default=None, metavar="N", help="how many random programs to run")
    group.addoption("--fuzz-seed", type=int, default=0, metavar="SEED", help="seed of the first program")
    group.addoption("--all-bugs", action="store_true", help="bisect every seeded bug, not only some")
    group.addoption("--opinfo-full", action="store_true", help="every op, dtype and sample of OpInfo")
    group.addoption("--training-full", action="store_true", help="every model in every way of training")


def pytest_configure() -> None:
    """A job in a shell's background ignores Ctrl-C, and so would what tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend under test; dynamo's caches are empty before and after."""
    torch._dynamo.reset()
    yield request.config.getoption("--backend")
    torch._dynamo.reset()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Kernels share their work, as they do where users run them; tests run with one thread otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def grad_mode_is_left_on() -> Iterator[None]:
    """A test that leaves gradients switched off fails itself, instead of those after it on its worker."""
    yield
    left_on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert left_on, "the test left gradients switched off"
