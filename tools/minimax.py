"""Computes the polynomial coefficients of the C++ vector library (`runtime/include`).

``fit`` runs the Remez exchange for a weighted polynomial and rounds the coefficients to the target format one
at a time, lowest power first, fitting the rest again after each, so that rounding hardly costs accuracy.
Run ``python tools/minimax.py`` to print every table in the headers with its approximation error in ulps, which takes
some minutes; with ``double``, those of doubles alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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


def _remez(f: Function, w: Function, powers: Sequence[int], lo: float, hi: float, points: int) -> list[mp.mpf]:
    """Minimises max |w(x) * (f(x) - sum c_k x^k)| on `points` points of [lo, hi]."""
    n = len(powers)
    lo, hi = mp.mpf(lo), mp.mpf(hi)
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / points) for i in range(points)]
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
    one_by_one: int | None = None,
    grid: tuple[int, int] = (60, 0),
) -> Fit:
    """Fits ``sum c_k x^k`` to ``f`` under weight ``w``; ``fixed`` are values for the first powers.

    ``one_by_one``: how many coefficients are rounded alone; the rest are rounded together (None: all alone). Where 0 is
    inside the interval and the weight does not vanish there, no later coefficient can make good what rounding the
    first one lost, and trying to makes them large: 0 is right. ``grid``: points per coefficient, and points beside
    them.
    """
    f, w = lru_cache(None)(f), lru_cache(None)(w)
    known = [mp.mpf(float(c)) for c in fixed]
    while len(known) < len(powers):
        done = len(known)

        def rest(x: mp.mpf, done: int = done) -> mp.mpf:
            return f(x) - sum(c * x**k for c, k in zip(known, powers[:done], strict=True))

        free = _remez(rest, w, powers[done:], lo, hi, grid[0] * (len(powers) - done) + grid[1])
        alone = one_by_one is None or done - len(fixed) < one_by_one
        known.extend(mp.mpf(float(dtype(c))) for c in (free[:1] if alone else free))
    points = 2000 if grid[0] > 20 else 400
    xs = [lo + (mp.mpf(hi) - lo) * (mp.mpf(i) + mp.mpf(1) / 3) / points for i in range(points)]
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


def _erfcx(x: mp.mpf) -> mp.mpf:
    return mp.exp(x * x) * mp.erfc(x)


def _erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x where w = -log(1 - x^2), by Halley's method on erfc: 1 - x is known accurately, x itself is not."""
    x = mp.sqrt(-mp.expm1(-w))
    if w < 1:
        return mp.erfinv(x) / x if w > 1e-25 else mp.sqrt(mp.pi) / 2
    rest, y = mp.exp(-w) / (1 + x), mp.sqrt(w) * mp.mpf("0.9")
    for _ in range(60):
        d = (mp.erfc(y) - rest) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        step = d / (1 - y * d)
        y += step
        if abs(step) < mp.mpf(10) ** -35 * y:
            break
    return y / x


