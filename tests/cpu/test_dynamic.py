"""Sizes that change: never more compiles than dynamo itself asks for, and right answers at every size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

from benchmarks.zoo import build
from tests.acceptance import assert_none, check, expect

BERT_SIZES = [(2, 12), (3, 12), (4, 7), (1, 9), (5, 16), (2, 3), (1, 1), (8, 5)]


def count_compiles(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], backend: str, **options: Any) -> int:
    """How many graphs dynamo captures for these calls; each result must be right."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(fn, backend=backend, **options)
    for args in calls:
        backward = any(isinstance(a, Tensor) and a.requires_grad for a in args)
        assert_none(expect(fn, args, backward=backward).mismatches(compiled))
    return counters["stats"]["unique_graphs"]


def block(x: Tensor, weight: Tensor) -> Tensor:
    b, s, c = x.shape
    heads = x.view(b, s, 4, c // 4).transpose(1, 2)
    mask = torch.arange(s)[:, None] >= torch.arange(s)
    scores = (heads @ heads.mT / c).masked_fill(~mask, -1e9)
    mixed = (F.softmax(scores, -1) @ heads).transpose(1, 2).reshape(b * s, c)
    return F.layer_norm(mixed @ weight, (c,)).view(b, s, c) * s


def calls_of(sizes: Sequence[tuple[int, int]], *, grad: bool = False) -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    weight = torch.randn(16, 16, requires_grad=grad)
    return [(torch.randn(b, s, 16, requires_grad=grad), weight) for b, s in sizes]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_a_transformer_block_compiles_as_often_as_with_eager(dynamic, grad, backend):
    calls = calls_of([(2, 6), (3, 6), (3, 9), (7, 2), (1, 5), (4, 1)], grad=grad)
    allowed = count_compiles(block, calls, "eager", dynamic=dynamic)
    assert count_compiles(block, calls, backend, dynamic=dynamic) <= allowed


def test_dynamic_compiles_once_for_sizes_above_one(backend):
    assert count_compiles(block, calls_of([(2, 6), (3, 9), (5, 4)]), backend, dynamic=True) == 1


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_bert_at_eight_sizes_compiles_as_often_as_with_eager(grad, backend):
    workload = build("bert", "tiny")
    model = workload.model.train(grad)

    def step(model: Any, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=mask, labels=labels)["loss"]

    def count(backend: str) -> int:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(step, backend=backend)
        for batch, length in BERT_SIZES:
            torch.manual_seed(batch)
            tokens, labels = torch.randint(3, 101, (batch, length)), torch.randint(0, 2, (batch,))
            args = (model, tokens, torch.ones_like(tokens), labels)
            assert_none(expect(step, args, backward=grad).mismatches(compiled))
        return counters["stats"]["unique_graphs"]

    allowed = count("eager")
    assert count(backend) <= allowed


def test_mark_dynamic(backend):
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda x: F.softmax(x.reshape(-1), 0).cumsum(0) * x.shape[0], backend=backend)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 3)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
        torch.testing.assert_close(compiled(x), F.softmax(x.reshape(-1), 0).cumsum(0) * rows)
    assert counters["stats"]["unique_graphs"] == 1


def rows_and_columns(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), x.mean(1), x.argmax(1), x.var(0), x.flip(0), x.t() + x.t().contiguous()


