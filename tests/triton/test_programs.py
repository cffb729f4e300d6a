"""Programs for a GPU, forward and backward: what their wrappers compute with kernels in the interpreter is
what eager computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrator.config import Config
from gyrator.schedule.plan import Call, Join
from tests.pure.lowering.harness import trace
from tests.triton.emulated import Emulator, on_gpu, print_for_gpu
from tests.triton.worker import Worker


@pytest.fixture
def emulator(tmp_path: Path, interpreter: Worker) -> Emulator:
    torch._dynamo.reset()
    return Emulator(tmp_path, interpreter)


def check(emulator: Emulator, function: Callable[..., Tensor], *args: Any, backward: bool = False) -> str:
    """Compares with eager; returns the forward wrapper."""
    wanted = [a.clone() if isinstance(a, Tensor) and not a.requires_grad else a for a in args]
    expected = function(*wanted)
    actual = torch.compile(function, backend=emulator.backend)(*args)
    torch.testing.assert_close(actual, expected)
    for given, want in zip(args, wanted, strict=True):
        if isinstance(given, Tensor):
            torch.testing.assert_close(given, want)
    if backward:
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        leaves += list(function.parameters()) if isinstance(function, nn.Module) else []
        tangent = torch.randn_like(expected)
        for got, want in zip(
            torch.autograd.grad(actual, leaves, tangent), torch.autograd.grad(expected, leaves, tangent), strict=True
        ):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    return emulator.printed[0].wrapper


def test_softmax(emulator: Emulator) -> None:
    wrapper = check(emulator, lambda x: torch.softmax(x, -1), torch.randn(6, 100))
    assert "stream = current_stream(0)" in wrapper and "empty_cuda((6, 100)" in wrapper
    assert "threads" not in wrapper


def test_layer_norm_training(emulator: Emulator) -> None:
    check(emulator, nn.LayerNorm(48), torch.randn(10, 48, requires_grad=True), backward=True)


def test_a_bert_layer_training(emulator: Emulator) -> None:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, activation="gelu")
    check(emulator, layer, torch.randn(2, 8, 32, requires_grad=True), backward=True)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_scan_beside_a_sum_that_it_is_scaled_by(emulator: Emulator, rows: int) -> None:
    """What is computed from the sum, once for a row, keeps the scan in a kernel of its own."""
    check(emulator, lambda x: x.cumsum(-1) * x.sum(-1, keepdim=True).sin().exp(), torch.randn(rows, 5))


@pytest.mark.parametrize("shape", [(3, 0), (1, 0), (0, 3)])
def test_variances_of_no_elements_read_nothing(emulator: Emulator, shape: tuple[int, int]) -> None:
    statistics = torch.compile(lambda x: (x.var(1), x.std(0)), backend=emulator.backend)
    x = torch.empty(shape)
    torch.testing.assert_close(statistics(x), (x.var(1), x.std(0)), equal_nan=True)


def test_sums_down_columns_of_a_scan_that_sums_along_rows_scale(emulator: Emulator) -> None:
    """What waits for the sums cannot find the scan again, in a kernel of rows and columns either."""

    def sums(x: Tensor) -> Tensor:
        rows, scanned = x.sum(-1, keepdim=True), x.cumsum(-1)
        return torch.cat([(scanned * rows).sum(1).flatten(), scanned.flatten(), rows.flatten()])

    check(emulator, sums, torch.randn(3, 5, 4))


@pytest.mark.parametrize("sizes", [(0, 1), (2, 0), (0, -1)])
def test_sums_down_more_or_fewer_columns_than_rows_have(emulator: Emulator, sizes: tuple[int, int]) -> None:
    """Rows and columns of one tensor share a kernel, those of a padding do not."""

    def sums(x: Tensor) -> Tensor:
        return torch.cat([x.sum(-2).flatten(), F.pad(x.sin(), sizes, value=0.5).sum(1).flatten()])

    check(emulator, sums, torch.randn(2, 2, 3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_is_the_extreme_of_what_is_scattered(emulator: Emulator, reduce: str, dtype: torch.dtype) -> None:
    """Wherever it comes from and whatever its sign is; atomics of floats leave it out."""
    nan = torch.tensor([torch.nan, 1, 2, -1, 3, -torch.inf, torch.inf, -0.5], dtype=dtype)
    into, source, at = nan[:6], torch.cat([-nan, nan, nan.roll(3)]), torch.arange(24) % 5
    extremes = torch.compile(lambda x, i, y: x.scatter_reduce(0, i, y, reduce), backend=emulator.backend)
    wanted = into.scatter_reduce(0, at, source, reduce)
    torch.testing.assert_close(extremes(into, at, source), wanted, equal_nan=True, rtol=0, atol=0)
    assert 0 < wanted.isnan().sum() < 5


@pytest.mark.parametrize("steps", [2, 4])
def test_rows_and_columns_in_turns(emulator: Emulator, steps: int) -> None:
    """Sinkhorn's iterations: what runs along rows and columns of a matrix at once is joined with no more sums."""

    def doubly_stochastic(x: Tensor) -> Tensor:
        x = torch.softmax(x, -1) + 1e-3
        x = x / x.sum(-2, keepdim=True)
        for _ in range(steps):
            x = x / (x.sum(-1, keepdim=True) + 1e-3)
            x = x / (x.sum(-2, keepdim=True) + 1e-3)
        return x

    check(emulator, doubly_stochastic, torch.randn(12, 4, 4, requires_grad=True), backward=True)


