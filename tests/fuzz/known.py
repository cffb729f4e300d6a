"""Random programs that are known to fail, by seed, each with the reason. A fix removes its line."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[int, str] = {}
