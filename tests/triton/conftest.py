"""Processes with Triton: one interprets kernels on CPU tensors, one compiles them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.triton.worker import Worker


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    worker = Worker(interpret=True)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def compiler() -> Iterator[Worker]:
    worker = Worker(interpret=False)
    yield worker
    worker.close()
