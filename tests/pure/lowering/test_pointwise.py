"""Pointwise lowerings against eager: every op of the table, dtypes that promote, scalars, broadcasting,
strides.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pure.lowering.harness import check, lowered, run, tensor

SHAPE = (5, 7)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)
UNARY = (
    "exp exp2 expm1 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc"
    " erfinv sqrt rsqrt reciprocal log log2 log10 lgamma digamma neg abs sign sgn floor ceil trunc round"
    " relu isnan isinf signbit logical_not bitwise_not frac square"
).split()
BINARY = (
    "add sub mul div maximum minimum fmod remainder pow atan2 hypot copysign fmax fmin floor_divide eq ne"
    " lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
).split()
PAIRS = (
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.bfloat16),
    (torch.int64, torch.float32), (torch.bool, torch.int64), (torch.bool, torch.bool),
    (torch.uint8, torch.int8),
)  # fmt: skip
SCALARS = (
    (torch.float32, 2.5), (torch.int64, 3), (torch.int64, 2.5), (torch.bfloat16, 0.1), (torch.uint8, 3),
    (torch.bool, 2), (torch.float32, float("-inf")),
)  # fmt: skip


def runs(fn: Callable[..., Tensor], *args: Tensor) -> bool:
    """Whether eager has this op for these dtypes."""
    try:
        fn(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_in_every_dtype(name: str) -> None:
    fn = getattr(torch, name)
    for dtype in DTYPES:
        x = tensor(*SHAPE, dtype=dtype)
        if runs(fn, x):
            check(fn, x)


@pytest.mark.parametrize("name", BINARY)
def test_binary_ops_promote_as_eager_does(name: str) -> None:
    fn = getattr(torch, name)
    for left, right in PAIRS:
        x, y = tensor(*SHAPE, dtype=left), tensor(*SHAPE, dtype=right, seed=1)
        if right == torch.int64 or right == torch.int8:
            y = y.abs() + 1
        if runs(fn, x, y):
            check(fn, x, y)


@pytest.mark.parametrize("name", BINARY)
def test_binary_ops_with_numbers_and_0d_tensors(name: str) -> None:
    fn = getattr(torch, name)
    for dtype, number in SCALARS:
        x = tensor(*SHAPE, dtype=dtype)
        if runs(lambda t, n=number: fn(t, n), x):
            check(lambda t, n=number: fn(t, n), x)
        if runs(fn, x, torch.tensor(number)):
            check(fn, x, torch.tensor(number))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, -1.5, 2.5, 6, 7, 8, 9])
def test_powers(exponent: float) -> None:
    check(lambda x: x.abs() ** exponent, tensor(*SHAPE))
    check(lambda x: x**exponent, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -2, 1e30, 1e-30]))
    check(lambda x: x.abs() ** exponent, tensor(*SHAPE, dtype=torch.bfloat16))
    if exponent >= 0:
        check(lambda x: x**exponent, tensor(*SHAPE, dtype=torch.int64))


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_half_precision_divides_by_the_rounded_number(name: str) -> None:
    fn, x = getattr(torch, name), tensor(*SHAPE, dtype=torch.bfloat16)
    for divisor in (0.1, torch.tensor(0.1)):
        low = lowered(lambda x, d=divisor: fn(x, d), x)
        assert torch.equal(run(low, [x]).outputs[0], fn(x, divisor))


def test_power_with_a_number_as_base() -> None:
    check(lambda x: 2**x, tensor(*SHAPE))
    check(lambda x: 3.0**x, tensor(*SHAPE))


@pytest.mark.parametrize(
    "activation",
    [F.gelu, F.silu, F.hardtanh, F.leaky_relu, F.elu, F.softplus, F.hardswish, F.mish, F.selu, F.relu6,
     F.logsigmoid,
     F.hardsigmoid, F.softsign, F.tanhshrink],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_activations(activation: Callable[[Tensor], Tensor]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(lambda x: activation(x), tensor(*SHAPE, dtype=dtype))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=2), (tensor(*SHAPE), tensor(*SHAPE, seed=1))),
    "rsub with alpha": (lambda x: torch.rsub(x, 3, alpha=2), (tensor(*SHAPE, dtype=torch.int64),)),
    "floor division": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (tensor(*SHAPE), tensor(*SHAPE, seed=1))),
    "truncating division": (lambda x: torch.div(x, 3, rounding_mode="trunc"), (tensor(*SHAPE, dtype=torch.int64),)),
    "clamp by numbers": (lambda x: x.clamp(-0.5, 0.5), (tensor(*SHAPE),)),
    "clamp an integer by floats": (lambda x: x.clamp(0.5, 2), (tensor(*SHAPE, dtype=torch.int64),)),
    "clamp by tensors": (lambda x, y: x.clamp(y, y + 1), (tensor(*SHAPE), tensor(*SHAPE, seed=1))),
    "where with promotion": (lambda x, y: torch.where(x > 0, x, y), (tensor(*SHAPE), tensor(7, dtype=torch.bfloat16))),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), (tensor(*SHAPE, dtype=torch.bfloat16),)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (tensor(*SHAPE), tensor(*SHAPE, seed=1))),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), (tensor(*SHAPE), tensor(*SHAPE, seed=1))),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.5), (tensor(*SHAPE), tensor(*SHAPE, seed=1, low=1.0))),
    "glu": (lambda x: F.glu(x, 0), (tensor(6, 5),)),
    "angle": (lambda x: torch.angle(x), (tensor(*SHAPE),)),
    "round to decimals": (lambda x: torch.round(x, decimals=2), (tensor(*SHAPE),)),
    "shifts": (lambda x: (x << 2) + (x >> 1), (tensor(*SHAPE, dtype=torch.int64),)),
    "integers counted by fractions": (lambda x: x + torch.arange(2.1, -2.9, -1.5, dtype=x.dtype), (tensor(4).long(),)),
    "0-d": (lambda x: x * 2 + 1, (tensor(),)),
    "empty": (lambda x, y: x + y, (tensor(0, 4), tensor(4))),
    "a constant tensor": (lambda x: x * torch.tensor(3.0), (tensor(4),)),
    "a sparse index of bf16 and 0-d f32": (lambda x, y: x + y, (tensor(4, dtype=torch.bfloat16), tensor())),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    fn, args = CASES[case]
    check(fn, *args)
    check(fn, *args, dynamic=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_between_all_dtypes(dtype: torch.dtype) -> None:
    for other in DTYPES:
        check(
            lambda x, other=other: x.to(other),
            tensor(*SHAPE, dtype=dtype).abs() if dtype != torch.bool else tensor(5, dtype=dtype),
        )


@pytest.mark.parametrize(
    "x",
    [tensor(7, 5).t(), tensor(4, 8)[:, ::2], tensor(2, 3, 4, 5).to(memory_format=torch.channels_last),
     tensor(4, 1).expand(4, 6), tensor(1, 6, 1)],
    ids=["transposed", "strided", "channels last", "expanded", "ones"],
)  # fmt: skip
def test_results_lie_in_memory_as_in_eager(x: Tensor) -> None:
    check(lambda x: x.exp(), x)
    check(lambda x: x + x.new_ones(x.shape[-1]), x)
    check(lambda x: x.exp(), x, dynamic=True)


def test_one_nest_for_each_result_and_none_for_views() -> None:
    low = lowered(lambda x, y: torch.tanh(x.t() * 2 + y), tensor(7, 5), tensor(7))
    assert [n.out[0].name for n in low.program.nodes] == ["mul", "add", "tanh"]
    assert str(low.program.nodes[0].root.body) == "arg0_1[i1, i0] * 2.0"


def test_half_precision_is_computed_in_float32() -> None:
    low = lowered(lambda x: x.exp(), tensor(4, dtype=torch.bfloat16))
    assert str(low.program.nodes[0].root.body) == "bf16(exp(f32(arg0_1[i0])))"
