"""Which inputs hold indices, and how large they may be: what a script that makes up inputs must know."""

from collections.abc import Iterator, Mapping

import torch

from gyrator.ir.expr import Checked, Value
from gyrator.ir.index import ZERO, Index, is_nonnegative
from gyrator.ir.program import View
from gyrator.ir.tree import Contract, Kernel, walk_exprs, walk_stages
from gyrator.ir.volume import count_of
from gyrator.schedule.plan import Call, Launch, Plan
from gyrator.schedule.products import product_of


def index_ranges(plan: Plan) -> Mapping[Value, tuple[str, Index]]:
    """Integer values whose elements are checked to lie ``below`` a size, with the smallest such size known, or that
    are ``ends`` of groups of so many rows.

    Found in kernels (`Checked` loads, products of groups) and in calls."""
    found: dict[Value, tuple[str, Index]] = {}

    def note(value: Value, word: str, size: Index) -> None:
        known = found.get(value)
        if known is None or is_nonnegative(known[1] - size):
            found[value] = word, size

    kernels = {k.name: (k, tuple(_ranges_of(k))) for k in plan.kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            kernel, ranges = kernels[step.kernel]
            given = dict(zip([param.value for param in kernel.params], step.args, strict=True))
            for value, (word, size) in ranges:
                if value in given:
                    note(given[value], word, size)
        elif isinstance(step, Call) and step.extern.op == "aten.embedding.default":
            table, index = step.extern.args[:2]
            if isinstance(table, View) and isinstance(index, View):
                note(index.value, "below", table.shape[0])
        elif isinstance(step, Call) and (product := product_of(step.extern)) is not None and product.ends is not None:
            note(product.ends.value, "ends", product.left.shape[0 if product.rows_in_groups else 1])
    return found


def _ranges_of(kernel: Kernel) -> Iterator[tuple[Value, tuple[str, Index]]]:
    for stage in walk_stages(kernel.body):
        if isinstance(stage, Contract) and stage.ends is not None:
            yield stage.ends.value, ("ends", stage.left.shape[0 if stage.rows_in_groups else 1])
    for expr in walk_exprs(kernel.body):
        for node in expr.walk():
            if isinstance(node, Checked):
                integers = (load for load in node.arg.loads() if not load.dtype.is_floating_point)
                yield from ((load.value, ("below", node.size)) for load in integers)


def random_tensor(value: Value, device: torch.device, ranges: Mapping[Value, tuple[str, Index]]) -> str:
    """The text of a call that makes up a tensor like `value`; indices stay within their ranges."""
    shape, strides = (tuple([count_of(n) for n in sizes]) for sizes in (value.shape, value.strides))
    word, size = ranges.get(value, ("", ZERO))
    limit = f", {word}={count_of(size)}" if word else ""
    place = "" if device.type == "cpu" else f', device="{device}"'
    return f"random_tensor({shape}, {strides}, {value.dtype}{limit}{place})"
