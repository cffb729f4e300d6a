"""Kernels as Triton: ``print_triton`` turns a loop tree with a tiling into the text of a module.

    # softmax: model.py:12 in forward: aten._softmax.default
    @triton.jit
    def softmax(x, y, RBLOCK: tl.constexpr):
        i0 = tl.program_id(0)
        i1 = tl.arange(0, RBLOCK)
        x_1 = tl.load(x + i0 * 1000 + i1, i1 < 1000)
        …

A loop over a row that a tile covers is no loop in the text: its values stay known to the loops over the same
row that follow. Another one runs in steps of its block, with an accumulator per element of a tile."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import prod

import torch

from gyrator.codegen.python_text import Names, constant_text, scalar, tuple_of, type_name, working
from gyrator.codegen.texts import WIDTH, Key, broken, origin_comments
from gyrator.codegen.triton_attention import attention_arguments, attention_grid, attention_workspaces, score_functions
from gyrator.codegen.triton_expr import Block, Expressions, Scope, Term, function_lines, grid_loops, mask_text, reads_of
from gyrator.codegen.triton_foreach import VECTOR, Part, side_by_side
from gyrator.codegen.triton_source import GridAxis, Parameter, Pointer, SizeArgument, TritonKernel, Workspace
from gyrator.errors import InternalCheckError
from gyrator.ir import tree
from gyrator.ir.expr import Const, Expr, Load, Ref, Scalar, stem_of
from gyrator.ir.index import ONE, ZERO, Atom, Axis, Index, as_index, product
from gyrator.ir.ops import REDUCTIONS, STEP_OF, identity
from gyrator.ir.program import View
from gyrator.ir.tree import Attend, Carry, Contract, Kernel, Let, Loop, LoopKind, Stage, Store, Tile, Tiling, Update
from gyrator.schedule.layout import contiguous

_RESERVED = (
    *("tl", "triton", "rt", "gemm", "libdevice", "float", "pid", "old", "new", "n", "first", "here", "acc"),
    *("last", "part", "tile", "row_tile", "column_tile", "lefts", "rights", "space", "counters", "ticket", "shared"),
    *("number", "parts", "attention", "score", "keep", "slope", "grad", "reads", "b", "h", "i", "j"),
)
_LIBRARY = re.compile(r"\b([a-z]+)\.")
_OURS = {
    "rt": "from gyrator.runtime import triton_ops as rt",
    **{name: f"from gyrator.templates import {name}" for name in ("attention", "gemm", "hopper")},
}
_NEXT = {
    "sum": "{0} + {1}", "max": "rt.maximum({0}, {1})", "any": "tl.maximum({0}, {1})",
    "prod": "{0} * {1}", "min": "rt.minimum({0}, {1})", "all": "tl.minimum({0}, {1})",
    "argmax": "rt.argmax({0}, {1})", "argmin": "rt.argmin({0}, {1})", "logaddexp": "rt.logaddexp({0}, {1})",
    "welford": "rt.welford_next({0}, {1}, {2})", "softmax": "rt.softmax_next({0}, {1})",
}  # fmt: skip
"""What becomes of the state of a reduction, {0}, with an element, {1}, that is within its row if {2}."""
_REDUCE = {"sum": "sum", "any": "max", "all": "min"}
"""What Triton itself reduces by; the rest is in our library."""
_SCAN = {
    "sum": "add", "max": "maximum", "argmax": "last_argmax",
    "prod": "multiply", "min": "minimum", "argmin": "last_argmin",
}  # fmt: skip


def print_triton(kernel: Kernel, *, aligned: bool = True, early: bool = False) -> TritonKernel:
    """Print a kernel that has a tiling; if tensors are not ``aligned``, without reads beside them and descriptors. An
    ``early`` one, for capability 9.0 on and not in Gluon, may be launched before earlier launches are done: it waits.

    Raises: UnsupportedInput for an element type that GPU kernels lack; InternalCheckError for a tree without Triton."""
    if (tiling := kernel.tiling) is None:
        raise InternalCheckError("print", f"kernel {kernel.name} was scheduled for a CPU")
    if tiling.category == "foreach":
        return _print_foreach(kernel, tiling, early=early)
    names = Names((*_RESERVED, kernel.name))
    printer = Printer(kernel, tiling, names)
    printer.aligned = aligned
    params: list[Parameter] = []
    for p in kernel.params:
        type_name(p.value.dtype)
        name = names.fresh(p.value.name)
        printer.pointers[p.value] = name
        params.append(Pointer(name, p.value.dtype, p.written))
    params += _workspaces(kernel, tiling)
    even = _best_even(kernel, tiling) if kernel.sizes else ()
    for size in kernel.sizes:
        name = names.fresh(size.name)
        params.append(SizeArgument(name, size, size in even))
        if not tiling.wide:
            printer.emit(f"{name} = {name}.to(tl.int32)")
        printer.bind(size, Term(name, name=True))
    printer.rows |= {value: names.fresh(value.name) for value in kernel.scratch}
    grid = printer.grid()
    early = early and not (printer.described and isinstance(kernel.body[0], Attend))
    source = _module(kernel, params, printer.block.lines, printer.functions, early=early)
    plain = ""
    if printer.described or printer.widened or tiling.below:
        safe = replace(kernel, tiling=replace(tiling, wide=tiling.wide or bool(tiling.below), below=()))
        plain = print_triton(safe, aligned=False, early=early).source
    found = (kernel.name, source, tuple(params), grid, tiling.configs, tiling.category, printer.asserts, early)
    return TritonKernel(*found, plain=plain, below=tiling.below)


def _workspaces(kernel: Kernel, tiling: Tiling) -> Iterator[Workspace]:
    """Memory for partial sums of tiles or rows, and for a counter for each of those that are there."""
    blocks = dict(tiling.configs[0].blocks)
    if isinstance(kernel.body[0], Attend):
        yield from attention_workspaces(kernel.body[0], blocks)
    sizes = {tile.axis: blocks[tile.block] for tile in tiling.tiles}
    counts = [(loop.axis.extent - 1) // sizes.get(loop.axis, 1) + 1 for loop in grid_loops(kernel)]
    if tiling.category == "split scan":  # parts, and groups of parts, of each scan of a row or of columns
        parts = (tiling.tiles[-1].axis.extent - 1) // min(dict(c.blocks)["RBLOCK"] for c in tiling.configs) + 1
        each = 2 * prod(_scans(kernel)) * blocks.get("XBLOCK", 1)
        yield Workspace("counters", (product(counts) * parts * each + 1) * 8, zeroed=True)
    if not {"SPLIT_K", "PARTS"} & blocks.keys():
        return
    each = blocks.get("SPLIT_K", 0) * prod(sizes.values()) * 4
    if "PARTS" in blocks:
        each = 8 * _states(kernel.body) * max(dict(config.blocks)["PARTS"] for config in tiling.configs)
    yield Workspace("space", product(counts) * each, zeroed=False)
    yield Workspace("counters", product(counts) * 4, zeroed=True)


def _best_even(kernel: Kernel, tiling: Tiling) -> frozenset[Atom]:
    """Sizes that tell how far apart elements are, of which a thread moves several at once if these can be divided.

    x[768 * i + j] for i < s0: none      x[s0 * i + j] for j < s0: s0"""
    tiled, stages = {tile.axis for tile in tiling.tiles}, list(tree.walk_stages(kernel.body))
    reached = [x for x in (*tree.loads_in(kernel.body), *stages) if isinstance(x, Load | Store)]
    places = [p for x in reached if any(contiguous(p := x.value.position(x.index), axis) for axis in tiled)]
    most = max((len(place.axes() & tiled) for place in places), default=0)
    windows = [view for stage in stages for view in tree.windows(stage)]
    rank = max((len(view.shape) for view in windows), default=0)
    steps = [step for view in windows if len(view.shape) == rank for step in view.strides]
    found = [*steps, *(place for place in places if len(place.axes() & tiled) == most)]
    uneven = [Index(((monomial, 1),)) for index in found for monomial, c in index.terms if c % VECTOR]
    return frozenset(atom for index in uneven for atom in index.atoms())


def _states(body: Sequence[Loop | Stage]) -> int:
    return sum(len(carry.results) for loop in tree.walk_loops(body) for carry in loop.carries)


def _scans(kernel: Kernel) -> tuple[int, int]:
    """How many scans a kernel has, and words of 32 bits in the largest state of one."""
    found = [s for s in tree.walk_stages(kernel.body) if isinstance(s, Update) and s.running]
    return len(found), max((working(s.args[0].dtype).itemsize // 4 + 2 * (len(s.args) - 1) for s in found), default=0)


def _print_foreach(kernel: Kernel, tiling: Tiling, *, early: bool) -> TritonKernel:
    """A kernel of loops side by side: each program runs a block of one of them."""
    params = {p.value: Pointer(p.value.name, p.value.dtype, p.written) for p in kernel.params}
    taken = (*_RESERVED, kernel.name, *(p.name for p in params.values()))
    ((block, size),) = tiling.configs[0].blocks
    parts: list[Part] = []
    for loop in kernel.body:
        assert isinstance(loop, Loop)
        names = Names(taken)
        printer = Printer(replace(kernel, body=(loop,)), replace(tiling, tiles=(Tile(loop.axis, block),)), names)
        printer.pointers |= {v: names.fresh(stem_of(v.name)) for v in tree.touched((loop,))}
        printer.program, printer.extents[loop.axis] = "(pid - first)", "n"
        printer.grid()
        count = loop.axis.extent.value or 0
        pointers = tuple((name, params[v]) for v, name in printer.pointers.items())
        parts.append(Part(tuple(printer.block.lines), pointers, count, -(-count // size)))
    lines, programs = side_by_side(parts)
    source = _module(kernel, params.values(), lines, early=early)
    grid = (GridAxis(as_index(programs)),)
    return TritonKernel(kernel.name, source, tuple(params.values()), grid, tiling.configs, tiling.category, early=early)


def _module(
    kernel: Kernel, params: Iterable[Parameter], lines: Sequence[str], functions: Sequence[str] = (), *, early: bool
) -> str:
    assert kernel.tiling is not None
    lines = [*(["rt.after_launches()"] if early else []), *lines]
    libraries = {name for line in (*functions, *lines) for name in _LIBRARY.findall(line)}
    language = "gluon" if "hopper" in libraries else "triton"
    imports = ["import triton", "import triton.language as tl"]
    imports += ["from triton.language.extra import libdevice"] if "libdevice" in libraries else []
    imports += ["from triton.experimental import gluon"] if language == "gluon" else []
    ours = [text for name, text in _OURS.items() if name in libraries]
    imports += ["", *ours] if ours else []
    arguments = [*(p.name for p in params), *(f"{name}: tl.constexpr" for name, _ in kernel.tiling.configs[0].blocks)]
    heads = broken(f"def {kernel.name}({', '.join(arguments)}):", WIDTH)
    body = [f"    {line}" for line in lines] or ["    pass"]
    comments = origin_comments(kernel.origins, "#")
    return "\n".join([*imports, "", "", *functions, *comments, f"@{language}.jit", *heads, *body, ""])


def _sides(contract: Contract) -> tuple[Axis, Axis]:
    return contract.row, contract.column


def _starts(kind: str, first: torch.dtype, *, scan: bool = False) -> list[tuple[bool | int | float, torch.dtype]]:
    """What each number of a reduction's state starts from, and its type; ``first`` is that of the elements."""
    start, place = identity(kind, first), 0 if scan else torch.iinfo(torch.int64).max
    others = [(0.0, working(first)) if other is None else (place, other) for other in REDUCTIONS[kind].results[1:]]
    return [(int(start) if isinstance(start, bool) else start, working(first)), *others]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A carry before its tiles are reduced to its results: their names, and the type that the reduction runs in."""

    carry: Carry
    names: Sequence[str]
    dtype: torch.dtype


class Printer(Expressions):
    """Prints the grid, the loops and the stages of one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling, names: Names) -> None:
        super().__init__(kernel, tiling, names)
        self._carries: dict[str, tuple[Carry, Loop]] = {}
        self._accumulators: dict[str, Accumulator] = {}
        self._numbers = count(1)
        self._scope: Scope = frozenset(self._grid_tiles)
        self.program = "tl.program_id(0)"
        self.functions: list[str] = []
        self.described = False
        self._sizes = dict(tiling.configs[0].blocks)
        self._wide = ".to(tl.int64)" * tiling.wide
        self._shared = "PARTS" in self._sizes
        self._split = tiling.category == "split scan"
        self._apart: list[Accumulator] = []
        self._places = count()

    def grid(self) -> tuple[GridAxis, ...]:
        """Print the whole kernel; the axes of its grid."""
        if isinstance(stage := self.kernel.body[0], Attend):
            self.described = self.aligned and self.tiling.configs[0].registers > 0
            self.functions += score_functions(self, stage, gluon=self.described)
            call = f"{'hopper' if self.described else 'attention'}.{stage.template}"
            self._call(call, attention_arguments(self, stage))
            return attention_grid(stage, self._sizes)
        loops = grid_loops(self.kernel)
        blocks = {axis: tile.block for axis, tile in self.tile_of.items()}
        axes = [GridAxis(loop.axis.extent, blocks.get(loop.axis)) for loop in loops]
        if loops and isinstance(loops[-1].body[0], Contract):
            return self._template(loops[-1].body[0], loops[-1].body[1:], axes)
        if self._shared or self._split:
            row = self.tiling.tiles[-1]
            axes.append(GridAxis(row.axis.extent, row.block))
            number, parts = f"tl.program_id(0){self._wide}", "PARTS"
            if self._split:
                number, parts = "number", "parts"
                self.emit(f"number = rt.ticket(counters){self._wide}")
                self.emit(f"parts = tl.cdiv({self.index(row.axis.extent).text}, {row.block})")
            self.emit(f"part = {number} % {parts}")
            self.emit(f"tile = {number} // {parts}")
            self.program = "tile"
        if loops:
            self._program_ids([loop.axis for loop in loops])
        self.body(loops[-1].body if loops else self.kernel.body)
        if self._split:
            self.emit(f"rt.tidy(counters, parts, {prod(_scans(self.kernel)) * self._sizes.get('XBLOCK', 1)})")
        return tuple(axes)

    def _program_ids(self, axes: Sequence[Axis]) -> None:
        """Axes as digits of the program's number, the last one fastest."""
        rest = f"{self.program}{self._wide}"
        if len(axes) > 1:
            self.emit(f"pid = {rest}")
            rest = "pid"
        for k in range(len(axes) - 1, -1, -1):
            axis, tile, extent = axes[k], self.tile_of.get(axes[k]), self.index(axes[k].extent)
            count = extent.operand if tile is None else f"tl.cdiv({extent.text}, {tile.block})"
            number = Term(rest) if k == 0 else Term(f"{rest} % {count}", atom=False)
            if tile is None:
                self.named(number, axis.name, axis)
            else:
                start = f"{number.operand} * {tile.block}"
                if rest == "pid" and axis.extent % VECTOR is not ZERO:  # asked for when pid is another number
                    start = self.named(Term(start), f"{axis.name}_start").text
                self._lanes(axis, start)
            if k > 0:
                self.emit(f"pid = pid // {count}")

    def _template(self, contract: Contract, rest: Sequence[Loop | Stage], axes: list[GridAxis]) -> tuple[GridAxis, ...]:
        """The tile of a program, the call that fills it, and what follows: in a loop where a program has several
        tiles (``PROGRAMS``), for some of its rows where it has a part of one (``SPLIT_K``)."""
        self.program += self._wide
        counts = [f"tl.cdiv({self.index(a.extent).text}, {self.tile_of[a].block})" for a in _sides(contract)]
        if contract.rows_in_groups:
            self.emit(f"rows = gemm.tiles_of_groups({self._groups(contract)}, BLOCK_M)")
            counts[0] = "rows"
        self.described = self.aligned and contract.template == "described"
        if self.described:
            for name, view, sizes in (("lefts", contract.left, "M K"), ("rights", contract.right, "K N")):
                first = ["None"] * (3 - len(view.shape))
                shape, steps = ([*first, *(self.index(i).text for i in s)] for s in (view.shape, view.strides))
                blocks = [f"BLOCK_{side}" for side in sizes.split()]
                start = self.address(view.value, (view.offset,)).text
                self.emit(f"{name} = gemm.describe({', '.join([start, *shape, *steps, *blocks])})")
        if "PROGRAMS" in self._sizes:
            tiles = " * ".join([*(self.index(axis.extent).operand for axis in contract.batch), *counts])
            with self._indented(f"for pid in tl.range({self.program}, {tiles}, PROGRAMS, flatten=True):"):
                self._tile(contract, counts, rest)
            return (GridAxis(as_index(self._sizes["PROGRAMS"])),)
        self.emit(f"pid = {self.program}")
        if contract.rows_in_groups:
            with self._indented(f"if pid < {' * '.join(counts)}:"):
                self._tile(contract, counts, rest)
            return (replace(axes[0], more=contract.right.shape[0].value or 0), axes[1])
        if "SPLIT_K" not in self._sizes:
            self._tile(contract, counts, rest)
            return tuple(axes)
        self.emit("part = pid % SPLIT_K")
        self.emit("pid = pid // SPLIT_K")
        self._tile(contract, counts, ())
        self.emit("ticket = gemm.arrive(acc, space, counters, pid, part, SPLIT_K)")
        with self._indented("if part < BLOCK_M // SHARE:"):
            self._share(contract, rest)
        return (*axes, GridAxis(as_index(self._sizes["SPLIT_K"])))

    def _share(self, contract: Contract, rest: Sequence[Loop | Stage]) -> None:
        """What follows for rows of the tile whose parts this program sums: the others load and compute no more."""
        for key in (*contract.batch, contract.column):
            term = self.find(key)
            assert term is not None
            self.bind(key, replace(term, depth=self.block.depth))
        self.emit("rt.wait(counters, pid, ticket)")
        self.emit("shared = gemm.gathered(space, pid, part, acc.dtype, BLOCK_M, BLOCK_N, SPLIT_K, SHARE)")
        self.bind(contract.name, Term("shared", self.block.depth, frozenset(_sides(contract)), name=True))
        row = contract.row
        self.starts.pop(row, None)
        self.tile_of[row] = replace(self.tile_of[row], block="SHARE")
        lanes = f"row_tile * BLOCK_M + part * SHARE + {self.spread('tl.arange(0, SHARE)', row)}"
        name = self.named(Term(lanes, self.block.depth, frozenset((row,))), row.name, row).text
        if row in self.bounds:
            ok = Term(f"{name} < {self.index(row.extent).text}", self.block.depth, frozenset((row,)))
            self.bounds[row] = self.named(ok, f"{name}_ok")
        self.body(rest)

    @contextmanager
    def _indented(self, head: str) -> Iterator[None]:
        inner = Block(len(self.blocks))
        self.blocks.append(inner)
        yield
        self.blocks.pop()
        self.emit(head)
        self.block.lines.extend(f"    {line}" for line in inner.lines)

    def _call(self, function: str, arguments: Sequence[str]) -> None:
        self.block.lines += broken(f"{function}({', '.join(arguments)})", WIDTH - 4)

    def _lanes(self, axis: Axis, start: str) -> str:
        """Name the positions of a tile along ``axis`` from ``start`` on, and the condition that they are within."""
        lanes = self.spread(f"tl.arange(0, {self.tile_of[axis].block})", axis) + self._wide
        self.starts[axis] = start
        text = f"{start} + {lanes}" if start else lanes
        if row := self.shifted.get(axis):
            lane = self.named(Term(text, self.block.depth, frozenset((axis,))), "lane", row.lane)
            text = f"{lane.text} - {self.index(row.first).operand}"
        name = self.named(Term(text, self.block.depth, frozenset((axis,))), axis.name, axis).text
        self._bound(axis)
        return name

    def _tile(self, contract: Contract, counts: Sequence[str], rest: Sequence[Loop | Stage]) -> None:
        tile, depth, sides = "pid", self.block.depth, _sides(contract)
        for axis in contract.batch:
            name, tile = self.names.fresh(axis.name), self.names.fresh("within")
            self.emit(f"{name} = pid // ({' * '.join(counts)})")
            self.emit(f"{tile} = pid % ({' * '.join(counts)})")
            self.bind(axis, Term(name, depth, name=True))
        self.emit(f"row_tile, column_tile = gemm.place({tile}, {', '.join(counts)}, GROUP_M)")
        starts = ["row_tile * BLOCK_M", "column_tile * BLOCK_N"]
        if contract.rows_in_groups:
            self.emit(f"group, first_row, row_end = gemm.rows_of_group({self._groups(contract)}, row_tile, BLOCK_M)")
            starts[0], self.extents[contract.row] = "first_row", "row_end"
        places = [self._lanes(axis, start) for axis, start in zip(sides, starts, strict=True)]
        name, *args = self._filled(contract, places, starts)
        self._call(f"acc = gemm.{name}", args)
        self.bind(contract.name, Term("acc", depth, frozenset(sides), name=True))
        self.body(rest)

    def _groups(self, contract: Contract) -> str:
        """Where groups end, how many there are, and where the last one may end."""
        ends, most = contract.ends, contract.left.shape[0 if contract.rows_in_groups else 1]
        assert ends is not None
        numbers = (self.index(n).text for n in (*ends.strides, *ends.shape, most))
        return ", ".join([self.address(ends.value, (ends.offset,)).text, *numbers])

    def _window(self, contract: Contract, view: View) -> str:
        """The address of a matrix, of that of its batch or group if there are several."""
        steps = [axis.index() * step for axis, step in zip(contract.batch, view.strides[:-2], strict=False)]
        start = self.address(view.value, (sum(steps, view.offset),)).text
        if not contract.rows_in_groups or view is contract.left:
            return start
        return f"{start} + group.to(tl.int64) * {self.index(view.strides[0]).operand}"

    def _filled(self, contract: Contract, places: Sequence[str], starts: Sequence[str]) -> list[str]:
        left, right = contract.left, contract.right
        fast = ["FAST"] * ("FAST" in self._sizes)
        k = self.index(left.shape[-1])
        if self.described:
            rows = [str(view.strides[-1] is ONE) for view in (left, right)]
            number = next((self.index(axis.index()).text for axis in contract.batch), "None")
            numbers = [number, "group" if contract.rows_in_groups else number]
            sides = [*numbers, *starts, k.text, *rows, "BLOCK_M", "BLOCK_N", "BLOCK_K"]
            return ["described", "lefts", "rights", *sides, *fast]
        if contract.elements:
            return [*self._computed(contract, places), *fast]
        sizes = [*(axis.extent for axis in _sides(contract)), left.shape[-1], *left.strides[-2:], *right.strides[-2:]]
        args = [self._window(contract, left), self._window(contract, right), *places]
        args += [self.index(size).text for size in sizes]
        reach = self._reach(contract, k)
        even = [str(axis not in self.bounds) for axis in _sides(contract)]
        even.append(f"{k.operand} % ({reach[2]}) == 0" if left.shape[-1].value is not None and reach[2] else "False")
        return ["tiled", *args, *reach[:2], *even, "BLOCK_K", "ALLOW_TF32", *fast]

    def _reach(self, contract: Contract, k: Term) -> tuple[str, str, str]:
        """Where the k of a program's sums begin and end, and what divides their number in the best case."""
        if contract.ends is not None and not contract.rows_in_groups:
            group = self.index(contract.batch[0].index()).text
            self.emit(f"first, last = gemm.span_of_group({self._groups(contract)}, {group})")
            return "first", "last", ""
        if "SPLIT_K" not in self._sizes:
            return "0", k.text, "BLOCK_K"
        self.emit(f"first, last = gemm.part_of({k.text}, part, BLOCK_K, SPLIT_K)")
        return "first", "last", "BLOCK_K * SPLIT_K"

    def _computed(self, contract: Contract, places: Sequence[str]) -> list[str]:
        """The arguments of the template whose operands are functions, which are printed too."""
        row, column, inner, reads = *_sides(contract), contract.inner, reads_of(self, contract)
        depth = inner.extent.value
        even = depth is not None and all(depth % dict(c.blocks)["BLOCK_K"] == 0 for c in self.tiling.configs)
        once = dict.fromkeys(load for e in contract.elements for load in e.loads() if not load.axes() & {row, inner})
        known: dict[Key, Term] = {load: self.value(load) for load in once}
        reads += [term.text for term in known.values()]
        known |= {axis: Term(axis.name, axes=frozenset((axis,)), name=True) for axis in (row, inner, column)}
        known |= {axis: Term("batch", name=True) for axis in contract.batch}
        bounded, names = {*self.bounds, *(() if even else (inner,))}, ("lefts", "rights")
        for name, expr, sides in zip(names, contract.elements, ((row, inner), (inner, column)), strict=True):
            arguments = ("batch", *(axis.name for axis in sides), *(f"{axis.name}_ok" for axis in sides))
            tiles = [Tile(axis, f"{axis.name}.shape[{k}]") for k, axis in enumerate(sides)]
            bounds = {axis: replace(known[axis], text=f"{axis.name}_ok") for axis in sides if axis in bounded}
            self.functions += function_lines(
                name, arguments, expr, self, reads, known, expr.dtype, tiles=tiles, bounds=bounds
            )
        number = [self.index(axis.index()).text for axis in contract.batch] or ["0"]
        ends = [self.index(axis.extent).text for axis in (row, column)]
        ends += self._reach(contract, self.index(inner.extent))[:2]
        rest = [str(even), "BLOCK_K", "ALLOW_TF32", type_name(contract.name.dtype)]
        return ["computed", *names, tuple_of(reads), *number, *places, *ends, *rest]

    def _bound(self, axis: Axis) -> None:
        """Name the condition that a tile is within ``axis``, unless it is not 0 and tiles begin and end with it."""
        number = axis.extent.value
        blocks = [dict(c.blocks)[self.tile_of[axis].block] for c in self.tiling.configs]
        if number and axis not in self.extents.keys() | self.shifted and all(number % b == 0 for b in blocks):
            return
        variable = self.find(axis)
        assert variable is not None
        text = f"{variable.text} < {self.extents.get(axis) or self.index(axis.extent).text}"
        text = f"({variable.text} >= 0) & ({text})" if axis in self.shifted else text
        self.bounds[axis] = self.named(replace(variable, text=text, name=False), f"{variable.text}_ok")

    def body(self, items: Sequence[Loop | Stage]) -> None:
        """Print loops and stages into the innermost block."""
        for item in items:
            match item:
                case Loop():
                    self._loop(item)
                case Let(name, expr):
                    self.bind(name, self.value(expr, stem_of(name.name)))
                case Store():
                    self._store(item)
                case Update():
                    self._update(item)

    def _loop(self, loop: Loop) -> None:
        tile = self.tile_of.get(loop.axis)
        if loop.kind is LoopKind.SERIAL and not loop.carries:
            self._serial(loop)
            return
        if loop.kind is not LoopKind.LANES or tile is None:
            raise InternalCheckError("print", f"a {loop.kind.value} loop over {loop.axis} has no Triton")
        outside = self._scope
        self._scope |= {loop.axis}
        for carry in loop.carries:
            self._carries[carry.name] = (carry, loop)
        if tile.whole:
            if self.find(loop.axis) is None:
                self._lanes(loop.axis, f"part * {tile.block}" if self._shared or self._split else "")
            self.body(loop.body)
            self._meet(loop.axis)
        else:
            self._steps(loop, tile.block)
        self._scope = outside

    def _serial(self, loop: Loop) -> None:
        """A loop in order, which for some rows of a tile may end before it does for others."""
        extent, known = self.index(loop.axis.extent), self.bounds
        last = f"tl.max({extent.text})" if extent.axes else extent.text
        name = self.names.fresh(loop.axis.name)
        steps = f"tl.range(0, {last}, num_stages=STAGES)" if "STAGES" in self._sizes else f"range(0, {last})"
        with self._indented(f"for {name} in {steps}:"):
            number = f"tl.cast({name}, tl.int64)" if self.tiling.wide else name
            self.bind(loop.axis, Term(number, self.block.depth, name=True))
            for axis in extent.axes:
                text = f"{name} < {extent.text}"  # past the end of the axis are rows of other programs
                text = f"({text}) & {known[axis].operand}" if axis in known else text
                self.bounds = {**known, axis: self.named(Term(text, self.block.depth, extent.axes), f"{name}_ok")}
            self.body(loop.body)
        self.bounds = known

    def _steps(self, loop: Loop, block: str) -> None:
        row = self.shifted_row(loop)
        extent = self.index((row.lane if row else loop.axis).extent).text
        for carry in loop.carries:
            self._declare(carry, loop)
        self.loop_number = next(self._numbers)
        start = self.names.fresh("start")
        with self._indented(f"for {start} in range(0, {extent}, {block}):"):
            self._lanes(loop.axis, start)
            self.body(loop.body)
        self.loop_number = 0
        self.bounds.pop(loop.axis, None)
        self.shifted.pop(loop.axis, None)
        for carry in loop.carries:
            self._finish(self._accumulators[carry.name], loop.axis)

    def _declare(self, carry: Carry, loop: Loop) -> None:
        """Accumulators before a loop in blocks: a tile for a reduction, a column for a scan."""
        update = next(s for s in loop.body if isinstance(s, Update) and s.carry == carry.name)
        first = update.args[0].dtype
        axes = self._scope - {loop.axis} if update.running else self._scope
        shape = self.shape(axes) if axes else "[]"
        if carry.kind == "softmax":  # a state for eight neighbours
            shape = shape.replace(self.tile_of[loop.axis].block, f"{self.tile_of[loop.axis].block} // 8")
        names = []
        for number, kind in _starts(carry.kind, first, scan=bool(update.running)):
            names.append(self.names.fresh(carry.name))
            if carry.kind == "welford" and len(names) == 3:  # the count is that of all rows of a tile
                shape = self.shape(frozenset((loop.axis,)))
            self.emit(f"{names[-1]} = tl.full({shape}, {constant_text(number)}, {type_name(kind)})")
        self._accumulators[carry.name] = Accumulator(carry, names, working(first))

    def _update(self, update: Update) -> None:
        carry, loop = self._carries[update.carry]
        if "sort" in carry.kind:
            self._sort(update, carry.kind, loop.axis)
            return
        (first, dtype), *rest = _starts(carry.kind, update.args[0].dtype)
        args = [self._element(update.args[0], dtype, None if carry.kind == "welford" else first, loop.axis)]
        if REDUCTIONS[carry.kind].inputs == 2:  # the number of an element
            (most, number), *_ = rest
            args.append(self._element(update.args[1], number, None if update.running else most, loop.axis))
            args = [self._broadcast(a, args[0].axes | args[1].axes) for a in args]
        if update.running:  # Triton 3.6 fails on scans of tiles with a side of 1 under such a layout
            self._scan(update, carry, loop, [self._broadcast(a, self._scope) for a in args])
        elif self.tile_of[loop.axis].whole:
            self._reduce_tile(carry, loop.axis, args, update.args[0].dtype)
        else:
            self._step(self._accumulators[carry.name], loop.axis, args)

    def _element(self, e: Expr, dtype: torch.dtype, start: Scalar | None, axis: Axis) -> Term:
        """An element in the type that the reduction runs in, ``start`` outside the row unless that is None."""
        term = self.value(e)
        if isinstance(e, Const):
            term = Term(scalar(int(e.value) if e.dtype == torch.bool else e.value, dtype))
        elif dtype != e.dtype:
            term = term.to(type_name(dtype))
        if axis not in self.bounds or start is None:
            return self._broadcast(term, term.axes | {axis})
        return self._neutral(term, constant_text(start), axis)

    def _neutral(self, term: Term, start: str, axis: Axis) -> Term:
        ok = self.bounds[axis]
        text = f"tl.where({ok.text}, {term.text}, {start})"
        return self.named(Term(text, max(ok.depth, term.depth), term.axes | {axis}), "part")

    def _broadcast(self, term: Term, axes: Scope) -> Term:
        if axes == term.axes:
            return self.named(term, "part")
        return self.named(Term(f"tl.broadcast_to({term.text}, {self.shape(axes)})", self.block.depth, axes), "part")

    def _step(self, into: Accumulator, axis: Axis, args: list[Term]) -> None:
        state, element = ", ".join(into.names), ", ".join(a.operand for a in args)
        ok = self.bounds[axis].text if axis in self.bounds else "True"
        self.emit(f"{state} = {_NEXT[into.carry.kind].format(state, element, ok)}")

    def _finish(self, done: Accumulator, axis: Axis) -> None:
        if any(r is not None and self.is_used(r) for r in done.carry.results):
            found = self._reduced(done.carry.kind, done.names)
            self._bind_refs(done.carry.results, found, self._scope - {axis}, done.dtype)

    def _reduce_tile(self, carry: Carry, axis: Axis, args: list[Term], first: torch.dtype) -> None:
        axes = frozenset().union(*(a.axes for a in args)) - {axis}
        if carry.kind == "softmax":  # of an element alone the maximum is itself, the sum 1
            ones = f"tl.full({self.shape(args[0].axes)}, 1.0, {args[0].text}.dtype)"
            args = [*args, self.named(Term(ones, self.block.depth), "one")]
        welford = carry.kind == "welford"
        found = self._welford_tile(args[0], axis) if welford else self._reduced(carry.kind, [a.text for a in args])
        if self._shared:
            self._apart.append(Accumulator(carry, self._left(carry.kind, found, first), working(first)))
        else:
            self._bind_refs(carry.results, found, axes, working(first))

    def _left(self, kind: str, texts: Sequence[str], first: torch.dtype) -> list[str]:
        """Store what a part of a row comes to; what gives that of all parts, once they have met."""
        found = []
        for text, (start, _) in zip(texts, _starts(kind, first), strict=True):
            state = self.named(Term(text, name=text.isidentifier()), kind).text
            place = f"tile * {_states(self.kernel.body)} + {next(self._places)}"
            self.emit(f"rt.leave({state}, space, {place}, part, PARTS)")
            found.append(f"rt.collect({state}, space, {place}, {constant_text(start)}, PARTS)")
        return found

    def _meet(self, axis: Axis) -> None:
        """What the parts of a row came to in a loop is reduced, by each of the programs that share it."""
        if self._apart:
            self.emit("rt.meet(counters, tile, part, PARTS)")
        for done in self._apart:
            tiles = [self.named(Term(text), f"{done.carry.kind}_parts").text for text in done.names]
            self._finish(replace(done, names=tiles), axis)
        self._apart.clear()

    def _reduced(self, kind: str, texts: Sequence[str]) -> list[str]:
        if kind in _REDUCE:
            keep = ", keep_dims=True" * (self.rank > 1)
            return [f"tl.{_REDUCE[kind]}({texts[0]}, {self.rank - 1}{keep})"]
        reduced = f"rt.reduce_{kind}({', '.join(texts)}, {self.rank - 1}, {self.rank > 1})"
        if len(REDUCTIONS[kind].results) == 1:
            return [reduced]
        names = [self.names.fresh(kind) for _ in REDUCTIONS[kind].results]
        self.emit(f"{', '.join(names)} = {reduced}")
        return names

    def _welford_tile(self, x: Term, axis: Axis) -> list[str]:
        ok, count, block = self.bounds.get(axis), self.index(axis.extent).operand, self.tile_of[axis].block
        if self._shared:
            count = f"tl.minimum({count} - part * {block}, {block})"
        names = [self.names.fresh(name) for name in ("mean", "m2", "count")]
        row = f"{x.text}, {ok.text if ok else True}, {count}, {self.rank - 1}, {self.rank > 1}"
        self.emit(f"{', '.join(names)} = rt.welford_tile({row})")
        return names

    def _bind_refs(self, refs: Sequence[Ref | None], texts: Sequence[str], axes: Scope, dtype: torch.dtype) -> None:
        wanted = [(r, text) for r, text in zip(refs, texts, strict=True) if r is not None and self.is_used(r)]
        for ref, text in wanted:
            if ref.dtype == torch.bool:
                text = f"({text} != 0)"
            elif ref.dtype not in (dtype, torch.int64):
                text = f"{text}.to({type_name(ref.dtype)})"
            self.bind(ref, self.named(Term(text, self.block.depth, axes), ref.name))

    def _scan(self, update: Update, carry: Carry, loop: Loop, args: list[Term]) -> None:
        axis, place = loop.axis, self.rank - 1
        combine = _SCAN.get(carry.kind, carry.kind)
        names = [self.names.fresh(f"{carry.kind}_scan") for _ in args]
        texts = ", ".join(a.text for a in args)
        given = f"({texts})" if len(args) > 1 else texts
        left = ", ".join(names)
        self.emit(f"{left} = tl.associative_scan({given}, {place}, rt.{combine})")
        axes = frozenset().union(*(a.axes for a in args))
        if self._split:
            before = [self.names.fresh(f"{carry.kind}_before") for _ in args]
            self._carry_on(before, names, loop)
            starts = [constant_text(n) for n, _ in _starts(carry.kind, update.args[0].dtype, scan=True)]
            scans, words = _scans(self.kernel)
            row = "tile"
            for column in self.tiling.tiles[:-1]:
                row = f"(tile * {column.block} + {self.spread(f'tl.arange(0, {column.block})', column.axis)})"
            where = f"counters, {row} * {scans} + {next(self._places)}, part, parts, {words}"
            function = "before_two" if len(args) > 1 else "before"
            self.emit(f"{', '.join(before)} = rt.{function}({', '.join([*before, *starts])}, '{carry.kind}', {where})")
            self.emit(f"{left} = rt.{combine}({', '.join([*before, *names])})")
        elif not self.tile_of[axis].whole:
            into = self._accumulators[carry.name].names
            self.emit(f"{left} = rt.{combine}({', '.join([*into, *names])})")
            axes |= self._scope
            self._carry_on(into, names, loop)
        self._bind_refs(update.running, names, axes, working(update.args[0].dtype))

    def _sort(self, update: Update, kind: str, axis: Axis) -> None:
        """Sort rows that a tile covers, with where elements were; what is outside the row comes last."""
        row = self._broadcast(self._element(update.args[0], update.args[0].dtype, None, axis), self._scope)
        inside = self.bounds[axis].text if axis in self.bounds else "True"
        names = [self.names.fresh("sorted"), self.names.fresh("position")]
        self.emit(f"{', '.join(names)} = rt.sort({row.text}, {inside}, {kind != 'sort'})")
        self._bind_refs(update.running, names, self._scope, update.args[0].dtype)

    def _carry_on(self, into: Sequence[str], names: Sequence[str], loop: Loop) -> None:
        """What the next tile starts from: the last element of this one."""
        block = self.tile_of[loop.axis].block
        here = self.spread(f"tl.arange(0, {block})", loop.axis)
        for old, new in zip(into, names, strict=True):
            self.emit(f"{old} = rt.pick({new}, {here} == {block} - 1, {self.rank - 1}, {self.rank > 1})")

    def _keep(self, store: Store) -> None:
        """A scratch row is a local: the tile that covers it."""
        name, expr = self.rows[store.value], store.expr
        if isinstance(expr, Const):
            shape, dtype = self.shape(self._scope), type_name(store.value.dtype)
            self.emit(f"{name} = tl.full({shape}, {constant_text(expr.value)}, {dtype})")
            return
        kind, value = STEP_OF[store.combine], self.value(expr)
        for axis in self.bounds.keys() & {*self._grid_tiles}:
            value = self._neutral(value, constant_text(_starts(kind, expr.dtype)[0][0]), axis)
        self.emit(f"{name} = {_NEXT[kind].format(name, value.operand)}")

    def _store(self, store: Store) -> None:
        if store.value in self.rows:
            self._keep(store)
            return
        at = self.address(store.value, store.index)
        value = self.value(store.expr)
        value = self.named(value, "t", store.expr) if len(value.text) > 60 else value
        every = self._scope if store.atomic else at.axes | value.axes
        pointer = at.text if every == at.axes else f"tl.broadcast_to({at.text}, {self.shape(every)})"
        conditions = self.within(every)
        if self._shared and not self._scope:  # all programs of a row know it
            conditions.append(Term("part == 0", atom=False))
        tail = mask_text(conditions)
        if store.combine == "set":
            past = ', cache_modifier=".cs"' * bool(self.loop_number and self.again)  # it is for what is read again
            self._put(store, pointer, value, conditions, past)
        elif store.atomic and store.combine in ("add", "max", "min"):
            self.emit(f'tl.atomic_{store.combine}({pointer}, {value.text}{tail}, sem="relaxed")')
        elif not store.atomic:
            self._combine(store, pointer, value, tail)
        else:
            raise InternalCheckError("print", f"{store.combine} into memory has no atomic in Triton")

    def _put(self, store: Store, pointer: str, value: Term, conditions: Sequence[Term], more: str) -> None:
        """Store a tile. Elements that are too few for a thread to store at once, the last of them and the first of a
        shifted row, are stored apart: for their mask, all would go one by one.

            tl.store(y + i, t, i < 1001)   →   rt.store_apart(y + i, t, i < 1001, i < 1000, start + XBLOCK > 1000)"""
        place, size = store.value.position(store.index), VECTOR // store.value.dtype.itemsize
        axis = self.ends_amid(place, size)
        if axis is None or len(place.axes() & self.tile_of.keys()) < self.rank:
            self.emit(f"tl.store({pointer}, {value.text}{mask_text(conditions)}{more})")
            return
        lane, first = self.lanes_of(axis)
        start, least = self.starts[axis], axis.extent // size * size
        begin, end = ((first + n) // size * size for n in (size - 1, axis.extent))
        at, low, high = (self.index(i).operand for i in (lane.index(), begin, end))
        whole, past = f"{at} < {high}", f"{start} + {self.tile_of[axis].block} > {self.index(least).operand}"
        if axis in self.shifted:
            whole, past = f"({at} >= {low}) & ({whole})", f"({start} == 0) | ({past})"
        masks = [f"({whole})" if c is self.bounds[axis] else c.operand for c in conditions]
        inside = " & ".join(c.operand for c in conditions)
        arguments = [pointer, value.text, inside, " & ".join(masks), past if start else "True"]
        self._call("rt.store_apart", [*arguments, '".cs"' if more else '""'])

    def _combine(self, store: Store, pointer: str, value: Term, tail: str) -> None:
        """Read, combine and write; the barrier puts the iterations of a serial loop in order."""
        kind = STEP_OF[store.combine]
        dtype = type_name(working(store.value.dtype))
        text = _NEXT[kind].format("old", "new")
        self.emit(f"old = tl.load({pointer}{tail}).to({dtype})")
        constant = isinstance(store.expr, Const)
        self.emit(f"new = {value.text if constant else f'{value.operand}.to({dtype})'}")
        boolean = " != 0" if store.value.dtype == torch.bool else ""
        self.emit(f"tl.store({pointer}, ({text}){boolean}{tail})")
        self.emit("tl.debug_barrier()")
