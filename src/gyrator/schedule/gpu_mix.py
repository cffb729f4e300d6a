"""Mix-order reduction: sums over rows and over columns of the same tensors in one kernel.

The backward of a layer norm needs sums along each row (for the gradient of the input) and down each column
(for those of weight and bias). Split over programs that take the rows in turns, the column sums run along with them:

    | b < P { - i < R/P  {  = c: s += x[i*P + b, c];   = c: dx[i*P + b, c] = … %s …;  part[c] += x[i*P + b, c] } }
            {  = c: p[b, c] = part[c] }

and a small kernel adds up the P partial rows. All is read once. If P does not divide R, some programs end earlier."""

from dataclasses import replace

from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op
from gyrator.ir.index import Atom, Axis, Coords, Index, as_index, linear, product, substitute
from gyrator.ir.program import Pointwise, Reduce, Scan, expressions, loads
from gyrator.ir.volume import iterations
from gyrator.schedule.align import digits_of, radix
from gyrator.schedule.gpu import SHORT_ROW
from gyrator.schedule.gpu_tiling import WARP, WHOLE_ROW
from gyrator.schedule.group import Group, Member, Refused, crossing_reads
from gyrator.schedule.layout import accesses, contiguous_axes

MAX_COLUMNS, FEW_MIXED = WHOLE_ROW // 2, 64


def mix(rows: Group, columns: Group, left: Coords, right: Coords, shape: Coords) -> Group | Refused:
    """One group of ``rows`` (outer rows, a space of columns) and ``columns`` (outer parts and columns, a
    space of the rows of a part), in which ``left`` and ``right`` are the same element of a value.

    Refuses where a row is scanned, lies across memory, is shorter than a warp or does not fit in registers, where few
    programs run long, where a reduction down columns has more than one number, and where some programs end before
    others in a grid of more than one axis."""
    if len(rows.spaces) != 1 or len(columns.spaces) != 1 or rows.serial or columns.serial:
        return Refused("they are no rows and columns of one tensor")
    if not contiguous_axes(accesses(rows, frozenset())).isdisjoint(rows.outer):
        return Refused("a row would be read with a stride")
    if (aligned := _aligned(rows, columns, left, right, shape)) is None:
        return Refused("they read the value at indices that do not match one to one", mismatch=True)
    a, b = aligned
    serial, row = b.spaces[0], a.spaces[0]
    shared = [x for x in a.outer if x in b.outer]
    if set(a.outer) != {*shared, *serial} or set(b.outer) != {*shared, *row} or not shared:
        return Refused("they are no rows and columns of one tensor")
    if iterations(row) < WARP or (iterations(shared) < FEW_MIXED and iterations((*serial, *row)) > 4 * SHORT_ROW):
        return Refused("rows are too short, or programs with long ones too few")
    if len(shared) > 1 and any(x.extent.axes() for x in serial):
        return Refused("parts have different numbers of rows, and the grid is of more than parts")
    roots = [m.nest.root for m in a.members if isinstance(m.nest.root, Reduce | Scan)]
    passes = any(isinstance(root, Scan) or root.kind == "softmax" for root in roots)
    if passes or any(x.extent.value is None for x in row) or iterations(row) > MAX_COLUMNS:
        return Refused("a row is scanned or does not fit in registers")
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


def _aligned(rows: Group, columns: Group, left: Coords, right: Coords, shape: Coords) -> tuple[Group, Group] | None:
    """Both over the parts of ``columns`` and the rows within them. Where the last one is masked it does not run.

    Before: ``| b < P { = c { - i < C: s += where(i*P + b < R, x[i*P + b, c], 0) } }``
    after:  ``| b < P { = c { - i < (R - b + P - 1)/P: s += x[i*P + b, c] } }``"""
    down = {a for index in right if index.axes() & {*columns.spaces[0]} for a in index.axes()}
    parted = [k for k, index in enumerate(right) if index.axes() & down]
    sizes = tuple([shape[k] for k in parted])
    place, end = linear(tuple([right[k] for k in parted]), sizes), product(sizes)
    digits = radix(place, product([a.extent for a in place.axes()]))
    if not parted or digits is None:
        return None
    shorter: dict[Atom, Index] = {}
    if product([a.extent for a in digits]) is not end:
        part, *others = digits
        if others != [*columns.spaces[0]] or any(_masked_place(m) != (place, end) for m in columns.members):
            return None
        (row,) = others
        rows_left = end - part.index() + (part.extent - 1)
        shorter = {row: Axis(row.name, rows_left // part.extent).index()}
        columns = replace(columns, members=tuple([_unmasked(m) for m in columns.members])).rewrite(shorter)
    images: dict[Atom, Index] = {}
    for k, (index, to, extent) in enumerate(zip(left, right, shape, strict=True)):
        axes = radix(index, extent)
        if axes is None or images.keys() & axes or (k not in parted and radix(to, extent) is None):
            return None  # as where columns count elements of a padding, too
        images |= digits_of(substitute(to, shorter), axes[::-1])
    one_to_one = all(len(radix(images[a], a.extent) or ()) == 1 for a in rows.spaces[0] if a in images)
    if not one_to_one or not images.keys() >= {*rows.outer, *rows.spaces[0]}:
        return None
    outer = dict.fromkeys(axis for a in rows.outer for axis in images[a].axes())
    return replace(replace(rows, outer=()).rewrite(images), outer=tuple(outer)), columns


def _masked_place(member: Member) -> tuple[Index, Index] | None:
    """Over the group's axes, the place before an end that alone a reduction counts, and the end."""
    match _mask(member):
        case Op("lt", (IndexValue(place), IndexValue(end) | Const(int(end)))):
            return substitute(place, member.at), as_index(end)
    return None


def _mask(member: Member) -> Expr | None:
    """What decides whether a reduction counts an element."""
    match member.nest.root:
        case Reduce(_, _, (Op("where", (mask, _, _)) | Load(_, _, mask), *_)):
            return mask
    return None


def _unmasked(member: Member) -> Member:
    mask = _mask(member)

    def without(e: Expr) -> Expr | None:
        match e:
            case Load(value, index, found) if found is mask:
                return Load(value, index)
            case Op("where", (found, body, _)) if found is mask:
                return body
        return None

    nest = member.nest.rewritten(without)
    return replace(member, nest=nest, loads=loads(expressions(nest.root)))
