"""Which inputs hold indices, and how large they may be: what a script that makes up inputs must know."""

from collections.abc import Iterator, Mapping

import torch

from gyrator.ir.expr import Checked, Value
from gyrator.ir.index import Index, Size, is_nonnegative
from gyrator.ir.program import View
from gyrator.ir.tree import Kernel, walk_exprs
from gyrator.metrics.kernels import count_of
from gyrator.schedule.plan import Call, Launch, Plan


def index_ranges(plan: Plan) -> Mapping[Value, Index]:
    """Integer values whose elements are checked to lie below a size, with the smallest such size known.

    Found in kernels (`Checked` loads) and in calls of embedding.
    """
    found: dict[Value, Index] = {}

    def note(value: Value, size: Index) -> None:
        known = found.get(value)
        if known is None or is_nonnegative(known - size):
            found[value] = size

    kernels = {k.name: (k, dict(_checked_params(k))) for k in plan.kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            kernel, ranges = kernels[step.kernel]
            for param, value in zip(kernel.params, step.args, strict=True):
                if param.value in ranges:
                    note(value, ranges[param.value])
        elif isinstance(step, Call) and step.extern.op == "aten.embedding.default":
            table, index = step.extern.args[:2]
            if isinstance(table, View) and isinstance(index, View):
                note(index.value, table.shape[0])
    return found


def _checked_params(kernel: Kernel) -> Iterator[tuple[Value, Index]]:
    for expr in walk_exprs(kernel.body):
        for node in expr.walk():
            if isinstance(node, Checked):
                integers = (load for load in node.arg.loads() if not load.dtype.is_floating_point)
                yield from ((load.value, node.size) for load in integers)


def random_tensor(value: Value, device: torch.device, ranges: Mapping[Value, Index], hints: Mapping[Size, int]) -> str:
    """The text of a call that makes up a tensor like `value`; indices stay within their ranges."""
    shape, strides = (tuple([count_of(n, hints) for n in sizes]) for sizes in (value.shape, value.strides))
    below = f", below={count_of(ranges[value], hints)}" if value in ranges else ""
    place = "" if device.type == "cpu" else f', device="{device}"'
    return f"random_tensor({shape}, {strides}, {value.dtype}{below}{place})"
