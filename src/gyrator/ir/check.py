"""Executable specifications of the IR's levels: a pass declares the one it leaves, the pass runner calls it.

================  ======================================================================================
``LOWERED``       what lowering produces: SSA, shapes, ranks, dtypes, scopes and ranges are right
``PREDICATED``    LOWERED without ``Masked``
``SCHEDULED``     PREDICATED, and every node is needed by an output, an update or an effect
``check_kernel``  a loop tree: locals and carries in scope, loops nested legally, parameters complete
================  ======================================================================================

A broken rule raises :class:`~gyrator.errors.InternalCheckError` with the node's text and the user's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from gyrator.errors import InternalCheckError
from gyrator.ir.check_expr import COMBINES, ExprChecker, RuleBroken, check_combine
from gyrator.ir.expr import Expr, Load, Ref, Value, indirect_values, short
from gyrator.ir.index import Axis, Index, Size
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.program import (
    Arg,
    Extern,
    Item,
    ListArg,
    Nest,
    Node,
    Pointwise,
    Program,
    Reduce,
    Scan,
    Scatter,
    View,
    defines,
    shown_values,
    uses,
)
from gyrator.ir.tree import Carry, Contract, Kernel, Let, Loop, LoopKind, Stage, Store, Update, contract_sides
from gyrator.origin import Origin

# -- programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A level of the IR. ``masked``: ``Masked`` may occur; ``dead``: nodes that nothing needs may occur."""

    name: str
    masked: bool
    dead: bool


LOWERED = ProgramSpec("lowered", masked=True, dead=True)
PREDICATED = ProgramSpec("predicated", masked=False, dead=True)
SCHEDULED = ProgramSpec("scheduled", masked=False, dead=False)


def check_program(program: Program, spec: ProgramSpec = LOWERED) -> None:
    """Check every rule of ``spec``.

    Raises: InternalCheckError naming the first node that breaks a rule.
    """
    _ProgramChecker(program, spec).run()
    if not spec.dead:
        _check_no_dead(program)


