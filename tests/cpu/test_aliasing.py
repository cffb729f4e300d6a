"""Mutation, aliasing, views, layouts and odd tensors are seen by the caller as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.acceptance import check


def _x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) / 8 - 0.5


def in_place(x):
    x.mul_(2)
    return x + 1


def in_place_through_a_view(x):
    x[1:].t().add_(1)
    return x.sum()


def reads_before_and_after(x):
    before = x + 1
    view = x[0]
    x.mul_(3)
    return before, view * 1, x - before


def returns_its_input(x):
    return x


def returns_views_of_its_input(x):
    return x.t(), x[1], x.view(-1)


def returns_aliases_of_one_result(x):
    y = x * 2
    return y, y.t(), y[0], y


def mutates_and_returns_a_view(x):
    y = x[:2]
    y.add_(1)
    return y


def mutates_an_intermediate_view(x):
    y = x * 2
    y[0].zero_()
    y.t()[1] = 5
    return y


def overwrites_all(x):
    x.copy_(torch.ones_like(x) * 3)
    return x.clone()


def swaps_two(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def views_one_base(base, view):
    view.add_(1)
    return base * 2, view * 2


def same_tensor_twice(x, y):
    x.add_(1)
    return y * 2


def keeps_channels_last(x):
    return F.relu(x) * 2, x.mean((2, 3)), x + x.mean((2, 3), keepdim=True)


def mixes_layouts(x):
    return x + 1, (x.t() + 1).t(), x.contiguous(), torch.cat([x, x], 1)


def of_nothing(x):
    return x + 1, x.sum(), x.sum(0), torch.cat([x, x]), x.reshape(-1, 3), x.mean()


def of_a_scalar(x):
    return x + 1, x.sum(), x.expand(3) * 2, x.item() if False else x.view(1)


def of_expanded(x):
    return x + 1, x.sum(0), x.contiguous(), x[0]


def writes_to_rows_that_are_one(x):
    x[0].add_(1)
    before = x * 2
    x.t()[1:3, 2].mul_(3)
    return before, x[1] + 1


def fills_what_is_expanded(x):
    x[2, 1:].cumsum_(0)
    before = x.sum()
    x.fill_(2)
    x[1, :2] += x[0, 2:].clone()
    return before, x.view_as(x), x + 1


def splits_rows_that_are_written(x):
    rows = x[1:]
    part = rows.split(2, -1)[0]
    rows.mul_(3)
    part.mul_(2)
    return part.sin(), rows.chunk(2, -1)[1] * 1


def splits_what_was_put_into_rows(x):
    rows = torch.slice_scatter(x[1:], x[1:, :2] * 2, -1, 0, 2)
    return [part.sin() for part in rows.split(3, -1)]


def scatters_into_written_rows(x):
    x.mul_(2)
    x.unfold(0, 2, 2).add_(1)
    part = x.as_strided((2,), (1,), x.storage_offset() + 1)
    part.mul_(3)
    return x.unfold(0, 2, 1).chunk(2)[1] * 1, part + 1


def splits_windows_of_rows_with_gaps(x):
    x[1:].diagonal().add_(2)
    return x.unfold(1, 2, 2).chunk(2)[1] * 1


def fills_no_rows(x):
    x.fill_(1)
    return x.sum()


def returns_views_of_what_it_transposes(x):
    rows = x[1:]
    x += x
    x.t_()
    return rows, x.unfold(-1, 2, 2), x


def returns_views_of_equal_expanded_results(x):
    return (x[:1] * 2).expand(4, 4), (x[:1] * 2).expand(4, 4).t(), (x[:1] * 2).expand(4, 4).diagonal()


def finds_some_of_what_is_transposed(x):
    return torch.isin(x, torch.tensor([0.0, 0.5])), torch.isin(x, 0.5)


def with_python_values(x, n, s):
    return x * n, n + 1, s, None, (x.shape, n * 2)


def returns_nothing(x):
    x.add_(1)


def of_constants(x):
    return torch.ones(3), torch.tensor(2.0) + x.sum(), torch.arange(4)


def changes_dtype(x):
    return x.double(), x.to(torch.bfloat16), x.long(), x.bool(), x.half().float()


def detaches(x):
    return x.detach(), (x * 2).detach() + x


def zeroes_behind_autograd(x):
    y = x.exp().detach()
    y.zero_()
    return y, y.t()


def doubles_a_row_behind_autograd(x):
    row = x[:1].detach()
    row.mul_(2)
    return row


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class _Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return 5 * gradient.view(3, 4)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.unbind(0)

    @staticmethod
    def backward(ctx, *gradients):
        return torch.stack([3 * gradient for gradient in gradients])


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.expand(2, *x.shape)

    @staticmethod
    def backward(ctx, gradient):
        return 7 * gradient.sum(0)


def returns_its_input_through_a_function(x):
    return _Reversed.apply(x)


def returns_rows_and_repeats_through_functions(x):
    return _Rows.apply(x * 2), _Rows.apply(x), _Repeated.apply(x + 1)


def returns_a_view_that_took_another_shape(x):
    y = (x * 2).unsqueeze_(0)
    return y[:, 1:].squeeze_(0), y


def transposes_its_input_under_another_name(x):
    y = x.contiguous()
    y.mul_(3).t_()
    return y * 2, x + 1


def returns_what_was_written_and_took_another_shape(x):
    y = torch.zeros_like(x)
    row = y[1:]
    y.add_(x).t_()
    z = (x * 2).detach()
    z.mul_(x)
    z.unsqueeze_(0)
    return y.add_(1), row, y[0], z, torch.empty_like(x).copy_(x).t_()


def returns_views_through_functions(x):
    y = x * 2
    flat = _Flat.apply(x)
    return flat, flat[1:], _Reversed.apply(flat[2:]), x, y, _Flat.apply(y)[1:], _Reversed.apply(y)


def _base_and_view():
    base = _x()
    return base, base[1]


def takes_new_memory(x, y):
    before = x * y
    x.data = x.data * 2 + y
    x.add_(1)
    return before, x * y


def takes_memory_of_another(x, y):
    x.data = y
    y.add_(1)
    return x + 1


def takes_new_memory_and_returns_both(x, y):
    old = x.view(-1)
    x.data = y * 2
    return old, x.view(-1), x


def exchanges_memory(x, y):
    x.data, y.data = y.data * 1, x.data * 1


def exchanges_memory_without_copies(x, y):
    kept = x.data
    x.data = y.data
    y.data = kept


def takes_memory_of_what_took_another(x, y, z):
    x.data = y * 2
    y.data = z
    x.data = y


def gives_an_intermediate_new_memory(x, y):
    z = x + 1
    z.data = y * 2
    return z * 3


def writes_to_what_drops_nothing(x):
    y = F.dropout(x, 0.5, training=False)
    y += 1
    return y * 2, torch.dropout(input=x, p=0.0, train=True)


def writes_to_a_copy_that_drops_nothing(x):
    y, kept = torch.native_dropout(x, 0.5, False)
    y += 1
    return y, kept, x * 2


def _twice():
    x = _x()
    return x, x


CASES: dict[Callable[..., Any], Callable[[], tuple[Any, ...]]] = {
    in_place: lambda: (_x(),),
    in_place_through_a_view: lambda: (_x(),),
    reads_before_and_after: lambda: (_x(),),
    returns_its_input: lambda: (_x(),),
    returns_views_of_its_input: lambda: (_x(),),
    returns_aliases_of_one_result: lambda: (_x(),),
    mutates_and_returns_a_view: lambda: (_x(),),
    mutates_an_intermediate_view: lambda: (_x(),),
    overwrites_all: lambda: (_x().t(),),
    swaps_two: lambda: (_x(), -_x()),
    views_one_base: _base_and_view,
    same_tensor_twice: _twice,
    keeps_channels_last: lambda: (torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),),
    mixes_layouts: lambda: (_x().t(),),
    of_nothing: lambda: (torch.zeros(0, 3),),
    of_a_scalar: lambda: (torch.tensor(1.5),),
    of_expanded: lambda: (torch.arange(4.0).expand(3, 4),),
    returns_views_of_what_it_transposes: lambda: (_x(),),
    splits_rows_that_are_written: lambda: (_x(),),
    splits_what_was_put_into_rows: lambda: (_x(),),
    scatters_into_written_rows: lambda: (torch.arange(32.0).reshape(8, 4)[1:],),
    splits_windows_of_rows_with_gaps: lambda: (torch.arange(32.0).reshape(4, 8)[:, 2:6],),
    fills_no_rows: lambda: (torch.zeros(3).expand(0, 3),),
    writes_to_rows_that_are_one: lambda: (torch.arange(4.0).expand(3, 4),),
    fills_what_is_expanded: lambda: (torch.arange(4.0).expand(3, 4),),
    returns_views_of_equal_expanded_results: lambda: (_x(),),
    finds_some_of_what_is_transposed: lambda: (_x().t(),),
    with_python_values: lambda: (_x(), 3, "text"),
    returns_nothing: lambda: (_x(),),
    of_constants: lambda: (_x(),),
    changes_dtype: lambda: (_x(),),
    takes_new_memory: lambda: (_x(), -_x()),
    takes_memory_of_another: lambda: (_x(), -_x()),
    takes_new_memory_and_returns_both: lambda: (_x(), -_x()),
    exchanges_memory: lambda: (_x(), -_x()),
    exchanges_memory_without_copies: lambda: (_x(), -_x()),
    takes_memory_of_what_took_another: lambda: (_x(), -_x(), _x() * 3),
    gives_an_intermediate_new_memory: lambda: (_x(), -_x()),
    writes_to_what_drops_nothing: lambda: (_x(),),
    writes_to_a_copy_that_drops_nothing: lambda: (_x(),),
    detaches: lambda: (_x(),),
    zeroes_behind_autograd: lambda: (_x(),),
    doubles_a_row_behind_autograd: lambda: (_x(),),
    returns_its_input_through_a_function: lambda: (_x(),),
    returns_views_through_functions: lambda: (_x(),),
    returns_a_view_that_took_another_shape: lambda: (_x(),),
    transposes_its_input_under_another_name: lambda: (_x(),),
    returns_what_was_written_and_took_another_shape: lambda: (_x(),),
    returns_rows_and_repeats_through_functions: lambda: (_x(),),
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_is_seen_as_in_eager(fn: Callable[..., Any], dynamic: bool, backend: str) -> None:
    if dynamic and fn is scatters_into_written_rows:
        pytest.skip("an input whose storage offset varies is refused")
    if dynamic and fn in (transposes_its_input_under_another_name, returns_views_of_what_it_transposes):
        pytest.skip("torch's own guards take the input as transposed")
    check(fn, CASES[fn](), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize(
    "fn",
    [
        mutates_an_intermediate_view,
        returns_aliases_of_one_result,
        returns_views_of_equal_expanded_results,
        keeps_channels_last,
        detaches,
        zeroes_behind_autograd,
        doubles_a_row_behind_autograd,
        returns_its_input_through_a_function,
        returns_views_through_functions,
        returns_a_view_that_took_another_shape,
        returns_what_was_written_and_took_another_shape,
        returns_rows_and_repeats_through_functions,
    ],
    ids=lambda fn: fn.__name__,
)
def test_gradients_flow_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    differentiable = tuple(argument.requires_grad_() for argument in CASES[fn]())
    check(fn, differentiable, backend=backend, backward=True)


def test_gradients_flow_through_an_input_that_is_transposed_under_another_name(backend: str) -> None:
    def cloned(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in args)

    fn = transposes_its_input_under_another_name
    check(fn, (_x().requires_grad_(),), backend=backend, backward=True, prepare=cloned)


def test_some_inputs_take_no_gradient(backend):
    x, w, i = torch.randn(4, 3, requires_grad=True), torch.randn(3, 5), torch.tensor([2, 0])
    check(lambda x, w, i: ((x @ w)[i].sin(), w * 2, i + 1), (x, w, i), backend=backend, backward=True)


def test_mutation_under_autograd(backend):
    x = torch.randn(4, 3, requires_grad=True)

    def fn(x, buffer):
        buffer.add_(x.detach().sum())
        return x * buffer

    check(fn, (x, torch.zeros(3)), backend=backend, backward=True)


def test_a_parameter_takes_new_memory(backend):
    def fn(parameter, x):
        parameter.data = parameter.data.clamp(-0.5, 0.5)
        return parameter * x

    parameters = [torch.nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2)]
    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    for parameter, call in zip(parameters, (compiled, fn), strict=True):
        for _ in range(2):
            call(parameter, torch.arange(5.0)).sum().backward()
    assert torch.equal(*parameters) and torch.equal(parameters[0].grad, parameters[1].grad)


def writes_before(x, y):
    x.add_(1)
    x.data = y * 2


def writes_after(x, y):
    old = x.view(-1)
    x.data = y * 2
    old.add_(1)


def gives_memory_back(x, y):
    kept = torch.sin(x)
    x.untyped_storage().resize_(0)
    return kept * y


def takes_memory(x, y):
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(16)
    x.copy_(y + 1)


def grows(x, y):
    return x.resize_(2, 3).fill_(2) + y[:3]


@pytest.mark.parametrize(
    "fn", [writes_before, writes_after, gives_memory_back, takes_memory, grows], ids=lambda fn: fn.__name__
)
@pytest.mark.filterwarnings("ignore:.*runs uncompiled")
def test_a_program_whose_tensors_change_memory_does_as_in_eager(fn, backend):
    states = []
    for call in (torch.compile(fn, backend=backend), fn):
        x, y = torch.linspace(0, 1, 4), torch.arange(4.0)
        old = x.detach()
        with torch.no_grad():
            result = call(x, y)
        size = x.untyped_storage().size()
        kept = [None if size == 0 else each.tolist() for each in (x, old)]
        states.append((None if result is None else result.tolist(), size, kept))
    assert states[0] == states[1]


def test_second_backward_with_retained_graph(backend):
    x = torch.randn(4, 4, requires_grad=True)
    y = torch.compile(lambda x: F.softmax(x, -1).square().sum(), backend=backend)(x)
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    second = torch.autograd.grad(y, x)[0]
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_no_grad_inference_mode_and_training_agree(backend):
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend=backend)
    x = torch.randn(2, 4)
    trained = compiled(x)
    with torch.no_grad():
        without = compiled(x)
    with torch.inference_mode():
        inferred = compiled(x)
    assert trained.requires_grad and not without.requires_grad and inferred.is_inference()
    torch.testing.assert_close(trained, without)
    torch.testing.assert_close(trained, inferred)


def test_autocast(backend):
    layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    x = torch.randn(4, 8, requires_grad=True)
    actual, eager = torch.compile(fn, backend=backend)(x), fn(x)
    assert actual.dtype == eager.dtype
    torch.testing.assert_close(actual, eager, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_writes_to_windows_of_an_input_with_gaps(dynamic: bool, backend: str) -> None:
    def windows(x: Tensor) -> Tensor:
        pairs = x.unfold(2, 1, 1)
        pairs.add_(1)
        x[0].mul_(3)
        pairs.mul_(2)
        return x * 1

    check(windows, (torch.randn(2, 3, 8)[..., ::2],), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize(
    "other",
    [torch.randn(8, 16).t(), torch.randn(1, 8), torch.randn(16, 8, dtype=torch.float64), torch.randn(17, 8)[1:]],
    ids=["strides", "sizes", "type", "offset"],
)
def test_a_parameter_may_get_other_memory(other: Tensor, backend: str) -> None:
    module = nn.Linear(8, 16, bias=False)
    compiled = torch.compile(lambda x: (module.weight * x).sin(), backend=backend)
    x = torch.randn(16, 8)
    compiled(x)
    module.weight.data = other
    torch.testing.assert_close(compiled(x), (module.weight * x).sin())


def test_writes_to_windows_of_an_expanded_input_follow_each_other(backend: str) -> None:
    """Also where torch's operator puts them into memory, whose results begin within it."""

    def written(x: Tensor) -> Tensor:
        window = x.select(2, -1)
        window.add_(1)
        window.mul_(2)
        return window * 1

    given = [torch.arange(15.0).reshape(3, 5, 1).expand(3, 5, 4)[1:, ::2] for _ in range(2)]
    assert torch.equal(torch.compile(written, backend=backend)(given[0]), written(given[1]))
    assert torch.equal(*given)


