"""Products of bfloat16 on AMX tiles: on the processor's, where it has them, and on a model of them anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gyrator.config import Config as Options
from gyrator.ir.expr import Value
from gyrator.ir.index import ZERO, as_index
from gyrator.ir.program import View
from gyrator.ir.tree import Config
from gyrator.runtime.build import INCLUDE
from gyrator.runtime.toolchain import FLAGS, ISA_FLAGS, cpu_isa, find_toolchain
from gyrator.schedule.cpu_gemm import Cpu, packed_constants, packing_of

HERE = Path(__file__).parent

KERNEL = """
#include "gemm.h"
template <bool Packed> static void multiply(const gy::bf16* x, const gy::bf16* w, float* y, int64_t m, int64_t n,
                                            int64_t k, int64_t lm, int64_t lk, int64_t rk, int64_t rn) {
  const gy::Tiles tiles(1, m, n, {64, 64, 96});
  gy::Product<gy::bf16, 32, 2, 32, Packed> product(tiles, k);
  for (int64_t step = 0; step < tiles.count; ++step) {
    const gy::Tile tile = tiles.at(step);
    const gy::Sums sums = product.sum(tile, x, lm, lk, w, rk, rn);
    for (int64_t r = tile.row; r < tile.row_end; ++r)
      for (int64_t c = tile.column; c < tile.column_end; ++c) y[r * n + c] = sums.row(r)[c];
  }
}
extern "C" __attribute__((visibility("default"))) void plain(const gy::bf16* x, const gy::bf16* w, float* y, int64_t m,
    int64_t n, int64_t k, int64_t lm, int64_t lk, int64_t rk, int64_t rn) {
  multiply<false>(x, w, y, m, n, k, lm, lk, rk, rn);
}
extern "C" __attribute__((visibility("default"))) void packed(const gy::bf16* x, const gy::bf16* w, float* y, int64_t m,
    int64_t n, int64_t k, int64_t lm, int64_t lk, int64_t rk, int64_t rn) {
  multiply<true>(x, w, y, m, n, k, lm, lk, rk, rn);
}
"""

SIZES = [(64, 64, 96), (1, 33, 7), (16, 40, 64), (100, 130, 200), (37, 96, 33), (130, 70, 256)]


@pytest.fixture(scope="module", params=["model", "processor"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if cpu_isa() in ("scalar", "avx2") or (request.param == "processor" and cpu_isa() != "amx"):
        pytest.skip(f"the processor has {cpu_isa()}")
    folder = tmp_path_factory.mktemp("amx")
    source = folder / "kernel.cpp"
    source.write_text(('#include "modelled_tiles.h"\n' if request.param == "model" else "") + KERNEL)
    command = [str(find_toolchain(Options()).compiler), *FLAGS, *ISA_FLAGS["amx"], f"-I{INCLUDE}", f"-I{HERE}"]
    subprocess.run([*command, str(source), "-o", str(folder / "kernel.so")], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def call(function: ctypes._CFuncPtr, x: Tensor, w: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` where ``w`` holds the elements of ``matrix``, as it lies or packed."""
    (m, k), n = x.shape, matrix.shape[1]
    y = torch.empty(m, n)
    numbers = (m, n, k, *x.stride(), *matrix.stride())
    function(*(ctypes.c_void_p(t.data_ptr()) for t in (x, w, y)), *map(ctypes.c_int64, numbers))
    return y


def close(y: Tensor, x: Tensor, w: Tensor) -> None:
    expected = x.double() @ w.double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max() + 1))


@pytest.mark.parametrize("lies", ["rows", "columns", "gaps"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_operands_as_they_lie(library: ctypes.CDLL, m: int, n: int, k: int, lies: str) -> None:
    x, w = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    if lies == "columns":
        x, w = x.t().contiguous().t(), w.t().contiguous().t()
    if lies == "gaps":
        x, w = torch.randn(m, 3 * k).bfloat16()[:, ::3], torch.randn(k, 2 * n).bfloat16()[:, ::2]
    close(call(library.plain, x, w, w), x, w)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_packed_weights(library: ctypes.CDLL, m: int, n: int, k: int) -> None:
    x, w = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    shape, strides = (tuple(map(as_index, of)) for of in (w.shape, w.stride()))
    source = View(Value("w", shape, w.dtype, strides), shape, strides, ZERO)
    packing = packing_of(source, Config((("V", 2),), 1), "w", Cpu("amx", 1))
    (panels,) = packed_constants((packing,), {"w": w}).values()
    close(call(library.packed, x, panels, w), x, w)
