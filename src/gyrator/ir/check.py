"""Executable specifications of the IR's levels: a pass declares the one it leaves, the pass runner calls it.

================  ======================================================================================
``LOWERED``       what lowering produces: SSA, shapes, ranks, dtypes, scopes and ranges are right
``PREDICATED``    LOWERED without ``Masked``
``SCHEDULED``     PREDICATED, and every node is needed by an output, an update or an effect
``check_kernel``  a loop tree: locals and carries in scope, loops nested legally, parameters complete
================  ======================================================================================

A broken rule raises :class:`~gyrator.errors.InternalCheckError` with the node's text and the user's line."""

from collections.abc import Iterable
from enum import Enum

import torch

from gyrator.ir import program as ir
from gyrator.ir.check_expr import ExprChecker, check_combine
from gyrator.ir.expr import Expr, Load, Ref, Value, short
from gyrator.ir.index import ONE, ZERO, Axis, Index, Size, const
from gyrator.ir.ops import REDUCTIONS
from gyrator.ir.text import COMBINES, declared, listed
from gyrator.ir.tree import Attend, Contract, Kernel, Let, Loop, LoopKind, Stage, Store, Update, stage_exprs, windows
from gyrator.origin import first_known
from gyrator.passes import RuleBroken, blame

ProgramSpec = Enum("ProgramSpec", "LOWERED PREDICATED SCHEDULED")
LOWERED, PREDICATED, SCHEDULED = ProgramSpec


def check_program(program: ir.Program, spec: ProgramSpec = LOWERED) -> None:
    """Check every rule of ``spec``. Raises: InternalCheckError naming the first node that breaks a rule."""
    _ProgramChecker(program, spec).run()
    if spec is SCHEDULED:
        _check_no_dead(program)


