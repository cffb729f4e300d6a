"""Products of bfloat16 by dot products and on AMX tiles, the processor's and a model of them; and of int8 with every
instruction set."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gyrator.ir.expr import Value
from gyrator.ir.index import ZERO, as_index
from gyrator.ir.program import View
from gyrator.ir.tree import Config
from gyrator.runtime.toolchain import ISA_FLAGS
from gyrator.schedule.cpu_gemm import Cpu, packing_of, panels_of
from tests.cpu.runtime.headers import build_for

KERNEL = """
#include "gemm.h"
template <class T, class Sum, int MR, bool Packed>
static void multiply(const T* x, const T* w, Sum* y, int64_t m, int64_t n, int64_t k, int64_t lm, int64_t lk,
                     int64_t rk, int64_t rn) {
  const gy::Tiles tiles(1, m, n, {2 * MR, 64, 192});
  gy::Product<T, MR, 2, MR / 2 + 1, Packed> product(tiles, k);
  for (int64_t step = 0; step < tiles.count; ++step) {
    const gy::Tile tile = tiles.at(step);
    const auto sums = product.sum(tile, gy::Lying<T>{x, lm, lk}, gy::Lying<T>{w, rn, rk});
    for (int64_t r = tile.row; r < tile.row_end; ++r)
      for (int64_t c = tile.column; c < tile.column_end; ++c) y[r * n + c] = sums.row(r)[c];
  }
}
#define FUNCTION(name, T, Sum, MR, packed)                                                                         \\
  extern "C" __attribute__((visibility("default"))) void name(const T* x, const T* w, Sum* y, int64_t m, int64_t n,  \\
      int64_t k, int64_t lm, int64_t lk, int64_t rk, int64_t rn) {                                                 \\
    multiply<T, Sum, MR, packed>(x, w, y, m, n, k, lm, lk, rk, rn);                                                \\
  }
#if defined(GY_AMX)
FUNCTION(plain, gy::bf16, float, 32, false)
FUNCTION(packed, gy::bf16, float, 32, true)
FUNCTION(plain_bytes, int8_t, int32_t, 32, false)
FUNCTION(packed_bytes, int8_t, int32_t, 32, true)
#else
FUNCTION(plain_bytes, int8_t, int32_t, 4, false)
FUNCTION(packed_bytes, int8_t, int32_t, 4, true)
#if defined(GY_DOT_BF16)
FUNCTION(plain, gy::bf16, float, 14, false)
FUNCTION(packed, gy::bf16, float, 14, true)
#endif
#endif
"""

SIZES = [(64, 64, 96), (1, 33, 7), (16, 40, 64), (100, 130, 200), (37, 96, 33), (130, 70, 256)]


@pytest.fixture(scope="module", params=["avx512_bf16", "amx", "model"])
def of_bfloat16(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, Cpu]:
    """The kernels of bfloat16 where it is multiplied as it is, and what they are built for."""
    return built_for(request.param, tmp_path_factory.mktemp("bfloat16"))


@pytest.fixture(scope="module", params=[*ISA_FLAGS, "model"])
def of_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, Cpu]:
    """The kernels of int8, and what they are built for."""
    return built_for(request.param, tmp_path_factory.mktemp("bytes"))


def built_for(target: str, folder: Path) -> tuple[ctypes.CDLL, Cpu]:
    return build_for(target, KERNEL, folder), Cpu("amx" if target == "model" else target, 1)


def call(function: ctypes._CFuncPtr, x: Tensor, w: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` where ``w`` holds the elements of ``matrix``, as it lies or packed."""
    (m, k), n = x.shape, matrix.shape[1]
    y = torch.empty(m, n, dtype=torch.int32 if x.dtype == torch.int8 else torch.float32)
    numbers = (m, n, k, *x.stride(), *matrix.stride())
    function(*(ctypes.c_void_p(t.data_ptr()) for t in (x, w, y)), *map(ctypes.c_int64, numbers))
    return y


def close(y: Tensor, x: Tensor, w: Tensor) -> None:
    expected = x.double() @ w.double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max() + 1))


def lying(x: Tensor, w: Tensor, lies: str) -> tuple[Tensor, Tensor]:
    """The same matrices in memory by rows, by columns, or with gaps."""
    if lies == "columns":
        return x.t().contiguous().t(), w.t().contiguous().t()
    return (x.repeat_interleave(3, 1)[:, ::3], w.repeat_interleave(2, 1)[:, ::2]) if lies == "gaps" else (x, w)


def panels(w: Tensor, cpu: Cpu) -> Tensor:
    """What a template reads of a constant."""
    shape, strides = (tuple(map(as_index, of)) for of in (w.shape, w.stride()))
    source = View(Value("w", shape, w.dtype, strides), shape, strides, ZERO)
    return panels_of(w, *packing_of(source, Config((("V", 2),), 1), cpu).layout)


@pytest.mark.parametrize("lies", ["rows", "columns", "gaps"])
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (20, 33, 0)])
def test_operands_as_they_lie(of_bfloat16: tuple[ctypes.CDLL, Cpu], m: int, n: int, k: int, lies: str) -> None:
    x, w = lying(torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16(), lies)
    close(call(of_bfloat16[0].plain, x, w, w), x, w)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_packed_weights(of_bfloat16: tuple[ctypes.CDLL, Cpu], m: int, n: int, k: int) -> None:
    library, cpu = of_bfloat16
    x, w = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    close(call(library.packed, x, panels(w, cpu), w), x, w)


@pytest.mark.parametrize("lies", ["rows", "columns", "gaps", "packed"])
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (5, 33, 1021)])
def test_bytes_are_summed_exactly(of_bytes: tuple[ctypes.CDLL, Cpu], m: int, n: int, k: int, lies: str) -> None:
    x, w = lying(torch.randint(-128, 128, (m, k)).to(torch.int8), torch.randint(-128, 128, (k, n)).to(torch.int8), lies)
    x[0], w[:, 0] = -128, -128
    library, cpu = of_bytes
    y = call(library.packed_bytes, x, panels(w, cpu), w) if lies == "packed" else call(library.plain_bytes, x, w, w)
    assert torch.equal(y.long(), x.long() @ w.long())
