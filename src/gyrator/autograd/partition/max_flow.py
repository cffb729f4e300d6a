"""Maximum flow and minimum cut by Dinic's algorithm (E. A. Dinitz, Soviet Math. Doklady 11, 1970).

Vertices are small integers, capacities are integers. Edges lie in flat lists, an edge next to its reverse,
so that `edge ^ 1` is the way back.
"""

UNBOUNDED = 1 << 60
"""A capacity that no cut pays."""


class FlowNetwork:
    """A directed graph with capacities, and the flow through it."""

    def __init__(self, vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(vertices)]
        self._heads: list[int] = []
        self._residual: list[int] = []

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """An edge from `tail` to `head`."""
        for begin, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[begin].append(len(self._heads))
            self._heads.append(end)
            self._residual.append(room)

    def maximise(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """Sends as much flow as possible: how much, at least `UNBOUNDED` where no finite cut exists, and for each
        vertex whether it can still reach the sink. The edges into these from the others are the minimum cut nearest
        to the sink."""
        total, levels = 0, self._levels(source, sink)
        while levels[source] >= 0 and total < UNBOUNDED:
            total += self._blocking_flow(source, sink, levels)
            levels = self._levels(source, sink)
        return total, [level >= 0 for level in levels]

    def _levels(self, source: int, sink: int) -> list[int]:
        """Distances to the sink along edges with capacity left; -1 where there is no way or the source is nearer."""
        heads, residual, edges = self._heads, self._residual, self._edges
        levels = [-1] * len(edges)
        levels[sink] = 0
        frontier = [sink]
        while frontier and levels[source] < 0:
            following: list[int] = []
            for vertex in frontier:
                level = levels[vertex] + 1
                for edge in edges[vertex]:
                    tail = heads[edge]
                    if levels[tail] < 0 and residual[edge ^ 1] > 0:
                        levels[tail] = level
                        following.append(tail)
            frontier = following
        return levels

    def _blocking_flow(self, source: int, sink: int, levels: list[int]) -> int:
        """Augments along shortest paths until none is left; each vertex remembers the first edge still worth trying."""
        heads, residual, edges = self._heads, self._residual, self._edges
        following = [0] * len(edges)
        total = 0
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                flow = min(residual[edge] for edge in path)
                total += flow
                for edge in path:
                    residual[edge] -= flow
                    residual[edge ^ 1] += flow
                if total >= UNBOUNDED:
                    return total
                cut = next(position for position, edge in enumerate(path) if residual[edge] == 0)
                vertex = heads[path[cut] ^ 1]
                del path[cut:]
                continue
            options, position = edges[vertex], following[vertex]
            while position < len(options):
                edge = options[position]
                if residual[edge] > 0 and levels[heads[edge]] == levels[vertex] - 1:
                    break
                position += 1
            following[vertex] = position
            if position < len(options):
                path.append(options[position])
                vertex = heads[options[position]]
            elif path:
                vertex = heads[path.pop() ^ 1]
                following[vertex] += 1
            else:
                return total
