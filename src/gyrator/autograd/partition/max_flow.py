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
        self._edges[tail].append(len(self._heads))
        self._heads.append(head)
        self._residual.append(capacity)
        self._edges[head].append(len(self._heads))
        self._heads.append(tail)
        self._residual.append(0)

    def maximise(self, source: int, sink: int) -> int:
        """Sends as much flow as possible and returns how much; at least `UNBOUNDED` where no finite cut exists."""
        total = 0
        while total < UNBOUNDED:
            levels = self._levels(source, sink)
            if levels[sink] < 0:
                return total
            total += self._blocking_flow(source, sink, levels)
        return total

    def sink_side(self, sink: int) -> list[bool]:
        """After `maximise`: for each vertex whether it can still reach the sink. The edges into these
        vertices from the others are the minimum cut nearest to the sink."""
        heads, residual, edges = self._heads, self._residual, self._edges
        reached = [False] * len(edges)
        reached[sink] = True
        pending = [sink]
        while pending:
            for edge in edges[pending.pop()]:
                tail = heads[edge]
                if not reached[tail] and residual[edge ^ 1] > 0:
                    reached[tail] = True
                    pending.append(tail)
        return reached

    def _levels(self, source: int, sink: int) -> list[int]:
        """Distances from the source along edges with capacity left; -1 where there is no way."""
        heads, residual, edges = self._heads, self._residual, self._edges
        levels = [-1] * len(edges)
        levels[source] = 0
        frontier = [source]
        while frontier and levels[sink] < 0:
            following: list[int] = []
            for vertex in frontier:
                level = levels[vertex] + 1
                for edge in edges[vertex]:
                    head = heads[edge]
                    if levels[head] < 0 and residual[edge] > 0:
                        levels[head] = level
                        following.append(head)
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
                cut = 0
                for position in range(len(path) - 1, -1, -1):
                    edge = path[position]
                    residual[edge] -= flow
                    residual[edge ^ 1] += flow
                    if residual[edge] == 0:
                        cut = position
                if total >= UNBOUNDED:
                    return total
                vertex = heads[path[cut] ^ 1]
                del path[cut:]
                continue
            options, position = edges[vertex], following[vertex]
            while position < len(options):
                edge = options[position]
                if residual[edge] > 0 and levels[heads[edge]] == levels[vertex] + 1:
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