class _ProgramChecker:
    def __init__(self, program: ir.Program, spec: ProgramSpec) -> None:
        self.program = program
        self.values: dict[str, Value] = {}
        self.sizes: set[Size] = set()
        self.exprs = ExprChecker(self.sizes, masked=spec is LOWERED, locals=False)

    def run(self) -> None:
        program = self.program
        with blame(f"signature of {program.name}"):
            for size in filter(None, (*(i.size for i in program.inputs), *(d.size for d in program.derived))):
                self.define_size(size)
            for given in filter(None, (*(i.value for i in program.inputs), *program.constants)):
                self.define(given)
        for node in program.nodes:
            with blame(node, first_known(node.origins)):
                for value in ir.uses(node):
                    self.defined(value)
                if isinstance(node, ir.Nest):
                    self.nest(node)
                else:
                    self.extern(node)
        for position, output in enumerate(program.outputs):
            with blame(f"output {position} of {program.name}: {output}"):
                self.arg(output)
        targets = {i.value for i in program.inputs}
        for update in program.updates:
            with blame(f"update of {update.target} by {update.value}"):
                if update.target not in targets:
                    raise RuleBroken(f"{update.target} is not an input")
                self.view(update.value)
                if update.value.shape != update.target.shape:
                    raise RuleBroken(f"shapes differ: {update.target.shape} and {update.value.shape}")

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
        self.uniform(*value.shape, *value.strides)
        self.values[value.name] = value

    def defined(self, value: Value) -> None:
        if (known := self.values.get(value.name)) is None:
            raise RuleBroken(f"value {value} is not defined before its use")
        if known is not value:
            raise RuleBroken(f"value {value} is used as {declared(value)}, defined as {declared(known)}")

    def uniform(self, *indices: Index) -> None:
        """``indices`` depend on sizes alone."""
        if odd := [index for index in indices if index.axes()]:
            raise RuleBroken(f"{odd[0]} depends on a loop axis")
        self.exprs.index(*indices)

    def nest(self, nest: ir.Nest) -> None:
        root = nest.root
        every = (*nest.axes, *(root.reduced if isinstance(root, ir.Reduce) else ()))
        axes = frozenset(every)
        if len(axes) != len(every) or len({a.name for a in every}) != len(every):
            raise RuleBroken(f"axes are not distinct: {', '.join(a.name for a in every)}")
        self.uniform(*[axis.extent for axis in every])
        results = self.root(nest, axes)
        if len(nest.out) != len(results):
            raise RuleBroken(f"{len(nest.out)} values for {len(results)} results")
        shape = root.into.shape if isinstance(root, ir.Scatter) else tuple([a.extent for a in nest.axes])
        wanted = [(value, dtype) for value, dtype in zip(nest.out, results, strict=True) if value is not None]
        for value, dtype in wanted:
            if value.shape != shape:
                raise RuleBroken(f"value {value} has shape {listed(value.shape)}, the nest gives {listed(shape)}")
            if value.dtype != dtype:
                raise RuleBroken(f"{value} is {short(value.dtype)}, the nest gives {short(dtype)}")
            self.define(value)
        if not wanted:
            raise RuleBroken("a nest that defines nothing")

    def root(self, nest: ir.Nest, axes: frozenset[Axis]) -> tuple[torch.dtype, ...]:
        bodies = ir.bodies(nest.root)
        for body in bodies:
            self.exprs.value(body, axes, nest.root.into.dtype if isinstance(nest.root, ir.Scatter) else None)
        match nest.root:
            case ir.Pointwise(body):
                return (body.dtype,)
            case ir.Reduce(kind):
                return check_combine(kind, tuple([b.dtype for b in bodies]))
            case ir.Scan(kind, axis):
                if axis not in nest.axes:
                    raise RuleBroken(f"scan along {axis}, which is no axis of the nest")
                results = check_combine(kind, tuple([b.dtype for b in bodies]))
                if not REDUCTIONS[kind].scan:
                    raise RuleBroken(f"{kind} is no scan")
                return results
            case ir.Scatter(into, index, _, combine):
                self.exprs.coordinates(index, into, axes)
                if combine not in COMBINES:
                    raise RuleBroken(f"no such way to combine: {combine}")
                return (into.dtype,)

    def extern(self, node: ir.Extern) -> None:
        for arg in ir.arguments(node):
            self.arg(arg)
        for size in node.scalars:
            self.define_size(size)
        for old, new in node.mutates:
            if all(view.value != old for view in ir.views(node)):
                raise RuleBroken(f"no argument is a view of {old}, which the call writes into")
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise RuleBroken(f"{new} is not a new version of {old}: {declared(new)}, {declared(old)}")
        for value in ir.defines(node):
            self.define(value)

    def arg(self, arg: ir.Arg) -> None:
        match arg:
            case ir.View():
                self.view(arg)
            case ir.Item(view):
                self.view(view)
                if view.shape:
                    raise RuleBroken(f"the number {view} has dimensions")
            case Index():
                self.uniform(arg)

    def view(self, view: ir.View) -> None:
        self.defined(view.value)
        if len(view.shape) != len(view.strides):
            raise RuleBroken(f"view of {view.value} has {len(view.shape)} sizes and {len(view.strides)} strides")
        own, shown = view.value.dtype, view.dtype or view.value.dtype
        pairs = shown.to_real() == own and view.shape[-1:] == (const(2),) and view.strides[-1:] == (ONE,)
        if not pairs if view.complex else shown.itemsize != own.itemsize:
            raise RuleBroken(f"view of {view.value} reinterprets {short(own)} as {short(shown)}")
        self.uniform(*view.shape, *view.strides, view.offset)


def _check_no_dead(program: ir.Program) -> None:
    needed = ir.shown_values(program)
    for node in reversed(program.nodes):
        effect = isinstance(node, ir.Extern) and (node.effects or node.scalars)
        if not effect and needed.isdisjoint(ir.defines(node)):
            with blame(node, first_known(node.origins)):
                raise RuleBroken("nothing needs what this node defines")
        needed |= ir.uses(node)


def check_kernel(kernel: Kernel) -> None:
    """Check the rules of loop trees.

    Raises: InternalCheckError naming the kernel, the loop or stage, and the user's line."""
    with blame(within=f"kernel {kernel.name}"):
        _KernelChecker(kernel).run()


