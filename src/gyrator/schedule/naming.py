"""Names of kernels: equal work has an equal text, and so an equal name, in every process."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from gyrator.ir.expr import Value
from gyrator.ir.index import Size
from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Kernel, Loop, Param, Stage, Store, contract_sides, stage_exprs
from gyrator.origin import Origin


def named(
    body: tuple[Loop | Stage, ...],
    scratch: tuple[Value, ...],
    params: tuple[Param, ...],
    origins: tuple[Origin, ...],
    title: str,
    more: str = "",
) -> Kernel:
    """The kernel with that body; its name is its title and a digest of its text and ``more``."""
    sizes = tuple(sorted(_sizes(body, params, scratch), key=lambda s: s.name))
    name = re.sub(r"\W+", "_", title).strip("_")[:60] or "kernel"
    kernel = Kernel(name, params, sizes, scratch, body)
    digest = hashlib.sha256((kernel_text(kernel) + more).encode()).hexdigest()[:10]
    return replace(kernel, name=f"{name}_{digest}", origins=origins)


def _sizes(stages: tuple[Loop | Stage, ...], params: tuple[Param, ...], scratch: tuple[Value, ...]) -> set[Size]:
    found: set[Size] = set()
    for value in (*(p.value for p in params), *scratch):
        for index in (*value.shape, *value.strides):
            found |= index.sizes()
    for stage in stages:
        if isinstance(stage, Loop):
            found |= stage.axis.extent.sizes() | _sizes(stage.body, (), ())
            continue
        for index in stage.index if isinstance(stage, Store) else contract_sides(stage):
            found |= index.sizes()
        for expr in stage_exprs(stage):
            found |= expr.sizes()
    return found
