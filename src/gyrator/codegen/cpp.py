"""Kernels as C++: ``print_kernel`` turns a loop tree into one function with C linkage.

The text needs the header ``kernel.h`` of ``gyrator/runtime/include``, which the builder puts before it.

    // softmax: model.py:12 in forward: aten._softmax.default
    extern "C" int32_t softmax(const float* __restrict__ x, float* __restrict__ y, int64_t s0, int32_t threads) {
      …
      return 0;
    }
"""

from dataclasses import dataclass

from gyrator.codegen.cpp_expr import Term
from gyrator.codegen.cpp_loops import Loops
from gyrator.codegen.cpp_names import legal, type_name
from gyrator.codegen.texts import WIDTH, broken, origin_comments
from gyrator.ir.expr import Checked
from gyrator.ir.tree import Contract, Kernel, walk_stages


@dataclass(frozen=True, slots=True)
class CppKernel:
    """A printed kernel.

    It takes a pointer for each of ``Kernel.params``, an ``int64_t`` for each of ``Kernel.sizes`` and the number of
    threads it may use, in this order. It returns 0, or the number of an index out of range: ``checks[number - 1]``."""

    name: str
    text: str
    checks: tuple[Checked, ...]


def print_kernel(kernel: Kernel) -> CppKernel:
    """Print ``kernel``.

    Raises: UnsupportedInput for an element type that C++ kernels do not handle; InternalCheckError for a tree that
    ``check_kernel`` refuses."""
    function = legal(kernel.name)
    printer = Loops(kernel)
    arguments = []
    for param in kernel.params:
        name = printer.fresh(param.value.name)
        printer.pointers[param.value] = Term(name, 0, name=True)
        const, restrict = "" if param.written else "const ", "" if param.alias is not None else " __restrict__"
        arguments.append(f"{const}{type_name(param.value.dtype)}*{restrict} {name}")
    for size in kernel.sizes:
        name = printer.fresh(size.name)
        printer.bind(size, Term(name, 0, name=True))
        arguments.append(f"int64_t {name}")
    arguments.append("int32_t threads")
    printer.body(kernel.body)
    head = f'extern "C" int32_t {function}({", ".join(arguments)}) {{'
    products = any(isinstance(stage, Contract) for stage in walk_stages(kernel.body))
    lines = ['#include "gemm.h"'] if products else []
    lines += [*origin_comments(kernel.origins, "//"), *broken(head, WIDTH)]
    if printer.checks:
        lines += ["  int32_t failed = 0;", "  int32_t* const status = &failed;"]
    lines += [f"  {line}" for line in printer.block.lines]
    lines += [f"  return {'failed' if printer.checks else '0'};", "}"]
    return CppKernel(function, "\n".join(lines) + "\n", tuple(printer.checks))
