"""Rows of large matrices start at multiples of 16 bytes, and nothing computes differently."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gyrator.codegen.triton import print_triton
from gyrator.config import Config
from gyrator.ir.expr import Value
from gyrator.schedule import gpu_gemm, pad
from gyrator.schedule.plan import Allocate, Call
from gyrator.session import Count
from tests.pure.lowering.harness import lowered
from tests.triton.emulated import Emulator
from tests.triton.harness import gpu_plan, on_gpu
from tests.triton.worker import Worker

ROWS, WORDS = 12, 33  # 132 bytes a row


@pytest.fixture
def emulator(tmp_path: Path, interpreter: Worker, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    torch._dynamo.reset()
    monkeypatch.setattr(pad, "LARGE", 1 << 10)
    return Emulator(tmp_path, interpreter)


def steps(emulator: Emulator, graph: int) -> set[int | None]:
    """The steps between rows of all values of the vocabulary's width."""
    found: set[Value] = set()
    for step in emulator.printed[graph].plan.steps:
        if isinstance(step, Allocate):
            found.add(step.value)
        elif isinstance(step, Call):
            found |= {v for v in step.extern.out if v is not None}
    return {v.strides[0].value for v in found if [n.value for n in v.shape] == [ROWS, WORDS]}


def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    logits = nn.functional.linear(x, w, b)
    return torch.logsumexp(logits.float(), -1).sum()


def inputs() -> list[Tensor]:
    return [torch.randn(s, requires_grad=True) for s in ((ROWS, 16), (WORDS, 16), (WORDS,))]


