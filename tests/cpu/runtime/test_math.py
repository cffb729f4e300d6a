"""Every error bound that docs/numerics.md states, measured: float against double, double against long double."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch

from tests.cpu.runtime.headers import MODES, apply, elementwise, invoke, load

FALLBACK = 3.0
"""The bound in the mode that calls the C library."""

_TABLE = Path(__file__).parents[3] / "docs" / "numerics.md"
_ROW = re.compile(r"^\| (\w+) \| ([\d.]+) \| (\w[\w.]*) \|", re.MULTILINE)
BOUNDS = {name: (float(single), double) for name, single, double in _ROW.findall(_TABLE.read_text())}

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pow": torch.pow,
    "hypot": torch.hypot,
    "atan2": torch.atan2,
}
UNARY = tuple(name for name in BOUNDS if name not in BINARY)
NAMES_IN_TORCH = {"erfc": torch.special.erfc, "erfinv": torch.special.erfinv}


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """In double, accurate for results near 0 too."""
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, 1.0) / (1 + e)


def reference(name: str) -> Callable[..., torch.Tensor]:
    return sigmoid if name == "sigmoid" else NAMES_IN_TORCH.get(name) or getattr(torch, name)


def arguments() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (150_000,), generator=g).to(torch.int32)
    inf = float("inf")
    edges = torch.tensor(
        [0.0, -0.0, inf, -inf, float("nan"), 1e-45, -1e-45, 1.1754944e-38, 3.4e38, 1.0, -1.0, 0.5, 88.7228, 89.4]
    )
    grids = [torch.linspace(-r, r, 60_001) for r in (1.5, 20.0, 110.0, 1e5)]
    return torch.cat([bits.view(torch.float32), *grids, edges])


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The error in units of the last place; infinite where one is NaN or infinite and the other is not."""
    exponent = torch.frexp(want.abs().clamp(min=2.0**-126, max=3.4e38))[1] - 24
    error = (got.double() - want).abs() / torch.pow(2.0, exponent.double())
    special = want.isnan() | want.float().isinf() | got.isnan() | got.isinf()
    fits = torch.where(want.isnan(), got.isnan(), (got == want.float()) | (want.float().isinf() & (got.abs() > 3.4e38)))
    return torch.where(special, torch.where(fits, 0.0, torch.inf), error)


SOURCE = "".join(elementwise(f"f_{n}", ["float"], "float", f"gy::{n}(a)") for n in UNARY) + "".join(
    elementwise(f"f_{n}", ["float", "float"], "float", f"gy::{n}(a, b)") for n in BINARY
)


@pytest.mark.parametrize("mode", MODES)
def test_float_functions_keep_their_bounds(mode: str) -> None:
    library, x, wrong = load(SOURCE, mode), arguments(), []
    for name in UNARY:
        error = ulps(apply(library, f"f_{name}", torch.float32, x), reference(name)(x.double()))
        worst = int(error.argmax())
        if error[worst] > (BOUNDS[name][0] if mode != "scalar" else max(BOUNDS[name][0], FALLBACK)):
            wrong.append(f"{name}({x[worst].item()}): {error[worst].item()} ulp")
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
def test_float_functions_of_two_arguments_keep_their_bounds(mode: str) -> None:
    library, g = load(SOURCE, mode), torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2, 200_000), generator=g).to(torch.int32).view(torch.float32)
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, 1e30, float("inf"), -float("inf"), float("nan")])
    a = torch.cat([bits[0], torch.rand(200_000, generator=g) * 10, edges.repeat(len(edges))])
    b = torch.cat([bits[1], torch.randn(200_000, generator=g) * 10, edges.repeat_interleave(len(edges))])
    for name, exact in BINARY.items():
        error = ulps(apply(library, f"f_{name}", torch.float32, a, b), exact(a.double(), b.double()))
        worst = int(error.argmax())
        assert error[worst] <= max(BOUNDS[name][0], FALLBACK if mode == "scalar" else 0), (name, a[worst], b[worst])


