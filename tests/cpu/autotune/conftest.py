"""A cache of the test's own, for what is compiled through torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
