"""Random numbers of the kernels against the reference in torch, gyrator.ir.philox."""

from __future__ import annotations

import ctypes

import pytest
import torch

from gyrator.ir.philox import integers, philox, rand, randn
from tests.cpu.runtime.headers import DTYPES, MODES, lanes_loop, load, name_of

SEED, FIRST, COUNT = -123456789012345678, 2**33 - 500, 1003
DRAWS = [("rand", t) for t in ("float", "double", "gy::bf16", "gy::f16")]
DRAWS += [("randn", t) for t in ("float", "double", "gy::bf16")]


def source() -> str:
    text = ""
    for kind, t in DRAWS:
        draw = f"gy::{kind}<{t}>(gy::broadcast<1>(seed), gy::iota<L>(first + j, 1))"
        head = f"{t}* y, int64_t seed, int64_t first, int64_t n, int64_t one"
        loop = lanes_loop(f"gy::store(y + j, {draw});", 16)
        text += f'extern "C" void {name_of(kind, t)}({head}) {{ {loop} }}\n'
    bounds = "gy::broadcast<1>(low), gy::broadcast<1>(high)"
    draw = f"gy::randint64<int64_t>(gy::broadcast<1>(seed), gy::iota<L>(first + j, 1), {bounds})"
    head = "int64_t* y, int64_t seed, int64_t first, int64_t n, int64_t one, int64_t low, int64_t high"
    return text + f'extern "C" void randint({head}) {{ {lanes_loop(f"gy::store(y + j, {draw});", 16)} }}\n'


def drawn(library: ctypes.CDLL, name: str, dtype: torch.dtype, *more: int, first: int = FIRST) -> torch.Tensor:
    results = []
    for one_lane in (0, 1):
        y = torch.empty(COUNT, dtype=dtype)
        numbers = [ctypes.c_int64(v) for v in (SEED, first, COUNT, one_lane, *more)]
        getattr(library, name)(ctypes.c_void_p(y.data_ptr()), *numbers)
        results.append(y)
    assert torch.equal(*results)
    return results[0]


@pytest.mark.parametrize("mode", MODES)
def test_kernels_draw_the_numbers_of_the_reference(mode: str) -> None:
    library = load(source(), mode)
    seed, offsets = torch.tensor(SEED), torch.arange(FIRST, FIRST + COUNT)
    for kind, t in DRAWS:
        for later in range(4):  # from multiples of four on lanes are drawn together
            got = drawn(library, name_of(kind, t), DTYPES[t], first=FIRST + later)
            want = (rand if kind == "rand" else randn)(seed, offsets + later, DTYPES[t])
            torch.testing.assert_close(got, want, **({"rtol": 0, "atol": 0} if kind == "rand" else {}))
    words = philox(seed, offsets)
    for low, high in ((-5, 17), (0, 1), (-(2**62), 2**62 - 1)):
        got = drawn(library, "randint", torch.int64, low, high)
        assert torch.equal(got, integers(words, torch.tensor(low), torch.tensor(high)))
