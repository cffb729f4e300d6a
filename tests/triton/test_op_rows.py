"""Each row of the op table on each type, with tensors and with literals: the kernels compile, and give what the
reference interpreter gives."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.ir.expr import Const, Expr, Load, Op, Value
from gyrator.ir.index import Axis, as_index, contiguous_strides
from gyrator.ir.interp import run_program
from gyrator.ir.ops import OPS, Rule, ScalarOp
from gyrator.ir.program import Input, Nest, Pointwise, Program, View
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COUNT = 100


def sample(dtype: torch.dtype, seed: int) -> Tensor:
    """Whole numbers and their halves, zero and negative ones among them; NaN and infinity last."""
    draw = torch.randint(-9, 9, (COUNT,), generator=torch.Generator().manual_seed(seed))
    if not dtype.is_floating_point:
        return draw.to(dtype)
    x = draw.to(dtype) / 2
    x[-3:] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return x


def admits(row: ScalarOp, dtype: torch.dtype) -> bool:
    if row.name in ("cast", "bitcast"):
        return False
    if row.name == "nextafter" and dtype.itemsize < 4:  # stays a call
        return False
    if row.name in ("isnan", "isinf", "signbit"):
        return dtype.is_floating_point
    match row.rule:
        case Rule.FLOAT:
            return dtype.is_floating_point
        case Rule.INTEGER:
            return not dtype.is_floating_point and (dtype != torch.bool or "shift" not in row.name)
        case Rule.LOGICAL:
            return dtype == torch.bool
        case Rule.SELECT | Rule.COMPARE:
            return True
        case _:
            return dtype != torch.bool


def value(name: str, dtype: torch.dtype) -> Value:
    shape = (as_index(COUNT),)
    return Value(name, shape, dtype, contiguous_strides(shape))


def forms(row: ScalarOp, a: Load, b: Load) -> list[tuple[Expr, ...]]:
    """Operands: tensors, and a literal (3) on either side."""
    if row.arity == 1:
        return [(a,)]
    three = Const(torch.tensor(3).to(a.dtype).item(), a.dtype)
    if row.rule is Rule.SELECT:
        test = a if a.dtype == torch.bool else Op("ne", (a, b), torch.bool)
        return [(test, a, b), (test, a, three), (test, three, b)]
    if row.arity == 3:
        return [(a, b, a), (a, three, b), (a, b, three)]
    return [(a, b), (a, three), (three, b)]


def every_row(dtype: torch.dtype) -> Program:
    a, b, axis = value("a", dtype), value("b", dtype), Axis("i0", as_index(COUNT))
    loads = [Load(v, (axis.index(),)) for v in (a, b)]
    nests: list[Nest] = []
    outputs: list[View] = []
    for row in OPS.values():
        for k, operands in enumerate(forms(row, *loads) if admits(row, dtype) else []):
            boolean = row.rule in (Rule.COMPARE, Rule.LOGICAL)
            out = value(f"{row.name}_{k}", torch.bool if boolean else dtype)
            nests.append(Nest((out,), (axis,), Pointwise(Op(row.name, operands, out.dtype))))
            outputs.append(View(out, out.shape, out.strides, as_index(0)))
    return Program("rows", (Input(a), Input(b)), tuple(nests), tuple(outputs))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_opposite_of_0_has_its_sign(dtype: torch.dtype, interpreter: Worker) -> None:
    """By Triton's own minus, which subtracts from 0, it has none: 1 / -x and atan2 of it would differ from eager's."""
    x = torch.tensor([0.0, -0.0, 1.0, -torch.inf], dtype=dtype)
    plan = gpu_plan(on_gpu(lowered(torch.neg, x).program))
    (got,) = run_plan(plan, [x], launch=runner(interpreter))
    assert isinstance(got, Tensor) and torch.equal(got, -x) and torch.equal(got.signbit(), (-x).signbit())


def _signs(x: Tensor) -> tuple[Tensor, ...]:
    padded = torch.nn.functional.pad(x[:-1], (0, 1), value=-0.0)
    return 1 / (x * 0.0 + -0.0), torch.where(x > 0, -0.0, 1.0), x.copysign(-0.0), padded, 1 / torch.full_like(x, -0.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_literal_minus_0_has_its_sign(dtype: torch.dtype, compiler: Worker, interpreter: Worker) -> None:
    """Triton makes 0.0 of every literal that equals it. Its interpreter does not: the text is looked at, too."""
    x = torch.tensor([0.0, -0.0, 1.0, -2.0], dtype=dtype)
    plan = gpu_plan(on_gpu(lowered(_signs, x).program))
    for got, want in zip(run_plan(plan, [x], launch=runner(interpreter)), _signs(x), strict=True):
        assert isinstance(got, Tensor) and torch.equal(got.signbit(), want.signbit())
    sources = [print_triton(kernel) for kernel in plan.kernels]
    assert any("-0.0" in printed.source for printed in sources)
    assert not any(re.search(r"(?<!tl.full\(\[\], )-0\.0", printed.source) for printed in sources)
    for printed in sources:
        compiler.compile(printed, printed.configs[0], 90)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_each_row_of_the_op_table(dtype: torch.dtype, compiler: Worker, interpreter: Worker) -> None:
    program = every_row(dtype)
    arguments = [sample(dtype, 0), sample(dtype, 1)]
    expected = run_program(program, [x.clone() for x in arguments])
    plan = gpu_plan(on_gpu(program), combo_kernels=False)
    for kernel in plan.kernels:
        printed = print_triton(kernel)
        compiler.compile(printed, printed.configs[0], 90)
    results = run_plan(plan, arguments, launch=runner(interpreter))
    for output, got, wanted in zip(program.outputs, results, expected.outputs, strict=True):
        assert isinstance(got, Tensor) and isinstance(wanted, Tensor) and isinstance(output, View)
        close = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(got, wanted, equal_nan=True, **close, msg=f"{output.value.name}: {got}, {wanted}")
