"""Coordinate descent: which configs are tried, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable

from gyrator.codegen.triton_source import Config
from gyrator.runtime.triton_tune import descend, neighbours


def config(x: int, r: int = 64, warps: int = 4, stages: int = 1) -> Config:
    return Config((("XBLOCK", x), ("RBLOCK", r)), warps, stages)


def bowl(x: int, warps: int) -> Callable[[Config], float | None]:
    """Times that grow with the distance from the best config."""

    def took(c: Config) -> float | None:
        return 1 + abs(math.log2(c.blocks[0][1] / x)) + abs(math.log2(c.num_warps / warps)) + c.num_stages / 10

    return took


def test_neighbours_differ_in_one_number_for_which_there_is_room() -> None:
    found = set(neighbours(config(8), {"XBLOCK": 16}))
    assert found == {config(16), config(4), config(8, warps=8), config(8, warps=2), config(8, stages=2)}
    assert set(neighbours(config(16, warps=32, stages=4), {"XBLOCK": 16})) == {
        config(8, warps=32, stages=4), config(16, warps=16, stages=4), config(16, warps=32, stages=3),
    }  # fmt: skip
    assert config(0, warps=1) not in set(neighbours(config(1, warps=1), {"XBLOCK": 16}))


def test_descent_ends_where_no_neighbour_is_faster() -> None:
    took = bowl(64, 16)
    start = config(8, warps=2, stages=2)
    tried: list[Config] = []

    def measure(other: Config) -> float | None:
        tried.append(other)
        return took(other)

    assert descend(start, took(start) or 0.0, {"XBLOCK": 1024}, measure) == config(64, warps=16)
    assert len({*tried}) == len(tried) < 40 and start not in tried


def test_what_cannot_run_or_is_hardly_faster_is_passed_over() -> None:
    start = config(8)
    assert descend(start, 1.0, {"XBLOCK": 64}, lambda c: None) == start
    assert descend(start, 1.0, {"XBLOCK": 64}, lambda c: 0.985) == start
    assert descend(start, 1.0, {"XBLOCK": 8}, lambda c: 0.5 if c == config(4) else None) == config(4)
