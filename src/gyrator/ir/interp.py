"""The reference interpreter: the definition of what a program means. It runs programs with torch operators only, a nest
at a time, whole grids at once. It is written to be obviously right, not fast: every pass and every backend is compared
with it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gyrator.ir.evaluate import Evaluator, State, allocate, as_reals, combine_into, grid, place, reduce_dims, scan_dim
from gyrator.ir.expr import Expr, Value
from gyrator.ir.index import Index, Size, evaluate
from gyrator.ir.program import Arg, Extern, Item, Nest, Pointwise, Program, Reduce, Scan, Scatter, View
from gyrator.ir.symbols import evaluated

Callables = Mapping[str, Callable[..., Any]]
Given = Tensor | int | None
Result = Tensor | int | float | None


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gives: the outputs, for each update its target's new contents, and all ``values`` by name."""

    outputs: tuple[Result, ...]
    updates: tuple[Tensor, ...]
    values: Mapping[str, Tensor]


def run_program(
    program: Program, inputs: Sequence[Given], constants: Mapping[str, Tensor] = {}, externs: Callables | None = None
) -> Run:
    """Run ``program`` on one argument per input; arguments are not written into. ``constants`` are by key. ``externs``
    finds the function of an op that torch does not know. Outputs and values lie in memory exactly as their strides say.

    Raises: IndexOutOfRange where a ``Checked`` index is out of range; OutOfRange where the program
    itself is wrong; ValueError where inputs do not fit the program."""
    gpu = next((given.device for given in inputs if isinstance(given, Tensor) and given.is_cuda), None)
    with gpu or nullcontext():  # where what is computed lies, too
        machine = _Machine({}, {}, externs or {})
        machine.bind(program, inputs, constants)
        for node in program.nodes:
            if isinstance(node, Nest):
                machine.nest(node)
            else:
                machine.extern(node)
        outputs = tuple(machine.arg(o, {}) for o in program.outputs)
        numbers = {given.value for given in program.inputs if given.complex}
        changed = [(u.target in numbers, machine.view(u.value, {})) for u in program.updates]
        updates = tuple([torch.view_as_complex(new) if pairs else new for pairs, new in changed])
        return Run(outputs, updates, {v.name: t for v, t in machine.values.items()})


