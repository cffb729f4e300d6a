"""Hand-written loop trees: short ways to write them, and to build and run what is printed."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from gyrator.codegen.cpp import CppKernel, print_kernel
from gyrator.ir.check import check_kernel
from gyrator.ir.expr import Const, Expr, Load, Op, Ref, Scalar, Value
from gyrator.ir.index import Axis, Index, IndexLike, Size, as_index, contiguous_strides
from gyrator.ir.ops import OPS, Rule
from gyrator.ir.tree import Kernel, Loop, LoopKind, Param, Stage, Store
from gyrator.origin import Origin
from gyrator.runtime.build import INCLUDE
from gyrator.runtime.toolchain import FLAGS, ISA_FLAGS, cpu_isa
from tests.interp_tree import run_kernel

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
NO_SIZES: Mapping[str, int] = MappingProxyType({})
PARALLEL, SERIAL, LANES = LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.LANES


# -- writing trees -----------------------------------------------------------------------------------------
def axis(name: str, extent: IndexLike) -> Axis:
    return Axis(name, as_index(extent))


def size(name: str, lo: int = 2) -> Index:
    return Size(name, lo).index()


def tensor(name: str, *shape: IndexLike, dtype: torch.dtype = F32, strides: Sequence[IndexLike] | None = None) -> Value:
    extents = tuple(as_index(n) for n in shape)
    steps = contiguous_strides(extents) if strides is None else tuple(as_index(s) for s in strides)
    return Value(name, extents, dtype, steps)


def load(value: Value, *index: Axis | IndexLike, mask: Expr | None = None, other: Scalar = 0) -> Load:
    return Load(value, coordinates(index), mask, other)


def store(value: Value, index: Sequence[Axis | IndexLike], expr: Expr, **more: object) -> Store:
    return Store(value, coordinates(index), expr, **more)  # type: ignore[arg-type]


def coordinates(index: Sequence[Axis | IndexLike]) -> tuple[Index, ...]:
    return tuple(i.index() if isinstance(i, Axis) else as_index(i) for i in index)


def op(name: str, *args: Expr | float, dtype: torch.dtype | None = None) -> Op:
    """An op with the dtype that its row gives it; Python numbers take the dtype of the last expression."""
    like = next(a.dtype for a in reversed(args) if isinstance(a, Expr))
    full = tuple(a if isinstance(a, Expr) else Const(a, like) for a in args)
    boolean = OPS[name].rule in (Rule.COMPARE, Rule.LOGICAL)
    return Op(name, full, dtype or (torch.bool if boolean else full[-1].dtype))


def cast(e: Expr, dtype: torch.dtype) -> Expr:
    return e if e.dtype == dtype else Op("cast", (e,), dtype)


def ref(name: str, *scope: Axis, dtype: torch.dtype = F32) -> Ref:
    return Ref(name, dtype, frozenset(scope))


def parallel(a: Axis, *body: Loop | Stage, grain: int = 1000, **more: object) -> Loop:
    return Loop(a, PARALLEL, body, grain=grain, **more)  # type: ignore[arg-type]


def serial(a: Axis, *body: Loop | Stage, **more: object) -> Loop:
    return Loop(a, SERIAL, body, **more)  # type: ignore[arg-type]


def lanes(a: Axis, *body: Loop | Stage, width: int = 16, **more: object) -> Loop:
    return Loop(a, LANES, body, lanes=width, **more)  # type: ignore[arg-type]


def kernel(
    name: str, reads: Sequence[Value], writes: Sequence[Value], *body: Loop | Stage, scratch: Sequence[Value] = ()
) -> Kernel:
    """A kernel whose sizes are those of its values' shapes and strides; a value in both lists is updated
    in place.
    """
    values = list(dict.fromkeys([*reads, *writes]))
    sizes = dict.fromkeys(s for v in values for i in (*v.shape, *v.strides) for s in sorted(i.sizes(), key=repr))
    params = tuple(Param(v, v in reads, v in writes) for v in values)
    return Kernel(
        name, params, tuple(sizes), tuple(scratch), body, (Origin("model.py", 12, "forward", f"aten.{name}.default"),)
    )


# -- running -----------------------------------------------------------------------------------------------
ISA = os.environ.get("GYRATOR_CPU_ISA", cpu_isa())
# Warnings about printed text are errors; headers are a system's, whose warnings nobody wants.
COMMAND = (
    "g++",
    *(f for f in FLAGS if f not in ("-w", "-fvisibility=hidden")),
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Werror",
    "-Wno-psabi",
    f"-isystem{INCLUDE}",
)


@cache
def build(text: str, isa: str = ISA) -> ctypes.CDLL:
    """The library of a printed kernel, built once for each text, header and instruction set."""
    folder = Path(tempfile.gettempdir()) / "gyrator-test-kernels"
    folder.mkdir(exist_ok=True)
    headers = "".join(f.read_text() for f in sorted(INCLUDE.glob("*.h")))
    stem = folder / hashlib.sha256(f"{COMMAND} {isa} {text} {headers}".encode()).hexdigest()[:24]
    library = stem.with_suffix(".so")
    if not library.exists():
        source = stem.with_suffix(".cpp")
        source.write_text(f'#include "kernel.h"\n{text}')
        unfinished = stem.with_suffix(f".{os.getpid()}")
        command = [*COMMAND, *ISA_FLAGS[isa], str(source), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}\n{done.stderr[:6000]}"
        unfinished.replace(library)
    return ctypes.CDLL(str(library))


def launch(
    printed: CppKernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = (), threads: int = 1, isa: str = ISA
) -> int:
    """Call a printed kernel with the memory of ``tensors`` as its parameters; its status."""
    function = build(printed.text, isa)[printed.name]
    function.restype = ctypes.c_int32
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    return int(function(*pointers, *(ctypes.c_int64(s) for s in sizes), ctypes.c_int32(threads)))


def run(
    k: Kernel,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] = NO_SIZES,
    threads: int = 1,
    isa: str = ISA,
) -> int:
    """Print, build and run; tensors and sizes are named as in the kernel."""
    values = [tensors[p.value.name] for p in k.params]
    return launch(print_kernel(k), values, [sizes[s.name] for s in k.sizes], threads, isa)


def check(
    k: Kernel,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] = NO_SIZES,
    threads: int = 1,
    scale: float = 1.0,
    isa: str = ISA,
) -> None:
    """The printed kernel leaves in its results what the interpreter does: integers equal, floats close.

    ``scale`` is the size of the numbers that were added up, where results can be much smaller than those.
    """
    check_kernel(k)
    expected = {name: t.clone() for name, t in tensors.items()}
    run_kernel(k, expected, {s: sizes[s.name] for s in k.sizes})
    actual = {name: t.clone() for name, t in tensors.items()}
    assert run(k, actual, sizes, threads, isa) == 0
    for param in k.params:
        name = param.value.name
        close = {"atol": 1e-5 * scale, "rtol": 1e-2 if param.value.dtype.itemsize == 2 else 1e-5}
        exact = {"atol": 0.0, "rtol": 0.0}
        tolerance = close if param.value.dtype.is_floating_point else exact
        torch.testing.assert_close(
            actual[name], expected[name], equal_nan=True, **tolerance,
            msg=lambda m, name=name: f"{name}: {m}\n{print_kernel(k).text}",
        )  # fmt: skip
