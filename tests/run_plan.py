"""Runs a plan without a compiler: kernels by the reference interpreter, calls by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from gyrator.ir.evaluate import allocate
from gyrator.ir.expr import Value
from gyrator.ir.index import Index, Size, evaluate
from gyrator.ir.interp import Result, derive, solve
from gyrator.ir.program import Arg, Extern, Input, Item, Output, View
from gyrator.ir.tree import Kernel
from gyrator.runtime.externs import operator
from gyrator.schedule.plan import OUT_VARIANTS, Allocate, Call, Copy, Free, Join, Launch, Plan, Step
from tests.interp_tree import run_kernel

Runner: TypeAlias = "Callable[[Kernel, Mapping[str, Tensor], Mapping[Size, int]], None]"


def run_plan(
    plan: Plan,
    inputs: Sequence[Tensor | int],
    constants: Mapping[str, Tensor] | None = None,
    launch: Runner = run_kernel,
) -> list[Result]:
    """The plan's outputs. Inputs that the plan updates are written into. ``launch`` runs a kernel on tensors
    by their names.

    Memory is filled with garbage when it is allocated or reused, so that a step that reads too early shows.
    """
    machine = _Machine(plan, launch)
    for declared, given in zip(plan.inputs, inputs, strict=True):
        machine.bind(declared, given)
    machine.memory |= {c: (constants or {})[c.name] for c in plan.constants}
    for derived in plan.derived:
        if derived.size not in machine.sizes:  # a dimension of an input is known from the input itself
            machine.sizes[derived.size] = derive(derived.text, machine.sizes)
    for step in plan.steps:
        machine.step(step)
    return [machine.output(o) for o in plan.outputs]


@dataclass
class _Machine:
    plan: Plan
    launch: Runner
    sizes: dict[Size, int] = field(default_factory=dict)
    memory: dict[Value, Tensor] = field(default_factory=dict)

    def bind(self, declared: Input, given: Tensor | int) -> None:
        if declared.size is not None and isinstance(given, int):
            self.sizes[declared.size] = given
        if declared.value is not None and isinstance(given, Tensor):
            self.memory[declared.value] = given
            solve(declared.value.shape, given.shape, self.sizes)

    def step(self, step: Step) -> None:
        match step:
            case Allocate(value, Value() as upon, _, Index() as needs) if not self.has(upon, needs):
                self.memory[value] = self.place(value, None)
            case Allocate(value, upon, offset):
                self.memory[value] = self.place(value, upon) if offset is None else self.within(value, upon, offset)
            case Launch(name, args, sizes, _):
                kernel = next(k for k in self.plan.kernels if k.name == name)
                buffers = {p.value.name: self.memory[a] for p, a in zip(kernel.params, args, strict=True)}
                bound = {s: evaluate(i, self.sizes) for s, i in zip(kernel.sizes, sizes, strict=True)}
                self.launch(kernel, buffers, bound)
            case Call(extern, into):
                self.call(extern, into=into)
            case Copy(target, source):
                self.view(target).copy_(self.view(source))
            case Join(whole, parts, _):
                assert {self.memory[v].untyped_storage().data_ptr() for v in (whole, *parts)} == {
                    self.memory[whole].untyped_storage().data_ptr()
                }
            case Free(value):
                del self.memory[value]

    def has(self, value: Value, needs: Index) -> bool:
        return evaluate(needs, self.sizes) <= evaluate(value.nbytes, self.sizes)

    def place(self, value: Value, upon: Value | None) -> Tensor:
        if upon is None:
            return _poison(allocate(value, self.sizes))
        assert value.dtype == upon.dtype
        old, new = self.memory[upon], allocate(value, self.sizes)
        assert (new.shape, new.stride()) == (old.shape, old.stride()) or (
            new.numel() == old.numel() and new.is_contiguous() and old.is_contiguous()
        )
        return old.as_strided(new.shape, new.stride(), old.storage_offset())

    def within(self, value: Value, host: Value | None, offset: Index) -> Tensor:
        assert host is not None
        whole, new = self.memory[host].view(value.dtype), allocate(value, self.sizes)
        start = evaluate(offset, self.sizes)
        joined = any(isinstance(s, Join) and value in s.parts for s in self.plan.steps)
        assert joined or start * whole.itemsize % 64 == 0
        assert (start * whole.itemsize) + evaluate(value.nbytes, self.sizes) <= evaluate(host.nbytes, self.sizes)
        return _poison(whole.as_strided(new.shape, new.stride(), whole.storage_offset() + start))

    def call(self, extern: Extern, *, into: bool) -> None:
        mutated = dict(extern.mutates)
        args = [self.arg(a, mutated) for a in extern.args]
        kwargs = {name: self.arg(a, mutated) for name, a in extern.kwargs}
        if into:
            (value,) = extern.out
            assert value is not None
            operator(OUT_VARIANTS[extern.op])(*args, **kwargs, out=self.memory[value])
            return
        result = operator(extern.op)(*args, **kwargs)
        results = list(result) if isinstance(result, tuple | list) else [result]
        numbers = [r for r in results if isinstance(r, int | float)]
        self.sizes |= {size: int(n) for size, n in zip(extern.scalars, numbers, strict=False)}
        for value, given in zip(extern.out, results, strict=False):
            if value is not None:
                solve(value.shape, given.shape, self.sizes)
                expected = allocate(value, self.sizes)
                # What a collective has not finished is found by its memory when it is waited for: no copies of that.
                laid_out = given.stride() == expected.stride() and given.dtype == expected.dtype
                self.memory[value] = given if laid_out else expected.copy_(given)

    def arg(self, arg: Arg, new: Mapping[Value, Value]) -> object:
        match arg:
            case View():
                return self.view(replace(arg, value=new.get(arg.value, arg.value)))
            case Item(view):
                return self.view(view).item()
            case Index():
                return evaluate(arg, self.sizes)
            case tuple(items):
                return [self.arg(i, new) for i in items]
        return arg

    def output(self, output: Output) -> Result:
        if isinstance(output, View):
            return self.view(output)
        if isinstance(output, Item):
            return self.view(output.view).item()
        return evaluate(output, self.sizes) if isinstance(output, Index) else output

    def view(self, view: View) -> Tensor:
        base = self.memory[view.value]
        shape, strides = ([evaluate(i, self.sizes) for i in part] for part in (view.shape, view.strides))
        offset = base.storage_offset() + evaluate(view.offset, self.sizes)
        return (base if view.dtype is None else base.view(view.dtype)).as_strided(shape, strides, offset)


def _poison(tensor: Tensor) -> Tensor:
    extreme = torch.nan if tensor.dtype.is_floating_point else 77
    return tensor.fill_(extreme) if tensor.dtype != torch.bool else tensor.fill_(True)
