"""Decomposition: the table, templates, precision, strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator import torch_compat
from gyrator.autograd import decompositions
from gyrator.autograd.decompositions import decomposition_table
from gyrator.errors import InternalCheckError
from tests.acceptance import assert_matches
from tests.pure.autograd.harness import compiled, leaf, same_as_eager

aten = torch.ops.aten


def test_bfloat16_silu_is_computed_in_float32_and_rounded_once() -> None:
    run, graphs = compiled(F.silu)
    run(torch.randn(8, dtype=torch.bfloat16))
    assert graphs.ops("inference") == [
        "convert_element_type.default",
        "sigmoid.default",
        "mul.Tensor",
        "convert_element_type.default",
    ]


WHOLE: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("addmm.default", F.linear, (torch.randn(2, 3), torch.randn(5, 3), torch.randn(5))),
    ("convolution.default", F.conv2d, (torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))),
    ("sort.default", torch.sort, (torch.randn(5),)),
    ("var_mean.correction", torch.var_mean, (torch.randn(5),)),
    ("cumsum.default", lambda x: x.cumsum(0), (torch.randn(5),)),
    ("embedding.default", F.embedding, (torch.tensor([0, 1]), torch.randn(3, 4))),
    ("gather.default", lambda x, i: x.gather(0, i), (torch.randn(3), torch.tensor([2, 0]))),
    (
        "_scaled_dot_product_flash_attention_for_cpu.default",
        F.scaled_dot_product_attention,
        tuple(torch.randn(1, 2, 8, 16) for _ in range(3)),
    ),
)


@pytest.mark.parametrize("op,function,args", WHOLE, ids=[op for op, _, _ in WHOLE])
def test_stays_whole(op: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    run, graphs = compiled(function)
    run(*args)
    assert op in graphs.ops("inference")


@pytest.mark.parametrize(
    ("number", "rows", "dtype", "way"),
    [
        (256, 8192, torch.bfloat16, NotImplemented), (257, 8192, torch.bfloat16, "narrow"),
        (1024, 32768, torch.float16, NotImplemented), (1025, 99999, torch.float16, "narrow"),
        (4096, 8192, torch.bfloat16, "narrow"), (4097, 8192, torch.bfloat16, "apart"),
        (256, 8192, torch.float32, "apart"),
    ],
    ids=str,
)  # fmt: skip
def test_gradients_of_few_rows_of_a_large_table_stay_whole_on_a_gpu(
    number: int, rows: int, dtype: torch.dtype, way: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more, if at most of half of the rows, the table alone is made: narrow, and first of all."""

    def table(*_: object) -> Tensor:
        raise RuntimeError("narrow")

    monkeypatch.setattr(decompositions, "_EMBEDDING", lambda *_: "apart")
    monkeypatch.setattr(Tensor, "new_zeros", table)
    decomposed = decomposition_table()[aten.embedding_dense_backward.default]
    with FakeTensorMode():
        g, at = (torch.empty(number, *side, dtype=d, device="cuda") for side, d in (((8,), dtype), ((), torch.int64)))
        if way == "narrow":
            with pytest.raises(RuntimeError, match="narrow"):
                decomposed(g, at, rows, -1, False)
        else:
            assert decomposed(g, at, rows, -1, False) == way


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mask", [[False, True, False], [True, True, True]], ids=str)
def test_gradients_of_filters_of_a_point_in_steps_are_products(mask: list[bool], layout: torch.memory_format) -> None:
    """oneDNN's write beyond their memory (2 x 3 x 224 x 224 in channels-last float32, 64 filters, steps of 2)."""
    decomposed = decomposition_table()[aten.convolution_backward.default]
    x, w = torch.randn(2, 3, 23, 22).to(memory_format=layout), torch.randn(5, 3, 1, 1)
    g = torch.randn(2, 5, 12, 8).to(memory_format=layout)
    options = ([2, 3], [0, 0], [1, 1], False, [0, 0], 1, mask)
    found = decomposed(g, x, w, [5], *options)
    exact = aten.convolution_backward(g.double(), x.double(), w.double(), [5], *options)
    for got, eager, wide in zip(found, aten.convolution_backward(g, x, w, [5], *options), exact, strict=True):
        assert (got is None) == (wide is None)
        if wide is not None:
            assert_matches(got, eager, wide)
    assert decomposed(g, x, w, [5], [2, 3], [0, 0], [1, 1], False, [0, 0], 1, [True, False, True]) is NotImplemented
    _, one_step, _ = decomposed(g[..., :8, :8], x[..., :15, :15], w, [5], [2], [0], [1], False, [0], 1, mask)
    _, steps, _ = decomposed(g[..., :8, :8], x[..., :15, :15], w, [5], [2, 2], [0, 0], [1, 1], False, [0, 0], 1, mask)
    torch.testing.assert_close(one_step, steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "padding"), [((4, 33), -1), ((4, 33), 3), ((64,), -1), ((), -1), ((0, 3), -1)], ids=str
)
def test_gradients_of_few_rows_take_no_table_in_float32(
    shape: tuple[int, ...], padding: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompositions, "_EMBEDDING", lambda *_: "apart")
    decomposed = decomposition_table()[aten.embedding_dense_backward.default]
    g, at = torch.randn(*shape, 24).to(dtype), torch.randint(0, 20, shape)
    args = (at, 264, padding, False)
    exact = aten.embedding_dense_backward(g.double(), *args)
    assert_matches(decomposed(g, *args), aten.embedding_dense_backward(g, *args), exact)
    assert decomposed(g.float(), *args) == decomposed(g, at, 264, padding, True) == "apart"
    assert at.numel() == 0 or decomposed(g, at, 2 * at.numel() - 1, padding, False) == "apart"