# ---- double: against the C library in long double, which carries 11 bits more --------------------------------
LONG = {"sigmoid": "1 / (1 + __builtin_expl(-a))", "rsqrt": "1 / __builtin_sqrtl(a)"}
EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {"erfinv": mpmath.erfinv}
"""What the C library does not have."""


def measured_in_double() -> list[str]:
    return [name for name, (_, double) in BOUNDS.items() if double not in ("library", "none")]


def long_double(name: str) -> str:
    """A kernel that computes a function in long double: the nearest double of each result, and what that lost."""
    count = 2 if name in BINARY else 1
    inputs = ", ".join(f"const double* x{i}" for i in range(count))
    loads = " ".join(f"const long double {'ab'[i]} = x{i}[j];" for i in range(count))
    value = LONG.get(name) or f"__builtin_{name}l({'a, b' if count == 2 else 'a'})"
    loop = f"{loads} const long double r = {value}; y[j] = double(r); rest[j] = double(r - y[j]);"
    return (
        f'extern "C" void long_{name}(double* y, double* rest, {inputs}, int64_t n) '
        f"{{ for (int64_t j = 0; j < n; ++j) {{ {loop} }} }}\n"
    )


def double_arguments() -> torch.Tensor:
    """Bit patterns, grids, neighbours of where methods change and functions are 0, multiples of pi / 2, the edges."""
    g, f64 = torch.Generator().manual_seed(0), torch.float64
    bits = torch.randint(-(2**63), 2**63 - 1, (60_000,), generator=g).view(f64)
    bits[bits.isnan()] = math.nan  # no signalling one, for which the library has rules of its own
    grids = [torch.linspace(-r, r, 20_003, dtype=f64) for r in (0.02, 0.55, 1.02, 5.0, 30.0, 180.0, 760.0, 1e5, 2e9)]
    centres = torch.tensor([0.0, 0.5, 1.0, 2.0, 2.5, 8.0, -1.0, -0.5, math.pi / 2, math.pi, 1e4], dtype=f64)
    near = [(torch.randn(2000, 1, generator=g, dtype=f64) * s + centres).flatten() for s in (1e-2, 1e-7, 1e-15)]
    turns = torch.arange(-20_000, 20_000, dtype=f64) * (math.pi / 2)
    inf, huge, tiny = math.inf, 1.7976931348623157e308, 2.2250738585072014e-308
    edges = [0.0, -0.0, inf, -inf, math.nan, 5e-324, -5e-324, tiny, -tiny, 1e-310, huge, -huge, 1.0, -1.0, 0.5, 2.0]
    ends = [709.782712893384, 709.7827128933845, 710.4758600739439, 710.476, -745.13, -745.2, 1024.0, -1075.0, 27.3]
    return torch.cat([bits, *grids, *near, turns, torch.tensor(edges + ends, dtype=f64)])


