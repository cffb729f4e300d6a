"""Reducers against float64: results, errors that do not grow with the length, NaN, ties, merging of parts."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.cpu.runtime.headers import DTYPES, MODES, invoke, load

LENGTHS = (1, 7, 16, 65, 1000, 100_003)
KINDS = {
    "Sum": ("float", "float", "gy::store(y, r);"),
    "SumOfInts": ("int64_t", "int64_t", "gy::store(y, r);"),
    "Prod": ("float", "float", "gy::store(y, r);"),
    "Max": ("float", "float", "gy::store(y, r);"),
    "Min": ("int64_t", "int64_t", "gy::store(y, r);"),
    "ArgMax": ("float", "int64_t", "gy::store(y, r.index);"),
    "ArgMin": ("float", "int64_t", "gy::store(y, r.index);"),
    "Any": ("bool", "bool", "gy::store(y, r);"),
    "All": ("bool", "bool", "gy::store(y, r);"),
    "Welford": ("float", "float", "gy::store(y, r.mean); gy::store(y + 1, r.m2); y[2] = float(r.count);"),
    "OnlineSoftmax": ("float", "float", "gy::store(y, r.max); gy::store(y + 1, r.sum);"),
    "LogAddExp": ("float", "float", "gy::store(y, r);"),
}


def source(lanes: int) -> str:
    """Each kernel reduces two halves of x on their own and merges them."""
    text = ""
    for kind, (ctype, result, out) in KINDS.items():
        more = ", j" if kind.startswith("Arg") else ""
        reducer = f"gy::{kind.removesuffix('OfInts')}<{ctype}, {lanes}>"
        text += f"""extern "C" void {kind}({result}* y, const {ctype}* x, int64_t n) {{
          {reducer} parts[2];
          for (int part = 0; part < 2; ++part) {{
            {reducer} s;
            each<{lanes}>(part * (n / 2), part == 0 ? n / 2 : n, [&](auto l, int64_t j) {{
              s.update(gy::load<l.value>(x + j){more}); }});
            parts[part] = s;
          }}
          parts[0].merge(parts[1]);
          const auto r = parts[0].result();
          {out}
        }}\n"""
    return text


def run(library: ctypes.CDLL, kind: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, dtype=DTYPES[KINDS[kind][1]])
    invoke(library, kind, y, x, x.numel())
    return y


LANES = [
    pytest.param(mode.values[0], lanes, marks=mode.marks)
    for mode in MODES
    for lanes in (1, 4 if mode.values[0] == "scalar" else 16)
]


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_reducers_agree_with_float64(mode: str, lanes: int) -> None:
    library, g = load(source(lanes), mode), torch.Generator().manual_seed(0)
    for n in LENGTHS:
        x = torch.randn(n, generator=g) * 3 + 10
        wide = x.double()
        ints = torch.randint(-(2**62), 2**62, (n,), generator=g)
        near_one = (torch.rand(n, generator=g) * 0.2 + 0.9)[:300].contiguous()

        def close(got: torch.Tensor, want: torch.Tensor, ulps: float) -> bool:
            return bool((got.double() - want).abs() <= ulps * 2.0**-24 * want.abs())

        assert close(run(library, "Sum", x)[0], wide.sum(), 4)
        assert close(run(library, "Prod", near_one)[0], near_one.double().prod(), 40)
        assert run(library, "SumOfInts", ints)[0] == ints.sum()
        assert run(library, "Max", x)[0] == x.max()
        assert run(library, "Min", ints)[0] == ints.min()
        mean, m2, count = run(library, "Welford", x)
        assert close(mean, wide.mean(), 6)
        assert close(m2, (wide - wide.mean()).square().sum(), 20) or n == 1
        assert count == n
        top, total = run(library, "OnlineSoftmax", x)[:2]
        assert top == x.max()
        assert close(total, (wide - wide.max()).exp().sum(), 30)
        assert close(run(library, "LogAddExp", x)[0], wide.logsumexp(0), 4)


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_reducers_of_masks(mode: str, lanes: int) -> None:
    library = load(source(lanes), mode)
    for n in LENGTHS:
        for x in (torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool), torch.arange(n) == n // 2):
            assert run(library, "Any", x)[0] == x.any()
            assert run(library, "All", x)[0] == x.all()


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_the_first_of_equal_extremes_wins(mode: str, lanes: int) -> None:
    library = load(source(lanes), mode)
    for n in LENGTHS:
        x = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(n)).float()
        assert run(library, "ArgMax", x)[0] == x.argmax()
        assert run(library, "ArgMin", x)[0] == x.argmin()
        assert run(library, "ArgMax", torch.full((n,), -torch.inf))[0] == 0


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_nan_is_the_extreme_and_spoils_sums(mode: str, lanes: int) -> None:
    library = load(source(lanes), mode)
    for at in (0, 5, 500, 999):
        x = torch.randn(1000, generator=torch.Generator().manual_seed(at))
        x[at] = x[999] = torch.nan
        assert run(library, "Max", x)[0].isnan()
        assert run(library, "ArgMax", x)[0] == at
        assert run(library, "ArgMin", x)[0] == at
        for kind in ("Sum", "Prod", "LogAddExp"):
            assert run(library, kind, x)[0].isnan()
        assert run(library, "Welford", x)[:2].isnan().all()
        assert run(library, "OnlineSoftmax", x)[:2].isnan().all()


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_softmax_of_infinities(mode: str, lanes: int) -> None:
    library = load(source(lanes), mode)
    empty = torch.full((70,), -torch.inf)
    assert run(library, "OnlineSoftmax", empty)[:2].tolist() == [-torch.inf, 0.0]
    assert run(library, "LogAddExp", empty)[0] == -torch.inf
    one = empty.clone()
    one[33] = 2.0
    assert run(library, "OnlineSoftmax", one)[:2].tolist() == [2.0, 1.0]
    one[34] = torch.inf
    assert run(library, "LogAddExp", one)[0] == torch.inf


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_variance_does_not_cancel(mode: str, lanes: int) -> None:
    library = load(source(lanes), mode)
    assert run(library, "Welford", torch.full((5000,), 1e4 + 0.1))[1] == 0
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0)) + 1e4
    exact = x.double().var(correction=0) * 5000
    assert abs(run(library, "Welford", x)[1] - exact) < 1e-4 * exact
    for n in LENGTHS[1:]:  # here a mean that is rounded is off by up to 1/2500 of the spread
        x = torch.randn(n, generator=torch.Generator().manual_seed(n)) * 0.01 + 100
        exact = x.double().var(correction=0) * n
        assert abs(run(library, "Welford", x)[1] - exact) < 5e-7 * exact


@pytest.mark.parametrize(("mode", "lanes"), LANES)
def test_means_are_exact_to_a_fraction_of_what_rounding_an_element_costs(mode: str, lanes: int) -> None:
    """Of filters that are standardised what is left of the mean is multiplied by the sum of all activations."""
    library = load(source(lanes), mode)
    rows = torch.randn(100, 1024, generator=torch.Generator().manual_seed(0))
    wrong = torch.stack([run(library, "Welford", row)[0] - row.double().mean() for row in rows])
    assert wrong.square().mean().sqrt() < 1e-8


@pytest.mark.parametrize(("mode", "lanes"), LANES)
@pytest.mark.parametrize("element", ["float", "double", "int64_t", "int8_t"])
def test_running_totals_along_the_lanes(element: str, mode: str, lanes: int) -> None:
    text = f"""extern "C" void running({element}* y, {element}* z, const {element}* x, int64_t n) {{
      gy::RunningSum<{element}, {lanes}> sums; gy::RunningProd<{element}, {lanes}> products;
      int64_t j = 0;
      for (; j + {lanes} <= n; j += {lanes}) {{
        const auto v = gy::load<{lanes}>(x + j);
        sums.update(v); gy::store(y + j, sums.result());
        products.update(v); gy::store(z + j, products.result());
      }}
      const auto rest = gy::first_lanes<{lanes}>(n - j);
      const auto v = gy::load<{lanes}>(x + j, rest, {element}{{}});
      sums.update_some(rest, v); gy::store(y + j, sums.result(), rest);
      products.update_some(rest, v); gy::store(z + j, products.result(), rest);
    }}"""
    library = load(text, mode)
    for n in LENGTHS:
        x = (torch.randn(n, generator=torch.Generator().manual_seed(n)) + 1).sign().mul(3).to(DTYPES[element])
        x = x.div(2.9) if x.is_floating_point() else x
        y, z = torch.empty(2, n, dtype=x.dtype)
        invoke(library, "running", y, z, x, n)
        torch.testing.assert_close(y, x.cumsum(0, dtype=x.dtype), rtol=1e-6, atol=1e-4)
        torch.testing.assert_close(z, x.cumprod(0, dtype=x.dtype), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("mode", MODES)
def test_lane_wise_reducers_keep_the_lanes(mode: str) -> None:
    text = """extern "C" void columns(float* y, const float* x, int64_t rows, int64_t n) {
      each<16>(0, n, [&](auto l, int64_t j) {
        constexpr int L = l.value;
        gy::VSum<float, L> sum; gy::VMax<float, L> top; gy::VArgMin<float, L> at; gy::VWelford<float, L> w;
        for (int64_t i = 0; i < rows; ++i) {
          const auto v = gy::load<L>(x + i * n + j);
          sum.update(v); top.update(v); at.update(v, gy::broadcast<L>(i)); w.update(v);
        }
        gy::store(y + j, sum.result()); gy::store(y + n + j, top.result());
        gy::store(y + 2 * n + j, gy::cast<float>(at.result().index)); gy::store(y + 3 * n + j, w.result().m2);
      }); }"""
    x = torch.randn(300, 37, generator=torch.Generator().manual_seed(0))
    y = torch.empty(4, 37)
    invoke(load(text, mode), "columns", y, x, 300, 37)
    torch.testing.assert_close(y[0], x.sum(0), rtol=1e-5, atol=1e-5)
    assert torch.equal(y[1], x.amax(0))
    assert torch.equal(y[2].long(), x.argmin(0))
    torch.testing.assert_close(y[3], x.var(0, correction=0) * 300, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("half", ["gy::bf16", "gy::f16"])
def test_extremes_of_16_bit_floats(mode: str, half: str) -> None:
    text = f"""extern "C" void extremes({half}* y, int64_t* at, const {half}* x, int64_t n) {{
      gy::Max<{half}, 16> high; gy::Min<{half}, 16> low; gy::ArgMax<{half}, 16> where;
      each<16>(0, n, [&](auto l, int64_t j) {{
        const auto v = gy::load<l.value>(x + j);
        high.update(v); low.update(v); where.update(v, j);
      }});
      gy::store(y, high.result()); gy::store(y + 1, low.result()); gy::store(at, where.result().index);
    }}"""
    library = load(text, mode)
    for x in (-torch.rand(77) - 1, torch.rand(77) + 1, torch.tensor([1.0, torch.nan] * 20)):
        values, y, at = (x.to(DTYPES[half]), torch.empty(2, dtype=DTYPES[half]), torch.empty(1, dtype=torch.int64))
        invoke(library, "extremes", y, at, values, x.numel())
        torch.testing.assert_close(y, torch.stack([values.amax(), values.amin()]), equal_nan=True, rtol=0, atol=0)
        assert at == values.argmax()