class _ProgramChecker:
    def __init__(self, program: Program, spec: ProgramSpec) -> None:
        self.program = program
        self.values: dict[str, Value] = {}
        self.sizes: set[Size] = set()
        self.exprs = ExprChecker(lambda load: self.defined(load.value), _no_ref, self.sizes.__contains__, spec.masked)

    def run(self) -> None:
        program = self.program
        with _blame(f"signature of {program.name}"):
            for size in [i.size for i in program.inputs] + [d.size for d in program.derived]:
                if size is not None:
                    self.define_size(size)
            for value in [i.value for i in program.inputs] + [c.value for c in program.constants]:
                if value is not None:
                    self.define(value)
        for node in program.nodes:
            with _blame(node, node.origins):
                if isinstance(node, Nest):
                    self.nest(node)
                else:
                    self.extern(node)
        for position, output in enumerate(program.outputs):
            with _blame(f"output {position} of {program.name}: {output}"):
                self.arg(output)
        targets = {i.value for i in program.inputs}
        for update in program.updates:
            with _blame(f"update of {update.target} by {update.value}"):
                if update.target not in targets:
                    raise RuleBroken(f"{update.target} is not an input")
                self.view(update.value)
                if update.value.shape != update.target.shape:
                    raise RuleBroken(f"shapes differ: {update.target.shape} and {update.value.shape}")

    # -- definitions ---------------------------------------------------------------------------------------
    def define_size(self, size: Size) -> None:
        if size in self.sizes:
            return  # torch passes a symbol once for each use it needs
        if any(s.name == size.name for s in self.sizes):
            raise RuleBroken(f"two sizes are named {size.name}")
        self.sizes.add(size)

    def define(self, value: Value) -> None:
        if value.name in self.values:
            raise RuleBroken(f"value {value} is defined twice")
        if len(value.shape) != len(value.strides):
            raise RuleBroken(f"value {value} has {len(value.shape)} sizes and {len(value.strides)} strides")
        for index in (*value.shape, *value.strides):
            self.uniform(index)
        self.values[value.name] = value

    def defined(self, value: Value) -> None:
        known = self.values.get(value.name)
        if known is None:
            raise RuleBroken(f"value {value} is not defined before its use")
        if known is not value:
            raise RuleBroken(f"value {value} is used as {_describe(value)}, defined as {_describe(known)}")

    def uniform(self, index: Index) -> None:
        """``index`` depends on sizes alone."""
        if index.axes():
            raise RuleBroken(f"{index} depends on a loop axis")
        self.exprs.index(index)

    # -- nests ---------------------------------------------------------------------------------------------
    def nest(self, nest: Nest) -> None:
        root = nest.root
        inner = root.reduced if isinstance(root, Reduce) else ()
        every = (*nest.axes, *inner)
        axes = frozenset(every)
        if len(axes) != len(every) or len({a.name for a in every}) != len(every):
            raise RuleBroken(f"axes are not distinct: {', '.join(a.name for a in every)}")
        for axis in every:
            self.uniform(axis.extent)
        results = self.root(nest, axes)
        if len(nest.out) != len(results):
            raise RuleBroken(f"{len(nest.out)} values for {len(results)} results")
        shape = root.into.shape if isinstance(root, Scatter) else tuple([a.extent for a in nest.axes])
        for value, dtype in zip(nest.out, results, strict=True):
            if value is None:
                continue
            if value.shape != shape:
                raise RuleBroken(f"value {value} has shape {_tuple(value.shape)}, the nest gives {_tuple(shape)}")
            if value.dtype != dtype:
                raise RuleBroken(f"{value} is {short(value.dtype)}, the nest gives {short(dtype)}")
            self.define(value)
        if not any(v is not None for v in nest.out):
            raise RuleBroken("a nest that defines nothing")

    def root(self, nest: Nest, axes: frozenset[Axis]) -> tuple[torch.dtype, ...]:
        """Check the root's expressions; the dtypes of its results."""
        match nest.root:
            case Pointwise(body):
                self.exprs.value(body, axes)
                return (body.dtype,)
            case Reduce(kind, _, body):
                for b in body:
                    self.exprs.value(b, axes)
                return check_combine(kind, tuple([b.dtype for b in body]))
            case Scan(kind, axis, body, _):
                if axis not in nest.axes:
                    raise RuleBroken(f"scan along {axis}, which is no axis of the nest")
                for b in body:
                    self.exprs.value(b, axes)
                results = check_combine(kind, tuple([b.dtype for b in body]))
                if not REDUCTIONS[kind].scan:
                    raise RuleBroken(f"{kind} is no scan")
                return results
            case Scatter(into, index, body, combine, mask):
                self.defined(into)
                self.exprs.value(body, axes, into.dtype)
                if mask is not None:
                    self.exprs.value(mask, axes, torch.bool)
                self.exprs.coordinates(index, into, axes, guarded=mask is not None)
                if combine not in COMBINES:
                    raise RuleBroken(f"no such way to combine: {combine}")
                return (into.dtype,)

    # -- externs -------------------------------------------------------------------------------------------
    def extern(self, node: Extern) -> None:
        for arg in (*node.args, *(a for _, a in node.kwargs)):
            self.arg(arg)
        for size in node.scalars:
            self.define_size(size)
        for value in node.out:
            if value is not None:
                self.define(value)
        for position, new in node.mutates:
            old = node.args[position] if position < len(node.args) else None
            if not isinstance(old, View):
                raise RuleBroken(f"argument {position}, which the call writes into, is no view")
            if (old.value.shape, old.value.dtype) != (new.shape, new.dtype):
                raise RuleBroken(f"{new} is not a new version of {old.value}: {_describe(new)}, {_describe(old.value)}")
            self.define(new)

    def arg(self, arg: Arg) -> None:
        match arg:
            case View():
                self.view(arg)
            case Item(view):
                self.view(view)
                if view.shape:
                    raise RuleBroken(f"the number {view} has dimensions")
            case Index():
                self.uniform(arg)
            case ListArg(items):
                for item in items:
                    self.arg(item)

    def view(self, view: View) -> None:
        self.defined(view.value)
        if len(view.shape) != len(view.strides):
            raise RuleBroken(f"view of {view.value} has {len(view.shape)} sizes and {len(view.strides)} strides")
        if view.dtype is not None and view.dtype.itemsize != view.value.dtype.itemsize:
            raise RuleBroken(f"view of {view.value} reinterprets {short(view.value.dtype)} as {short(view.dtype)}")
        for index in (*view.shape, *view.strides, view.offset):
            self.uniform(index)