def joins(x: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[0]
    return torch.cat([x, x * 2]), torch.stack([x, x]), F.pad(x, (1, n)), x[n // 2 :], x.repeat(2, 1), x[::2]


def reshapes(x: Tensor) -> tuple[Tensor, ...]:
    n, m = x.shape
    return (x.view(m, n), x.reshape(-1), x.unsqueeze(1).expand(n, 3, m).reshape(3 * n, m), torch.arange(n * m) % n)


def numbers_from_sizes(x: Tensor) -> tuple[Any, ...]:
    n, m = x.shape
    return x * n + m / 2, n * m, torch.full((n + 1,), n), torch.zeros(n, m + 1), max(n, m)


def shares_of_sizes(x: Tensor) -> tuple[Any, ...]:
    n, m = x.shape
    larger = F.interpolate(x[None, None], scale_factor=1.7)
    return larger, x[:, : int(m * 0.7)], x[: math.ceil(n / 3.3)] * 2, x * round(n * 1.7), x * math.floor(n * 1.5)


def functions_of_sizes(x: Tensor) -> tuple[Tensor, ...]:
    """A graph has operators of torch's own for them; each is computed as math does."""
    n, m = x.shape
    turned = x * math.sin(n) + math.cos(m) * math.tanh(n / m) - math.atan(m)
    return x * math.log2(n), x / math.sqrt(n * m), turned, x * math.exp(1 / n) + math.log(m)


def reflected(x: Tensor) -> Tensor:
    return F.pad(x.sin(), (2, 1), mode="reflect")


def branches_by_size(x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 4, lambda x: x.cumsum(0), lambda x: x.sin() * x.shape[1], (x,))


def convolution(x: Tensor) -> Tensor:
    return F.avg_pool1d(F.conv1d(x[None], torch.ones(2, x.shape[0], 2)), 2)


def filled(x: Tensor) -> tuple[Tensor, ...]:
    """Padding whose value is a size, or a number that the program computes."""
    n, m = x.shape
    pad = torch.constant_pad_nd
    return pad(x, (1, 2), n), pad(x, (0, -1), n / m), pad(x.int(), (2, 1), m), pad(x[:0], (0, 0, 1, 1), m), x.cos()


@pytest.mark.parametrize(
    "fn",
    [
        *(rows_and_columns, joins, reshapes, numbers_from_sizes, shares_of_sizes, functions_of_sizes, reflected),
        *(branches_by_size, convolution, filled),
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_programs_with_symbolic_sizes(fn, grad, backend):
    calls = [(torch.randn(n, m, requires_grad=grad),) for n, m in [(4, 6), (5, 9), (16, 33), (3, 64)]]
    allowed = count_compiles(fn, calls, "eager", dynamic=True)
    assert count_compiles(fn, calls, backend, dynamic=True) <= allowed


# --- floats of the program ---

FLOATS: dict[str, Callable[[Tensor, float], Any]] = {
    "arithmetic": lambda x, f: torch.add(x * (f * 2 + 1), -f / 3, alpha=f) + torch.full((3, 8), f) * x,
    "activations": lambda x, f: F.leaky_relu(x, f) + F.softplus(x, f) + F.elu(x, f) + F.threshold(x, f, 0.0),
    "bounds": lambda x, f: x.clamp(-f, f) + F.hardtanh(x, -f, f) + x.masked_fill(x > f, f),
    "layer norm": lambda x, f: F.layer_norm(x, (8,), eps=f),
    "batch norm": lambda x, f: F.batch_norm(x, torch.zeros(8), torch.ones(8), training=True, momentum=f, eps=f),
    "attention": lambda x, f: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], scale=f),
    "branch": lambda x, f: x * f if f > 0.3 else x - f,
}


@pytest.mark.parametrize("fn", FLOATS.values(), ids=FLOATS)
def test_floats_that_change(fn, backend):
    x = torch.randn(3, 8, requires_grad=True)
    calls = [(x, f) for f in (0.5, 0.1, 0.5)]
    allowed = count_compiles(fn, calls, "eager", dynamic=True, fullgraph=True)
    assert count_compiles(fn, calls, backend, dynamic=True, fullgraph=True) <= allowed
    # Now the cache knows the function; what it assumed of other floats must not come back.
    assert count_compiles(fn, [(x, 0.125), (x, 0.1)], backend, dynamic=True, fullgraph=True) <= allowed


def test_exponents_that_change_have_derivatives(backend):
    calls = [(torch.rand(3, 8, requires_grad=True), n) for n in (3, 2, 0, -1)]
    count_compiles(lambda x, n: x**n + n**x + x.pow(exponent=n), calls, backend, dynamic=True)


def test_exponents_without_derivatives_are_not_guarded(backend):
    calls = [(torch.rand(3, 8), torch.ones(8, requires_grad=True), n) for n in (3, 2, 4, 5)]
    allowed = count_compiles(lambda x, w, n: x**n * w, calls, "eager")
    assert count_compiles(lambda x, w, n: x**n * w, calls, backend) <= allowed


def test_a_float_that_sizes_are_made_of(backend):
    calls = [(torch.ones(3), f) for f in (0.5, 0.1, 0.55)]
    count_compiles(lambda x, f: x.sum() * int(f * 10) + torch.arange(0, 8 * f, f), calls, backend, dynamic=True)


ROUNDED: dict[str, Callable[[Tensor, float], Any]] = {
    "digits of a size": lambda x, f: x * round(x.shape[0] * 2.675, 2) + round(x.shape[0] * 38.0, -1),
    "digits of a float": lambda x, f: x * round(x.shape[0] * f, 2) + torch.full((3,), round(f, 1)),
    "an integer of a float": lambda x, f: x * round(x.shape[0] * f) - int(x.shape[0] * f) // 3,
    "quotients": lambda x, f: x * (-x.shape[0] // f) + x.shape[0] % f + -x.shape[0] % f,
    "of a result": lambda x, f: x * math.floor(x.detach().sum().item() * f) + round(x.detach().mean().item(), 2),
    "a shift by a result": lambda x, f: x.roll(math.floor(x.detach().sum().item()), 0).tanh() * f,
    "of an integer result": lambda x, f: x * (x.detach().sum().long().item() * 2),
}


@pytest.mark.parametrize("fn", ROUNDED.values(), ids=ROUNDED)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_integers_that_python_makes_of_floats(fn, grad, backend):
    calls = [
        (torch.rand(n, 3, dtype=torch.float64, requires_grad=grad), f) for n, f in ((5, 0.5), (7, 0.335), (9, 2.5))
    ]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        count_compiles(fn, calls, backend, dynamic=True, fullgraph=True)


def test_a_float_found_to_change_beside_fixed_sizes(backend):
    calls = [(torch.randn(3, 8), f) for f in (0.5, 0.1)]
    count_compiles(lambda x, f: F.layer_norm(x, (8,), eps=f) * f, calls, backend)
    with torch.inference_mode():
        count_compiles(lambda x, f: F.layer_norm(x, (8,), eps=f) * f, calls, backend, dynamic=True)


def test_layer_norms_that_differ_in_eps(backend):
    norms = [(torch.nn.LayerNorm(8, eps=eps), torch.randn(3, 8) / 10) for eps in (1e-5, 1.0)]
    for _ in range(2):
        count_compiles(lambda norm, x: norm(x), norms, backend, dynamic=True, fullgraph=True)


def test_rates_of_dropout_that_change(backend):
    compiled = torch.compile(F.dropout, backend=backend, dynamic=True, fullgraph=True)
    for rate in (0.5, 0.1, 0.0, 0.9):
        kept = compiled(torch.ones(200, 100), rate)
        assert abs(kept.count_nonzero().item() / kept.numel() - (1 - rate)) < 0.02
        assert kept.unique().tolist() == pytest.approx([0.0] * (rate > 0) + [1 / (1 - rate)])


def test_the_item_of_a_number_that_the_program_changes(backend):
    def fn(x: Tensor, number: Tensor) -> Tensor:
        number.add_(1)
        return x * number.item() + number.item() / 3

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(3, 8), torch.tensor(value, dtype=torch.float64)) for value in (0.5, 2.0)]
        count_compiles(fn, calls, backend, dynamic=True)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_size_that_is_the_number_in_a_tensor(fullgraph, backend):
    """Capture has a name for the number in a 0-d input, and guards on it; what the program makes of it is another."""

    def padded(x: Tensor, side: Tensor, more: Tensor) -> Tensor:
        more.add_(side)
        return F.pad(x, (side, side), value=1.0).softmax(-1) * more

    calls = [(torch.randn(2, 4, requires_grad=True), torch.tensor(n), torch.tensor(3)) for n in (2, 5, 0, -1)]
    assert count_compiles(padded, calls, backend, fullgraph=fullgraph) == 1


# --- sizes that depend on values ---


def take_positive(x: Tensor) -> Tensor:
    return x[x > 0] * 2 + 1


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    found = x.gt(0).nonzero()
    return found + 1, found.float().sum(0)


def length_from_item(x: Tensor) -> Tensor:
    n = x.abs().sum().long().item()
    return torch.zeros(n, 3) + x[0]


def scalar_in_arithmetic(x: Tensor) -> Tensor:
    return x * x.sum().item() + 1


def pieces_of_given_lengths(x: Tensor) -> list[Tensor]:
    sizes = torch.tensor([1, 2, x.shape[0] - 3]).tolist()
    return [piece * 2 for piece in x.split(sizes)]


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(torch.arange(x.shape[0]), dim=0) + 1


def distinct(x: Tensor) -> Tensor:
    return x.round().unique() * 2


def kind_of_each(x: Tensor) -> Tensor:
    """How many kinds there are is a size of a result that nobody reads."""
    return x.round().unique(return_inverse=True)[1] * 2


FROM_VALUES = (
    *(take_positive, positions, length_from_item, scalar_in_arithmetic, pieces_of_given_lengths, repeated),
    *(distinct, kind_of_each),
)


@pytest.mark.parametrize("fn", FROM_VALUES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("captured", [False, True], ids=["graph break", "captured"])
def test_sizes_from_values(fn, captured, backend):
    with torch._dynamo.config.patch(capture_scalar_outputs=captured, capture_dynamic_output_shape_ops=captured):
        calls = [(torch.randn(n, 3),) for n in (4, 7, 5)]
        calls.append((-torch.ones(4, 3),))
        allowed = count_compiles(fn, calls, "eager")
        assert count_compiles(fn, calls, backend) <= allowed


def test_a_row_first_beside_rows_that_a_mask_chose(backend: str) -> None:
    def scaled(row: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x[:, 0] > 0]
        return row * chosen, chosen.tril()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        count_compiles(scaled, [(torch.randn(1, 3), torch.randn(4, 3)) for _ in range(2)], backend, dynamic=False)


def test_padding_of_what_has_an_unknown_size_among_known_ones(backend: str) -> None:
    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x[x > 0].sin(), (1, 2)) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        calls = [(torch.randn(4, 3, requires_grad=True),), (-torch.ones(4, 3),)]
        count_compiles(padded, calls, backend, dynamic=False)


def test_elements_at_a_mask_are_written_in_what_has_an_unbacked_size(backend: str) -> None:
    def masked(x: Tensor) -> Tensor:
        y = x.transpose(0, 2).clone()
        y[y > 1] = x.shape[1]
        return y

    compiled = torch.compile(masked, backend=backend)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for n in (5, 1, 0):
            x = torch.randn(4, 3, n, requires_grad=True)
            torch._dynamo.decorators.mark_unbacked(x, 2)
            (found,), (expected,) = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, masked))
            torch.testing.assert_close(found, expected)
            assert compiled(x).stride() == masked(x).stride() or n < 2


