"""Tests that are known to fail, by node id, each with the reason. A fix removes its line.

They run and are reported as expected failures.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[str, str] = {}
