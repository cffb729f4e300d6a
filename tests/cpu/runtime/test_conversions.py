"""cast between all element types, and loads and stores of every kind, against torch."""

from __future__ import annotations

import pytest
import torch

from gyrator.torch_compat import float8_saturates
from tests.cpu.runtime.headers import (
    DTYPES,
    MODES,
    apply,
    elementwise,
    invoke,
    lanes_loop,
    load,
    name_of,
    same,
    samples,
)

MAIN = ("float", "double", "gy::bf16", "gy::f16", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "bool")
RARE = ("gy::f8e4m3fn", "gy::f8e5m2", "uint16_t", "uint32_t", "uint64_t")
PAIRS = [(a, b) for a in MAIN for b in MAIN if a != b]
PAIRS += [p for t in RARE for p in ((t, "float"), ("float", t), (t, "int64_t"), ("int64_t", t))]


def defined(source: str, target: str) -> torch.Tensor:
    """Samples whose conversion C++ defines, floats within the integer's range, and torch: where it makes NaN of what
    `float8_e4m3fn` does not hold, lowering does."""
    x = samples(source, 1)
    if target == "gy::f8e4m3fn" and not float8_saturates():
        x = x.where((x >= -448) & (x <= 448), 1)
    if not DTYPES[source].is_floating_point or DTYPES[target].is_floating_point or target == "bool":
        return x
    info = torch.iinfo(DTYPES[target])
    wide = x.double()
    inside = wide.isfinite() & (wide >= max(info.min, -(2**62))) & (wide <= min(info.max, 2**62))
    return torch.where(inside, wide, 1.0).to(x.dtype)


@pytest.mark.parametrize("mode", MODES)
def test_casts_give_torchs_bits(mode: str) -> None:
    lanes = 4 if mode == "scalar" else 16
    text = "".join(elementwise(name_of("to", a, b), [a], b, f"gy::cast<{b}>(a)", lanes) for a, b in PAIRS)
    library, wrong = load(text, mode), []
    for a, b in PAIRS:
        x = defined(a, b)
        got, want = apply(library, name_of("to", a, b), DTYPES[b], x), x.to(DTYPES[b])
        if not same(got, want).all():
            at = int((~same(got, want)).nonzero()[0])
            wrong.append(f"{a} {x[at].item()} to {b}: {got[at].item()}, torch {want[at].item()}")
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [8, 24, 31, 32, 51, 53, 54, 62])
def test_64_bit_integers_and_floats_of_any_size(mode: str, bits: int) -> None:
    pairs = [p for real in ("float", "double") for p in ((real, "int64_t"), ("int64_t", real))]
    text = "".join(elementwise(name_of("to", a, b), [a], b, f"gy::cast<{b}>(a)", 16) for a, b in pairs)
    library, numbers = load(text, mode), torch.Generator().manual_seed(bits)
    whole = torch.randint(-(2**bits), 2**bits, (320,), generator=numbers)
    for a, b in pairs:
        x = whole if a == "int64_t" else whole.to(DTYPES[a]) + (0.75 if bits < 20 else 0.0)
        assert same(apply(library, name_of("to", a, b), DTYPES[b], x), x.to(DTYPES[b])).all(), (a, b)


