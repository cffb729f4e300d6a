"""Computes the polynomial coefficients of the C++ vector library (`runtime/include`).

``fit`` runs the Remez exchange for a weighted polynomial and rounds the coefficients to the target format one
at a time, lowest power first, fitting the rest again after each, so that rounding hardly costs accuracy.
Run ``python tools/minimax.py`` to print every table in the headers with its approximation error in ulps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath as mp
import numpy as np

mp.mp.dps = 40

Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    """Coefficients (one per power) and the largest weighted error on the interval."""

    powers: tuple[int, ...]
    coefficients: tuple[float, ...]
    error: float


def _remez(f: Function, w: Function, powers: Sequence[int], lo: float, hi: float) -> list[mp.mpf]:
    """Minimises max |w(x) * (f(x) - sum c_k x^k)| on [lo, hi]."""
    n = len(powers)
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (60 * n)) for i in range(60 * n)]
    f_grid, w_grid = [f(x) for x in grid], [w(x) for x in grid]
    picks = [int((i + 0.5) * len(grid) / (n + 1)) for i in range(n + 1)]
    coefficients: list[mp.mpf] = []
    for _ in range(40):
        a, b = mp.zeros(n + 1), mp.zeros(n + 1, 1)
        for row, at in enumerate(picks):
            for column, power in enumerate(powers):
                a[row, column] = grid[at] ** power
            a[row, n] = (-1) ** row / w_grid[at]
            b[row] = f_grid[at]
        solution = mp.lu_solve(a, b)
        coefficients = [solution[i] for i in range(n)]
        error = [
            wx * (fx - sum(c * x**k for c, k in zip(coefficients, powers, strict=True)))
            for x, fx, wx in zip(grid, f_grid, w_grid, strict=True)
        ]
        exchanged = _alternation(error, n + 1)
        if exchanged is None or exchanged == picks:
            break
        picks = exchanged
    return coefficients


def _alternation(error: Sequence[mp.mpf], count: int) -> list[int] | None:
    """One index per sign run of ``error`` (its extremum); the ``count`` that matter most."""
    runs: list[int] = []
    for i, e in enumerate(error):
        if runs and (e > 0) == (error[runs[-1]] > 0):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
    return runs if len(runs) == count else None


def fit(
    f: Function,
    w: Function,
    powers: Sequence[int],
    lo: float,
    hi: float,
    dtype: type = np.float32,
    fixed: Sequence[float] = (),
) -> Fit:
    """Fits ``sum c_k x^k`` to ``f`` under weight ``w``; ``fixed`` are values for the first powers."""
    known = [mp.mpf(float(c)) for c in fixed]
    while len(known) < len(powers):
        done = len(known)

        def rest(x: mp.mpf, done: int = done) -> mp.mpf:
            return f(x) - sum(c * x**k for c, k in zip(known, powers[:done], strict=True))

        free = _remez(rest, w, powers[done:], lo, hi)
        known.append(mp.mpf(float(dtype(free[0]))))
    xs = [lo + (hi - lo) * (mp.mpf(i) + mp.mpf(1) / 3) / 2000 for i in range(2000)]
    worst = max(abs(w(x) * (f(x) - sum(c * x**k for c, k in zip(known, powers, strict=True)))) for x in xs)
    return Fit(tuple(powers), tuple(float(c) for c in known), float(worst))


def show(name: str, result: Fit, dtype: type = np.float32) -> None:
    """Prints the coefficients from the highest power to the lowest, as the headers list them."""
    unit = 2.0**-24 if dtype is np.float32 else 2.0**-53
    suffix = "f" if dtype is np.float32 else ""
    print(f"// {name}: error {result.error / unit:.3f} * 2^{-24 if dtype is np.float32 else -53}")
    for power, c in sorted(zip(result.powers, result.coefficients, strict=True), reverse=True):
        print(f"  x^{power}: {dtype(c)!s}{suffix}  {float(c).hex()}{suffix}")
    sys.stdout.flush()


def _odd_rest(f: Function, limit: mp.mpf) -> Function:
    """g(t) with f(x) = x + x^3 g(x^2); ``limit`` is g(0)."""
    return lambda t: (f(mp.sqrt(t)) / mp.sqrt(t) - 1) / t if t > 1e-12 else limit


def _odd_weight(f: Function) -> Function:
    """The weight that makes the error of x + x^3 g(x^2) relative to f."""
    return lambda t: t * mp.sqrt(t) / f(mp.sqrt(t)) if t > 0 else mp.mpf(10) ** -20


def _log_rest(x: mp.mpf) -> mp.mpf:
    return (mp.log1p(x) - x + x * x / 2) / x**3 if abs(x) > 1e-9 else mp.mpf(1) / 3


def _log_weight(x: mp.mpf) -> mp.mpf:
    return abs(x**3 / mp.log1p(x)) if abs(x) > 1e-9 else x * x


def _exp_rest(x: mp.mpf) -> mp.mpf:
    return (mp.expm1(x) - x) / x**2 if abs(x) > 1e-12 else mp.mpf(1) / 2 + x / 6


def _expm1_weight(x: mp.mpf) -> mp.mpf:
    return abs(x * x / mp.expm1(x)) if abs(x) > 1e-12 else abs(x) + mp.mpf(10) ** -20


def _log_series(t: mp.mpf) -> mp.mpf:
    return (2 * mp.atanh(mp.sqrt(t)) / mp.sqrt(t) - 2) / t if t > 1e-14 else mp.mpf(2) / 3


def main() -> None:
    """Print every table of the headers."""
    near = 0.3466  # ln(2) / 2, rounded up
    quarter = 0.7855**2  # (pi / 4)^2, rounded up
    show("exp = P(r)", fit(mp.exp, lambda x: mp.exp(-x), range(7), -near, near, fixed=(1, 1)))
    show("exp for erf", fit(mp.exp, lambda x: mp.exp(-x), range(6), -near, near, fixed=(1, 1)))
    show("expm1 = r + r^2 P(r)", fit(_exp_rest, _expm1_weight, range(6), -near, near, fixed=(0.5,)))
    show("log1p = f - f^2/2 + f^3 P(f)", fit(_log_rest, _log_weight, range(8), -0.2929, 0.4143))
    inner = fit(
        lambda t: mp.erf(mp.sqrt(t)) / mp.sqrt(t) - 1 if t > 1e-14 else 2 / mp.sqrt(mp.pi) - 1,
        lambda t: mp.sqrt(t) / mp.erf(mp.sqrt(t)) if t > 0 else mp.mpf(1),
        range(7), 1e-9, 1.0,
    )  # fmt: skip
    show("erf = x + x P(x^2)", inner)
    show("log erfc", fit(lambda x: mp.log(mp.erfc(x)), lambda x: mp.erfc(x) / mp.erf(x), range(7), 1.0, 3.92))
    odd = {
        "sin": (mp.sin, -mp.mpf(1) / 6, 3, quarter),
        "asin": (mp.asin, mp.mpf(1) / 6, 5, 0.25),
        "atan": (mp.atan, -mp.mpf(1) / 3, 9, 1.0),
        "sinh": (mp.sinh, mp.mpf(1) / 6, 4, 1.0),
    }
    for name, (f, limit, terms, high) in odd.items():
        show(f"{name} = x + x^3 P(x^2)", fit(_odd_rest(f, limit), _odd_weight(f), range(terms), 1e-9, high))
    cosine = fit(
        lambda t: (mp.cos(mp.sqrt(t)) - 1 + t / 2) / t**2 if t > 1e-9 else mp.mpf(1) / 24,
        lambda t: t * t / mp.cos(mp.sqrt(t)),
        range(3), 1e-9, quarter,
    )  # fmt: skip
    show("cos = 1 - z/2 + z^2 P(z)", cosine)
    double = np.float64
    exp64 = fit(_exp_rest, lambda x: x * x * mp.exp(-x) + mp.mpf(10) ** -25, range(11), -near, near, double, (0.5,))
    show("exp = 1 + r + r^2 P(r)", exp64, double)
    log64 = fit(
        _log_series,
        lambda t: t * mp.sqrt(t) / (2 * mp.atanh(mp.sqrt(t))) if t > 0 else mp.mpf(10) ** -20,
        range(7), 1e-9, 0.02945, double,
    )  # fmt: skip
    show("log((1+s)/(1-s)) = 2s + s^3 P(s^2)", log64, double)


if __name__ == "__main__":
    main()