@dataclass(slots=True)
class _Machine:
    sizes: dict[Size, int]
    values: dict[Value, Tensor]
    externs: Callables

    def bind(self, program: Program, inputs: Sequence[Given], constants: Mapping[str, Tensor]) -> None:
        if len(inputs) != len(program.inputs):
            raise ValueError(f"{len(inputs)} arguments for {len(program.inputs)} inputs")
        tensors: list[tuple[Value, Tensor]] = [(c, constants[c.name]) for c in program.constants]
        for given, declared in zip(inputs, program.inputs, strict=True):
            if declared.size is not None and isinstance(given, int):
                self.sizes[declared.size] = given
            if declared.value is not None:
                if declared.number and isinstance(given, (int, float)):
                    given = torch.tensor(given, dtype=declared.value.dtype)
                if not isinstance(given, Tensor):
                    raise ValueError(f"input {declared.value} is no tensor")
                tensors.append((declared.value, as_reals(given.detach()) if declared.complex else given.detach()))
        for value, tensor in tensors:
            solve(value.shape, tensor.shape, self.sizes)
        for value, tensor in tensors:
            solve(value.strides, tensor.stride(), self.sizes)
        for derived in program.derived:
            if derived.size not in self.sizes:
                self.sizes[derived.size] = derive(derived.text, self.sizes)
        for value, tensor in tensors:
            self.check(value, tensor)
            strides = [evaluate(s, self.sizes) for s in value.strides]
            if any(n > 1 and a != b for n, a, b in zip(tensor.shape, strides, tensor.stride(), strict=True)):
                raise ValueError(f"{value} has strides {strides}, given {list(tensor.stride())}")
            self.values[value] = tensor

    def check(self, value: Value, tensor: Tensor) -> None:
        shape = [evaluate(s, self.sizes) for s in value.shape]
        if list(tensor.shape) != shape or tensor.dtype != value.dtype:
            raise ValueError(f"{value} is {value.dtype}{shape}, given {tensor.dtype}{list(tensor.shape)}")

    def nest(self, nest: Nest) -> None:
        root = nest.root
        shape, values = grid((*nest.axes, *root.reduced) if isinstance(root, Reduce) else nest.axes, self.sizes)
        evaluator = Evaluator(self.values.__getitem__, self.sizes, values)

        def whole(expr: Expr) -> Tensor:
            if 0 in shape:  # no iteration, so nothing to evaluate
                return torch.empty(shape, dtype=expr.dtype)
            return evaluator.value(expr).broadcast_to(shape)

        results: State
        match root:
            case Pointwise(body):
                results = (whole(body),)
            case Reduce(kind, _, body):
                results = reduce_dims(kind, tuple(whole(b) for b in body), len(nest.axes))
            case Scan(kind, axis, body):
                results = scan_dim(kind, tuple(whole(b) for b in body), nest.axes.index(axis))
            case Scatter():
                results = (self.scatter(root, evaluator, shape),)
        for value, result in zip(nest.out, results, strict=True):
            if value is not None:
                self.values[value] = place(value, result, self.sizes)

    def scatter(self, root: Scatter, evaluator: Evaluator, shape: tuple[int, ...]) -> Tensor:
        result = self.values[root.into].clone(memory_format=torch.contiguous_format)
        if 0 in shape:
            return result
        places = zip(evaluator.coordinates(root.index, root.into), result.stride(), strict=True)
        linear = sum((at * step for at, step in places), torch.zeros(shape, dtype=torch.int64))
        source = evaluator.value(root.body).broadcast_to(shape)
        combine_into(result.view(-1), linear.reshape(-1), source.reshape(-1), root.combine)
        return result

    def extern(self, node: Extern) -> None:
        written: dict[Value, Tensor] = {}
        for old, new in node.mutates:
            written[old] = self.values[new] = allocate(old, self.sizes).copy_(self.values[old])
        args = [self.arg(a, written) for a in node.args]
        kwargs = {name: self.arg(a, written) for name, a in node.kwargs}
        with torch.no_grad():
            result = (self.externs.get(node.op) or attrgetter(node.op)(torch.ops))(*args, **kwargs)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        scalars = [r for r in results if isinstance(r, int | float)]
        for size, scalar in zip(node.scalars, scalars, strict=False):
            self.sizes[size] = int(scalar)
        for value, given in zip(node.out, results, strict=False):
            if value is not None:
                given = as_reals(given) if given.is_complex() else given
                solve(value.shape, given.shape, self.sizes)
                self.check(value, given)
                self.values[value] = place(value, given, self.sizes)

    def arg(self, arg: Arg, written: Mapping[Value, Tensor]) -> Any:
        match arg:
            case View():
                return self.view(arg, written)
            case Item(view):
                return self.view(view, written).item()
            case Index():
                return evaluate(arg, self.sizes)
            case tuple(items):
                return [self.arg(i, written) for i in items]
        return arg

    def view(self, view: View, written: Mapping[Value, Tensor]) -> Tensor:
        base = written.get(view.value, self.values[view.value])
        shape, strides = ([evaluate(i, self.sizes) for i in part] for part in (view.shape, view.strides))
        offset = base.storage_offset() + evaluate(view.offset, self.sizes)
        if view.complex:
            return torch.view_as_complex(base.as_strided(shape, strides, offset))
        return (base if view.dtype is None else base.view(view.dtype)).as_strided(shape, strides, offset)


def solve(shape: tuple[Index, ...], actual: Sequence[int], sizes: dict[Size, int]) -> None:
    """Sizes that are a dimension of their own get that dimension's extent, unless they have a value."""
    for index, extent in zip(shape, actual, strict=True):
        if isinstance(index.atom, Size):
            sizes.setdefault(index.atom, extent)


def derive(text: str, sizes: Mapping[Size, int]) -> int:
    """The value of a derived size's text, which gyrator wrote itself (``python_text``)."""
    return int(evaluated(text, {size.name: value for size, value in sizes.items()}))
