"""Random programs that are known to fail, by seed, each with the reason. A fix removes its line."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[int, str] = {
    193: "an update's shape is eager's only up to a size symbol that the shape environment did not solve",
    334: "an index into an empty list while several programs are compiled as one graph; alone it passes",
    689: "as 193",
    1106: "a constant tensor made in the graph, updated in place by a tensor that requires a gradient",
    1198: "the in-place op reads a slice of what it writes: eager's answer depends on its loop order",
    1637: "an internal check stops the compile of this program under symbolic sizes",
    1650: "softplus's gradient is 2e-8 off where eager's is 4e-10 off; only beside other programs",
}
