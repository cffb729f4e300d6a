"""Convolutions get channels-last operands; what the user sees lies in memory as in eager."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._sympy.functions import Max

import gyrator
from gyrator.autograd.channels_last import _multiplied
from tests.acceptance import check

torch.manual_seed(0)
WIDE, DEPTHWISE = torch.randn(24, 6, 3, 3) / 7, torch.randn(24, 1, 3, 3) / 3
IMAGE = torch.randn(4, 6, 33, 35)


def conv(x: Tensor, weight: Tensor, **options: int) -> Tensor:
    return F.conv2d(x, weight.to(x.dtype), **options)


def result_seen(x: Tensor) -> Tensor:
    return conv(x, WIDE, padding=1)


def pointwise_between(x: Tensor) -> Tensor:
    return conv(conv(x, WIDE, padding=1).relu() * 2, DEPTHWISE, groups=24).sigmoid()


def flattened(x: Tensor) -> Tensor:
    return conv(x, WIDE, stride=2).flatten(2).transpose(1, 2).softmax(-1)


def rows_flattened(x: Tensor) -> Tensor:
    return conv(x, WIDE).flatten(1) @ torch.ones(24 * 31 * 33, 2, dtype=x.dtype) / 1000


def decoded(x: Tensor) -> Tensor:
    """A transposed convolution."""
    return F.conv_transpose2d(x, WIDE.transpose(0, 1).to(x.dtype), stride=2, padding=1).relu() * 2


def pooled(x: Tensor) -> Tensor:
    y = F.max_pool2d(conv(x, WIDE, padding=1), 2)
    return F.adaptive_avg_pool2d(torch.cat([y, y.flip(1)], 1), 1).flatten(1)


def normalised(x: Tensor) -> Tensor:
    y = conv(x, WIDE, padding=1)
    return F.group_norm(F.batch_norm(y, None, None, training=True), 4)


def depends_on_strides(x: Tensor) -> Tensor:
    y = conv(x, WIDE, padding=1) + 1
    return y.as_strided((5, 7), (3, 1), 2)


def view_of_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = conv(x, WIDE, padding=1)
    return y, y[:, 1:3].permute(0, 2, 3, 1)


def residual_stream(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is added up has columns contiguous in memory, from its transposed beginning on."""
    h = F.gelu(conv(x, WIDE).flatten(2)).transpose(1, 2) + torch.arange(24, dtype=x.dtype)
    start = h
    for _ in range(2):
        h = h + F.layer_norm(h, (24,)) @ torch.eye(24, dtype=x.dtype)
    return h, start.as_strided((5, 7), (3, 1), 2), F.layer_norm(h, (24,)).sum(1)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_CHANNELS_LAST", "on")


