"""What a schedule knows of a GPU, and which fusions pay there."""

from dataclasses import dataclass

from gyrator.ir.program import Pointwise, Reduce, Scan, Scatter
from gyrator.schedule.group import Group, Refused, is_atomic, waits_for_reduction
from gyrator.schedule.layout import across_rows, contiguous_bytes, transposes

COLUMNS, ROWS = 32, 8
"""Columns that a program handles at least, so that memory is read by whole transactions, and rows that one crosses."""
SHORT_ROW = 1 << 14
"""Elements that a program may run through where few programs run."""
FEW_PROGRAMS, FEW_OF_COLUMNS, LONG_COLUMN = 128, 512, 1 << 11
"""Fewer programs are too few for long rows, and fewer of columns over LONG_COLUMN (long_columns_h200.json)."""
WINDOW = 16
"""Loads of an element above which a thread has enough to do without a row."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Compute capability (90 for 9.0) and number of multiprocessors."""

    capability: int = 90
    processors: int = 132

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block of threads may use (CUDA programming guide, table of compute capabilities)."""
        return {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}.get(self.capability, 99) << 10


def gpu_refusal(group: Group, parts: tuple[Group, Group], *, shared: bool) -> Refused | None:
    """Why a join of groups on a GPU does not pay or cannot be printed. ``shared``: by programs with parts of a row."""
    if group.pointwise:
        return None
    if _crosses_within_rows(group) and not any(map(_crosses_within_rows, parts)):
        return Refused("a transposition within a row has tiles of its own")
    if any(len(m.loads) > WINDOW and isinstance(m.nest.root, Pointwise) for m in group.members):
        return Refused("threads that read a window for each element would have a row of them")
    if shared:
        return None
    if any(transposes(m.nest) for m in group.members):
        return Refused("a transposition has tiles of its own")
    if any(isinstance(m.nest.root, Scatter) and not is_atomic(m.nest) for m in group.members):
        return Refused("a scatter without atomics runs in order")
    if any(isinstance(m.nest.root, Scan) for m in group.members) and waits_for_reduction(group):
        return Refused("a scan and what waits for a reduction need separate passes over the row")
    rows, row = group.sides
    across, (moved, _) = across_rows(group), contiguous_bytes(group)
    crossed = not (across or moved.keys().isdisjoint(group.outer))
    programs, work = (rows // COLUMNS, row * COLUMNS) if across else (rows // ROWS if crossed else rows, row)
    few = FEW_OF_COLUMNS if across and row > LONG_COLUMN else FEW_PROGRAMS
    if rows == 1 and row > 1 and not any(isinstance(m.nest.root, Reduce | Scan | Scatter) for m in group.members):
        return Refused("what follows from single numbers would run on one multiprocessor with them")
    if work > SHORT_ROW and programs < few and not group.only_reduces:
        return Refused("a few long rows would run on a few multiprocessors")
    return None


def _crosses_within_rows(group: Group) -> bool:
    """Whether something is written along one axis of a row while as much lies along another axis of it."""
    moved, stored = contiguous_bytes(group)
    pairs = ((a, b) for row in group.spaces for a in stored.keys() & row for b in moved.keys() & row)
    return any(a is not b and moved[b] >= moved[a] for a, b in pairs)