def test_logits_and_their_gradient_are_padded(emulator: Emulator) -> None:
    args = inputs()
    actual = torch.compile(loss, backend=emulator.backend)(*args)
    expected = loss(*args)
    torch.testing.assert_close(actual, expected)
    for got, want in zip(torch.autograd.grad(actual, args), torch.autograd.grad(expected, args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert 36 in steps(emulator, 0) and 36 in steps(emulator, 1)
    assert all(printed.counters[Count.PADDED_STRIDES] >= 1 for printed in emulator.printed)


def test_logits_that_the_caller_sees_keep_their_strides(emulator: Emulator) -> None:
    args = [a.detach() for a in inputs()]

    def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        logits = nn.functional.linear(x, w, b)
        return logits, logits.exp().sum()

    logits, total = torch.compile(both, backend=emulator.backend)(*args)
    torch.testing.assert_close((logits, total), both(*args))
    assert logits.stride() == (WORDS, 1) and steps(emulator, 0) == {WORDS, 36}
    assert all(kernel.origins for kernel in emulator.printed[0].plan.kernels)  # the copy too


@pytest.mark.parametrize("shape", [(6, 66), (3, 2, 66), (36, 11)])
def test_products_read_rows_of_another_length_than_the_value_has(emulator: Emulator, shape: tuple[int, ...]) -> None:
    """Two of the value's rows are one of theirs, without a step between them, or parts of one are several."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        return x.sin().view(shape) @ w

    args = torch.randn(ROWS, WORDS), torch.randn(*shape[:-2], shape[-1], 5)
    actual = torch.compile(product, backend=emulator.backend)(*args)
    torch.testing.assert_close(actual, product(*args), rtol=1e-4, atol=1e-5)


def test_what_only_kernels_read_is_padded_on_demand(emulator: Emulator) -> None:
    def twice(x: Tensor) -> Tensor:
        y = torch.softmax(x, 0)
        return torch.softmax(y, 1).sum(1)

    x = torch.randn(ROWS, WORDS)
    for everywhere, wanted in ((False, {WORDS}), (True, {36})):
        emulator.config = Config(pad_strides=everywhere, check="every")
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(twice, backend=emulator.backend)(x), twice(x))
        assert steps(emulator, -1) <= wanted


def test_small_and_aligned_matrices_stay(emulator: Emulator) -> None:
    for rows, words in ((2, WORDS), (ROWS, 32)):
        torch._dynamo.reset()
        args = [torch.randn(s) for s in ((rows, 16), (words, 16), (words,))]
        torch.compile(loss, backend=emulator.backend)(*args)
        strides = [step.value.strides[0].value for step in emulator.printed[-1].plan.steps
                   if isinstance(step, Allocate) and len(step.value.shape) == 2]  # fmt: skip
        assert set(strides) <= {words, 1}


def test_a_gradient_that_comes_from_outside_is_copied(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pad, "WORTH", 1)
    monkeypatch.setattr(pad, "PER_BYTE", 0)
    monkeypatch.setattr(gpu_gemm, "SHORT", 0)
    x, w = torch.randn(2, 8, 16).bfloat16().requires_grad_(), torch.randn(WORDS, 16).bfloat16().requires_grad_()
    tangent = torch.randn(2, 8, WORDS).bfloat16()
    actual = torch.compile(nn.functional.linear, backend=emulator.backend)(x, w)
    expected = nn.functional.linear(x, w)
    for got, want in zip(
        torch.autograd.grad(actual, [x, w], tangent), torch.autograd.grad(expected, [x, w], tangent), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    calls = [step.extern for step in emulator.printed[1].plan.steps if isinstance(step, Call)]
    assert len(calls) == 2 and all("40" in str(call.args) for call in calls)


def test_a_product_that_is_written_into_keeps_its_sides(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pad, "WORTH", 1)
    monkeypatch.setattr(pad, "PER_BYTE", 0)

    def cleared(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
        y = x @ w
        y[rows] = 0
        return y.float().exp()

    args = torch.randn(ROWS, 16).bfloat16(), torch.randn(16, WORDS).bfloat16(), torch.tensor([5, 3])
    actual = torch.compile(cleared, backend=emulator.backend)(*args)
    torch.testing.assert_close(actual, cleared(*args), rtol=3e-2, atol=3e-2)


def half_loss(x: Tensor, w: Tensor, b: Tensor, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.linear(x, w, b).float(), words)


def test_products_get_sides_that_libraries_are_fast_for(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three products of a head in 16 bits: logits, and the gradients of input and weight."""
    monkeypatch.setattr(pad, "WORTH", 1)
    monkeypatch.setattr(pad, "PER_BYTE", 0)
    monkeypatch.setattr(gpu_gemm, "SHORT", 0)
    x, w, b = (a.detach().bfloat16().requires_grad_() for a in inputs())
    words = torch.randint(0, WORDS, (ROWS,))
    actual = torch.compile(half_loss, backend=emulator.backend)(x, w, b, words)
    expected = half_loss(x, w, b, words)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)
    for got, want in zip(torch.autograd.grad(actual, [x, w, b]), torch.autograd.grad(expected, [x, w, b]), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert got.stride() == want.stride()
    calls = [step.extern for printed in emulator.printed for step in printed.plan.steps if isinstance(step, Call)]
    sizes = [size.value for call in calls for value in call.out if value is not None for size in value.shape]
    assert len(calls) == 3 and WORDS not in sizes and 40 in sizes


def test_large_products_that_the_caller_sees_are_a_templates_own_without_padding(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_gemm, "WORTH", 1)
    x, w, b = torch.randn(1920, 16).bfloat16(), torch.randn(2305, 16).bfloat16(), torch.randn(2305).bfloat16()
    actual = torch.compile(nn.functional.linear, backend=emulator.backend)(x, w, b)
    torch.testing.assert_close(actual, nn.functional.linear(x, w, b), rtol=2e-2, atol=2e-2)
    (printed,) = emulator.printed
    assert [step.value.shape[1].value for step in printed.plan.steps if isinstance(step, Allocate)] == [2305]
    assert ["gemm.described" in kernel.source for kernel in printed.kernels] == [True]

    emulator.config = Config(gemm_backends=("aten",), check="every")
    torch._dynamo.reset()
    torch.compile(nn.functional.linear, backend=emulator.backend)(x, w, b)
    assert any(isinstance(step, Call) for step in emulator.printed[1].plan.steps)


@pytest.mark.parametrize(("rows", "wide"), [(16_384, False), (131_072, True)])
def test_a_template_counts_any_number_of_rows(rows: int, wide: bool, compiler: Worker) -> None:
    """Positions take 64 bits where there are many, of which descriptors take 32."""

    def logits(x: Tensor, w: Tensor) -> Tensor:
        assert (x.shape[1], *w.shape) == (768, 30_522, 768)
        return x @ w.t()

    x, w = torch.empty(rows, 768, dtype=torch.bfloat16), torch.empty(30_522, 768, dtype=torch.bfloat16)
    (kernel,) = gpu_plan(on_gpu(lowered(logits, x, w, dynamic=True).program)).kernels
    printed = print_triton(kernel)
    assert "gemm.described" in printed.source and kernel.tiling is not None and kernel.tiling.wide is wide
    assert compiler.compile(printed, printed.configs[0], 90).spills == 0


def test_products_of_windows_and_what_other_operators_read_keep_their_sides(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pad, "WORTH", 1)
    monkeypatch.setattr(pad, "PER_BYTE", 0)

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, 1:] @ w, torch.sort(x @ torch.cat([w, w[:1]])).values

    x, w = torch.randn(64, WORDS).bfloat16(), torch.randn(WORDS - 1, 17).bfloat16()
    for got, want in zip(torch.compile(fn, backend=emulator.backend)(x, w), fn(x, w), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_an_operand_that_gets_longer_steps_for_one_product_is_copied_for_another(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pad, "WORTH", 1)
    monkeypatch.setattr(pad, "PER_BYTE", 0)

    def fn(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        return h @ w, torch.bmm(h.view(2, 20, WORDS), v)  # sides of the first get longer, steps of the second

    x, w, v = (torch.randn(shape).bfloat16() for shape in ((40, WORDS), (WORDS, 16), (2, WORDS, 16)))
    for got, want in zip(torch.compile(fn, backend=emulator.backend)(x, w, v), fn(x, w, v), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
