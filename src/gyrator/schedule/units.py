"""A directed acyclic graph whose nodes are merged: keeps a topological order, so that a cycle is found at once. The
order is maintained as by Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs" (2007): a
merge looks only at units ranked between the two."""

from collections.abc import Iterable


class Units:
    """Units ``0 … n-1``; ``merge(a, b)`` makes b part of a."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        """``edges`` (from, to) must go from lower to higher numbers: the initial order is 0 … n-1."""
        self._rank = list(range(count))
        self._succ: list[set[int]] = [set() for _ in range(count)]
        self._pred: list[set[int]] = [set() for _ in range(count)]
        self._into = list(range(count))
        for a, b in edges:
            self._succ[a].add(b)
            self._pred[b].add(a)

    def find(self, unit: int) -> int:
        """The unit that ``unit`` is now part of."""
        while self._into[unit] != unit:
            self._into[unit] = self._into[self._into[unit]]
            unit = self._into[unit]
        return unit

    def merge(self, a: int, b: int) -> bool:
        """Make b part of a; False, and nothing changes, if another unit lies on a path between them."""
        first, last = (a, b) if self._rank[a] < self._rank[b] else (b, a)
        after, before = self._between(first, last, self._succ), self._between(last, first, self._pred)
        if after is None or before is None:
            return False
        earlier, later = (sorted(some, key=self._rank.__getitem__) for some in (before, after))
        members = [*earlier, first, last, *later]
        for unit, rank in zip(members, sorted(self._rank[u] for u in members), strict=True):
            self._rank[unit] = rank
        for edges in (self._succ, self._pred):
            edges[a] |= edges[b]
        self._into[b] = a
        return True

    def order(self) -> list[int]:
        """The remaining units in a topological order."""
        return sorted((u for u in range(len(self._into)) if self._into[u] == u), key=lambda u: self._rank[u])

    def _between(self, start: int, goal: int, edges: list[set[int]]) -> set[int] | None:
        """Units ranked between the two that ``start`` leads to; None if one of them leads to ``goal``."""
        low, high = sorted((self._rank[start], self._rank[goal]))
        seen: set[int] = set()
        stack = [start]
        while stack:
            unit = stack.pop()
            near = set(map(self.find, edges[unit]))
            if unit != start and goal in near:
                return None
            new = {u for u in near if low < self._rank[u] < high} - seen
            seen |= new
            stack += new
        return seen