@pytest.mark.parametrize(
    ("filters", "stride", "dilation", "apart"),
    [(6, 1, 1, True), (6, 2, 1, True), (6, 1, 2, True), (6, 2, 2, False), (12, 2, 1, True), (30, 1, 1, False)],
)
def test_the_gradient_of_a_depthwise_convolutions_input_is_a_transposed_one_on_a_gpu(
    filters: int, stride: int, dilation: int, apart: bool
) -> None:
    decomposed = decomposition_table()[aten.convolution_backward.default]
    with FakeTensorMode():
        x, w = (torch.empty(shape, device="cuda") for shape in ((2, 6, 10, 9), (filters, 1, 3, 3)))
        how = ([stride] * 2, [1, 2], [dilation] * 2, False, [0, 0], 6)
        g = torch.empty_like(aten.convolution.default(x, w, None, *how))
        found = decomposed(g, x, w, None, *how, [True, True, False])
        if not apart:
            assert found is NotImplemented
            return
        dx, dw, db = found
        assert dx.shape == x.shape and dw.shape == w.shape and db is None
        assert decomposed(g, x, w, [filters], *how, [False, False, True])[2].shape == (filters,)
        assert decomposed(g, x, w, None, *how, [False, True, False]) is NotImplemented
        graph = make_fx(lambda *args: decomposed(*args, None, *how, [True, False, False])[0])(g, x, w)
    given = [torch.randn(value.shape, dtype=torch.float64) for value in (g, x, w)]
    torch.testing.assert_close(graph(*given), aten.convolution_backward(*given, None, *how, [True, False, False])[0])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("conv", [F.conv2d, F.conv_transpose2d])
