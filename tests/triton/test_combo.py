"""Small kernels in one launch: what is combined and what is not, what it computes, how it compiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.codegen.triton import print_triton
from gyrator.config import Config
from gyrator.schedule.plan import Allocate, Call, Free, Launch, Plan
from tests.pure.lowering.harness import lowered
from tests.run_plan import run_plan
from tests.triton.emulated import Emulator
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker


def floats(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def plan_of(fn: Callable[..., Any], *args: Tensor) -> Plan:
    return gpu_plan(on_gpu(lowered(fn, *args).program))


def launches(plan: Plan) -> list[Launch]:
    return [step for step in plan.steps if isinstance(step, Launch)]


def scaled(*tensors: Tensor) -> list[Tensor]:
    return [x * 2 + 1 for x in tensors]


def three(x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return x.sin() * 2, y.exp() + x.shape[0], i % 3


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (scaled, [floats(n) for n in (1, 7, 1024, 1025, 2048, 5000, 16)]),
        (scaled, [floats(33), floats(34).to(torch.bfloat16), floats(3, 11).t(), floats()]),
        (three, [floats(2000), floats(30, 7), torch.arange(1500)]),
        (scaled, [floats(0), floats(5), floats(6)]),
    ],
)
def test_independent_kernels_run_in_one_launch(
    fn: Callable[..., Any], args: Sequence[Tensor], interpreter: Worker
) -> None:
    plan = plan_of(fn, *args)
    assert len(launches(plan)) == 1
    got = run_plan(plan, list(args), launch=runner(interpreter))
    torch.testing.assert_close(got, list(fn(*args)), rtol=1e-5, atol=1e-5)


def test_loops_that_differ_in_sizes_and_pointers_share_their_text() -> None:
    sizes = [100, 101, 4000, 77, 48, 32]
    (kernel,) = plan_of(scaled, *map(floats, sizes)).kernels
    text = print_triton(kernel).source
    assert text.count("tl.store(") == 2  # extents that are multiples of 16 move 16 bytes at once
    assert len(kernel.params) == 2 * len(sizes)


def test_what_writes_into_what_another_reads_stays_apart(interpreter: Worker, tmp_path: Path) -> None:
    def shifted(x: Tensor, y: Tensor) -> Tensor:
        result = x[:10].sin()
        x.copy_(y * 2)
        return result

    x, y = floats(20), floats(20)
    emulator, wanted = Emulator(tmp_path, interpreter), x[:10].sin()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(shifted, backend=emulator.backend)(x, y), wanted)
    torch.testing.assert_close(x, y * 2)
    assert len(launches(emulator.printed[0].plan)) == 2


def test_operands_are_freed_and_results_allocated_around_the_launch() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.mm(x, x), torch.mm(y, y)
        return a[1:].sin(), b[1:].sin()

    plan = plan_of(both, floats(4, 4), floats(5, 5))
    (launch,) = launches(plan)
    at = plan.steps.index(launch)
    assert {s.value for s in plan.steps[at:] if isinstance(s, Free)} >= {v for v in launch.args if "mm" in v.name}
    assert {s.value for s in plan.steps[:at] if isinstance(s, Allocate)} >= {v for v in launch.args if "sin" in v.name}


def test_memory_is_not_allocated_long_before_its_use() -> None:
    """Zeros to which a gradient is added, whose kernel depends on nothing."""

    def gradients(x: Tensor, w: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        early = torch.zeros(60, 300).index_put((i,), x, accumulate=True).to(torch.bfloat16)
        product = x @ w
        return early, torch.zeros(4000, 200).index_put((i,), product, accumulate=True).to(torch.bfloat16)

    plan = plan_of(gradients, floats(50, 300), floats(300, 200), torch.arange(50))
    (product,) = (k for k, step in enumerate(plan.steps) if isinstance(step, Call))
    small, large = (k for k, step in enumerate(plan.steps) if isinstance(step, Allocate) and "full" in step.value.name)
    assert small < product < large


def test_few_arguments_fit_into_a_launch() -> None:
    plan = plan_of(scaled, *[floats(k + 1) for k in range(250)])
    assert [len(step.args) for step in launches(plan)] == [480, 20]


def test_a_launch_that_keeps_the_memory_busy_has_fewer_kernels() -> None:
    plan = plan_of(scaled, *[torch.empty((1 << 20) + k) for k in range(36)])
    assert [len(step.args) for step in launches(plan)] == [64, 8]


def test_large_kernels_run_alone() -> None:
    assert len(launches(plan_of(scaled, torch.empty(1 << 23), torch.empty(1 << 24)))) == 2


def test_the_option_turns_it_off() -> None:
    program = on_gpu(lowered(scaled, floats(5), floats(6)).program)
    assert len(launches(gpu_plan(program, combo_kernels=False))) == 2


def adam(sizes: Sequence[int], emulator: Emulator, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters after a compiled Adam's steps, and in float64 after eager's."""
    ours = [floats(n).requires_grad_() for n in sizes]
    eager = [p.detach().double().requires_grad_() for p in ours]
    first = torch.optim.Adam(ours, lr=0.1, foreach=True)
    second = torch.optim.Adam(eager, lr=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(first.step, backend=emulator.backend)
    for k in range(steps):
        for p, q in zip(ours, eager, strict=True):
            p.grad = floats(p.numel()) - 0.1 * k
            q.grad = p.grad.double()
        compiled()
        second.step()
    return ours, eager


def test_an_optimizer_step_is_two_launches(interpreter: Worker, tmp_path: Path) -> None:
    emulator = Emulator(tmp_path, interpreter, config=Config(check="every"))
    for ours, eager in zip(*adam([1, 30, 1025, 64, 2000], emulator, 3), strict=True):
        torch.testing.assert_close(ours.double(), eager, rtol=1e-5, atol=1e-5)
    (printed,) = emulator.printed
    assert [kernel.category for kernel in printed.kernels] == ["foreach", "foreach"]


def test_many_updates_compile_without_spilled_registers(compiler: Worker) -> None:
    def updates(*tensors: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for p, g, m, v in zip(*[iter(tensors)] * 4, strict=True):
            new = torch.lerp(m, g, 0.1), v * 0.999 + g * g * 0.001
            found += [p - new[0] / (new[1].sqrt() + 1e-8), *new]
        return found

    (kernel,) = plan_of(updates, *[torch.empty(1600 * (k // 4) + 16) for k in range(48)]).kernels
    printed = print_triton(kernel)
    built = compiler.compile(printed, printed.configs[0], 90)
    assert len(printed.params) == 84
    assert built.spills == 0
    assert built.registers <= 112
    assert "ld.global.v4" in built.ptx


def most_held(plan: Plan) -> int:
    """Bytes that the plan's own values hold at most; none of them lies upon an input."""
    held, most = dict[object, int](), 0
    for step in plan.steps:
        match step:
            case Allocate(value, upon):
                nbytes = math.prod(side.value or 0 for side in value.shape) * value.dtype.itemsize
                held[value] = nbytes if upon is None else held.pop(upon)
                most = max(most, sum(held.values()))
            case Free(value):
                held.pop(value, None)
    return most


def test_launches_that_would_hold_more_than_the_peak_stay_apart() -> None:
    """Each table is rounded from sums that end there; in one launch both sums and both tables would be held."""

    def tables(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.zeros(9000, 64).index_put((i,), x, accumulate=True)
        second = torch.zeros(8000, 64).index_put((i,), x * 2, accumulate=True)
        return first.to(torch.bfloat16), second.to(torch.bfloat16)

    program = on_gpu(lowered(tables, torch.arange(300), floats(300, 64)).program)
    assert most_held(gpu_plan(program)) == most_held(gpu_plan(program, combo_kernels=False))
