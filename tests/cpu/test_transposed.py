"""Operands and results that lie across the vectors go through tiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from tests.acceptance import check


def add_transposed(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    sums = x.t() * 2 + y
    return sums, (sums + 1).t().contiguous()


def permuted(x: Tensor, y: Tensor) -> Tensor:
    cube = x.reshape(1, *x.shape).expand(3, -1, -1).contiguous()
    return cube.permute(2, 0, 1) * y[:, None, :].contiguous()[:, :, :1] - 1


def update_by_transpose(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x.t())
    x.copy_(y.t() * 3)
    return x + 1


PROGRAMS = [add_transposed, both, permuted, update_by_transpose]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [add_transposed, both, permuted, update_by_transpose], ids=lambda f: f.__name__)
def test_equals_eager(fn: Callable[..., object], dtype: torch.dtype, backend: str) -> None:
    check(fn, (torch.randn(193, 301, dtype=dtype), torch.randn(301, 193, dtype=dtype)), backend=backend)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(256, 384), (130, 1025)])
def test_other_elements_and_sizes(dtype: torch.dtype, shape: tuple[int, int], backend: str) -> None:
    x, y = (torch.randn(s).mul(10).to(dtype) for s in (shape, shape[::-1]))
    check(add_transposed, (x, y), backend=backend)


def test_a_large_transposed_operand_is_read_through_a_tile(tmp_path: Path) -> None:
    torch._dynamo.reset()
    gyrator.compile(add_transposed, options={"cache_dir": tmp_path})(torch.randn(256, 256), torch.randn(256, 256))
    assert any("gy::transpose_block" in text for text in sources(tmp_path))


def sources(folder: Path) -> list[str]:
    """The C++ sources below a cache folder."""
    return [path.read_text() for path in folder.rglob("*.cpp")]


@pytest.mark.parametrize("size", [5, 6, 7])
def test_vectors_span_the_rows_of_small_images(size: int, tmp_path: Path) -> None:
    """Neither seven elements of a row nor of a column fill a vector."""
    torch._dynamo.reset()
    x = torch.randn(4, 3, size, size)
    pool = gyrator.compile(lambda x: F.avg_pool2d(x, 3, 1, 1), options={"cache_dir": tmp_path})
    torch.testing.assert_close(pool(x), F.avg_pool2d(x, 3, 1, 1))
    assert not any("strided(" in text for text in sources(tmp_path))


def norm_across(x: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)).permute(0, 3, 1, 2)


def softmax_across(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.flatten(2).transpose(1, 2)
    return rows.softmax(-1), rows.cumsum(-1)


def norm_of_a_kept_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sum lies like the image, the norm row by row."""
    h = x.flatten(2).transpose(1, 2) + 1
    return h, F.rms_norm(h, (x.shape[1],))


ACROSS = [norm_across, softmax_across, norm_of_a_kept_sum]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 256, 35, 35), (3, 70, 17, 9)])
@pytest.mark.parametrize("fn", ACROSS, ids=lambda f: f.__name__)
def test_rows_that_lie_across_memory_equal_eagers(
    fn: Callable[..., object], shape: tuple[int, ...], dtype: torch.dtype, backend: str
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    check(fn, (x.requires_grad_(),), backend=backend, backward=True)


def test_rows_that_lie_across_memory_are_reduced_from_a_tile(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 256, 40, 40)
    torch.testing.assert_close(gyrator.compile(norm_across, options={"cache_dir": tmp_path})(x), norm_across(x))
    texts = "".join(sources(tmp_path))
    assert "gy::transpose_block" in texts and "strided(" not in texts


def test_vectors_that_are_few_have_an_inner_loop(tmp_path: Path) -> None:
    """Counting through all axes of a patch after each vector would take longer than the vector."""
    torch._dynamo.reset()
    x = torch.randn(4, 3, 96, 96)

    def patches(x: Tensor) -> Tensor:
        return x.view(4, 3, 6, 16, 6, 16).permute(0, 2, 4, 1, 3, 5).reshape(4, 36, 768)

    assert gyrator.compile(patches, options={"cache_dir": tmp_path})(x).equal(patches(x))
    assert any("const int64_t steps = 432;" in text for text in sources(tmp_path))


def test_vectors_lie_along_what_all_rows_share(tmp_path: Path) -> None:
    """Both gradients of pairwise distances sum over pairs, whose differences lie along features."""
    torch._dynamo.reset()
    a, b = (torch.randn(64, 32, requires_grad=True) for _ in range(2))
    weights = torch.randn(64, 64)

    def distances(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).square().sum(-1)

    found = gyrator.compile(distances, options={"cache_dir": tmp_path})(a, b)
    gradients = torch.autograd.grad(found, (a, b), weights)
    wanted = torch.autograd.grad(distances(a, b), (a, b), weights)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-4)
    assert not any("strided(" in text for text in sources(tmp_path))


def test_what_is_added_beside_each_other_is_added_in_vectors(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 27, 20 * 20)

    def fold(x: Tensor) -> Tensor:
        return F.fold(x, (20, 20), 3, padding=1)

    torch.testing.assert_close(gyrator.compile(fold, options={"cache_dir": tmp_path})(x), fold(x))
    assert any("gy::store(lanes, to, gy::combined<gy::by_add>(" in text for text in sources(tmp_path))


@pytest.mark.parametrize("shape", [(3, 64, 4, 32), (3, 4, 64, 32), (40, 301, 5, 48)], ids=str)
def test_heads_are_moved_with_the_fewer_of_heads_and_places_inside(shape: tuple[int, ...], tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(shape).bfloat16()
    moved = gyrator.compile(lambda x: (x.transpose(1, 2) * 2).contiguous(), options={"cache_dir": tmp_path})
    torch.testing.assert_close(moved(x), (x * 2).transpose(1, 2), rtol=0, atol=0)
    counted = [re.findall(r"for \(int64_t i\d+ = 0; i\d+ < (\d+); \+\+", text) for text in sources(tmp_path)]
    assert [found[-1] for found in counted if found] == [str(min(shape[1:3]))]


def test_rows_that_are_reversed_are_walked_in_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(32, 4, 64, 48)
    turned = gyrator.compile(lambda x: x[..., :32].flip(1) * 2, options={"cache_dir": tmp_path})
    torch.testing.assert_close(turned(x), x[..., :32].flip(1) * 2)
    counted = [re.findall(r"for \(int64_t i\d+ = 0; i\d+ < (\d+); \+\+", text) for text in sources(tmp_path)]
    assert [found[-1] for found in counted if found] == ["64"]