def test_convolutions_of_float16_are_computed_in_float32_where_the_library_has_none(
    conv: Callable[..., Tensor], memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_compat, "onednn_has_float16", lambda: False)
    x, w, b = (torch.randn(shape).half() for shape in ((2, 4, 7, 7), (4, 4, 3, 3), (4,)))
    given = (x.to(memory_format=memory_format), w, b)

    def results(fn: Callable[..., Tensor], dtype: torch.dtype = torch.half) -> tuple[Tensor, ...]:
        args = [t.detach().to(dtype).requires_grad_() for t in given]
        y = fn(*args)
        return (y.detach(), *torch.autograd.grad(y, args, torch.ones_like(y)))

    run, graphs = compiled(conv)
    for mine, eager, exact in zip(results(run), results(conv), results(conv, torch.double), strict=True):
        assert_matches(mine, eager, exact)
    for kind in ("forward", "backward"):
        assert "convert_element_type.default" in graphs.ops(kind)


def test_convolutions_of_float16_stay_whole_where_the_library_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "onednn_has_float16", lambda: True)
    x, w = torch.randn(2, 4, 7, 7).half(), torch.randn(4, 4, 3, 3).half()
    how = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert decomposition_table()[aten.convolution.default](x, w, None, *how) is NotImplemented


def by_elements(left: Tensor, right: Tensor, device: str, *bias: Tensor) -> bool:
    """Whether a product of such tensors on a device is computed by elements."""
    op = {2: aten.addmm if bias else aten.mm, 3: aten.bmm}[left.ndim].default
    with FakeTensorMode():
        args = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in (*bias, left, right)]
        found = decomposition_table()[op](*args)
    return found is not NotImplemented


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_products_with_a_side_of_one_are_by_elements_where_what_is_summed_lies_together(device: str) -> None:
    row, column, weights = torch.ones(1, 16), torch.ones(16, 1), torch.ones(4, 16)
    assert by_elements(row, weights.t(), device) and by_elements(row, weights.t(), device, torch.ones(4))
    assert by_elements(weights, column, device) and by_elements(column, row, device)
    assert by_elements(row.expand(3, 1, 16), weights.expand(3, 4, 16).mT, device)
    assert not by_elements(row, torch.ones(16, 4), device) and not by_elements(weights, weights.t(), device)
    assert not by_elements(torch.ones(16, 4).t(), column, device)
    assert by_elements(torch.ones(3, 16, 4).mT, column.expand(3, 16, 1), device) == (device == "cpu")


@pytest.mark.parametrize(("device", "most"), [("cuda", 12), ("cpu", 4)])
def test_products_of_tiny_matrices_are_by_elements(device: str, most: int) -> None:
    square, row = torch.ones(5, most, most), torch.ones(5, most, most + 1)
    assert by_elements(square, square.mT, device) and by_elements(square[0], square[0], device)
    assert by_elements(torch.ones(100, most), square[0], device, torch.ones(most))
    assert not by_elements(square, row, device) and not by_elements(row, row.mT, device)
    assert not by_elements(square.int(), square.int(), device) and not by_elements(
        square[:, :, :0], square[:, :0], device
    )


def test_long_sums_of_32_bits_stay_whole_on_a_processor() -> None:
    row, weights = torch.ones(1, 2049), torch.ones(4, 2049)
    assert by_elements(row, weights.t(), "cuda") and not by_elements(row, weights.t(), "cpu")
    assert by_elements(row.bfloat16(), weights.t().bfloat16(), "cpu") and by_elements(
        row[:, 1:], weights[:, 1:].t(), "cpu"
    )


TAKEN_APART: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...] = (
    (F.gelu, (4, 8)),
    (lambda x: F.gelu(x, approximate="tanh"), (4, 8)),
    (lambda x: F.softmax(x, -1), (4, 8)),
    (lambda x: F.log_softmax(x, -1), (4, 8)),
    (lambda x: F.layer_norm(x, (8,)), (4, 8)),
    (lambda x: F.rms_norm(x, (8,)), (4, 8)),
    (lambda x: F.group_norm(x, 2), (2, 4, 3)),
    (lambda x: F.batch_norm(x, None, None, training=True), (4, 8)),
    (F.silu, (4, 8)),
    (F.mish, (4, 8)),
    (lambda x: F.soft_margin_loss(9 + x, torch.ones_like(x)), (4, 8)),
    (lambda x: F.cross_entropy(x, torch.tensor([1, 2, 0, 3])), (4, 8)),
    (lambda x: x.std(-1), (4, 8)),
)


