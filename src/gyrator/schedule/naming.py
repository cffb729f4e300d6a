"""Names of kernels: equal work has an equal text, and so an equal name, in every process."""

import hashlib
import re
from dataclasses import replace

from gyrator.ir.text import kernel_text
from gyrator.ir.tree import Kernel, indices_in


def named(kernel: Kernel, more: str = "") -> Kernel:
    """The kernel with its sizes; its name gets a digest of its text and ``more``."""
    values = (*(p.value for p in kernel.params), *kernel.scratch)
    indices = (*(i for v in values for i in (*v.shape, *v.strides)), *indices_in(kernel.body))
    sizes = tuple(sorted({size for index in indices for size in index.sizes()}, key=lambda s: s.name))
    name = re.sub(r"\W+", "_", kernel.name).strip("_")[:60] or "kernel"
    plain = replace(kernel, name=name, sizes=sizes, origins=())
    digest = hashlib.sha256((kernel_text(plain) + more).encode()).hexdigest()[:10]
    return replace(plain, name=f"{name}_{digest}", origins=kernel.origins)
