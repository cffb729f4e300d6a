"""Random programs that are known to fail, by seed, each with the reason. A fix removes its line."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[int, str] = {
    1650: "its one gradient is 0.125 - 0.1144: softplus's part is 3 units in the last place off, eager's none"
}
