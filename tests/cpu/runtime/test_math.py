"""Every error bound that docs/numerics.md states, measured: float against double, double against mpmath."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch

from tests.cpu.runtime.headers import MODES, apply, elementwise, load

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


EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sqrt": mpmath.sqrt,
    "erfinv": mpmath.erfinv,
}


def double_arguments(name: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    near = torch.randn(300, generator=g, dtype=torch.float64) * 4
    if name == "erfinv":
        return torch.tanh(near)
    x = torch.cat([near, torch.linspace(-700, 700, 200, dtype=torch.float64)])
    return x if name in ("exp", "sigmoid") else x.abs()


@pytest.mark.parametrize("mode", MODES)
def test_double_functions_keep_their_bounds(mode: str) -> None:
    library = load("".join(elementwise(f"d_{n}", ["double"], "double", f"gy::{n}(a)") for n in EXACT), mode)
    for name, exact in EXACT.items():
        bound, x = float(BOUNDS[name][1]), double_arguments(name)
        got = apply(library, f"d_{name}", torch.float64, x)
        with mpmath.workdps(40):
            for at, value in zip(x.tolist(), got.tolist(), strict=True):
                want = exact(mpmath.mpf(at))
                unit = mpmath.mpf(2) ** (math.frexp(float(want))[1] - 53)
                assert abs(value - want) <= bound * unit, f"{name}({at}) = {value}"


def test_every_bound_in_the_documentation_is_measured() -> None:
    assert set(UNARY) | set(BINARY) == set(BOUNDS) and len(BOUNDS) > 25
    assert {name for name, (_, double) in BOUNDS.items() if double not in ("library", "none")} == set(EXACT)
