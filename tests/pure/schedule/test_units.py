"""Merging the nodes of a graph without making a cycle."""

from __future__ import annotations

import random

from gyrator.schedule.units import Units


def test_a_merge_across_another_unit_is_refused() -> None:
    units = Units(3, [(0, 1), (1, 2), (0, 2)])
    assert not units.merge(0, 2)
    assert units.merge(0, 1)
    assert units.merge(0, 2)
    assert units.order() == [0]


def test_random_merges_keep_a_topological_order() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        count = 12
        edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.2]
        units = Units(count, edges)
        for _ in range(20):
            a, b = units.find(rng.randrange(count)), units.find(rng.randrange(count))
            if a != b:
                acyclic = _acyclic([(_to(units, p, a, b), _to(units, q, a, b)) for p, q in edges])
                assert units.merge(a, b) == acyclic
            rank = {u: k for k, u in enumerate(units.order())}
            assert all(rank[units.find(p)] <= rank[units.find(q)] for p, q in edges)


def _to(units: Units, node: int, a: int, b: int) -> int:
    found = units.find(node)
    return a if found == b else found


def _acyclic(edges: list[tuple[int, int]]) -> bool:
    rest = {(a, b) for a, b in edges if a != b}
    while rest:
        targets = {b for _, b in rest}
        sources = {a for a, _ in rest} - targets
        if not sources:
            return False
        rest = {(a, b) for a, b in rest if a not in sources}
    return True
