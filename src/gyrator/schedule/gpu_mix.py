"""Mix-order reduction: sums over rows and over columns of the same tensors in one kernel.

The backward of a layer norm needs sums along each row (for the gradient of the input) and down each column
(for those of weight and bias). Split over blocks of rows, the column sums run along with the rows:

    | b < P { - i < R/P {  = c: s += x[b, i, c];   = c: dx[b, i, c] = … %s …;  part[c] += x[b, i, c] } }
            {  = c: p[b, c] = part[c] }

and a small kernel adds up the P partial rows. Everything is read once.
"""

from dataclasses import replace

from gyrator.ir.index import Index
from gyrator.ir.program import Pointwise, Reduce
from gyrator.ir.volume import volume
from gyrator.schedule.align import unify
from gyrator.schedule.gpu_tiling import WHOLE_ROW
from gyrator.schedule.group import Group, Member, Refused, crossing_reads

MAX_COLUMNS = WHOLE_ROW // 2


def mix(
    rows: Group, columns: Group, left: tuple[Index, ...], right: tuple[Index, ...], shape: tuple[Index, ...]
) -> Group | Refused:
    """One group of ``rows`` (outer rows, a space of columns) and ``columns`` (outer blocks and columns, a
    space of the rows of a block), in which ``left`` and ``right`` are the same element of a value.

    Refuses where a row does not fit in registers, where the rows are not split into equal blocks, and where a
    reduction down the columns keeps more than one number.
    """
    if len(rows.spaces) != 1 or len(columns.spaces) != 1 or rows.serial or columns.serial:
        return Refused("they are no rows and columns of one tensor")
    same = unify(left, right, shape)
    if same is None:
        return Refused("they read the value at indices that do not match one to one")
    a, b = rows.rewrite(same.left), columns.rewrite(same.right)
    serial, row = b.spaces[0], a.spaces[0]
    shared = [x for x in a.outer if x in b.outer]
    if set(a.outer) != {*shared, *serial} or set(b.outer) != {*shared, *row} or not shared:
        return Refused("they are no rows and columns of one tensor")
    softmax = any(isinstance(m.nest.root, Reduce) and m.nest.root.kind == "softmax" for m in a.members)
    if softmax or any(x.extent.value is None for x in row) or volume(x.extent for x in row) > MAX_COLUMNS:
        return Refused("a row does not fit in registers")
    if not all(_runs_down(m) for m in b.members):
        return Refused("a reduction down the columns keeps more than one number")
    moved = tuple([replace(m, space=0, down=isinstance(m.nest.root, Reduce)) for m in b.members])
    members = tuple(sorted((*a.members, *moved), key=lambda m: m.position))
    mixed = Group(tuple(shared), (row,), members, serial)
    down = {v for m in moved if m.down for v in m.nest.out}
    if any(load.value in down for m in members for load in m.loads):
        return Refused("a sum down the columns is complete only after all rows")
    return crossing_reads(mixed, frozenset(m.position for m in a.members)) or mixed


def _runs_down(member: Member) -> bool:
    root = member.nest.root
    if isinstance(root, Reduce):
        return root.kind in ("sum", "prod", "max", "min")
    return isinstance(root, Pointwise) and member.space is not None
