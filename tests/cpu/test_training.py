"""Training: three optimizer steps end at the weights of float64, as near as eager's do.

pytest tests/cpu/test_training.py                    small models, every way of training
python -m tests.cpu.test_training [NAME ...]         models of the zoo: all, or those named
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import MODELS, build
from gyrator.autograd.shell import lifted
from gyrator.errors import GyratorWarning
from tests.acceptance import assert_none, check, expect

STEPS = 3
Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: Mapping[str, Optimizer] = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    # The large eps keeps a gradient that is rounding alone from becoming a whole step.
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3),
}


SEEN: list[tuple[int, ...]] = []


@torch.library.custom_op("gyrator_tests::times", mutates_args=())
def times(x: Tensor, by: Tensor) -> Tensor:
    SEEN.append(by.stride())
    return x * by


@times.register_fake
def _(x: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(x)


times.register_autograd(
    lambda ctx, grad: (times(grad.contiguous(), *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


class Images(nn.Module):
    """Convolutions with batch norm, whose running statistics are part of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        return self.head(y.mean((2, 3)))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each on a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.gate, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        gate, value = self.gate(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Words(nn.Module):
    """A language model whose last layer is its embedding, with or without activation checkpoints."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList([Block(16)])
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x @ self.embed.weight.T


class Columns(nn.Module):
    """A perceptron with a learnt scale that it uses twice, a buffer that it counts in, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 5)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.first.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.second(F.gelu(self.first(x) * self.scale)) / self.scale


Batch = tuple[Tensor, Tensor]


def images(sizes: Sequence[int]) -> list[Batch]:
    return [(torch.randn(4, 3, n, n), torch.randint(0, 5, (4,))) for n in sizes]


def words(sizes: Sequence[int]) -> list[Batch]:
    return [(torch.randint(0, 11, (3, n)), torch.randint(0, 11, (3, n))) for n in sizes]


def columns(sizes: Sequence[int]) -> list[Batch]:
    return [(torch.randn(n, 6), torch.randint(0, 5, (n,))) for n in sizes]


def loss_of(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, -2).float(), target.flatten())


def loss_under_autocast(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, x, target)


def train(
    model: nn.Module, batches: Sequence[Batch], loss: Callable[..., Tensor], optimizer: Optimizer
) -> dict[str, Tensor]:
    """Every loss, and the parameters, gradients and buffers at the end."""
    with torch.enable_grad():
        chosen, losses = optimizer(model.parameters()), []
        for batch in batches:
            chosen.zero_grad()
            losses.append(loss(model, *batch))
            losses[-1].backward()
            chosen.step()
    gradients = {f"{n} grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**gradients, **_detached(model.state_dict()), "losses": torch.stack(losses).detach()}


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def check_training(
    model: nn.Module,
    batches: Sequence[Batch],
    optimizer: str,
    backend: str,
    loss: Callable[..., Tensor] = loss_of,
    **options: Any,
) -> None:
    """Trains in eager, in float64 and compiled, from the same weights, and compares the results."""

    def run(chosen: Callable[..., Tensor]) -> Callable[..., Any]:
        return lambda model, batches: train(model, batches, chosen, OPTIMIZERS[optimizer])

    compiled = torch.compile(loss, backend=backend, **options)
    assert_none(expect(run(loss), (model.train(), batches)).mismatches(run(compiled)))


MADE: Mapping[str, tuple[Callable[[], nn.Module], Callable[[Sequence[int]], list[Batch]]]] = {
    "images": (Images, images), "words": (Words, words), "columns": (Columns, columns),
}  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MADE)
def test_three_steps(name: str, optimizer: str, backend: str) -> None:
    torch.manual_seed(0)
    model, batches = MADE[name]
    check_training(model(), batches([6] * STEPS), optimizer, backend)


@pytest.mark.parametrize("name", MADE)
def test_three_steps_at_three_sizes(name: str, backend: str) -> None:
    torch.manual_seed(0)
    model, batches = MADE[name]
    check_training(model(), batches([6, 8, 10]), "AdamW", backend, dynamic=True)