@pytest.mark.parametrize("function,shape", TAKEN_APART)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_are_as_exact_as_eagers(
    function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    same_as_eager(function, torch.randn(shape, dtype=dtype).requires_grad_())


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradients_of_a_weight_norm_are_taken_apart(dim: int, dtype: torch.dtype) -> None:
    v = torch.randn(4, 3, 5, dtype=dtype)
    g = torch.rand([n if k == dim else 1 for k, n in enumerate(v.shape)], dtype=dtype).requires_grad_()
    same_as_eager(lambda v, g: torch._weight_norm(v, g, dim), v.requires_grad_(), g)
    run, graphs = compiled(lambda v, g: torch._weight_norm(v, g, dim))
    run(v, g).sum().backward()
    assert "_weight_norm_interface_backward.default" not in graphs.ops("backward")


def test_strides_of_results_are_the_operators_own() -> None:
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    same_as_eager(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), x, backward=False)
    same_as_eager(lambda x: F.batch_norm(x, None, None, training=True), x, backward=False)


def test_strides_that_fake_kernels_get_wrong_are_eagers() -> None:
    columns = torch.randn(3, 4).t()
    same_as_eager(F.logsigmoid, columns, backward=False)
    same_as_eager(lambda x: F.batch_norm(x, None, None, training=True), columns, backward=False)
    image = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    pooled, indices = F.max_pool2d(image, 2, return_indices=True)
    same_as_eager(lambda x, i: F.max_unpool2d(x, i, 2), pooled, indices, backward=False)
    same_as_eager(lambda x, y: torch.maximum(x.t()[None], y), torch.randn(6, 1), torch.randn(6, 1), backward=False)
    for shift in (1, -4):
        same_as_eager(lambda x, n=shift: (x.roll(n, 0), x.roll((n, 1), (2, -1))), image, backward=False)
    same_as_eager(lambda x: x.roll(1, 0).as_strided((5, 4), (4, 1), 0), image, backward=False, dynamic=True)
    same_as_eager(lambda x: x.t()[::2].index_fill(0, torch.tensor([1]), 3), torch.randn(3, 4), backward=False)
    same_as_eager(lambda x: (2**x, x // 2, torch.div(x, 3, rounding_mode="floor")), columns, backward=False)
    pair = columns[:, None], torch.randn(3, 4).t()
    for op in (torch.logaddexp, torch.logical_and, torch.heaviside, torch.floor_divide, torch.xlogy, torch.ldexp):
        same_as_eager(op, *pair, backward=False)
    same_as_eager(torch.angle, columns * 1j, backward=False)
    same_as_eager(torch.ldexp, columns.bfloat16(), torch.tensor([3]), backward=False)
    same_as_eager(torch.ldexp, torch.tensor([-6.7e-13, 0.0]), torch.tensor([163, 300]))  # 2.0**163 is no float
    target = torch.randint(3, (6, 4, 2)).permute(2, 1, 0)
    same_as_eager(lambda x, y: F.cross_entropy(x, y, reduction="none"), image, target, backward=False)
    shuffled = image.repeat(1, 2, 1, 1).to(memory_format=torch.channels_last)
    same_as_eager(lambda x: F.channel_shuffle(x, 2), shuffled, backward=False)
    volume = torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    same_as_eager(lambda x: F.pad(x, (1,) * 6, mode="reflect"), volume, backward=False)


WHOLE_NUMBERS, ZEROS = torch.arange(-4, 4), torch.tensor([1, 0, 2, 3, -1, 5, 6, 7])
BY_ZERO: dict[str, tuple[Callable[..., Any], Tensor, Tensor]] = {
    "a floored division by zero": (lambda x, y: x // y, WHOLE_NUMBERS, ZEROS),
    "a truncated division by zero": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), WHOLE_NUMBERS, ZEROS),
    "a remainder by zero": (lambda x, y: x % y, WHOLE_NUMBERS, ZEROS),
    "a number's remainder by zero": (lambda x, y: x + 3 % y, WHOLE_NUMBERS, ZEROS),
    "fmod by zero": (torch.fmod, WHOLE_NUMBERS.int(), ZEROS),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", BY_ZERO)
def test_integers_are_not_divided_by_zero(case: str, dynamic: bool) -> None:
    fn, x, y = BY_ZERO[case]
    with pytest.raises(RuntimeError) as error:
        fn(x, y)
    run, _ = compiled(fn, dynamic=dynamic)
    torch.testing.assert_close(run(x, y.abs() + 1), fn(x, y.abs() + 1))
    with pytest.raises(RuntimeError, match=str(error.value)):
        run(x, y)


@pytest.mark.parametrize(
    "divide", [torch.floor_divide, torch.remainder, torch.fmod, partial(torch.div, rounding_mode="trunc")]
)
def test_integers_are_not_divided_by_a_literal_zero(divide: Callable[..., Tensor]) -> None:
    run, _ = compiled(lambda x: divide(x, 0))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(WHOLE_NUMBERS)
    torch.testing.assert_close(run(WHOLE_NUMBERS[:0]), WHOLE_NUMBERS[:0])


def test_of_no_integers_none_is_divided_by_zero() -> None:
    same_as_eager(lambda x, y: (x // y, x % y), WHOLE_NUMBERS[:0], torch.tensor(0), backward=False)
    same_as_eager(lambda x, y: (x // y, x % y), WHOLE_NUMBERS[:0, None], WHOLE_NUMBERS * 0, backward=False)


def test_divisions_that_give_fractions_may_be_by_zero() -> None:
    same_as_eager(lambda x, y: (x / y, torch.div(x, y, rounding_mode=None)), WHOLE_NUMBERS, ZEROS, backward=False)
    same_as_eager(lambda x, y: (x % y, x // y), WHOLE_NUMBERS.float(), ZEROS, backward=False)


@pytest.mark.parametrize("of", [torch.bernoulli, lambda p: F.binary_cross_entropy(p, p.detach().round())])
@pytest.mark.parametrize("wrong", [-0.5, 1.5, torch.nan])
def test_what_is_no_probability_is_refused(of: Callable[[Tensor], Tensor], wrong: float) -> None:
    run, _ = compiled(of)
    assert run(torch.tensor([0.0, 1.0])).count_nonzero() == of(torch.tensor([0.0, 1.0])).count_nonzero()
    for refuses in (of, run):
        with pytest.raises(RuntimeError, match=r"between 0 and 1|p_in >= 0"):
            refuses(torch.tensor([0.5, wrong]))


REFUSES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.clone().uniform_(2, 1),
    lambda x: x.clone().bernoulli_(1.5),
    lambda x: x.clone().bernoulli_(-0.5),
    lambda x: F.smooth_l1_loss(x, x + 1, beta=-1),
    torch.bitwise_not,
)


@pytest.mark.parametrize("function", REFUSES)
def test_numbers_and_dtypes_that_eager_refuses_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    run, _ = compiled(function)
    for refuses in (function, run):
        with pytest.raises(RuntimeError, match=r"range|p to be in|beta|not implemented"):
            refuses(torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("least", [0.1, 0.7])
def test_a_threshold_lets_the_gradient_of_a_value_pass_that_it_lets_pass(dtype: torch.dtype, least: float) -> None:
    """Values as near to the threshold as their dtype has them lie on either side of it."""
    run, _ = compiled(lambda x: F.threshold(x, least, 0.0))
    x = torch.tensor([least, -least, 1], dtype=dtype).requires_grad_()
    values = run(x)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert torch.equal(values, F.threshold(x, least, 0.0)) and torch.equal(gradient, (values == x).to(dtype))


@pytest.mark.skipif(torch.__version__ < "2.12", reason="capture takes it for a view there")
def test_a_view_copy_may_be_of_what_has_no_such_view() -> None:
    same_as_eager(lambda x: torch.view_copy(x.expand(4, 2), (8,)), torch.randn(2).requires_grad_())
    same_as_eager(lambda x: torch.view_copy(x, (2, 3)).add_(x.view(2, 3)), torch.randn(6), backward=False)


def test_linspace_of_integers_is_eagers() -> None:
    def lines(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.linspace(a, b, n, dtype=torch.int64) + x for a, b, n in LINES)

    same_as_eager(lines, torch.zeros((), dtype=torch.int64), backward=False)


LINES = ((0, 7, 50), (-9, 40, 13), (4.3, -3, 8), (3, 5, 1), (3, 5, 0))


@pytest.mark.parametrize("numbers", [{}, {"nan": 2.0, "neginf": -1.0}])
def test_nan_to_num_of_complex_numbers_is_that_of_both_parts(numbers: dict[str, float]) -> None:
    run, _ = compiled(lambda z: torch.nan_to_num(z, **numbers))
    parts = torch.tensor([[torch.nan, 1.0], [torch.inf, -torch.inf], [0.5, torch.nan]])
    z = torch.view_as_complex(parts)
    assert torch.equal(run(z), torch.nan_to_num(z, **numbers))
    assert torch.equal(run(z.conj()), torch.nan_to_num(z.conj(), **numbers))


def test_dropout_backward_promotes_integers() -> None:
    mask = torch.tensor([True, False, True])
    op = aten.native_dropout_backward.default
    same_as_eager(lambda g: op(g, mask, 2.0), torch.arange(3), backward=False)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss], ids=lambda loss: loss.__name__)
def test_the_mean_loss_of_nothing_is_nan(loss: Callable[..., Any]) -> None:
    same_as_eager(loss, torch.zeros(0, 3).requires_grad_(), torch.zeros(0, 3))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_multilabel_margin_loss_ignores_what_follows_the_end_of_the_labels(reduction: str) -> None:
    labels = torch.tensor([[1, 2, -1, 0, 3], [4, -1, -1, -1, -1]])
    for target in (labels, labels[0]):
        x = torch.randn(target.shape).requires_grad_()
        same_as_eager(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, target)


def test_equal_calls_are_decomposed_once() -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(tuple(x.shape))
        return x * torch.sigmoid(x)

    table = {**decomposition_table(), aten.silu.default: counted}
    run, graphs = compiled(lambda x: F.silu(F.silu(F.silu(x))), decompositions=table)
    run(torch.randn(4))
    assert len(calls) == 1 and graphs.ops("inference").count("sigmoid.default") == 3


def test_the_same_tensor_twice_is_not_confused_with_two() -> None:
    table = {aten.hypot.default: lambda x, y: (x * x + y * y).sqrt()}
    run, _ = compiled(lambda x, y: torch.hypot(x, x) + torch.hypot(x, y), decompositions=table)
    x, y = torch.tensor([3.0]), torch.tensor([4.0])
    torch.testing.assert_close(run(x, y), torch.hypot(x, x) + torch.hypot(x, y))


def test_a_decomposition_that_declines_leaves_the_operator() -> None:
    run, graphs = compiled(F.silu, decompositions={aten.silu.default: lambda x: NotImplemented})
    run(torch.randn(4))
    assert graphs.ops("inference") == ["silu.default"]


@pytest.mark.parametrize("size", [(2, 3, 1, 4), (2, 1, 5, 1, 3)])
def test_a_decomposition_may_hold_a_number(size: tuple[int, ...]) -> None:
    """A grid with one point along an axis has a literal."""
    run, graphs = compiled(lambda x: F.affine_grid(x, list(size), align_corners=False))
    x = torch.randn(2, len(size) - 2, len(size) - 1)
    torch.testing.assert_close(run(x), F.affine_grid(x, list(size), align_corners=False))
    assert "affine_grid_generator.default" not in graphs.ops("inference")


def test_a_decomposition_that_holds_a_tensor_leaves_the_operator() -> None:
    run, graphs = compiled(F.silu, decompositions={aten.silu.default: lambda x: x * torch.tensor([1.0, 2.0])})
    torch.testing.assert_close(run(torch.ones(2)), F.silu(torch.ones(2)))
    assert graphs.ops("inference") == ["silu.default"]


def test_a_decomposition_of_another_shape_is_reported() -> None:
    run, _ = compiled(F.silu, decompositions={aten.silu.default: lambda x: x.sum()})
    with pytest.raises(BackendCompilerFailed, match=r"decomposition of aten\.silu\.default gives") as caught:
        run(torch.randn(4))
    assert isinstance(caught.value.inner_exception, InternalCheckError)


def test_symbolic_sizes_are_arithmetic_on_the_inputs() -> None:
    run, graphs = compiled(lambda x: F.layer_norm(x.flatten(), (x.numel(),)), dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), F.layer_norm(x.flatten(), (x.numel(),)))
    placeholders = graphs.modules["inference"].graph.find_nodes(op="placeholder")
    assert any(isinstance(node.meta["val"], torch.SymInt) for node in placeholders)


def test_foreach_operators_do_to_each_tensor_what_eager_does() -> None:
    x = [torch.tensor([0.25, 0.5]), torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor(0.75)]
    kinds: dict[str, object] = {"List[Tensor]": x, "List[number]": [0.5, 2.0, 1.5], "Tensor": torch.tensor(1.5)}
    matrices = [torch.rand(n, n, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 4)]
    table = {op: fn for op, fn in decomposition_table().items() if "_foreach_" in str(op)}
    assert len(table) > 60
    for op, decomposed in table.items():
        given = [a for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
        tensors = {"List[Tensor]": matrices} if "_foreach_mm" in str(op) else {}
        args = [(kinds | tensors).get(str(a.type), 0.5) for a in given]
        torch.testing.assert_close(list(decomposed(*args)), list(op(*args)), msg=str(op))


def test_decomposition_may_change_the_lists_it_is_given() -> None:
    """torch's own of `_unsafe_masked_index` puts clamped indices into the list of indices."""
    inside, place = torch.tensor([True, False, True]), torch.tensor([0, 9, 2])
    same_as_eager(lambda x: aten._unsafe_masked_index(x, inside, [place], 0.0), torch.randn(4), backward=False)


def test_views_without_a_lowering_are_decomposed() -> None:
    """An extern call of a view would give a result that shares memory with its argument."""
    views = (
        aten.t.default, aten.transpose.int, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
        aten._unsafe_view.default, aten._reshape_alias.default,
    )  # fmt: skip
    assert decomposition_table(numerics="eager").keys() >= set(views)


def test_positions_of_max_pooling_are_saved_in_16_bits_and_given_to_the_operator_in_64() -> None:
    run, graphs = compiled(lambda x: F.max_pool2d(x.sin(), 2))
    x, y = leaf(2, 3, 8, 8), leaf(2, 3, 8, 8)
    with torch.no_grad():
        y.copy_(x)
    run(x).sum().backward()
    F.max_pool2d(y.sin(), 2).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    saved = [node.meta["val"].dtype for node in graphs.modules["backward"].graph.find_nodes(op="placeholder")]
    assert torch.int16 in saved and torch.int64 not in saved


def test_zeros_of_either_sign_are_arguments_of_their_own() -> None:
    x = torch.tensor([-1.0, 2.0])
    same_as_eager(lambda x: [1 / x.masked_fill(x > 0, zero) for zero in (0.0, -0.0)], x, backward=False)
