"""Hypothesis strategies for the IR, and how to say that a pass keeps what a program means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random as Rng
from typing import TypeAlias

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyrator.ir.check import LOWERED, ProgramSpec, check_program
from gyrator.ir.evaluate import place
from gyrator.ir.index import Atom, Axis, Index, Size, const, evaluate, maximum, minimum
from gyrator.ir.interp import Result, run_program
from gyrator.ir.program import Program, View
from gyrator.ir.text import program_text
from tests.random_programs import EVERYTHING, Case, Limits, random_case

Transform: TypeAlias = "Callable[[Program], Program]"

# Rounded values may differ by this much, relative to themselves and to the largest value of the run.
RELATIVE, OF_LARGEST = 1e-4, 1e-6


# -- programs ------------------------------------------------------------------------------------------------
def cases(limits: Limits = EVERYTHING) -> st.SearchStrategy[Case]:
    """Random programs with arguments; they shrink."""
    return st.randoms(use_true_random=False).map(lambda rng: random_case(rng, limits))


def check_pass(
    transform: Transform, *, leaves: ProgramSpec = LOWERED, limits: Limits = EVERYTHING, examples: int = 60
) -> None:
    """``transform`` leaves a program that satisfies ``leaves`` and gives what the program gave before."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(limits))
    def same(case: Case) -> None:
        after = transform(case.program)
        check_program(after, leaves)
        assert_same_results(case, after)

    same()


def assert_same_results(case: Case, after: Program) -> None:
    """``after`` gives the outputs and updates of the case's own program, which is interpreted too."""
    run = run_program(case.program, case.arguments)
    actual = run_program(after, case.arguments)
    compare(case, [*run.outputs, *run.updates], [*actual.outputs, *actual.updates], run.values)


def compare(case: Case, expected: Sequence[Result], actual: Sequence[Result], values: Mapping[str, Tensor]) -> None:
    """Results are equal; those that depend on rounding are close, by the magnitude of what they came from."""
    program = case.program
    outputs = [o for o in program.outputs if isinstance(o, View)]
    views = outputs + [u.value for u in program.updates]
    largest = max((_magnitude(values[n]) for n in case.rounded if n in values), default=0.0)
    for position, (view, wanted, got) in enumerate(zip(views, expected, actual, strict=True)):
        assert isinstance(wanted, Tensor) and isinstance(got, Tensor)
        name = view.value.name
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
        if position < len(outputs):  # an update takes the strides of its target
            assert _steps(got) == _steps(wanted), name
        close = name in case.rounded
        try:
            torch.testing.assert_close(
                got, wanted, rtol=RELATIVE if close else 0, atol=OF_LARGEST * largest if close else 0, equal_nan=True
            )
        except AssertionError as difference:
            raise AssertionError(f"{name}: {difference}\n{program_text(program)}") from None


def fresh_arguments(case: Case) -> list[Tensor | int]:
    """The arguments again, in memory of their own with the strides that the program expects."""
    return [
        place(declared.value, given, case.sizes) if declared.value is not None and isinstance(given, Tensor) else given
        for declared, given in zip(case.program.inputs, case.arguments, strict=True)
    ]


def _steps(tensor: Tensor) -> list[int]:
    """The strides that matter: of dimensions longer than 1, in a tensor that has elements."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and tensor.numel()]


def _magnitude(tensor: Tensor) -> float:
    if not tensor.dtype.is_floating_point:
        return 0.0
    finite = tensor.double()[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


# -- indices -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IndexCase:
    """An index, values for its atoms, and the value that plain integer arithmetic gives."""

    index: Index
    env: Mapping[Atom, int]
    value: int


@dataclass(frozen=True)
class Space:
    """Axes and sizes to build indices from, with the value of each."""

    atoms: tuple[Axis | Size, ...]
    env: Mapping[Atom, int]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """A few axes, constant and symbolic extents, and sizes with lower bounds."""
    sizes = (Size("n", 2), Size("m", 1, 9), Size("z", 0))
    env: dict[Atom, int] = {s: draw(st.integers(s.lo, s.hi or 7)) for s in sizes}
    extents = [const(draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))) for _ in range(2)]
    extents += [sizes[0].index(), sizes[1].index() * 2]
    axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(extents))
    env |= {a: draw(st.integers(0, evaluate(a.extent, env) - 1)) for a in axes}
    return Space((*axes, *sizes), env)


@st.composite
def indices(draw: st.DrawFn, space: Space | None = None, depth: int = 4) -> IndexCase:
    """Sums, products, quotients, remainders, minima and maxima, next to their values."""
    space = draw(spaces()) if space is None else space
    index, value = _index(draw(st.randoms(use_true_random=False)), space, depth)
    return IndexCase(index, space.env, value)


def _index(rng: Rng, space: Space, depth: int) -> tuple[Index, int]:
    if depth == 0 or rng.random() < 0.25:
        if rng.random() < 0.3:
            c = rng.randint(-6, 12)
            return const(c), c
        atom = rng.choice(space.atoms)
        return atom.index(), space.env[atom]
    a, x = _index(rng, space, depth - 1)
    how = rng.choice(["+", "+", "+", "-", "*", "//", "//", "%", "%", "min", "max"])
    if how in ("//", "%"):
        d, y = _divisor(rng, space)
        return (a // d, x // y) if how == "//" else (a % d, x % y)
    if how == "*":
        b, y = rng.choice([_index(rng, space, 0), (const(rng.choice([-2, 3, 4])), 0)])
        return a * b, x * (y if b.value is None else b.value)
    b, y = _index(rng, space, depth - 1)
    match how:
        case "+":
            return a + b, x + y
        case "-":
            return a - b, x - y
        case "min":
            return minimum(a, b), min(x, y)
    return maximum(a, b), max(x, y)


def _divisor(rng: Rng, space: Space) -> tuple[Index, int]:
    """A positive divisor: constant, symbolic, or a polynomial of sizes."""
    n, m = (next(a for a in space.atoms if a.name == name) for name in ("n", "m"))
    x, y = space.env[n], space.env[m]
    return rng.choice(
        [
            *((const(c), c) for c in (1, 2, 3, 4, 6, 8, 24)),
            (n.index(), x),
            (m.index(), y),
            (n.index() * 4, x * 4),
            (n.index() + 2, x + 2),
            (n.index() * m.index(), x * y),
            (n.index() - 1, x - 1),
        ]
    )