def _stirling_rest(z: mp.mpf) -> mp.mpf:
    x = 1 / mp.sqrt(z)
    return x * (mp.loggamma(x) - (x - mp.mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def _digamma_rest(z: mp.mpf) -> mp.mpf:
    x = 1 / mp.sqrt(z)
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) * x * x


def _log_far_series(z: mp.mpf) -> mp.mpf:
    if z < 1e-10:
        return mp.mpf(2) / 7 + z * 2 / 9
    return ((2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z - mp.mpf(2) / 3) / z / z - mp.mpf(2) / 5 / z


def double_tables() -> None:
    """Print the tables of the functions of doubles."""
    near, quarter, tiny, ln2 = 0.3466, 0.7855**2, mp.mpf(10) ** -20, mp.log(2)

    def table(
        name: str, f: Function, w: Function, terms: int, lo: float, hi: float, *, alone: int = 2, **more: Any
    ) -> None:
        fitted = fit(f, w, range(terms), lo, hi, np.float64, one_by_one=alone, grid=(12, 1), **more)
        show(name, fitted, np.float64)

    def odd(name: str, f: Function, limit: mp.mpf, terms: int, high: float) -> None:
        table(f"{name} = x + x^3 P(x^2)", _odd_rest(f, limit), _odd_weight(f), terms, 1e-12, high)

    exp_rest = fit(
        _exp_rest, lambda x: x * x * mp.exp(-x) + mp.mpf(10) ** -25, range(11), -near, near, np.float64, (0.5,)
    )
    show("exp = 1 + r + r^2 P(r)", exp_rest, np.float64)
    log_series = fit(
        _log_series,
        lambda t: t * mp.sqrt(t) / (2 * mp.atanh(mp.sqrt(t))) if t > 0 else tiny,
        range(7), 1e-9, 0.02945, np.float64,
    )  # fmt: skip
    show("log((1+s)/(1-s)) = 2s + s^3 P(s^2)", log_series, np.float64)
    mp.mp.dps = 50
    table(
        "exp2 = 1 + x P(x)",
        lambda x: mp.expm1(x * ln2) / x if abs(x) > 1e-15 else ln2,
        lambda x: abs(x) * mp.power(2, -x) + tiny,
        11, -0.5, 0.5,
    )  # fmt: skip
    table("expm1 = r + r^2 P(r)", _exp_rest, _expm1_weight, 11, -near, near, fixed=(0.5,))
    table(
        "log((1+s)/(1-s)) = 2s + 2/3 s^3 + 2/5 s^5 + s^7 P(s^2)", _log_far_series, lambda z: z**3 / 2 * 2**11,
        7, 1e-12, 0.02945, alone=0,
    )  # fmt: skip
    odd("sin", mp.sin, -mp.mpf(1) / 6, 6, quarter)
    odd("asin", mp.asin, mp.mpf(1) / 6, 13, 0.25)
    odd("sinh", mp.sinh, mp.mpf(1) / 6, 7, 1.0)
    odd("atan", mp.atan, -mp.mpf(1) / 3, 21, 1.0)
    table(
        "cos = 1 - z/2 + z^2 P(z)",
        lambda t: (mp.cos(mp.sqrt(t)) - 1 + t / 2) / t**2 if t > 1e-9 else mp.mpf(1) / 24,
        lambda t: t * t / mp.cos(mp.sqrt(t)),
        6, 1e-12, quarter,
    )  # fmt: skip
    table(
        "erf = x + x P(x^2)",
        lambda t: mp.erf(mp.sqrt(t)) / mp.sqrt(t) - 1 if t > 1e-14 else 2 / mp.sqrt(mp.pi) - 1,
        lambda t: mp.sqrt(t) / mp.erf(mp.sqrt(t)) if t > 0 else mp.mpf(1),
        12, 1e-12, 1.0,
    )  # fmt: skip
    table(
        "log erfc", lambda x: mp.log(mp.erfc(x)), lambda x: mp.erfc(x) / mp.erf(x), 18, 1.0, 5.94, alone=0
    )  # fmt: skip

    def outer(t: mp.mpf) -> mp.mpf:
        x = 2 * (1 + t) / (1 - t)
        return (x + 2) * _erfcx(x)

    def of_variable(x: str) -> mp.mpf:
        return (mp.mpf(x) - 2) / (mp.mpf(x) + 2)

    name = "erfc = exp(-x^2) / (x + 2) P((x - 2) / (x + 2))"
    table(name, outer, lambda t: 1 / outer(t), 24, of_variable("0.5"), of_variable("27.3"), alone=0)
    float_outer = fit(
        outer, lambda t: 1 / outer(t), range(10), of_variable("0.5"), of_variable("10.1"), one_by_one=0, grid=(12, 1)
    )
    show(f"float {name}", float_outer)
    for where, centre, terms, lo, hi in (("centre", "3.125", 24, -3.125, 3.125), ("middle", "3.25", 20, -0.75, 0.75),
                                         ("far", "5", 19, -1.0, 1.07)):  # fmt: skip

        def ratio(u: mp.mpf, where: str = where, centre: str = centre) -> mp.mpf:
            at = u + mp.mpf(centre)
            return _erfinv_ratio(at if where == "centre" else at * at)

        table(f"erfinv {where} around {centre}", ratio, lambda u, f=ratio: 1 / f(u), terms, lo, hi, alone=0)
    table(
        "lgamma(2 + d) = d P(d)",
        lambda d: mp.loggamma(2 + d) / d if abs(d) > 1e-20 else 1 - mp.euler,
        lambda d: abs(d / mp.loggamma(2 + d)) if abs(d) > 1e-20 else mp.mpf(2),
        18, -0.5, 0.5, alone=0,
    )  # fmt: skip
    table(
        "Stirling's rest times x, of 1/x^2", _stirling_rest, lambda z: mp.sqrt(z) / mp.loggamma(1 / mp.sqrt(z)),
        6, 1e-11, 1 / 64, alone=1,
    )  # fmt: skip
    table(
        "digamma's rest times x^2, of 1/x^2", _digamma_rest, lambda z: z / mp.digamma(1 / mp.sqrt(z)),
        6, 1e-11, 1 / 64, alone=1,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] != ["double"]:
        main()
    double_tables()
