"""Each operation of the header against torch, in three modes; one lane gives the same bits as several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.cpu.runtime.headers import DTYPES, FLOATS, INTEGERS, MODES, apply, elementwise, load, name_of, same, samples

Operation = tuple[str, Callable[..., torch.Tensor], Sequence[str], int]

ALL = (*FLOATS, *INTEGERS)
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
PREDICATES = (
    *COMPARE,
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
)


def divided(rounding: str) -> Callable[..., torch.Tensor]:
    """torch's division, with the header's rules where torch raises: x / 0 is 0, x / -1 wraps."""

    def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype.is_floating_point:
            return torch.div(a, b, rounding_mode=rounding)
        wraps = (b == -1) & b.dtype.is_signed
        quotient = torch.div(a, torch.where((b == 0) | wraps, torch.ones_like(b), b), rounding_mode=rounding)
        return torch.where(b == 0, 0, torch.where(wraps, -a, quotient)).to(a.dtype)

    return op


def rest(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch's remainder or fmod; by 0 it is 0."""

    def checked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype.is_floating_point:
            return op(a, b)
        return op(a, torch.where((b == 0) | ((b == -1) & b.dtype.is_signed), torch.ones_like(b), b))

    return checked


BINARY: list[Operation] = [
    ("add", torch.add, (*ALL, "bool"), 2),
    ("sub", torch.sub, ALL, 2),
    ("mul", torch.mul, (*ALL, "bool"), 2),
    ("div", torch.div, FLOATS, 2),
    ("floordiv", divided("floor"), ALL, 2),
    ("truncdiv", divided("trunc"), ALL, 2),
    ("remainder", rest(torch.remainder), ALL, 2),
    ("fmod", rest(torch.fmod), ALL, 2),
    ("maximum", torch.maximum, (*ALL, "bool"), 2),
    ("minimum", torch.minimum, (*ALL, "bool"), 2),
    ("fmax", torch.fmax, FLOATS, 2),
    ("fmin", torch.fmin, FLOATS, 2),
    ("copysign", torch.copysign, FLOATS, 2),
    ("nextafter", torch.nextafter, FLOATS, 2),
    ("pow", torch.pow, INTEGERS, 2),
    ("bitwise_and", torch.bitwise_and, (*INTEGERS, "bool"), 2),
    ("bitwise_or", torch.bitwise_or, (*INTEGERS, "bool"), 2),
    ("bitwise_xor", torch.bitwise_xor, (*INTEGERS, "bool"), 2),
    ("lshift", torch.bitwise_left_shift, INTEGERS, 2),
    ("rshift", torch.bitwise_right_shift, INTEGERS, 2),
    ("logical_and", torch.logical_and, ("float", "int8_t", "bool"), 2),
    ("logical_or", torch.logical_or, ("double", "int64_t", "bool"), 2),
    ("logical_xor", torch.logical_xor, ("float", "uint8_t", "bool"), 2),
    *[(name, getattr(torch, name), (*ALL, "bool", "gy::bf16"), 2) for name in COMPARE],
]
UNARY: list[Operation] = [
    ("neg", torch.neg, ALL, 1),
    ("abs", torch.abs, ALL, 1),
    ("sign", torch.sign, (*ALL, "bool"), 1),
    ("floor", torch.floor, FLOATS, 1),
    ("ceil", torch.ceil, FLOATS, 1),
    ("round", torch.round, FLOATS, 1),
    ("trunc", torch.trunc, FLOATS, 1),
    ("reciprocal", lambda a: 1 / a, FLOATS, 1),
    ("isnan", torch.isnan, ("float", "double", "int32_t"), 1),
    ("isinf", torch.isinf, ("float", "double", "int32_t"), 1),
    ("isfinite", torch.isfinite, ("float", "double", "int32_t"), 1),
    ("signbit", torch.signbit, ALL, 1),
    ("bitwise_not", torch.bitwise_not, (*INTEGERS, "bool"), 1),
    ("logical_not", torch.logical_not, ("float", "int64_t", "bool"), 1),
]
CASES = [(op, ctype) for op in (*BINARY, *UNARY) for ctype in op[2]]
NO_SIGN_OF_ZERO = ("maximum", "minimum", "fmax", "fmin", "remainder", "sign")