@pytest.mark.parametrize("name", ["words", "images"])
def test_three_steps_under_autocast(name: str, backend: str) -> None:
    torch.manual_seed(0)
    model, batches = MADE[name]
    check_training(model(), batches([6] * STEPS), "SGD with momentum", backend, loss_under_autocast)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_three_steps_with_activation_checkpoints(dynamic: bool, backend: str) -> None:
    torch.manual_seed(0)
    sizes = [6, 8, 10] if dynamic else [6] * STEPS
    check_training(Words(checkpointed=True), words(sizes), "AdamW", backend, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_an_lstm_in_a_graph_trains(dynamic: bool, backend: str) -> None:
    """The library's layer, which autograd is told of, has nothing for backward when it is called without autograd."""
    args = nn.LSTM(5, 4, batch_first=True), torch.randn(2, 3, 5)
    with torch._dynamo.config.patch(allow_rnn=True):
        check(lambda lstm, x: lstm(x)[0], args, backend=backend, backward=True, dynamic=dynamic)


def test_a_checkpoint_around_compiled_code_runs_it_again_in_backward(backend: str) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def around(call: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda x: checkpoint(call, x, use_reentrant=False)

    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(layer, backend=backend)
    assert_none(expect(around(layer), (x,), backward=True).mismatches(around(compiled)))


def test_a_gradient_that_is_not_a_number_is_detected_in_compiled_code(backend: str) -> None:
    def root(x: Tensor) -> Tensor:
        return (x * 0).sqrt() * x

    x = torch.ones(4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        result = torch.compile(root, backend=backend, fullgraph=True)(x)
        with pytest.raises(RuntimeError, match="returned nan values"):
            result.sum().backward()


def test_backward_twice_through_a_retained_graph(backend: str) -> None:
    torch.manual_seed(0)
    model, batches = Columns(), columns([6])

    def twice(loss: Callable[..., Tensor]) -> Callable[..., Any]:
        def run(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            with torch.enable_grad():
                result = loss(model, *batch)
                result.backward(retain_graph=True)
                (result * 3).backward()
            return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

        return run

    compiled = torch.compile(loss_of, backend=backend)
    assert_none(expect(twice(loss_of), (model, batches[0])).mismatches(twice(compiled)))


def test_two_losses_of_one_forward_have_a_backward_each(backend: str) -> None:
    torch.manual_seed(0)

    def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.square().mean(), y.sum()

    def separately(call: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        def run(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
            with torch.enable_grad():
                first, second = call(model, x)
                first.backward(retain_graph=True)
                second.backward()
            return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

        return run

    compiled = torch.compile(outputs, backend=backend)
    assert_none(expect(separately(outputs), (Columns(), torch.randn(6, 6))).mismatches(separately(compiled)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("largest", [
    lambda y: y.amax(-1),
    lambda y: y.max(),
    lambda y: torch.linalg.vector_norm(y, ord=float("inf"), dim=0),
    lambda y: (y * 1.7).sin().amax(0),
])  # fmt: skip
def test_the_largest_of_computed_and_widened_numbers_has_a_gradient(
    largest: Callable[[Tensor], Tensor], dtype: torch.dtype, backend: str
) -> None:
    """The largest is found in forward and looked for in backward: among the same rounded numbers."""

    def run(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(-2, 3, 6 * 37).view(6, 37).to(dtype).requires_grad_()
        function(x).sum().backward()
        assert x.grad is not None
        return x.grad

    def function(x: Tensor) -> Tensor:
        return largest(torch.exp(torch.atan(x).clamp(max=1.2)).float())

    found = run(torch.compile(function, backend=backend))
    torch.testing.assert_close(found, run(function), rtol=0.02, atol=0.01)


def test_norms_along_dimensions_of_one_element_counted_from_the_end(backend: str) -> None:
    def norms(x: Tensor) -> tuple[Tensor, ...]:
        return x.norm(p=3, dim=-1), torch.linalg.vector_norm(x, dim=(-1, 0)), torch.linalg.vector_norm(x, 1, -1, True)

    check(norms, (torch.randn(4, 3, 1, requires_grad=True),), backend=backend, backward=True)


def test_a_program_whose_backward_cannot_run_computes_its_results(backend: str) -> None:
    """As in eager, where only what differentiates them fails."""

    def overwritten(x: Tensor) -> Tensor:
        y = x.amax(0)
        return y.div_(y.abs() + 1)

    x = torch.randn(6, 2, requires_grad=True)
    with pytest.warns(GyratorWarning, match="runs uncompiled, as it or its backward cannot be traced"):
        found = torch.compile(overwritten, backend=backend)(x)
    torch.testing.assert_close(found, overwritten(x))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def choice_of_complex(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.view_as_complex(torch.stack([x, x], -1)), x)


def mean_of_few(x: Tensor) -> Tensor:
    return x.scatter_reduce(0, torch.tensor([[0, 1]]), x.sin(), "mean")


@pytest.mark.parametrize("program", [choice_of_complex, mean_of_few])
def test_a_program_whose_backward_makes_no_gradient_of_its_argument_computes_its_results(
    program: Callable[[Tensor], Tensor], backend: str
) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.warns(GyratorWarning, match="its backward cannot be traced"):
        torch.testing.assert_close(torch.compile(program, backend=backend)(x), program(x))


def test_a_view_that_was_taken_before_its_base_was_transposed_has_gradients(backend: str) -> None:
    """Autograd derives it anew, where tensors are fakes as a part of the transposed."""

    def rows_of_the_first_shape(x: Tensor) -> Tensor:
        y = x * 2
        rows = y[1:]
        y.t_()
        return rows.sin()

    with pytest.warns(GyratorWarning, match="its backward cannot be traced"):
        check(rows_of_the_first_shape, (torch.randn(3, 4, requires_grad=True),), backend=backend, backward=True)


def test_an_operator_without_a_derivative_computes_its_results(backend: str) -> None:
    @torch.library.custom_op("gyrator_tests::underived", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    x = torch.randn(4, requires_grad=True)
    with pytest.warns(GyratorWarning, match="its backward cannot be traced"):
        found = torch.compile(lambda x: doubled(x.sin()) + 1, backend=backend)(x)
    torch.testing.assert_close(found, x.sin() * 2 + 1)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        found.sum().backward()


@pytest.mark.parametrize("choose", [lambda y: y.argmax(-1), lambda y: y.detach()], ids=["argmax", "detach"])
def test_results_without_gradients_of_parameters_that_have_them(
    choose: Callable[[Tensor], Tensor], backend: str
) -> None:
    layer, x = nn.Linear(8, 5), torch.randn(4, 8)
    found = torch.compile(lambda x: choose(layer(x)), backend=backend)(x)
    torch.testing.assert_close(found, choose(layer(x)))
    assert not found.requires_grad


@pytest.mark.parametrize(("autocast", "dynamic"), [(False, False), (True, False), (False, True)])
def test_what_a_loss_was_computed_from_can_be_differentiated_too(autocast: bool, dynamic: bool, backend: str) -> None:
    """First by the loss alone, for which backward is compiled; then by the others; as they come, in turns."""
    torch.manual_seed(0)

    def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.square().mean(), y

    def in_turns(call: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        def run(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            with torch.enable_grad():
                for turn, (of_loss, of_values) in enumerate(((1, 0), (2, 3), (0, 1), (1, 0))):
                    model.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast and x.dtype == torch.float32):
                        loss, y = call(model, x)
                    parts = ([loss * of_loss] if of_loss else []) + ([y.sin().sum() * of_values] if of_values else [])
                    sum(parts[1:], parts[0]).backward()
                    found |= {f"{n} {turn}": p.grad for n, p in model.named_parameters() if p.grad is not None}
            return found

        return run

    compiled = torch.compile(outputs, backend=backend, dynamic=dynamic)
    assert_none(expect(in_turns(outputs), (Columns(), torch.randn(6, 6))).mismatches(in_turns(compiled)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_differentiable_optimizers_step_has_gradients(
    kind: Callable[..., torch.optim.Optimizer], backend: str
) -> None:
    """What it updates is no leaf, and held by the captured graph: as an input, it gets and passes on gradients."""

    def adapted(backend: str | None) -> list[Tensor]:
        torch.manual_seed(0)
        weight, gradient = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
        fast = weight.clone()
        optimizer = kind([fast], lr=0.1, differentiable=True)
        fast.grad = gradient * weight
        step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
        step()
        fast.square().sum().backward()
        assert weight.grad is not None and gradient.grad is not None
        return [fast.detach(), weight.grad, gradient.grad]

    torch.testing.assert_close(adapted(backend), adapted(None), rtol=1e-5, atol=1e-6)


class Watched(torch.autograd.Function):
    """Doubles; its backward keeps the largest gradient seen, in a buffer that it scales by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, largest: Tensor) -> Tensor:
        ctx.largest = largest
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scaled = gradient * 2 / ctx.largest[1]
        ctx.largest[1] = torch.maximum(ctx.largest[1], gradient.abs().max())
        return scaled, None


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_writes_to_a_buffer(dynamic: bool, backend: str) -> None:
    def steps(call: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        largest, found = torch.ones(3), []
        for size in (3, 5, 4):
            x = torch.linspace(-1, 2, size, requires_grad=True)
            call(x.sin(), largest).sum().backward()
            assert x.grad is not None
            found += [x.grad, largest.clone()]
        return [*found, torch.tensor(largest._version)]

    def program(x: Tensor, largest: Tensor) -> Tensor:
        return Watched.apply(x * 3, largest) + largest[1]  # type: ignore[no-any-return]

    expected = steps(program)
    torch.testing.assert_close(steps(torch.compile(program, backend=backend, dynamic=dynamic)), expected)


def test_backward_writes_to_memory_of_two_inputs(backend: str) -> None:
    def gradient(call: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        x, memory = torch.ones(2, requires_grad=True), torch.ones(5)
        call(x, memory[:3], memory[:3]).sum().mul(4).backward()
        assert x.grad is not None
        return x.grad

    def program(x: Tensor, largest: Tensor, same: Tensor) -> Tensor:
        return Watched.apply(Watched.apply(x, same) * 5, largest)  # type: ignore[no-any-return]

    torch.testing.assert_close(gradient(torch.compile(program, backend=backend)), gradient(program))


def test_backward_writes_to_a_parameter(backend: str) -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            slope = x.exp() * gradient
            x.mul_(0.5)
            return slope

    found = []
    for call in (Halved.apply, torch.compile(Halved.apply, backend=backend)):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        call(x).sum().backward()
        found.append((x.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("leaf", [True, False])
def test_a_weight_whose_address_is_static_gets_its_gradient(leaf: bool, backend: str) -> None:
    torch.manual_seed(0)
    source, layer, x = torch.randn(3, 4, requires_grad=True), nn.Linear(4, 3), torch.randn(2, 4)
    del layer.weight
    layer.weight = nn.Parameter(source.detach()) if leaf else source * 2
    torch._dynamo.mark_static_address(layer.weight, guard=True)
    owner = layer.weight if leaf else source
    found = []
    for call in (layer, torch.compile(layer, backend=backend)):
        (gradient,) = torch.autograd.grad(call(x).square().sum(), owner, retain_graph=True)
        found.append(gradient)
    torch.testing.assert_close(found[1], found[0])


def test_a_step_without_gradients_takes_nothing_more() -> None:
    """Parameters that an optimizer updates, and that its graph holds, stay where they are."""
    parameters = [nn.Parameter(torch.randn(5)) for _ in range(3)]
    found: list[tuple[GraphModule, GraphModule, Sequence[Tensor]]] = []

    def keep(gm: GraphModule, _: object) -> Callable[..., object]:
        found.append((gm, *lifted(gm)))
        return gm.forward

    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn(5)
    torch.compile(optimizer.step, backend=keep)()
    assert found
    for gm, same, held in found:
        assert same is gm and not held
        assert any(node.op == "get_attr" for node in gm.graph.nodes)


def test_what_a_compiled_step_holds_ends_with_its_optimizer(backend: str) -> None:
    weight = nn.Parameter(torch.ones(5))
    optimizer: torch.optim.Optimizer | None = torch.optim.Adam([weight])

    @torch.compile(backend=backend)
    def step() -> None:
        assert optimizer is not None
        optimizer.step()

    weight.grad = torch.ones(5)
    step()
    average = weakref.ref(optimizer.state[weight]["exp_avg"])
    assert average() is not None
    optimizer = None
    assert average() is None


# --- the models of the zoo -------------------------------------------------------------------------


def _zoo_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch)["loss"]
    return loss


def sweep(names: Sequence[str], backend: str = "gyrator") -> int:
    """Trains models of the zoo with each optimizer and prints what differs; how many do."""
    wrong = 0
    for name in names:
        for optimizer in OPTIMIZERS:
            torch._dynamo.reset()
            workload = build(name, "tiny")
            batches: Any = [(dict(workload.batch),)] * STEPS
            try:
                check_training(workload.model, batches, optimizer, backend, _zoo_loss)
                result = "as float64"
            except Exception as error:
                wrong, result = wrong + 1, f"{type(error).__name__}: {error}"
            print(f"{name:20} {optimizer:20} {result}", flush=True)
    return wrong


def test_calls_of_backward_get_the_strides_they_were_traced_with(backend: str) -> None:
    """As masks of attention, which its kernels load in vectors: forward saves the columns that it needs, without the
    padding behind them.
    """

    def fn(x: Tensor, by: Tensor) -> Tensor:
        return times(x * 2, F.pad(by, (0, 15))[..., :1].expand(8, 8, 1))

    x, by = torch.randn(8, 8, 1, requires_grad=True), torch.randn(8, 1, 1)
    SEEN.clear()
    torch.compile(fn, backend=backend)(x, by).sum().backward()
    assert SEEN == [(16, 0, 1), (16, 0, 1)]
    assert x.grad is not None and torch.equal(x.grad, 2 * by.expand(8, 8, 1))


if __name__ == "__main__":
    sys.exit(1 if sweep(sys.argv[1:] or list(MODELS)) else 0)


@pytest.mark.parametrize("captured_forward", [False, True], ids=["eager forward", "compiled forward"])
def test_compiled_autograd(captured_forward: bool, backend: str) -> None:
    """It gives the backend a backward pass whose inputs are one list, with hooks and the addition to old gradients."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.linear = nn.Embedding(11, 5), nn.LayerNorm(5), nn.Linear(5, 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.norm(self.embedding(x))).softmax(-1)

    model = Model()
    other = copy.deepcopy(model)
    for each in (model, other):
        each.linear.weight.register_hook(lambda grad: grad * 2)
    torch._dynamo.reset()
    forward = torch.compile(model, backend=backend) if captured_forward else model
    for rows in (3, 4, 5):
        x = torch.randint(0, 11, (rows, 6))
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
            for _ in range(2):
                forward(x).square().sum().backward()
        for _ in range(2):
            other(x).square().sum().backward()
    for got, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


def test_a_hook_on_a_result_that_compiled_autograd_traces_changes_its_gradient(backend: str) -> None:
    def hooked(x: Tensor, scale: Tensor) -> Tensor:
        y = x.exp()
        y.register_hook(lambda grad: grad * scale + y)
        return y.cos()

    compiled, scale = torch.compile(hooked, backend=backend), torch.tensor(3.0)
    found, wanted = (torch.linspace(-1, 1, 5, requires_grad=True) for _ in range(2))
    captured = torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend))
    with captured, pytest.warns(GyratorWarning, match="trace_wrapped"):
        compiled(found, scale).sum().backward()
    hooked(wanted, scale).sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tangents_of_forward_mode_are_eagers(requires_grad: bool, backend: str) -> None:
    def step(x: Tensor) -> Tensor:
        return (x.sin() * x).sum(-1)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend)
    x, direction = torch.randn(3, 4, requires_grad=requires_grad), torch.randn(3, 4)
    for _ in range(2):  # whether or not it is compiled there
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, direction)
            found, wanted = (forward_ad.unpack_dual(f(dual)).tangent for f in (compiled, step))
            torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(compiled(x), step(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_few_rows_of_a_table_are_as_exact_as_eagers(dtype: torch.dtype, dynamic: bool) -> None:
    """Indices that occur again and again, and the table as the last layer, too."""
    table, at = torch.randn(997, 24).to(dtype).requires_grad_(), torch.randint(0, 40, (6, 35))

    def loss(table: Tensor, at: Tensor) -> Tensor:
        x = F.embedding(at, table, padding_idx=7)
        return (x.float() @ table.float().t()).logsumexp(-1).mean() + F.embedding(
            at[:, :3], table
        ).float().square().sum()

    check(loss, (table, at), backend="gyrator", backward=True, dynamic=dynamic)


NORMS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "layer": lambda x, w, b: F.layer_norm(x.mT, (4,), w, b),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_norms_in_float32_are_exact_where_inputs_have_16_bits(
    name: str, dtype: torch.dtype, backend: str
) -> None:
    """As under autocast: statistics are saved in the type of the parameters, as eager's are."""
    norm, x, grad = NORMS[name], torch.randn(50, 4, 9).to(dtype), torch.randn(50, 36).to(dtype)

    def of_weight(norm: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, wide: torch.dtype) -> Tensor:
        weight = torch.ones(4, dtype=wide, requires_grad=True)
        out = norm(x.clone().requires_grad_(), weight, torch.zeros(4, dtype=wide))
        return torch.autograd.grad(out, weight, grad.view(out.shape).to(out.dtype))[0]

    exact = of_weight(norm, x.double(), torch.float64)
    error = (of_weight(torch.compile(norm, backend=backend), x, torch.float32) - exact).abs().max()
    eagers = (of_weight(norm, x, torch.float32) - exact).abs().max()
    assert error <= 2 * eagers + 1e-5 * exact.abs().max()


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_has_the_type_of_its_input_where_the_targets_are_wider(
    dtype: torch.dtype, reduction: str, backend: str
) -> None:
    x, targets = torch.randn(5, 6).to(dtype).requires_grad_(), torch.randn(5, 6).sign()

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.soft_margin_loss(x, y, reduction=reduction), F.huber_loss(x.detach(), y, reduction=reduction)

    check(losses, (x, targets), backend=backend, backward=True)
