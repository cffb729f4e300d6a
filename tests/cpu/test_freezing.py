"""Freezing: parameters are constants; what follows from them is computed and packed when the program is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gyrator
from gyrator import pipeline
from gyrator.errors import GyratorWarning


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Freeze, and take the template of products wherever it can be."""
    return {
        "freezing": True, "max_autotune": True, "gemm_backends": ["cpp"], "cache_dir": tmp_path / "cache",
        "check": "every", "dump": tmp_path / "dump",
    }  # fmt: skip


def dumped(options: dict[str, Any], pattern: str) -> str:
    """The dumped files of a kind."""
    return "\n".join(path.read_text() for path in options["dump"].rglob(pattern))


class Net(nn.Module):
    """A linear layer on top of an embedding, with a norm whose weight is shared, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 24)
        self.up, self.down = nn.Linear(24, 50), nn.Linear(50, 19, bias=False)
        self.register_buffer("scale", torch.rand(19))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.gelu(self.up(self.table(x)))) * self.scale


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_a_frozen_network_reads_packed_weights_and_calls_no_library(autocast: bool, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    net, x = Net(), torch.randint(0, 10, (5, 7))
    compiled = gyrator.compile(net, options=options)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=2e-2 if autocast else 1e-5)
    wrapper = dumped(options, "*wrapper*.py")
    assert "runtime.operator" not in wrapper and wrapper.count("_panels_") >= 2
    assert dumped(options, "*.cpp").count(", true> product") == 2


def test_what_the_caller_writes_into_views_of_frozen_values_is_not_seen_by_later_calls() -> None:
    torch._dynamo.reset()
    weight, x = nn.Parameter(torch.rand(4, 3)), torch.rand(2, 3)

    def views(x: Tensor) -> tuple[Tensor, ...]:
        wide = weight * 2
        return x @ wide.t(), wide.t(), (weight + 1).split([1, 3])[1], weight.exp()[0]

    compiled = gyrator.compile(views, options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            results = compiled(x)
            torch.testing.assert_close(results, views(x))
            for result in results:
                result.zero_()


def test_calls_with_frozen_weights_are_recorded_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA graphs, as if the processor were a GPU."""
    torch._dynamo.reset()
    recorded: list[int] = []

    def record(function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        recorded.append(1)
        return lambda: None, function()

    monkeypatch.setattr(pipeline, "recordable", lambda plan, info: True)
    monkeypatch.setattr(pipeline, "on_device", lambda index, call: call)
    monkeypatch.setattr(pipeline, "record_on_gpu", record)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: 0)
    net, x = nn.Linear(16, 8), torch.randn(4, 16)
    compiled = gyrator.compile(net, options={"freezing": True, "cuda_graphs": True})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x))
    assert len(recorded) == 1


@pytest.mark.parametrize("freezing", [True, False])
def test_casts_of_weights_are_folded(freezing: bool, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    options = {**options, "freezing": freezing}
    layer = nn.Linear(16, 32)
    compiled = gyrator.compile(nn.Sequential(layer, nn.ReLU()), options=options)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        compiled(torch.randn(64, 16))
    casts = dumped(options, "*lowered*").count("prims.convert_element_type.default")
    assert casts == (1 if freezing else 3), "of the input alone, or of weight and bias as well"


def test_the_table_of_a_layer_with_an_activation_has_the_template_and_the_librarys_fused_call(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU()), torch.randn(64, 16)
    compiled = gyrator.compile(model, options={**options, "gemm_backends": ["aten", "cpp"]})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    table = "".join(capfd.readouterr())
    assert "AUTOTUNE linear_unary(64x16, 32x16, 32)" in table
    assert "cpp_addmm_0" in table and "_linear_pointwise" in table
    assert "ValueError" not in table, "panels hold the numbers that the library is given, so that results agree"


def test_constants_are_computed_as_the_graph_says_whatever_autocast_says(options: dict[str, Any]) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(24, 8)), nn.Parameter(torch.randn(8, 24))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return x @ (self.a @ self.b)

    module, x = Product(), torch.randn(5, 24)
    compiled = torch.compile(module, backend="gyrator", options=options)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x))


def test_weights_of_bytes_lie_in_panels(options: dict[str, Any]) -> None:
    class Layer(nn.Module):
        def __init__(self, n: int, k: int) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (n, k)).to(torch.int8))

        def forward(self, x: Tensor) -> Tensor:
            return torch._int_mm(x, self.weight.t())

    for n, k in ((33, 7), (96, 130)):
        layer, x = Layer(n, k), torch.randint(-128, 128, (19, k)).to(torch.int8)
        with torch.no_grad():
            assert torch.equal(torch.compile(layer, backend="gyrator", options=options)(x), layer(x))
    assert dumped(options, "*wrapper*.py").count("_panels_") >= 2
    assert dumped(options, "*.cpp").count(", true> product") == 2


def test_rows_of_a_weight_and_the_whole_of_it_have_panels_of_their_own(options: dict[str, Any]) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + x[:, :64] @ self.weight[:64]

    layer, x = Both(), torch.randn(32, 128)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, backend="gyrator", options=options)(x), layer(x))
    assert dumped(options, "*.cpp").count(", true> product") == 2