def double_ulps(got: torch.Tensor, want: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The error against want + rest; infinite where only one is NaN or infinite, or a zero has the wrong sign."""
    unit = torch.pow(2.0, (torch.frexp(want.abs().clamp(2.0**-1022, 1.7e308))[1] - 53).double())
    error = ((got - want) - rest).abs() / unit
    error[(got == 0) & (want == 0) & (got.signbit() != want.signbit())] = torch.inf
    largest, alike = 1.797693134862315e308, (got == want) | (got.isnan() & want.isnan())
    overflow = (got.abs() > largest) & (want.abs() > largest) & (got.sign() == want.sign())
    return torch.where(got.isfinite() & want.isfinite(), error, torch.where(alike | overflow, 0.0, torch.inf))


@pytest.mark.parametrize("mode", MODES)
def test_double_functions_keep_their_bounds(mode: str) -> None:
    names, wrong, x = [n for n in measured_in_double() if n not in EXACT], [], double_arguments()
    g = torch.Generator().manual_seed(1)
    pairs = x[torch.randperm(len(x), generator=g)], x[torch.randperm(len(x), generator=g)]
    edges = x[-25:]
    bases = torch.cat([pairs[0], pairs[0].abs(), edges.repeat(25), 1 + pairs[0] * 1e-6])
    others = torch.cat([pairs[1], pairs[1].clamp(-300, 300).round(), edges.repeat_interleave(25), pairs[1]])
    for name in names:
        types = ["double"] * (2 if name in BINARY else 1)
        call = elementwise(f"d_{name}", types, "double", f"gy::{name}({'a, b' if name in BINARY else 'a'})")
        library, inputs = load(call + long_double(name), mode), (bases, others) if name in BINARY else (x,)
        if name == "lgamma":
            inputs = (torch.cat([x[~(x < 0)], torch.linspace(0, 12, 40_003, dtype=torch.float64)]),)
        want, rest = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
        invoke(library, f"long_{name}", want, rest, *inputs, len(want))
        error = double_ulps(apply(library, f"d_{name}", torch.float64, *inputs), want, rest)
        at = int(error.argmax())
        if error[at] > max(float(BOUNDS[name][1]), FALLBACK if mode == "scalar" else 0):
            wrong.append(f"{name}({', '.join(str(v[at].item()) for v in inputs)}): {error[at].item()} ulp")
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
def test_double_functions_that_the_library_lacks_keep_their_bounds(mode: str) -> None:
    library = load("".join(elementwise(f"d_{n}", ["double"], "double", f"gy::{n}(a)") for n in EXACT), mode)
    g = torch.Generator().manual_seed(0)
    x = torch.tanh(torch.randn(300, generator=g, dtype=torch.float64) * 4)
    for name, exact in EXACT.items():
        bound, got = float(BOUNDS[name][1]), apply(library, f"d_{name}", torch.float64, x)
        with mpmath.workdps(40):
            for at, value in zip(x.tolist(), got.tolist(), strict=True):
                want = exact(mpmath.mpf(at))
                unit = mpmath.mpf(2) ** (math.frexp(float(want))[1] - 53)
                assert abs(value - want) <= bound * unit, f"{name}({at}) = {value}"


@pytest.mark.parametrize("mode", MODES)
def test_gamma_functions_of_doubles_near_their_zeros_and_at_their_edges(mode: str) -> None:
    names = {"lgamma": mpmath.loggamma, "digamma": mpmath.digamma}
    library = load("".join(elementwise(f"d_{n}", ["double"], "double", f"gy::{n}(a)") for n in names), mode)
    g, f64 = torch.Generator().manual_seed(0), torch.float64
    zeros = torch.tensor([1.0, 2.0, 1.4616321449683623, -2.4570247382208006, -0.504083008264455], dtype=f64)
    around = (torch.randn(40, 1, generator=g, dtype=f64) * 1e-3 + zeros).flatten()
    x = torch.cat([torch.rand(200, generator=g, dtype=f64) * 32 - 20, around])
    inf = math.inf
    edges = [0.0, -0.0, 1.0, -1.0, -7.0, inf, -inf, math.nan, 1e-310, -1e-310, 5e-324, 1e300, -1e300]
    ends = torch.tensor(edges, dtype=f64)
    for name, exact in names.items():
        got, at_ends = (apply(library, f"d_{name}", f64, v) for v in (x, ends))
        with mpmath.workdps(40):
            for at, value in zip(x.tolist(), got.tolist(), strict=True):
                want = mpmath.re(exact(mpmath.mpf(at)))
                assert abs(value - want) <= 12 * 2.0**-52 * max(1, abs(want)), f"{name}({at}) = {value}"
        eager = getattr(torch, name)(ends)
        assert torch.equal(eager.isnan(), at_ends.isnan()), (eager, at_ends)
        torch.testing.assert_close(at_ends, eager, rtol=1e-15, atol=0, equal_nan=True)


def test_every_bound_in_the_documentation_is_measured() -> None:
    assert set(UNARY) | set(BINARY) == set(BOUNDS) and len(BOUNDS) > 25
    assert set(EXACT) <= set(measured_in_double()) and len(measured_in_double()) > 10