class _KernelChecker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.params = {p.value: p for p in kernel.params}
        self.scratch = frozenset(kernel.scratch)
        self.refs: dict[str, Ref] = {}
        self.visible: set[str] = set()
        self.carry_names: set[str] = set()
        self.loaded: set[Value] = set()
        self.stored: set[Value] = set()
        self.updated: set[str] = set()
        self.around: tuple[Loop, ...] = ()
        self.exprs = ExprChecker(frozenset(kernel.sizes), masked=False, locals=True)

    def run(self) -> None:
        kernel = self.kernel
        with blame(f"signature of kernel {kernel.name}", first_known(kernel.origins)):
            values = [*self.params, *kernel.scratch]
            names = [v.name for v in values] + [s.name for s in kernel.sizes]
            if len(set(names)) != len(names) or len(self.params) != len(kernel.params):
                raise RuleBroken(f"names are not distinct: {', '.join(names)}")
            for value in values:
                self.exprs.index(*value.shape, *value.strides)
        self.block(kernel.body)
        with blame(f"signature of kernel {kernel.name}", first_known(kernel.origins)):
            for value, param in self.params.items():
                if param.read != (value in self.loaded):
                    raise RuleBroken(f"parameter {value} is read={param.read}, loaded={value in self.loaded}")
                if param.written != (value in self.stored):
                    raise RuleBroken(f"parameter {value} is written={param.written}, stored={value in self.stored}")
                if param.alias is not None and not any(v.name == param.alias for v in self.params):
                    raise RuleBroken(f"parameter {value} is an alias of {param.alias}, which is no parameter")

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(loop.axis for loop in self.around)

    def block(self, body: Iterable[Loop | Stage]) -> None:
        outer = set(self.visible)
        for item in body:
            with blame(f"loop over {item.axis}" if isinstance(item, Loop) else item, first_known(self.kernel.origins)):
                if isinstance(item, Loop):
                    self.loop(item)
                else:
                    self.stage(item)
        self.visible = outer

    def loop(self, loop: Loop) -> None:
        """The results of the carries are visible after the loop that feeds them."""
        axis, around, kinds = loop.axis, self.around, {outer.kind for outer in self.around}
        if any(a.name == axis.name for a in self.axes):
            raise RuleBroken(f"a loop over {axis} inside a loop over an axis of that name")
        if not axis.extent.axes() <= self.axes:
            raise RuleBroken(f"extent {axis.extent} of {axis} depends on a loop that is not around it")
        self.exprs.index(axis.extent)
        inside = LoopKind.LANES in kinds or kinds >= {LoopKind.SERIAL, LoopKind.PARALLEL}
        if loop.kind is LoopKind.PARALLEL and inside:
            raise RuleBroken("a parallel loop inside one that is not")
        if loop.kind is LoopKind.LANES and LoopKind.LANES in kinds:
            raise RuleBroken("vectors within vectors")
        if loop.lanes < 1 or (loop.lanes > 1 and loop.kind is not LoopKind.LANES):
            raise RuleBroken(f"{loop.lanes} lanes in a {loop.kind.value} loop")
        for carry in loop.carries:
            if carry.name in self.carry_names:
                raise RuleBroken(f"two carries are named {carry.name}")
            self.carry_names.add(carry.name)
        self.around = (*around, loop)
        self.block(loop.body)
        self.around = around
        for carry in loop.carries:
            if carry.name not in self.updated:
                raise RuleBroken(f"carry {carry.name} is never updated")
            self.define(*carry.results)

    def stage(self, stage: Stage) -> None:
        for expr in () if isinstance(stage, Attend) else stage_exprs(stage):
            self.read(expr)
        match stage:
            case Let(name, expr):
                self.exprs.value(expr, self.axes, name.dtype)
                if not expr.axes() <= name.scope:
                    raise RuleBroken(f"the scope of {name} lacks axes that its value depends on")
                self.define(name)
            case Store():
                self.store(stage)
            case Update():
                self.update(stage)
            case Contract():
                self.contract(stage)
            case Attend(_, _, operands, lists, results, functions):
                self.stored |= {view.value for view in results if view is not None}
                self.loaded |= {view.value for view in (*operands, *lists)}
                self.loaded |= {load.value for function in functions for load in function.loads()}

    def store(self, store: Store) -> None:
        value = store.value
        if value not in self.params and value not in self.scratch:
            raise RuleBroken(f"{value} is neither a parameter nor scratch")
        self.exprs.value(store.expr, self.axes, value.dtype)
        self.exprs.coordinates(store.index, value, self.axes)
        if store.combine not in COMBINES:
            raise RuleBroken(f"no such way to combine: {store.combine}")
        reached = {atom for i in store.index for atom in i.atoms()}  # what is read at run time may be the same
        if value in self.params and not store.atomic and ZERO not in value.shape:
            for axis in (loop.axis for loop in self.around if loop.kind is LoopKind.PARALLEL):
                if axis not in reached and axis.extent.value != 1:
                    raise RuleBroken(f"iterations of the parallel loop over {axis} race to write {value}")
        self.stored.add(value)

    def contract(self, contract: Contract) -> None:
        outer = tuple(axis.extent for axis in contract.batch)
        (*_, k), (m, n) = contract.left.shape, (contract.row.extent, contract.column.extent)
        if contract.ends is None:
            sides = (*outer, m, k), (*outer, k, n)
        else:
            sides = (m, k), (*(() if outer else contract.ends.shape), k, n)
        if (contract.left.shape, contract.right.shape) != sides:
            raise RuleBroken(f"the sides of {contract.left} and {contract.right} do not match the loops")
        for expr, view in zip(contract.elements, (contract.left, contract.right), strict=False):
            self.exprs.value(expr, self.axes | {contract.inner}, view.value.dtype)
        for view in windows(contract):
            if view.value not in self.params or view.value in self.stored:
                raise RuleBroken(f"a template reads {view.value}, which is no parameter or is written")
            self.loaded.add(view.value)
            self.exprs.index(*view.shape, *view.strides, view.offset)
        self.define(contract.name)

    def update(self, update: Update) -> None:
        carry = next((c for loop in self.around for c in loop.carries if c.name == update.carry), None)
        if carry is None:
            raise RuleBroken(f"no loop around carries {update.carry}")
        for arg in update.args:
            self.exprs.value(arg, self.axes)
        results = check_combine(carry.kind, tuple([a.dtype for a in update.args]))
        self._same_dtypes(carry.results, results)
        if update.running:
            if not REDUCTIONS[carry.kind].scan:
                raise RuleBroken(f"{carry.kind} has no running results")
            self._same_dtypes(update.running, results)
        self.updated.add(update.carry)
        self.define(*update.running)

    @staticmethod
    def _same_dtypes(refs: tuple[Ref | None, ...], dtypes: tuple[torch.dtype, ...]) -> None:
        if len(refs) != len(dtypes):
            raise RuleBroken(f"{len(refs)} names for {len(dtypes)} results")
        for ref, dtype in zip(refs, dtypes, strict=True):
            if ref is not None and ref.dtype != dtype:
                raise RuleBroken(f"{ref} is {short(ref.dtype)}, the carry gives {short(dtype)}")

    def define(self, *refs: Ref | None) -> None:
        for ref in filter(None, refs):
            if ref.name in self.refs:
                raise RuleBroken(f"local {ref} is defined twice")
            if not ref.scope <= self.axes:
                raise RuleBroken(f"local {ref} claims to depend on axes that are not around it")
            self.refs[ref.name] = ref
            self.visible.add(ref.name)

    def read(self, expr: Expr) -> None:
        """Locals and loaded values of ``expr`` exist at this point: a store or the end of a loop changes the answer."""
        for leaf in expr.walk():
            if isinstance(leaf, Ref):
                if leaf.name not in self.visible or self.refs[leaf.name] is not leaf:
                    raise RuleBroken(f"local {leaf} is not defined here")
            elif isinstance(leaf, Load):
                value = leaf.value
                self.loaded.add(value)
                if value not in self.params and value not in self.scratch:
                    raise RuleBroken(f"{value} is neither a parameter nor scratch")
                if value in self.scratch and value not in self.stored:
                    raise RuleBroken(f"scratch {value} is loaded before it is stored")
