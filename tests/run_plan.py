"""Runs a plan without a compiler: kernels by the reference interpreter, calls by torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gyrator.ir.expr import Value
from gyrator.ir.index import Atom, Index, Size, evaluate
from gyrator.ir.interp import run_program
from gyrator.ir.interp_tree import run_kernel
from gyrator.ir.program import Input, Program, View
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Fresh, InPlace, Launch, Plan, full_view


def run_plan(
    plan: Plan, inputs: Sequence[Tensor | int], constants: Mapping[str, Tensor] | None = None
) -> list[Tensor | int | float | bool | None]:
    """The outputs. Inputs that the plan updates are written in place. Every allocation is filled with garbage first."""
    machine = _Machine(plan, inputs, constants or {})
    for step in plan.steps:
        machine.step(step)
    return [machine.output(o) for o in plan.outputs]


class _Machine:
    def __init__(self, plan: Plan, inputs: Sequence[Tensor | int], constants: Mapping[str, Tensor]) -> None:
        self.kernels = {k.name: k for k in plan.kernels}
        self.sizes: dict[Atom, int] = {}
        self.memory: dict[Value, Tensor] = {}
        for given, actual in zip(plan.inputs, inputs, strict=True):
            if given.size is not None:
                self.sizes[given.size] = int(actual)
            elif given.value is not None:
                self.memory[given.value] = actual
                for extent, n in zip(given.value.shape, actual.shape, strict=True):
                    for atom in extent.atoms():
                        if extent is atom.index() and isinstance(atom, Size):
                            self.sizes[atom] = n
        for derived in plan.derived:
            self.sizes[derived.size] = eval(derived.text, {}, {a.name: n for a, n in self.sizes.items() if isinstance(a, Size)})
        self.memory |= {c.value: constants[c.key] for c in plan.constants}

    def int(self, index: Index) -> int:
        return evaluate(index, self.sizes)

    def view(self, view: View) -> Tensor:
        base = self.memory[view.value]
        shape, strides = [self.int(i) for i in view.shape], [self.int(i) for i in view.strides]
        seen = torch.as_strided(base, shape, strides, base.storage_offset() + self.int(view.offset))
        return seen if view.dtype in (None, seen.dtype) else seen.view(view.dtype)

    def step(self, step: object) -> None:
        match step:
            case Allocate(value, Fresh()):
                shape, strides = [self.int(i) for i in value.shape], [self.int(i) for i in value.strides]
                self.memory[value] = torch.empty_strided(shape, strides, dtype=value.dtype).fill_(
                    float("nan") if value.dtype.is_floating_point else 113 % 2 if value.dtype == torch.bool else 113
                )
            case Allocate(value, InPlace(old)):
                self.memory[value] = self.memory[old]
            case Launch(name, args, sizes):
                kernel = self.kernels[name]
                buffers = {p.value.name: self.memory[v] for p, v in zip(kernel.params, args, strict=True)}
                run_kernel(kernel, buffers, {s: self.int(i) for s, i in zip(kernel.sizes, sizes, strict=True)})
            case Copy(into, source):
                self.view(into).copy_(self.view(source))
            case Call(extern, _):
                self.call(extern)
            case Free(value):
                del self.memory[value]
            case _:
                raise AssertionError(step)

    def call(self, extern: object) -> None:
        from gyrator.ir.program import Extern, views

        assert isinstance(extern, Extern)
        given = tuple(dict.fromkeys(v.value for v in views(extern)))
        new = {v: self.memory[v] for _, v in extern.mutates}
        sizes = tuple(s for s in self.sizes if isinstance(s, Size))
        program = Program(
            "call", (*(Input(v) for v in given), *(Input(size=s) for s in sizes)), (extern,),
            tuple(full_view(v) for v in extern.out if v is not None) + tuple(full_view(v) for _, v in extern.mutates),
        )  # fmt: skip
        run = run_program(program, [*(self.memory[v] for v in given), *(self.sizes[s] for s in sizes)])
        results = [v for v in extern.out if v is not None]
        for value, result in zip(results, run.outputs, strict=False):
            self.memory[value] = result
        for value, result in zip(new, run.outputs[len(results) :], strict=True):
            self.memory[value].copy_(result)

    def output(self, output: object) -> Tensor | int | float | bool | None:
        if isinstance(output, View):
            return self.view(output)
        return self.int(output) if isinstance(output, Index) else output