def test_where_the_template_needs_no_trial_weights_are_packed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyrator.runtime.targets.cpu_about", lambda field: "AuthenticAMD")
    net, x = nn.Sequential(nn.Linear(33, 70), nn.GELU(), nn.Linear(70, 19)), torch.randn(24, 33)
    compiled = torch.compile(net, backend="gyrator", options={**options, "max_autotune": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    assert dumped(options, "*.cpp").count(", true> product") == 2


@pytest.mark.parametrize("bits", [4, 8])
def test_large_weights_of_few_bits_are_not_made_wider(bits: int, options: dict[str, Any]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(0, 256, (256, 64 * bits)).to(torch.uint8))

        def forward(self, x: Tensor) -> Tensor:
            w = self.weight
            whole = w if bits == 8 else torch.cat([w & 15, w >> 4], 1)
            return x @ (whole.to(x.dtype) - 8).t()

    torch._dynamo.reset()
    layer, x = Layer(), torch.randn(3, 512).bfloat16()
    with torch.no_grad():
        found = torch.compile(layer, backend="gyrator", options=options)(x)
        torch.testing.assert_close(found, layer(x), rtol=2e-2, atol=2e-2 * float(found.abs().max()))
    lowered = dumped(options, "*lowered*")
    assert f"frozen_0: u8[256, {64 * bits}]" in lowered and "frozen_1" not in lowered
    assert "gy::Computed<" in dumped(options, "*.cpp")


def test_a_changed_parameter_is_not_seen(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    net, x = Net(), torch.randint(0, 10, (3,))
    compiled = gyrator.compile(net, options=options)
    with torch.no_grad():
        before = compiled(x)
        net.down.weight.zero_()
        assert torch.equal(compiled(x), before)


def test_rows_known_at_run_time(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    net = Net()
    compiled = gyrator.compile(net, options=options, dynamic=True)
    with torch.no_grad():
        for rows in (3, 40, 17):
            x = torch.randint(0, 10, (rows,))
            torch.testing.assert_close(compiled(x), net(x))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))
        self.weight = nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        return x * self.weight + self.calls, self.weight * 2


def test_buffers_that_are_written_stay_inputs_and_results_are_the_callers_own(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    net = Counts()
    eager, compiled = copy.deepcopy(net), gyrator.compile(net, options=options)
    with torch.no_grad():
        for _ in range(3):
            mine, theirs = compiled(torch.ones(3)), eager(torch.ones(3))
            torch.testing.assert_close(mine, theirs)
            mine[1].fill_(7)
    assert torch.equal(net.calls, eager.calls)


def test_a_program_with_gradients_is_not_frozen(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    net, x = Net(), torch.randint(0, 10, (4,))
    compiled = gyrator.compile(net, options=options)
    with pytest.warns(GyratorWarning, match="freezing has no effect on a program that computes gradients"):
        compiled(x).sum().backward()
    assert net.down.weight.grad is not None
    with torch.no_grad():
        net.down.weight.zero_()
    assert compiled(x).abs().max() == 0


class Scaled(nn.Module):
    """Modules of this class are one captured graph to Dynamo."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), weight))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Masked(nn.Module):
    """What follows from the buffer alone is read by a branch, and cut at a size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.ones(9, 9).tril())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        future, n = self.past == 0, x.shape[0]
        kept = torch.cond(future.any(), lambda x: x.masked_fill(future[0, 5], 0), lambda x: x * 2, (x,))
        return kept, x.masked_fill(future[:n, :n], -1)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_made_of_constants_may_be_read_by_branches_and_cut_at_sizes(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Masked(), backend="gyrator", options={"freezing": True}, dynamic=dynamic)
    for n in (4, 7):
        torch.testing.assert_close(compiled(torch.ones(n, n)), Masked()(torch.ones(n, n)))


def test_each_module_of_a_class_and_each_new_parameter_has_its_own_weights() -> None:
    torch._dynamo.reset()
    modules, x = [Scaled(k) for k in (2.0, 3.0, 4.0)], torch.ones(3)
    for module in modules:
        module.compile(backend="gyrator", options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            assert [module(x)[0].item() for module in modules] == [2.0, 3.0, 4.0]
        modules[1].weight = nn.Parameter(torch.full((3,), 5.0))
        assert [module(x)[0].item() for module in modules] == [2.0, 5.0, 4.0]


def test_many_sets_of_weights_are_computed_with_as_arguments() -> None:
    torch._dynamo.reset()
    compiled = gyrator.compile(lambda module, x: module(x), options={"freezing": True})
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gyrator.backend.MOST_WEIGHTS", 2)
        assert [compiled(Scaled(k), torch.ones(3))[0].item() for k in (1.0, 2.0, 3.0, 4.0)] == [1.0, 2.0, 3.0, 4.0]


def test_an_argument_with_the_name_of_a_parameter_is_an_argument() -> None:
    torch._dynamo.reset()
    compiled = gyrator.compile(lambda x, my_parameters_w: x * my_parameters_w, options={"freezing": True})
    with torch.no_grad():
        assert [compiled(torch.ones(3), torch.full((3,), k))[0].item() for k in (2.0, 3.0)] == [2.0, 3.0]
