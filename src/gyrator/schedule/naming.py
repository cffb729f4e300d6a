"""Names of kernels: equal work has an equal text, and so an equal name, in every process."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from gyrator.ir.expr import Value
from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Kernel, Loop, Param, Stage, indices_in
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
    values = (*(p.value for p in params), *scratch)
    indices = (*(i for v in values for i in (*v.shape, *v.strides)), *indices_in(body))
    sizes = tuple(sorted({size for index in indices for size in index.sizes()}, key=lambda s: s.name))
    name = re.sub(r"\W+", "_", title).strip("_")[:60] or "kernel"
    kernel = Kernel(name, params, sizes, scratch, body)
    digest = hashlib.sha256((kernel_text(kernel) + more).encode()).hexdigest()[:10]
    return replace(kernel, name=f"{name}_{digest}", origins=origins)
