"""Builds small C++ loops over the vector header, in each of its three modes, and calls them on tensors."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from gyrator.config import Config
from gyrator.runtime.build import INCLUDE
from gyrator.runtime.toolchain import FLAGS, ISA_FLAGS, cpu_isa, find_toolchain

_ORDER = tuple(ISA_FLAGS)

VECTORS_HERE = [isa for isa in _ORDER[: _ORDER.index(cpu_isa()) + 1] if "_" not in isa]
"""Instruction sets of this processor whose vectors differ; those between avx512 and amx differ in products alone."""

MODES = [
    pytest.param(mode, marks=pytest.mark.skipif(_ORDER.index(mode) > _ORDER.index(cpu_isa()), reason=f"no {mode}"))
    for mode in _ORDER[:3]
]

DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "gy::bf16": torch.bfloat16,
    "gy::f16": torch.float16,
    "gy::f8e4m3fn": torch.float8_e4m3fn,
    "gy::f8e5m2": torch.float8_e5m2,
    "int8_t": torch.int8,
    "int16_t": torch.int16,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
    "uint8_t": torch.uint8,
    "uint16_t": torch.uint16,
    "uint32_t": torch.uint32,
    "uint64_t": torch.uint64,
    "bool": torch.bool,
}

FLOATS, INTEGERS = ("float", "double"), ("int8_t", "int32_t", "int64_t", "uint8_t")


PREAMBLE = """#include "gyrator.h"
// body(lanes<L>, j) for full steps, then one lane at a time
template <int L, class Body> void each(int64_t begin, int64_t end, const Body& body) {
  int64_t j = begin;
  for (; j + L <= end; j += L) body(gy::lanes<L>{}, j);
  for (; j < end; ++j) body(gy::lanes<1>{}, j);
}
"""


def name_of(*parts: object) -> str:
    """A C name."""
    return "_".join(str(p) for p in parts).replace("::", "_")


def lanes_loop(body: str, lanes: int) -> str:
    """``body``, which uses ``L`` and ``j``, for j in [0, n): `lanes` at a time, or all one by one."""
    return (
        "int64_t j = 0; "
        f"auto body = [&](auto l, int64_t j) {{ constexpr int L = l.value; (void)L; {body} }}; "
        f"if (!one) for (; j + {lanes} <= n; j += {lanes}) body(gy::lanes<{lanes}>{{}}, j); "
        f"for (; j < n; ++j) body(gy::lanes<1>{{}}, j);"
    )


def elementwise(name: str, inputs: Sequence[str], output: str, expression: str, lanes: int = 16) -> str:
    """A kernel y[j] = expression of the vectors a, b, c."""
    parameters = ", ".join(f"const {t}* x{i}" for i, t in enumerate(inputs))
    loads = " ".join(f"const auto {'abc'[i]} = gy::load<L>(x{i} + j);" for i in range(len(inputs)))
    loop = lanes_loop(f"{loads} gy::store(y + j, {expression});", lanes)
    return f'extern "C" void {name}({output}* y, {parameters}, int64_t n, int64_t one) {{ {loop} }}\n'


@lru_cache(maxsize=64)
def build(text: str, mode: str, *more_flags: str) -> Path:
    """The library of a source text. Folders live as long as the test process's temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="gyrator-test-"))
    source, library = folder / "k.cpp", folder / "k.so"
    source.write_text(PREAMBLE + text)
    compiler = find_toolchain(Config()).compiler
    flags = [f for f in (*FLAGS, *ISA_FLAGS[mode], *more_flags) if f != "-fvisibility=hidden"]
    done = subprocess.run([compiler, *flags, f"-I{INCLUDE}", source, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return library


def load(text: str, mode: str) -> ctypes.CDLL:
    """The functions of a source text."""
    return ctypes.CDLL(str(build(text, mode)))


def invoke(library: ctypes.CDLL, name: str, *args: torch.Tensor | int) -> None:
    """Call a kernel with tensors as pointers and ints as int64."""
    pointers = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) for a in args]
    getattr(library, name)(*pointers)


def apply(library: ctypes.CDLL, name: str, dtype: torch.dtype, *inputs: torch.Tensor) -> torch.Tensor:
    """An elementwise kernel's result; with one lane it must be the same, bit for bit."""
    n = inputs[0].numel()
    wide, narrow = (torch.empty(n, dtype=dtype) for _ in range(2))
    invoke(library, name, wide, *inputs, n, 0)
    invoke(library, name, narrow, *inputs, n, 1)
    assert same(wide, narrow).all(), f"{name}: one lane and several differ"
    return wide


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where a and b are equal; NaN equals NaN and zeros differ by sign."""
    if not a.dtype.is_floating_point:
        return a == b
    a, b = a.double(), b.double()
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())


def samples(ctype: str, seed: int, count: int = 1003) -> torch.Tensor:
    """Random values of a type, small ones and edge cases; the edges of seeds 1 and 2 meet in all pairs."""
    dtype, g = DTYPES[ctype], torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=g) < 0.5
    if dtype.is_floating_point:
        spread = torch.exp(torch.randn(count, generator=g, dtype=torch.float64) * 3)
        x = torch.randn(count, generator=g, dtype=torch.float64) * spread
        x[::3] = x[::3].round().clamp(-20, 20)
        inf, nan = float("inf"), float("nan")
        edges = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 2.0, 0.5, -2.5, 1.5, 3.0, 1e-7, 1e4, -3e4]
        e = torch.tensor(edges, dtype=torch.float64)
        x = torch.cat([x, e.repeat_interleave(len(e)) if seed == 1 else e.repeat(len(e))])
        return x.to(dtype)
    info = torch.iinfo(dtype)
    low, high = max(info.min, -(2**63)), min(info.max, 2**63 - 1)
    x = torch.randint(low, high, (count,), generator=g, dtype=torch.int64)
    x[::2] = torch.randint(max(low, -40), 40, (len(x[::2]),), generator=g)
    e = torch.tensor([0, 1, 2, 3, 7, low, high, -1 if low else 8, -2 if low else 9], dtype=torch.int64)
    return torch.cat([x, e.repeat_interleave(len(e)) if seed == 1 else e.repeat(len(e))]).to(dtype)


def build_for(target: str, text: str, folder: Path) -> ctypes.CDLL:
    """Functions compiled for an instruction set, or for a "model" of AMX tiles; skips the test if the processor lacks
    it."""
    isa, needed = ("amx", "avx512_bf16") if target == "model" else (target, target)
    if _ORDER.index(needed) > _ORDER.index(cpu_isa()):
        pytest.skip(f"the processor has {cpu_isa()}")
    source = folder / "kernel.cpp"
    source.write_text(('#include "modelled_tiles.h"\n' if target == "model" else "") + text)
    places = [f"-I{INCLUDE}", f"-I{Path(__file__).parent}"]
    command = [str(find_toolchain(Config()).compiler), *FLAGS, *ISA_FLAGS[isa], *places]
    subprocess.run([*command, str(source), "-o", str(folder / "kernel.so")], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))