PROGRAMS = [
    result_seen, pointwise_between, flattened, rows_flattened, pooled, normalised, depends_on_strides,
    view_of_result, residual_stream, decoded,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_strides_are_eagers(fn: Callable[..., object], backend: str) -> None:
    check(fn, (IMAGE,), backend=backend)


GRADIENTS = [pointwise_between, flattened, pooled, normalised, residual_stream, decoded]


@pytest.mark.parametrize("fn", GRADIENTS, ids=lambda fn: fn.__name__)
def test_gradients_are_eagers(fn: Callable[..., object], backend: str) -> None:
    check(fn, (IMAGE.clone().requires_grad_(),), backend=backend, backward=True)


def test_symbolic_sizes(backend: str) -> None:
    torch._dynamo.reset()
    run = torch.compile(pointwise_between, backend=backend, dynamic=True)
    for x in (IMAGE, torch.randn(3, 6, 40, 51)):
        torch.testing.assert_close(run(x), pointwise_between(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "x", "option", "found"),
    [
        (pointwise_between, IMAGE, "on", True),
        (pointwise_between, IMAGE, "auto", True),
        (result_seen, IMAGE, "auto", False),
        (pointwise_between, IMAGE, "off", False),
        (pointwise_between, IMAGE[:1, :, :5, :5], "on", False),
        (decoded, torch.randn(4, 6, 70, 17), "auto", True),
        (decoded, torch.randn(8, 6, 40, 17), "auto", False),
    ],
    ids=["large", "depthwise", "dense", "switched off", "small", "transposed", "transposed of few pixels"],
)
def test_only_large_images_are_moved_and_an_option_switches_it_off(
    fn: Callable[..., object], x: Tensor, option: str, found: bool, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    options = {"channels_last": option, "cache_dir": tmp_path}
    gyrator.compile(fn, options=options)(x)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    channels = 24
    assert (f", 1, {33 * channels}, {channels})" in " ".join(wrapper.read_text().split())) is found


def test_padded_images_of_symbolic_sizes_that_are_halved_are_moved(tmp_path: Path) -> None:
    """Strides of the same layout are written in other ways: (n + 1)² and n² + 2n + 1, n // 2 and max(1, n // 2)."""
    torch._dynamo.reset()

    halved = torch.nn.Sequential(
        torch.nn.ZeroPad2d((0, 1, 0, 1)), torch.nn.Conv2d(6, 24, 3, stride=2), torch.nn.ReLU(),
        torch.nn.ZeroPad2d(1), torch.nn.Conv2d(24, 24, 3, groups=24), torch.nn.ReLU(),
        torch.nn.ZeroPad2d((0, 1, 0, 1)), torch.nn.Conv2d(24, 24, 3, stride=2, groups=24),
    )  # fmt: skip
    run = torch.compile(halved, backend="gyrator", dynamic=True, options={"cache_dir": tmp_path})
    with torch.no_grad():
        for size in (96, 80):
            x = torch.randn(4, 6, size, size)
            torch.testing.assert_close(run(x), halved(x), rtol=1e-4, atol=1e-5)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    calls = re.findall(r"checked\(aten_conv.*", " ".join(wrapper.read_text().split()).replace("checked", "\nchecked"))
    assert len(calls) == 3 and all(re.search(r", 1, 24\*\(s\d+ // [24]\), 24\)", call) for call in calls)


def test_a_maximum_of_several_sizes_is_no_product_of_them() -> None:
    m, n = sympy.symbols("m n", integer=True)
    assert _multiplied(Max(1, n) * (m + 1)) == m * n + n
    assert _multiplied(Max(1, m, n)) == Max(1, m, n) != m * n


@pytest.mark.parametrize("option", ["on", "off"])
def test_what_norms_read_along_rows_lies_in_rows(option: str, tmp_path: Path) -> None:
    torch._dynamo.reset()

    def norms(x: Tensor, p: Tensor) -> Tensor:
        h = x.transpose(1, 2) + p
        for _ in range(2):
            h = h + F.layer_norm(h, (48,)) @ torch.eye(48)
        return F.layer_norm(h, (48,))

    x, p = torch.randn(4, 48, 100), torch.randn(48)
    options = {"cache_dir": tmp_path, "channels_last": option}
    torch.testing.assert_close(gyrator.compile(norms, options=options)(x, p), norms(x, p))
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    assert ("(4800, 1, 100), torch.float32" in wrapper.read_text().partition("def inputs")[0]) is (option == "off")


def test_the_gradient_of_a_transposed_result_comes_in_rows(backend: str) -> None:
    """As norms and products give it; any other gradient is copied."""
    torch._dynamo.reset()
    x = torch.randn(4, 48, 100, requires_grad=True)
    for dynamic in (False, True):
        result = torch.compile(lambda x: x.transpose(1, 2) * 2, backend=backend, dynamic=dynamic)(x)
        assert result.stride() == (4800, 1, 100)
        for grad in (torch.randn(4, 100, 48), torch.randn(4, 48, 100).transpose(1, 2)):
            (got,) = torch.autograd.grad(result, x, grad, retain_graph=True)
            torch.testing.assert_close(got, grad.transpose(1, 2) * 2)


def test_a_result_whose_layout_is_not_known_keeps_eagers_strides() -> None:
    """With every size a symbol nothing says how large the result is, so that its operand stays as it was."""
    x, w = torch.randn(2, 4, 24, 24), torch.randn(2, 2, 3, 3)

    def grouped(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1, groups=2)

    found = torch.compile(grouped, backend="gyrator", dynamic=True)(x, w)
    torch.testing.assert_close(found, grouped(x, w))
    assert found.stride() == grouped(x, w).stride()
