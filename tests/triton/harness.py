"""Programs through the scheduler for GPUs, with the reference interpreter or Triton's to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.codegen.triton_source import Config
from gyrator.config import Config as Options
from gyrator.ir.expr import Value
from gyrator.ir.index import Size
from gyrator.ir.program import Arg, Extern, Input, Item, Nest, Node, Output, Program, View, defines, uses
from gyrator.ir.tree import Kernel
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Plan
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.triton.worker import Worker

CUDA = torch.device("cuda", 0)


def gpu_plan(program: Program, gpu: Gpu | None = None, *, combo_kernels: bool = True) -> Plan:
    """The plan of a program whose values lie on a GPU."""
    options = Options(numerics="eager", check="every", combo_kernels=combo_kernels)
    return schedule(program, Session(options, torch.device("cuda")), gpu=gpu or Gpu()).plan


def runner(
    worker: Worker, small: Callable[[Config], Config] | None = None
) -> Callable[[Kernel, Mapping[str, Tensor], Mapping[Size, int]], None]:
    """What launches a kernel of a plan in Triton's interpreter."""

    def launch(kernel: Kernel, tensors: Mapping[str, Tensor], sizes: Mapping[Size, int]) -> None:
        printed = print_triton(kernel)
        one = {(t.data_ptr(), t.dtype, t.shape): t for t in tensors.values()}  # in place: one tensor by two names
        given = [one[t.data_ptr(), t.dtype, t.shape] for t in tensors.values()]
        pointers = dict(zip([p.name for p in printed.params], given, strict=False))
        config = printed.configs[0] if small is None else small(printed.configs[0])
        worker.run(printed, pointers, sizes, config)

    return launch


# -- programs for a GPU --------------------------------------------------------------------------------------
def on_gpu(program: Program) -> Program:
    """The program with every value on a GPU."""
    return replace(
        program,
        inputs=tuple(_input(i) for i in program.inputs),
        nodes=tuple(_node(n) for n in program.nodes),
        outputs=tuple(_output(o) for o in program.outputs),
        updates=tuple(replace(u, target=_moved(u.target), value=_view(u.value)) for u in program.updates),
        constants=tuple(map(_moved, program.constants)),
    )


def _moved(value: Value) -> Value:
    return Value(value.name, value.shape, value.dtype, value.strides, CUDA)


def _optional(value: Value | None) -> Value | None:
    return None if value is None else _moved(value)


def _view(view: View) -> View:
    return replace(view, value=_moved(view.value))


def _input(given: Input) -> Input:
    return replace(given, value=_optional(given.value))


def _output(output: Output) -> Output:
    if isinstance(output, Item):
        return Item(_view(output.view))
    return _view(output) if isinstance(output, View) else output


def _arg(arg: Arg) -> Arg:
    match arg:
        case View():
            return _view(arg)
        case Item(view):
            return Item(_view(view))
        case tuple(items):
            return tuple(_arg(i) for i in items)
    return arg


def _node(node: Node) -> Node:
    if isinstance(node, Nest):
        return node.renamed({v: _moved(v) for v in (*defines(node), *uses(node))})
    assert isinstance(node, Extern)
    return replace(
        node,
        out=tuple(_optional(v) for v in node.out),
        args=tuple(_arg(a) for a in node.args),
        kwargs=tuple((k, _arg(a)) for k, a in node.kwargs),
        mutates=tuple((_moved(old), _moved(new)) for old, new in node.mutates),
    )