def test_gradients_of_what_a_mask_chose_of_nothing_are_zero(backend: str) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        calls = [(x.requires_grad_(),) for x in (torch.linspace(-2, 3, 9), -torch.ones(9))]
        count_compiles(lambda x: (x * 2).masked_select(x > 0) + 1, calls, backend)


def test_copies_of_what_a_mask_chose_beside_other_numbers_may_be_of_nothing(backend: str) -> None:
    """Where the copies are is computed with a division by their length, which is 0 in the second call."""

    def joined(x: Tensor) -> tuple[Tensor, ...]:
        copies = x[x > 0].sin().expand(4, -1)
        rows, columns = copies.reshape(-1), copies.t().reshape(-1)
        placed = torch.cat([rows, x.new_zeros(3)])
        placed[1:-2] = columns
        return F.pad(rows, (1, 2)), torch.cat([columns, x]).cumsum(0), placed

    def moved(x: Tensor, y: Tensor) -> Tensor:
        chosen = x[x > 0]
        kept = chosen * 1
        kept[:2] = chosen[-(x.shape[0] // y.shape[0]) :]
        return kept

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        calls = [(x.requires_grad_(), torch.ones(4)) for x in (torch.linspace(-2, 3, 9), -torch.ones(9))]
        count_compiles(joined, [call[:1] for call in calls], backend)
        count_compiles(moved, calls, backend, dynamic=True)


def test_a_branch_may_return_what_was_chosen(backend: str) -> None:
    """Its result is a list of one tensor, whose size is new."""

    def places(x: Tensor, twice: Tensor) -> Tensor:
        return torch.cond(twice, lambda n: n * 2, lambda n: n - 1, (x.nonzero(),)).float().sin()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        calls = [(torch.arange(-2.0, n), torch.tensor(n > 2)) for n in (1, 2, 3, 4)]
        count_compiles(places, calls, backend)


def test_slices_and_rows_at_numbers_of_unknown_sign(backend: str) -> None:
    def pieces(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        n = (at * 1).item()
        kept = x * 1
        kept[:n] = 0
        return x[:n].exp(), x[n:] * 2, x[:, n : n + 2].sum(1), x[n % 4] + 1, kept + x[n // 9]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(4, 5, requires_grad=True), torch.tensor(n)) for n in (2, 0, -1, -4, 7, -9)]
        count_compiles(pieces, calls, backend)


def test_numbers_that_are_read_are_compared_with_infinity(backend: str) -> None:
    def compared(x: Tensor) -> tuple[bool, bool]:
        return x.item() == math.inf, x.item() > -math.inf

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for value in (1.0, math.inf, -math.inf, math.nan):
            x = torch.tensor([value])
            assert torch.compile(compared, backend=backend)(x) == compared(x)


def test_an_element_at_a_place_that_is_a_tensor_is_taken(backend: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(4, 5, requires_grad=True), torch.tensor(n)) for n in (2, -1)]
        count_compiles(lambda x, at: x.take(at) * 2, calls, backend)


@pytest.mark.parametrize("n", [4, -5, 10**9])
@pytest.mark.parametrize("step", [1, 3])
def test_a_row_that_does_not_exist_is_an_error(n: int, step: int, backend: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x, at: x[(at * 1).item() * step] + 1, backend=backend)
        compiled(torch.randn(4, 5), torch.tensor(-1))
        with pytest.raises((IndexError, RuntimeError), match=r"out of range|promised a number"):
            compiled(torch.randn(4, 5), torch.tensor(n))


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integers_are_not_divided_by_a_number_of_the_program_that_is_0(divide: Callable[..., Tensor], backend: str):
    compiled = torch.compile(lambda x, n: divide(x, n - 5), backend=backend, dynamic=True)
    numbers = torch.arange(-4, 4)
    for n in (7, 2):
        torch.testing.assert_close(compiled(numbers, n), divide(numbers, n - 5))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(numbers, 5)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_numbers_that_vary_are_divided_as_tensors(mode: str, backend: str) -> None:
    def program(a: int, b: int) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.div(a, b, rounding_mode=mode), torch.ops.aten.div(a, b)

    compiled = torch.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for a, b in ((1024, 100), (7, -2), (-9, 4)):
        assert [x.item() for x in compiled(a, b)] == [x.item() for x in program(a, b)]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(7, 0)


def test_a_graph_that_takes_sizes_alone(backend: str) -> None:
    """Its symbols are those of capture, though no tensor brings them: torch's cache of fake results met others."""

    def positions(x: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        torch._dynamo.graph_break()
        return torch.arange(n) * 2 - torch.arange(n).detach(), (torch.arange(n + 1).float() / n).detach()

    calls = [(torch.randn(n, 3),) for n in (5, 7, 3)]
    asked = count_compiles(positions, calls, "eager", dynamic=True)
    assert count_compiles(positions, calls, backend, dynamic=True) <= asked


def test_a_gradient_in_rows_of_a_result_in_columns(backend: str) -> None:
    """Its strides, which are symbolic, do not tell the caller those that the compiled backward expects."""
    inverse = functools.partial(torch.linalg.tensorinv, ind=3)
    calls = [(torch.randn(2, 2, n, 4 * n, 1, requires_grad=True),) for n in (3, 2)]
    count_compiles(inverse, calls, backend, dynamic=True)


def test_a_sum_compiled_for_few_rows_is_exact_for_millions() -> None:
    total = torch.compile(lambda x: x.sum(0), backend="gyrator", dynamic=True)
    few, many = (torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows)) for rows in (70, 3_000_000))
    for x in (few, many):
        torch.testing.assert_close(total(x).double(), x.double().sum(0), rtol=1e-6, atol=0)


def test_a_result_behind_a_loss_may_have_a_gradient_after_all(backend: str) -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        squares = (x * x).sum(-1)
        return squares.mean(), squares

    compiled = torch.compile(step, backend=backend, dynamic=True)
    for rows in (5, 7):
        for pick in (lambda out: out[0], lambda out: out[1].sum(), lambda out: out[0] + out[1].sin().sum()):
            x = torch.randn(rows, 3, requires_grad=True)
            found, expected = (torch.autograd.grad(pick(f(x)), x) for f in (compiled, step))
            torch.testing.assert_close(found, expected)


def test_gradients_of_rows_that_were_shifted_and_pooled(backend: str) -> None:
    """One part of a gradient is of the first row of what was itself written into a tensor of zeros."""

    def pooled(x: Tensor) -> Tensor:
        shifted = torch.cat([x[:, :1], x[:, :-1]], 1)
        return F.avg_pool2d(shifted[:, None], (2, 1), ceil_mode=True)[:, 0]

    calls = [(torch.randn(2, n, 4, requires_grad=True),) for n in (6, 9)]
    count_compiles(pooled, calls, backend, dynamic=True)


@torch.no_grad()
def test_intermediates_lie_in_the_result_only_in_calls_where_they_fit() -> None:
    def decode(x: Tensor, y: Tensor) -> Tensor:
        return y @ (x @ torch.ones(8, 8)).sum(0).expand(100, 8).T

    compiled = torch.compile(decode, backend="gyrator", dynamic=True)
    for rows in (6, 900):
        x, y = torch.randn(rows, 8), torch.randn(5, 8)
        torch.testing.assert_close(compiled(x, y), decode(x, y))


def test_sizes_that_are_found_to_be_equal_after_forward_was_compiled(backend: str) -> None:
    """Backward is compiled again for the results behind a mean, and reads fewer numbers than forward handed on."""

    def norm(x: Tensor) -> tuple[Tensor, ...]:
        pooled = F.max_pool1d(x.chunk(2, 0)[0], 2)
        every = pooled[::2]
        return F.layer_norm(pooled, pooled.shape[-1:]).squeeze(-2), 3 - every.mean(), x, every

    def products(x: Tensor) -> tuple[Tensor, ...]:
        return (x @ x.mT) * 0.125, x

    def filled(x: Tensor) -> tuple[Tensor, ...]:
        part = x[:, 1:]
        x.scatter_(2, torch.zeros_like(x, dtype=torch.int64), 2)
        part.fill_(2)
        return (part[:, :, :-1],)

    def program(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (*norm(a * 1), *products(b * 1), *filled(c * 1))

    torch.manual_seed(0)
    args = [x.requires_grad_() for x in (torch.randn(3, 701).t(), torch.randn(90, 2, 8), torch.randn(90, 2, 8))]
    compiled = torch.compile(program, backend=backend, dynamic=True)
    found, expected = (torch.autograd.grad(sum(out.sin().sum() for out in f(*args)), args) for f in (compiled, program))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_of_transposed_classes_lies_in_rows(backend: str, dynamic: bool) -> None:
    classes = torch.arange(24).reshape(3, 4, 2).transpose(0, 1) % 3
    check(lambda i: F.one_hot(i, 3), (classes,), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_has_as_many_groups_as_a_size_says(backend: str, transposed: bool) -> None:
    def each(x: Tensor) -> Tensor:
        filters = torch.linspace(-1, 1, 9).view(1, 1, 3, 3).repeat(x.shape[1], 1, 1, 1)
        convolve = F.conv_transpose2d if transposed else F.conv2d
        return convolve(x * 2, filters, groups=x.shape[1])

    calls = [(torch.randn(2, channels, 9, 8, requires_grad=True),) for channels in (6, 5)]
    assert count_compiles(each, calls, backend, dynamic=True) == 1