def test_an_update_of_an_input(emulator: Emulator) -> None:
    check(emulator, lambda x, y: x.mul_(2).add_(y).sum(), torch.randn(40), torch.randn(40))


def test_parts_of_an_input_are_written_alone(emulator: Emulator) -> None:
    def step(cache: Tensor, token: Tensor) -> Tensor:
        cache[:, 2:3] = token * 2
        cache[1, 0] = cache[0, 2] + 1
        cache[:2, 4:].mul_(3)
        return cache.sum(-1)

    wrapper = check(emulator, step, torch.randn(3, 9, 20), torch.randn(3, 1, 20))
    assert ".copy_(" not in wrapper


@pytest.mark.parametrize(("parts", "calls"), [(20, 0), (33, 1)])
def test_up_to_32_tensors_are_joined_where_they_are_read(emulator: Emulator, parts: int, calls: int) -> None:
    given = [torch.randn(3, 1 + k % 3) for k in range(parts)]
    got = torch.compile(lambda *xs: torch.cat(xs, 1).relu(), backend=emulator.backend, dynamic=False)(*given)
    assert torch.equal(got, torch.cat(given, 1).relu())
    assert sum(isinstance(step, Call) for step in emulator.printed[0].plan.steps) == calls


def test_states_of_a_recurrence_are_made_where_they_end(emulator: Emulator) -> None:
    def states(x: Tensor) -> Tensor:
        h, found = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = 0.5 * h + x[:, t]
            found.append(h)
        return torch.stack(found, 1)

    x = torch.randn(3, 20, 64)
    got = torch.compile(states, backend=emulator.backend, dynamic=False)(x)
    torch.testing.assert_close(got, states(x))
    assert [step for step in emulator.printed[0].plan.steps if isinstance(step, Join)]
    assert not any("cat" in kernel.name for kernel in emulator.printed[0].kernels)


def test_the_bits_of_a_choice_between_literals(emulator: Emulator) -> None:
    def bits(x: Tensor) -> Tensor:
        one, two = (torch.full((), value, dtype=torch.bfloat16) for value in (1.1, 2.2))
        return torch.where(x > 0, one, two).view(torch.int16) + 1

    check(emulator, bits, torch.randn(40))


def test_what_pads_numbers_of_64_bits_has_as_many(emulator: Emulator) -> None:
    x = torch.randn(5, 7, dtype=torch.float64)
    padded = torch.compile(lambda x: F.pad(x, (1, 2), value=0.1), backend=emulator.backend)
    assert torch.equal(padded(x), F.pad(x, (1, 2), value=0.1))


def test_sizes_that_change(emulator: Emulator) -> None:
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1), backend=emulator.backend, dynamic=True)
    for shape in ((3, 20), (5, 33), (1, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))


def test_numbers_on_the_cpu_reach_kernels(emulator: Emulator) -> None:
    """Each is copied once, and nothing waits for the GPU meanwhile, as for a copy of memory it would."""
    emulator.numbers_on_cpu = True
    wrapper = check(emulator, lambda x, k: (x * k) @ x * k, torch.randn(8, 8), torch.tensor(2.5))
    assert wrapper.count(".item(), dtype=torch.float32, device=torch.device") == 1 and ".to(" not in wrapper
    assert wrapper.count("_gpu.data_ptr()") > 1


def test_indices_on_the_cpu_are_copied() -> None:
    """As eager does for a tensor on a GPU; only a number can be handed over without waiting."""
    x, at = torch.randn(20, 5), torch.tensor([3, 1, 4])
    graph = trace(lambda x, at: x[at] * 2, (x, at))
    _, indices = graph.graph.find_nodes(op="placeholder")
    given, moved = indices.meta["val"], on_gpu(graph, (x, at))
    indices.meta["val"] = given
    assert '.to(torch.device("cuda:0"))' in print_for_gpu(graph, moved, Config(check="every")).wrapper


def test_numbers_that_a_kernel_computes_on_the_cpu_reach_kernels(emulator: Emulator) -> None:
    emulator.numbers_on_cpu = True
    wrapper = check(emulator, lambda x, k: x / torch.log(k), torch.randn(20), torch.tensor(2.5))
    (on_cpu,) = re.findall(r"(\w+) = empty\(", wrapper)
    (launch,) = re.findall(r"\(stream, (.*?)\)\n", wrapper, re.DOTALL)
    assert f"{on_cpu}_gpu.data_ptr()" in launch and f"{on_cpu}_ptr" not in launch


def test_a_graph_computes_on_both_devices(emulator: Emulator) -> None:
    """As optimizers do: numbers on the CPU change, and tensors on the GPU are scaled by them."""
    emulator.numbers_on_cpu = True

    def step(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        later = count + 1
        return x / (1 - 0.9**later), later * 2

    x, count = torch.randn(20), torch.tensor(3.0)
    actual = torch.compile(step, backend=emulator.backend)(x, count)
    torch.testing.assert_close(actual, step(x, count))
    (made,) = emulator.printed
    assert len(made.plan.kernels) > len(made.kernels) > 0


def test_inputs_are_aligned_where_that_is_assumed(emulator: Emulator) -> None:
    emulator.config = Config(assume_aligned_inputs=True)
    memory = torch.randn(41)
    wrapper = check(emulator, lambda x: torch.sin(x) + 1, memory[1:])
    assert "arg0 = aligned(arg0)" in wrapper