def _check_no_dead(program: Program) -> None:
    needed = shown_values(program)
    for node in reversed(program.nodes):
        effect = isinstance(node, Extern) and (node.effects or node.scalars)
        if not effect and needed.isdisjoint(defines(node)):
            with _blame(node, node.origins):
                raise RuleBroken("nothing needs what this node defines")
        needed |= uses(node)


def _no_ref(ref: Ref) -> None:
    raise RuleBroken(f"local {ref} outside a kernel")


# -- loop trees --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a stage may use: the loops around it and the carries that they feed."""

    axes: frozenset[Axis] = frozenset()
    parallel: tuple[Axis, ...] = ()
    carries: dict[str, Carry] = field(default_factory=dict)
    lanes: bool = False
    serial: bool = False


def check_kernel(kernel: Kernel) -> None:
    """Check the rules of loop trees.

    Raises: InternalCheckError naming the kernel, the loop or stage, and the user's line.
    """
    _KernelChecker(kernel).run()


class _KernelChecker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = frozenset(kernel.sizes)
        self.params = {p.value: p for p in kernel.params}
        self.scratch = frozenset(kernel.scratch)
        self.refs: dict[str, Ref] = {}
        self.visible: set[str] = set()
        self.carry_names: set[str] = set()
        self.loaded: set[Value] = set()
        self.stored: set[Value] = set()
        self.updated: set[str] = set()
        self.exprs = ExprChecker(_ignore, _ignore, self.sizes.__contains__, masked=False)

    def run(self) -> None:
        kernel = self.kernel
        with _blame(f"signature of kernel {kernel.name}", kernel.origins):
            values = [*self.params, *kernel.scratch]
            names = [v.name for v in values] + [s.name for s in kernel.sizes]
            if len(set(names)) != len(names) or len(self.params) != len(kernel.params):
                raise RuleBroken(f"names are not distinct: {', '.join(names)}")
            for value in values:
                for index in (*value.shape, *value.strides):
                    self.exprs.index(index)
        self.block(kernel.body, _Scope())
        with _blame(f"signature of kernel {kernel.name}", kernel.origins):
            for value, param in self.params.items():
                if param.read != (value in self.loaded):
                    raise RuleBroken(f"parameter {value} is read={param.read}, loaded={value in self.loaded}")
                if param.written != (value in self.stored):
                    raise RuleBroken(f"parameter {value} is written={param.written}, stored={value in self.stored}")
                if param.alias is not None and not any(v.name == param.alias for v in self.params):
                    raise RuleBroken(f"parameter {value} is an alias of {param.alias}, which is no parameter")

    def block(self, body: Iterable[Loop | Stage], scope: _Scope) -> None:
        outer = set(self.visible)
        for item in body:
            what = f"loop over {item.axis}" if isinstance(item, Loop) else item
            with _blame(f"{what} in kernel {self.kernel.name}", self.kernel.origins):
                if isinstance(item, Loop):
                    self.block(item.body, self.enter(item, scope))
                    self.leave(item, scope)
                else:
                    self.stage(item, scope)
        self.visible = outer

    # -- loops ---------------------------------------------------------------------------------------------
    def enter(self, loop: Loop, scope: _Scope) -> _Scope:
        """Check the loop's head; the scope of its body."""
        axis = loop.axis
        if any(a.name == axis.name for a in scope.axes):
            raise RuleBroken(f"a loop over {axis} inside a loop over an axis of that name")
        if not axis.extent.axes() <= set(scope.axes):
            raise RuleBroken(f"extent {axis.extent} of {axis} depends on a loop that is not around it")
        self.exprs.index(axis.extent)
        parallel = loop.kind is LoopKind.PARALLEL
        if parallel and (scope.lanes or (scope.serial and scope.parallel)):
            raise RuleBroken("a parallel loop inside one that is not")
        if loop.kind is LoopKind.LANES and scope.lanes:
            raise RuleBroken("vectors within vectors")
        if loop.lanes < 1 or (loop.lanes > 1 and loop.kind is not LoopKind.LANES):
            raise RuleBroken(f"{loop.lanes} lanes in a {loop.kind.value} loop")
        if loop.reverse and parallel:
            raise RuleBroken("a parallel loop has no order to reverse")
        for carry in loop.carries:
            self.carry(carry)
        return _Scope(
            scope.axes | {axis},
            (*scope.parallel, axis) if parallel else scope.parallel,
            {**scope.carries, **{c.name: c for c in loop.carries}},
            scope.lanes or loop.kind is LoopKind.LANES,
            scope.serial or loop.kind is LoopKind.SERIAL,
        )

    def carry(self, carry: Carry) -> None:
        row = REDUCTIONS.get(carry.kind)
        if row is None:
            raise RuleBroken(f"no such reduction: {carry.kind}")
        if carry.name in self.carry_names:
            raise RuleBroken(f"two carries are named {carry.name}")
        if len(carry.results) != len(row.results):
            raise RuleBroken(
                f"carry {carry.name} has {len(carry.results)} results, {carry.kind} has {len(row.results)}"
            )
        self.carry_names.add(carry.name)

    def leave(self, loop: Loop, scope: _Scope) -> None:
        """The loop's carries were fed; their results are visible from here on."""
        for carry in loop.carries:
            if carry.name not in self.updated:
                raise RuleBroken(f"carry {carry.name} is never updated")
            for ref in carry.results:
                if ref is not None:
                    self.define(ref, scope)

    # -- stages --------------------------------------------------------------------------------------------
    def stage(self, stage: Stage, scope: _Scope) -> None:
        match stage:
            case Let(name, expr):
                self.value(expr, scope, name.dtype)
                if not expr.axes() <= name.scope:
                    raise RuleBroken(f"the scope of {name} lacks axes that its value depends on")
                self.define(name, scope)
            case Store():
                self.store(stage, scope)
            case Update():
                self.update(stage, scope)
            case Contract():
                self.contract(stage, scope)

    def store(self, store: Store, scope: _Scope) -> None:
        value = store.value
        if value not in self.params and value not in self.scratch:
            raise RuleBroken(f"{value} is neither a parameter nor scratch")
        self.value(store.expr, scope, value.dtype)
        if store.mask is not None:
            self.value(store.mask, scope, torch.bool)
        self.exprs.coordinates(store.index, value, scope.axes, guarded=store.mask is not None)
        for indirect in indirect_values(store.index):
            self._exist(self._leaves(indirect))
        if store.combine not in COMBINES:
            raise RuleBroken(f"no such way to combine: {store.combine}")
        reached = frozenset[Axis]().union(*(i.axes() for i in store.index))
        if value in self.params and not store.atomic and store.mask is None:
            for axis in scope.parallel:
                if axis not in reached and axis.extent.value != 1:
                    raise RuleBroken(f"iterations of the parallel loop over {axis} race to write {value}")
        self.stored.add(value)

    def contract(self, contract: Contract, scope: _Scope) -> None:
        outer = tuple(axis.extent for axis in contract.batch)
        (*_, k), (m, n) = contract.left.shape, (contract.row.extent, contract.column.extent)
        if (contract.left.shape, contract.right.shape) != ((*outer, m, k), (*outer, k, n)):
            raise RuleBroken(f"the sides of {contract.left} and {contract.right} do not match the loops")
        for view in (contract.left, contract.right):
            if view.value not in self.params or view.value in self.stored:
                raise RuleBroken(f"a template reads {view.value}, which is no parameter or is written")
            self.loaded.add(view.value)
        for index in contract_sides(contract):
            self.exprs.index(index)
        self.define(contract.name, scope)

    def update(self, update: Update, scope: _Scope) -> None:
        carry = scope.carries.get(update.carry)
        if carry is None:
            raise RuleBroken(f"no loop around carries {update.carry}")
        for arg in update.args:
            self.value(arg, scope)
        results = check_combine(carry.kind, tuple([a.dtype for a in update.args]))
        self._same_dtypes(carry.results, results)
        if update.running:
            if not REDUCTIONS[carry.kind].scan:
                raise RuleBroken(f"{carry.kind} has no running results")
            self._same_dtypes(update.running, results)
        self.updated.add(update.carry)
        for ref in update.running:
            if ref is not None:
                self.define(ref, scope)

    @staticmethod
    def _same_dtypes(refs: tuple[Ref | None, ...], dtypes: tuple[torch.dtype, ...]) -> None:
        if len(refs) != len(dtypes):
            raise RuleBroken(f"{len(refs)} names for {len(dtypes)} results")
        for ref, dtype in zip(refs, dtypes, strict=True):
            if ref is not None and ref.dtype != dtype:
                raise RuleBroken(f"{ref} is {short(ref.dtype)}, the carry gives {short(dtype)}")

    # -- names ---------------------------------------------------------------------------------------------
    def define(self, ref: Ref, scope: _Scope) -> None:
        if ref.name in self.refs:
            raise RuleBroken(f"local {ref} is defined twice")
        if not ref.scope <= scope.axes:
            raise RuleBroken(f"local {ref} claims to depend on axes that are not around it")
        self.refs[ref.name] = ref
        self.visible.add(ref.name)

    def value(self, expr: Expr, scope: _Scope, dtype: torch.dtype | None = None) -> None:
        """``expr`` is well formed, and its locals and loaded values exist at this point of the kernel."""
        self.exprs.value(expr, scope.axes, dtype)
        self._exist(self._leaves(expr))

    def _exist(self, leaves: frozenset[Ref | Value]) -> None:
        for leaf in leaves:
            if isinstance(leaf, Ref):
                if leaf.name not in self.visible or self.refs[leaf.name] is not leaf:
                    raise RuleBroken(f"local {leaf} is not defined here")
                continue
            self.loaded.add(leaf)
            if leaf not in self.params and leaf not in self.scratch:
                raise RuleBroken(f"{leaf} is neither a parameter nor scratch")
            if leaf in self.scratch and leaf not in self.stored:
                raise RuleBroken(f"scratch {leaf} is loaded before it is stored")

    @staticmethod
    def _leaves(expr: Expr) -> frozenset[Ref | Value]:
        """The locals and values that ``expr`` reads."""
        return frozenset(n if isinstance(n, Ref) else n.value for n in expr.walk() if isinstance(n, Ref | Load))


def _ignore(leaf: Load | Ref) -> None:
    """Kernels judge locals and loads at each use: a store or the end of a loop changes the answer."""


# -- blame -------------------------------------------------------------------------------------------------


@contextmanager
def _blame(what: Node | str, origins: tuple[Origin, ...] = ()) -> Iterator[None]:
    try:
        yield
    except RuleBroken as broken:
        where = next((o for o in origins if o.file), origins[0] if origins else None)
        raise InternalCheckError("", str(broken), where=where, node=str(what)) from None


def _describe(value: Value) -> str:
    return f"{short(value.dtype)}[{_tuple(value.shape)}] strides ({_tuple(value.strides)}) on {value.device}"


def _tuple(indices: tuple[Index, ...]) -> str:
    return ", ".join(map(str, indices))
