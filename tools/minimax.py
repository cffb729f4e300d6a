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
        error = [wx * (fx - sum(c * x**k for c, k in zip(coefficients, powers)))
                 for x, fx, wx in zip(grid, f_grid, w_grid)]
        exchanged = _alternation(error, n + 1)
        if exchanged is None or exchanged == picks:
            break
        picks = exchanged
    return coefficients


def _alternation(error: Sequence[mp.mpf], count: int) -> list[int] | None:
    """One index per sign run of ``error`` (its extremum); the ``count`` neighbouring ones that matter most."""
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


def fit(f: Function, w: Function, powers: Sequence[int], lo: float, hi: float, dtype: type = np.float32,
        fixed: Sequence[float] = ()) -> Fit:
    """Fits ``sum c_k x^k`` to ``f`` under weight ``w``; ``fixed`` are values for the first powers."""
    known = [mp.mpf(float(c)) for c in fixed]
    while len(known) < len(powers):
        done = len(known)

        def rest(x: mp.mpf, done: int = done) -> mp.mpf:
            return f(x) - sum(c * x**k for c, k in zip(known, powers[:done]))

        free = _remez(rest, w, powers[done:], lo, hi)
        known.append(mp.mpf(float(dtype(free[0]))))
    xs = [lo + (hi - lo) * (mp.mpf(i) + mp.mpf(1) / 3) / 2000 for i in range(2000)]
    worst = max(abs(w(x) * (f(x) - sum(c * x**k for c, k in zip(known, powers)))) for x in xs)
    return Fit(tuple(powers), tuple(float(c) for c in known), float(worst))


def show(name: str, result: Fit, dtype: type = np.float32) -> None:
    """Prints the coefficients from the highest power to the lowest, as the headers list them."""
    unit = 2.0**-24 if dtype is np.float32 else 2.0**-53
    suffix = "f" if dtype is np.float32 else ""
    print(f"// {name}: error {result.error / unit:.3f} * 2^{-24 if dtype is np.float32 else -53}")
    for power, c in sorted(zip(result.powers, result.coefficients), reverse=True):
        print(f"  x^{power}: {dtype(c)!s}{suffix}  {float(c).hex()}{suffix}")
    sys.stdout.flush()