def test_an_operator_that_writes_one_element_several_times_is_refused_as_in_eager(backend: str) -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.compile(lambda x: x.add_(1), backend=backend)(torch.arange(4.0).expand(3, 4))


@pytest.mark.parametrize("make", [torch.ones, torch.arange, torch.empty], ids=lambda make: make.__name__)
def test_a_later_write_to_a_view_of_a_tensor_made_in_the_program_reaches_its_gradients(make, backend: str) -> None:
    def made() -> tuple[Tensor, Tensor]:
        whole = make(6, dtype=torch.float32)
        return whole, whole[2:4]

    whole, part = torch.compile(made, backend=backend)()
    assert part._base is whole
    factor = torch.tensor(3.0, requires_grad=True)
    part.fill_(2.0).mul_(factor)
    whole[1:3].sum().backward()
    assert torch.equal(factor.grad, torch.tensor(2.0))


@pytest.mark.parametrize("kept", [False, True], ids=["counted", "preserved"])
def test_a_program_may_ask_how_often_it_wrote_to_a_tensor(kept: bool, backend: str) -> None:
    def asked(x: Tensor) -> tuple[Tensor, int, int]:
        y = x + 1
        before = y._version
        with torch.autograd._unsafe_preserve_version_counter(y) if kept else torch.enable_grad():
            y[0].mul_(2)
        return y - 1, before, y._version

    result, *versions = torch.compile(asked, backend=backend)(_x())
    assert torch.equal(result, asked(_x())[0])
    assert versions == [0, int(not kept)]


