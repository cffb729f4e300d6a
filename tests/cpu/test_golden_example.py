"""The golden example: convolution, batch norm and ReLU in training on (2, 16, 8, 8).

Its graph is known by heart: 8 inputs (input, convolution weight and bias, batch norm's weight and bias,
running mean, running variance, counter), 4 results and 7 values saved for backward.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.config import Config
from gyrator.pipeline import Process, compile_graph
from gyrator.session import Count, Session
from tests.acceptance import assert_none, expect

SHAPE = (2, 16, 8, 8)
VALUES_PER_CHANNEL = 2 * 6 * 6
MOMENTUM, EPS = 0.1, 1e-5


def example() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()), torch.randn(SHAPE)


def reference(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The four results in float64, from the definition."""
    conv, norm = model[0].double(), model[1].double()
    y = nn.functional.conv2d(x.double(), conv.weight, conv.bias)
    mean = y.mean((0, 2, 3))
    variance = (y - mean[:, None, None]).square().mean((0, 2, 3))
    unbiased = variance * VALUES_PER_CHANNEL / (VALUES_PER_CHANNEL - 1)
    normalised = (y - mean[:, None, None]) * torch.rsqrt(variance + EPS)[:, None, None]
    out = normalised * norm.weight[:, None, None] + norm.bias[:, None, None]
    return {
        "out": out.relu(),
        "running_mean": (1 - MOMENTUM) * norm.running_mean + MOMENTUM * mean,
        "running_var": (1 - MOMENTUM) * norm.running_var + MOMENTUM * unbiased,
        "counter": norm.num_batches_tracked + 1,
    }


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
def test_results_gradients_and_running_statistics_match_eager(layout, backend):
    model, x = example()
    args = (model, x.contiguous(memory_format=layout).requires_grad_())
    expected = expect(lambda m, x: m(x), args, backward=True)
    assert_none(expected.mismatches(lambda m, x: torch.compile(m, backend=backend)(x)))


def test_results_follow_the_definition(backend):
    wanted = reference(*example())
    model, x = example()
    out = torch.compile(model, backend=backend)(x)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(out.double(), wanted["out"], **close)
    torch.testing.assert_close(model[1].running_mean.double(), wanted["running_mean"], **close)
    torch.testing.assert_close(model[1].running_var.double(), wanted["running_var"], **close)
    assert model[1].num_batches_tracked.dtype == torch.int64 and int(model[1].num_batches_tracked) == 1


def test_running_statistics_move_at_every_call(backend):
    model, x = example()
    twin, _ = example()
    compiled = torch.compile(model, backend=backend)
    for scale in (1.0, 2.0, -1.0):
        compiled(x * scale)
        twin(x * scale)
    torch.testing.assert_close(model[1].running_var, twin[1].running_var)
    assert int(model[1].num_batches_tracked) == 3


def test_evaluation_leaves_the_statistics_alone(backend):
    model, x = example()
    model.eval()
    before = model[1].running_mean.clone()
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), expected)
    assert torch.equal(model[1].running_mean, before)


# --- the compiled graph ---


@dataclass(frozen=True)
class Stage:
    """One compiled graph: the tensors it takes and returns to the user, and what it became."""

    kind: str
    inputs: list[Tensor]
    results: list[Tensor]
    kernels: int
    externs: Mapping[str, int]


def compiled_stages() -> dict[str, Stage]:
    """The graphs of a training step by kind, as the backend compiles them without a cache."""
    found: dict[str, Stage] = {}

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[object], info: GraphInfo) -> Compiled:
        config = Config.from_options(options={"cache": False})
        with Session(config, torch.device("cpu"), info.kind) as session:
            compiled = compile_graph(graph, inputs, info, session, Process())()
        placeholders = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        outputs = [node and node.meta["val"] for node in graph.graph.output_node().args[0]]
        results = outputs[: len(outputs) - info.saved]
        counters = session.counters
        stage = Stage(info.kind, placeholders, results, counters[Count.KERNELS], counters.externs())
        found[info.kind] = stage
        return compiled

    model, x = example()
    torch._dynamo.reset()
    backend = functools.partial(aot_compile, fw_compiler=compiler)
    torch.compile(model, backend=backend)(x).sum().backward()
    return found


def test_forward_graph_has_eight_inputs_and_four_results():
    forward = compiled_stages()["forward"]
    assert len(forward.inputs) == 8
    assert len(forward.results) == 4
    assert {(tuple(value.shape), value.dtype) for value in forward.results} == {
        ((2, 32, 6, 6), torch.float32),
        ((32,), torch.float32),
        ((), torch.int64),
    }


def test_backward_reads_seven_saved_values_and_the_tangent():
    """Convolution weight, input and output, mean, reciprocal deviation, and where ReLU is active."""
    backward = compiled_stages()["backward"]
    assert len(backward.inputs) == 8
    large = [value for value in backward.inputs if value.shape == (2, 32, 6, 6) and value.dtype == torch.float32]
    assert len(large) == 2, "only the convolution's output and the tangent are as large as the result"


def test_forward_is_one_convolution_and_at_most_four_kernels():
    forward = compiled_stages()["forward"]
    assert sum(forward.externs.values()) == 1, forward.externs
    assert forward.kernels <= 4


def test_backward_is_one_convolution_and_at_most_four_kernels():
    backward = compiled_stages()["backward"]
    assert sum(backward.externs.values()) == 1, backward.externs
    assert backward.kernels <= 4