def result_type(name: str, ctype: str) -> str:
    return "bool" if name in PREDICATES else ctype


def source(mode: str) -> str:
    """All cases; the fallback compiles several lanes slowly, and four show as much as sixteen."""
    return "".join(
        elementwise(
            name_of(name, t), [t] * arity, result_type(name, t), f"gy::{name}({'a, b'[: 3 * arity - 2]})",
            lanes=4 if mode == "scalar" else 16,
        )
        for (name, _, _, arity), t in CASES
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_every_operation_gives_torchs_values(mode: str) -> None:
    library, wrong = load(source(mode), mode), []
    for (name, reference, _, arity), ctype in CASES:
        inputs = [samples(ctype, seed) for seed in (1, 2)][:arity]
        got = apply(library, name_of(name, ctype), DTYPES[result_type(name, ctype)], *inputs)
        want = reference(*inputs)
        agree = same(got, want) if name not in NO_SIGN_OF_ZERO else same(got + 0, want + 0)
        if not agree.all():
            at = int((~agree).nonzero()[0])
            wrong.append(f"{name} {ctype}: {[x[at].item() for x in inputs]} gave {got[at]}, torch {want[at]}")
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(mode: str) -> None:
    library = load(elementwise("fused", ["float"] * 3, "float", "gy::fma(a, b, c)"), mode)
    a, b = samples("float", 1), samples("float", 2)
    c = -(a * b)
    exact = a.double() * b.double() + c.double()
    fine = exact.isfinite() & (exact.abs() > 1e-30)
    assert torch.equal(apply(library, "fused", torch.float32, a, b, c)[fine], exact.float()[fine])


@pytest.mark.parametrize("mode", MODES)
def test_products_are_not_contracted_into_sums(mode: str) -> None:
    """x*y - z with z = x*y rounded is 0 in eager; a fused multiply-add would give the rounding error."""
    library = load(elementwise("difference", ["float"] * 3, "float", "gy::sub(gy::mul(a, b), c)"), mode)
    a, b = torch.randn(1000), torch.randn(1000)
    assert apply(library, "difference", torch.float32, a, b, a * b).count_nonzero() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 32, 64])
def test_every_number_of_lanes_serves(mode: str, lanes: int) -> None:
    kinds = ("float", "double", "int8_t", "int64_t")
    text = "".join(
        elementwise(f"k_{t}", [t, t], t, "gy::where(gy::lt(a, b), gy::add(a, b), gy::mul(a, gy::neg(b)))", lanes)
        for t in kinds
    )
    library = load(text, mode)
    for t in kinds:
        a, b = samples(t, 1), samples(t, 2)
        assert same(apply(library, f"k_{t}", DTYPES[t], a, b), torch.where(a < b, a + b, a * -b)).all()


SMALL = [
    ("add", torch.add, 2), ("sub", torch.sub, 2), ("mul", torch.mul, 2), ("div", torch.div, 2),
    ("maximum", torch.maximum, 2), ("fmin", torch.fmin, 2), ("neg", torch.neg, 1), ("abs", torch.abs, 1),
    ("sign", torch.sign, 1), ("floor", torch.floor, 1), ("isnan", torch.isnan, 1),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_arithmetic_on_16_bit_floats_rounds_each_result(mode: str) -> None:
    halves = ("gy::bf16", "gy::f16")
    text = "".join(
        elementwise(name_of(name, t), [t] * arity, result_type(name, t), f"gy::{name}({'a, b'[: 3 * arity - 2]})")
        for name, _, arity in SMALL
        for t in halves
    )
    library = load(text, mode)
    for name, reference, arity in SMALL:
        for t in halves:
            inputs = [samples(t, seed) for seed in (1, 2)][:arity]
            got = apply(library, name_of(name, t), DTYPES[result_type(name, t)], *inputs)
            assert same(got + 0, reference(*inputs) + 0).all(), (name, t)