def test_a_write_that_autograd_does_not_count_leaves_an_earlier_backward_possible(backend: str) -> None:
    def written(x: Tensor) -> Tensor:
        x.data[0].mul_(2)
        return x + 1

    x = _x().requires_grad_()
    loss = (x * x).sum()
    torch.compile(written, backend=backend)(x)
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_new_statistics_leave_an_earlier_backward_possible(backend: str) -> None:
    norm = nn.BatchNorm1d(4).eval()
    loss = norm(_x()).sum()  # reads the statistics, which its backward needs
    torch.compile(norm.train(), backend=backend)(_x())
    loss.backward()
    assert norm.running_mean._version == nn.BatchNorm1d(4).running_mean._version


def windows_of_a_window(x):
    rows = x.as_strided((3, 4), (8, 1))
    return rows.t()[1:].as_strided((2, 2), (3, 1)) + 1, rows.as_strided((3,), (2,), 17) * 2


def windows_of_other_elements(x):
    part = x[::2].view(torch.int32)
    return part.as_strided((4,), (3,), 19) + 1, part[1:].as_strided((3,), (1,)) * 1


def windows_of_other_elements_after_a_write(x):
    x.mul_(2)
    return windows_of_other_elements(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [windows_of_a_window, windows_of_other_elements])
def test_as_strided_counts_in_the_memory_that_a_view_shows(program, dynamic: bool, backend: str) -> None:
    function = torch.compile(program, backend=backend, dynamic=dynamic)
    for rows in (6, 8):
        x = torch.arange(8 * rows)[8:].reshape(-1, 8)[:, 1:6]
        assert all(map(torch.equal, function(x), program(x)))


def test_as_strided_counts_in_the_memory_that_a_view_of_a_written_tensor_shows(backend: str) -> None:
    program = windows_of_other_elements_after_a_write
    ours, eagers = (torch.arange(57)[9:].reshape(-1, 8) for _ in range(2))
    assert all(map(torch.equal, torch.compile(program, backend=backend)(ours), program(eagers)))