@pytest.mark.parametrize("mode", MODES)
def test_doubles_beyond_32_bits_wrap_to_bytes(mode: str) -> None:
    """Those without a sign: torch makes them by way of 64 bits."""
    library = load(elementwise("to_byte", ["double"], "uint8_t", "gy::cast<uint8_t>(a)", 16), mode)
    x = torch.arange(-40, 40, dtype=torch.float64) * 123_456_789_013 + 7
    edges = torch.tensor([3e9 + 5, -3e9 - 5, -1.5, 255.9, 256, 2**31, 2**52 + 3, -(2**53) + 1], dtype=torch.float64)
    assert torch.equal(apply(library, "to_byte", torch.uint8, x), x.to(torch.uint8))
    assert torch.equal(apply(library, "to_byte", torch.uint8, edges.repeat(4)), edges.repeat(4).to(torch.uint8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("half", ["gy::bf16", "gy::f16"])
def test_every_16_bit_float_survives_a_round_trip(mode: str, half: str) -> None:
    library = load(elementwise("trip", [half], half, f"gy::cast<{half}>(gy::cast<float>(a))"), mode)
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(DTYPES[half])
    assert same(apply(library, "trip", DTYPES[half], every), every).all()


@pytest.mark.parametrize("mode", MODES)
def test_bitcast_keeps_bits(mode: str) -> None:
    library = load(elementwise("bits", ["float"], "int32_t", "gy::bitcast<int32_t>(a)"), mode)
    x = samples("float", 1)
    assert torch.equal(apply(library, "bits", torch.int32, x), x.view(torch.int32))


MEMORY = ("float", "double", "gy::bf16", "int8_t", "int64_t", "bool")
ONE = {"bool": "true", "gy::bf16": "gy::bf16{0x3f80}"}


def memory_source(lanes: int) -> str:
    text = ""
    for t in MEMORY:
        other = ONE.get(t, f"{t}(1)")
        bodies = {
            "masked": f"gy::store(y + j, gy::load<L>(x + j, m, {other}));",
            "masked_store": "gy::store(y + j, gy::load<L>(x + j), m);",
            "strided": f"gy::store_strided(y + 3 * j, 3, gy::load_strided<L>(x + 2 * j, 2, m, {other}), m);",
            "strided_all": "gy::store_strided(y + 3 * j, 3, gy::load_strided<L>(x + 2 * j, 2));",
            "reversed": "gy::store(y + j, gy::load_strided<L>(x + n - 1 - j, -1));",
            "gather": f"gy::store(y + j, gy::gather<L>(x, gy::load<L>(at + j), m, {other}));",
            "gather_all": "gy::store(y + j, gy::gather<L>(x, gy::load<L>(at + j)));",
            "scatter": "gy::scatter(y, gy::load<L>(at + j), gy::load<L>(x + j), m);",
        }
        for kind, body in bodies.items():
            loop = lanes_loop(f"const auto m = gy::load<L>(mask + j); (void)m; {body}", lanes)
            parameters = f"{t}* y, const {t}* x, const bool* mask, const int64_t* at, int64_t n, int64_t one"
            text += f'extern "C" void {name_of(kind, t)}({parameters}) {{ (void)at; {loop} }}\n'
    return text


@pytest.mark.parametrize("mode", MODES)
def test_memory_access_of_every_kind(mode: str) -> None:
    library, n = load(memory_source(4 if mode == "scalar" else 16), mode), 1003
    g = torch.Generator().manual_seed(5)
    at, lane, vector = torch.randperm(n, generator=g), torch.arange(n) % 16, torch.arange(n) // 16
    mask = torch.where(vector < 32, torch.rand(n, generator=g) < 0.5, lane < vector % 17)  # then the first few lanes
    for t in MEMORY:
        x = samples(t, 3, 2 * n)[: 2 * n].contiguous()
        zero, one = torch.zeros(n, dtype=x.dtype), torch.ones(n, dtype=x.dtype)
        spread = torch.zeros(n, 3, dtype=x.dtype)
        spread_masked = spread.clone()
        spread[:, 0], spread_masked[mask, 0] = x[::2], x[::2][mask]
        scattered = zero.clone()
        scattered[at[mask]] = x[:n][mask]
        wanted = {
            "masked": torch.where(mask, x[:n], one),
            "masked_store": torch.where(mask, x[:n], zero),
            "strided": spread_masked.flatten(),
            "strided_all": spread.flatten(),
            "reversed": x[:n].flip(0),
            "gather": torch.where(mask, x[at], one),
            "gather_all": x[at],
            "scatter": scattered,
        }
        for kind, want in wanted.items():
            for one_lane in (0, 1):
                y = torch.zeros_like(want)
                invoke(library, name_of(kind, t), y, x, mask, at, n, one_lane)
                assert same(y, want).all(), f"{kind} of {t}"


SPILLED = """#include "kernel.h"
extern "C" void used() { volatile char stack[1 << 16]; for (auto& byte : stack) byte = -1; }
extern "C" void spilled(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ s,
                        const float* __restrict__ u, const float* __restrict__ p, const float* __restrict__ q,
                        float* __restrict__ y, int64_t rows) {
  const gy::Range mine = gy::share(rows * 2);
  int64_t i = mine.begin / 2 / 16, part = mine.begin / 2 % 16, b = mine.begin % 2;
  for (int64_t step = mine.begin; step < mine.end; ++step) {
    gy::for_lanes<64>(0, gy::min_index(65 - b * 64, 64), [=](auto lanes, int64_t t) GY_INLINE {
      gy::VSum<float, 64> sum;
      const auto at = gy::iota<64>(b * 64 + t, 1);
      const auto rest = gy::ge(at, gy::broadcast<64>(int64_t(1))), first = gy::lt(at, gy::broadcast<64>(int64_t(1)));
      const auto p0 = gy::load(lanes, p + i * 65 + b * 64 + t), q0 = gy::load(lanes, q + i * 65 + b * 64 + t);
      for (int64_t k = 0; k < 6; ++k) {
        const auto x0 = gy::load(lanes, x + i * 6240 + part * 390 + k * 65 + b * 64 + t);
        const auto xw = gy::mul(x0, gy::broadcast<64>(gy::load<1>(w + part * 6 + k)));
        const auto s0 = gy::broadcast<64>(gy::load<1>(s + i * 96 + part * 6 + k));
        const auto u0 = gy::load_strided(lanes, u + i * 6144 + b * 6144 + t * 96 + part * 6 + k - 96, 96, rest, 0.0f);
        sum.update(gy::mul(xw, gy::mul(gy::sub(gy::where(first, s0, u0), p0), q0)));
      }
      gy::store(lanes, y + part * 1040 + i * 65 + b * 64 + t, sum.result());
    });
    if (++b == 2) { b = 0; if (++part == 16) { part = 0; ++i; } }
  }
}
"""


@pytest.mark.parametrize("mode", MODES)
def test_masks_survive_a_lack_of_registers(mode: str) -> None:
    """GCC 12 spilled the first 8 of 64 lanes' bits as a byte and loaded 8 bytes: lanes that are off were stored."""
    library, g = load(SPILLED, mode), torch.Generator().manual_seed(6)
    sizes = ((16, 96, 65), (96,), (16, 1, 96), (16, 64, 96), (16, 65), (16, 65))
    x, w, s, u, p, q = (torch.randn(size, generator=g) for size in sizes)
    y = torch.zeros(16 * 16 * 65 + 64)
    invoke(library, "used")
    invoke(library, "spilled", x, w, s, u, p, q, y, 256)
    products = x.mT * w * ((torch.cat([s, u], 1) - p[..., None]) * q[..., None])
    want = products.unflatten(-1, (16, 6)).sum(-1).movedim(-1, 0).flatten()
    torch.testing.assert_close(y, torch.cat([want, torch.zeros(64)]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_masked_loads_touch_nothing_where_the_mask_is_false(mode: str) -> None:
    """The address is 0: any access ends the process."""
    text = "".join(
        f'extern "C" void none_{k}(float* y, int64_t n, int64_t one) {{ const auto* x = ({t}*)0; '
        + lanes_loop(
            f"const auto no = gy::broadcast<L>(false); const auto a = gy::load<L>(x, no, {t}{{}}); "
            f"const auto b = gy::gather<L>(x, gy::iota<L>(j, 1), no, {t}{{}}); "
            f"gy::store(y + j, gy::add(gy::cast<float>(a), gy::cast<float>(b))); "
            f"gy::store(({t}*)0, gy::broadcast<L>({t}{{}}), no);",
            16,
        )
        + " }\n"
        for k, t in enumerate(("float", "double", "int8_t", "gy::bf16"))
    )
    library = load(text, mode)
    for k in range(4):
        y = torch.ones(37)
        invoke(library, f"none_{k}", y, 37, 0)
        assert not y.any()


@pytest.mark.parametrize("mode", MODES)
def test_checked_indices_wrap_and_report(mode: str) -> None:
    loop = lanes_loop("gy::store(y + j, gy::check_index(gy::load<L>(x + j), size, status, 7));", 16)
    parameters = "int64_t* y, const int64_t* x, int* status, int64_t size, int64_t n, int64_t one"
    library = load(f'extern "C" void check({parameters}) {{ {loop} }}', mode)
    x = torch.randint(-50, 50, (101,), generator=torch.Generator().manual_seed(0))
    for bad in ((), (3,), (100,)):
        for at in bad:
            x[at] = 50 if at == 3 else -51
        for one_lane in (0, 1):
            y, status = torch.empty_like(x), torch.zeros(1, dtype=torch.int32)
            invoke(library, "check", y, x, status, 50, 101, one_lane)
            inside = (x >= -50) & (x < 50)
            assert status.item() == (0 if inside.all() else 7)
            assert torch.equal(y, torch.where(inside, x % 50, 0))


@pytest.mark.parametrize("mode", MODES)
def test_tiles_are_transposed(mode: str) -> None:
    kinds = ("float", "double", "int64_t", "gy::bf16", "int8_t")
    text = "".join(
        f'extern "C" void {name_of("turn", t)}({t}* y, const {t}* x, int64_t rows, int64_t columns) '
        "{ gy::transpose_block(x, columns, y, rows, rows, columns); }\n"
        for t in kinds
    )
    library = load(text, mode)
    for t in kinds:
        for rows, columns in ((16, 16), (8, 8), (33, 50), (3, 100)):
            x = torch.randint(-100, 100, (rows, columns)).to(DTYPES[t])
            y = torch.zeros(columns, rows, dtype=x.dtype)
            invoke(library, name_of("turn", t), y, x, rows, columns)
            assert torch.equal(y, x.T)
