"""Updates of inputs happen in the input's own memory where every element is read before it is written."""

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


def momentum(x: Tensor, p: Tensor) -> Tensor:
    old = x * 2
    x.mul_(0.9).add_(p)
    p.sub_(x, alpha=0.1)
    return old


def adam(x: Tensor, p: Tensor) -> None:
    grad = p.sin()
    x.lerp_(grad, 0.1)
    p.addcdiv_(x, (x * x).sqrt() + 1e-3, value=-0.01)


def softmax_of_rows(x: Tensor, p: Tensor) -> None:
    x.copy_(torch.softmax(x, -1))


def centre_columns(x: Tensor, p: Tensor) -> None:
    x.sub_(x.mean(0))


def scale_by_the_maximum(x: Tensor, p: Tensor) -> None:
    x.div_(x.abs().max())


def normalise_then_read(x: Tensor, p: Tensor) -> Tensor:
    x.sub_(x.mean(-1, keepdim=True))
    return (x * x).sum(-1)


IN_PLACE = [momentum, adam, softmax_of_rows, centre_columns, scale_by_the_maximum, normalise_then_read]


def add_reversed(x: Tensor, p: Tensor) -> None:
    x.add_(x.flip(0))


def add_first_row(x: Tensor, p: Tensor) -> None:
    x.add_(x[0].clone())


def swap(x: Tensor, p: Tensor) -> None:
    old = x.clone()
    x.copy_(p)
    p.copy_(old)


def old_after_a_reduction(x: Tensor, p: Tensor) -> Tensor:
    old = x.clone()
    x.mul_(p)
    return old - x.sum(-1, keepdim=True)


COPIED = [add_reversed, add_first_row, swap, old_after_a_reduction]


@pytest.mark.parametrize("shape", [(300, 300), (7, 1000), (3, 5)])
@pytest.mark.parametrize("fn", IN_PLACE + COPIED, ids=lambda fn: fn.__name__)
def test_updates(fn: Callable[..., Tensor | None], shape: tuple[int, int], tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = [torch.randn(shape) for _ in range(2)]
    eager = [x.clone() for x in ours]
    returned = gyrator.compile(fn, options={"cache_dir": tmp_path})(*ours)
    expected = fn(*eager)
    torch.testing.assert_close(ours, eager)
    assert (returned is None) is (expected is None)
    if expected is not None:
        torch.testing.assert_close(returned, expected)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    assert (".copy_(" in wrapper.read_text()) is (fn in COPIED)


def row(x: Tensor, p: Tensor) -> None:
    x[1] = p[0] * 2


def slice_of_columns(x: Tensor, p: Tensor) -> Tensor:
    x[:, 1:3] = p[:, :2]
    return x.sum(0)


def every_third(x: Tensor, p: Tensor) -> None:
    x[:, ::3] = p[:, ::3]


def diagonal(x: Tensor, p: Tensor) -> None:
    x.diagonal(1).zero_()


def scaled_row(x: Tensor, p: Tensor) -> None:
    x[-1:].mul_(3)


def element_of_a_row(x: Tensor, p: Tensor) -> None:
    x[2, 3] = p[0, 0]


def rows_from_rows(x: Tensor, p: Tensor) -> Tensor:
    x[0] = x[1] + p[0]
    x[1] = x[0] * x[1]
    x[2] = x.sum(0)
    return x[0] - p[1]


def part_of_a_part(x: Tensor, p: Tensor) -> None:
    x[:4, 3:9] = p[:4, :6]
    x[5:][1].mul_(2)
    x[:8][torch.tensor([7, 5])] = p[:2]


def indexed_and_known(x: Tensor, p: Tensor) -> None:
    x[torch.tensor([0, 2])] = p[:2]
    x[1] = p[2]


def column_of_the_transposed(x: Tensor, p: Tensor) -> None:
    x.t()[:, 5].copy_(p[0])


def rows_of_a_reshaped_view(x: Tensor, p: Tensor) -> None:
    x.view(x.shape[0], 4, 10)[:, 1, :7].copy_(p[:, :7])


def elements_of_a_flat_view(x: Tensor, p: Tensor) -> None:
    x.view(-1)[torch.tensor([359, 7])] = p[0, :2]
    x.view(-1)[30:55].mul_(2)


PARTS = [
    row, slice_of_columns, every_third, diagonal, scaled_row, element_of_a_row, part_of_a_part, rows_from_rows,
    indexed_and_known, column_of_the_transposed, rows_of_a_reshaped_view, elements_of_a_flat_view,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", PARTS, ids=lambda fn: fn.__name__)
def test_parts_are_written_alone(fn: Callable[..., Tensor | None], dynamic: bool, tmp_path: Path) -> None:
    """Nothing else is read or written: a token goes into its place of a cache however large that is."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = [torch.randn(9, 40) for _ in range(2)]
    eager = [x.clone() for x in ours]
    returned = gyrator.compile(fn, dynamic=dynamic, options={"dump": tmp_path, "cache": False})(*ours)
    expected = fn(*eager)
    torch.testing.assert_close((ours, returned), (eager, expected))
    (folder,) = tmp_path.glob("*_inference")
    ((nests,), (wrapper,)) = (folder.glob(name) for name in ("*_nests_after_fusion.txt", "*_wrapper.py"))
    made = re.findall(r"f32\[\w+, \w+\] = nest.*(?:\n    .*)*", nests.read_text())
    assert all(" with [" in text for text in made)
    assert ".copy_(" not in wrapper.read_text()


def test_the_part_of_a_row_that_follows_is_read_before_it_is_written() -> None:
    def shifted(x: Tensor) -> None:
        x[0, 1:].copy_(x[0, :-1].clone())

    torch._dynamo.reset()
    ours, eager = torch.arange(60.0).view(4, 15), torch.arange(60.0).view(4, 15)
    torch.compile(shifted, backend="gyrator")(ours)
    shifted(eager)
    assert torch.equal(ours, eager)


def test_edges_that_wrap_around_are_not_full_copies(tmp_path: Path) -> None:
    torch._dynamo.reset()
    pad = gyrator.compile(lambda x: F.pad(x, (2, 1, 1, 2), mode="circular"), options={"dump": tmp_path, "cache": False})
    x = torch.randn(2, 3, 20, 30)
    assert torch.equal(pad(x), F.pad(x, (2, 1, 1, 2), mode="circular"))
    (nests,) = tmp_path.glob("*_inference/*_nests_after_fusion.txt")
    assert nests.read_text().count(" with [") == 4


def test_old_versions_outlive_parts_that_are_written() -> None:
    def versions(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        before = x.clone()
        x[0] = p[0]
        between = x * 1
        x[1] = p[1]
        return before, between, x + 0, x

    torch._dynamo.reset()
    ours = torch.randn(6, 5), torch.randn(6, 5)
    eager = ours[0].clone(), ours[1]
    torch.testing.assert_close(torch.compile(versions, backend="gyrator")(*ours), versions(*eager))
    assert torch.equal(ours[0], eager[0])


def test_a_tensor_that_is_filled_row_by_row_is_not_copied_for_each(tmp_path: Path) -> None:
    def states(x: Tensor, w: Tensor) -> Tensor:
        out = x.new_zeros(12, *x.shape)
        for t in range(12):
            out[t] = torch.tanh((x if t == 0 else out[t - 1]) @ w)
        return out

    torch._dynamo.reset()
    torch.manual_seed(0)
    args = torch.randn(300, 8), torch.randn(8, 8) * 0.3
    compiled = gyrator.compile(states, options={"cache_dir": tmp_path})
    torch.testing.assert_close(compiled(*args), states(*args), rtol=1e-4, atol=1e-5)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    text = wrapper.read_text()
    assert ".copy_(" not in text
    assert text.count("# in place") == 12


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_that_are_filled_one_after_the_other_have_one_kernel(dynamic: bool, tmp_path: Path) -> None:
    def states(x: Tensor, w: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for t in range(1, 10):
            out[t] = torch.tanh(out[t - 1] * w + x[t]) + x[0]
        return out

    torch._dynamo.reset()
    torch.manual_seed(0)
    args = torch.randn(10, 4000), torch.randn(4000)
    compiled = gyrator.compile(states, dynamic=dynamic, options={"dump": tmp_path, "cache": False})
    torch.testing.assert_close(compiled(*args), states(*args))
    (kernels,) = tmp_path.glob("*_inference/*_kernels.cpp")
    assert kernels.read_text().count('extern "C" int32_t select_scatter') <= 2


def test_two_scatters_into_one_tensor_in_one_kernel_have_memory_of_their_own() -> None:
    def both(at: Tensor, x: Tensor) -> Tensor:
        base = torch.zeros(10)
        return base.scatter_add(0, at, x) + base.scatter_add(0, at, x * 2)

    args = torch.tensor([0, 1, 0]), torch.tensor([1.0, 10.0, 100.0])
    torch.testing.assert_close(torch.compile(both, backend="gyrator")(*args), both(*args))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_result_of_other_dimensions_takes_the_memory_of_a_product(dynamic: bool, tmp_path: Path) -> None:
    def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))  # (3, 50, 64) upon (150, 64)

    torch._dynamo.reset()
    torch.manual_seed(0)
    args = torch.randn(3, 50, 32), torch.randn(64, 32), torch.randn(64)
    compiled = gyrator.compile(linear_gelu, dynamic=dynamic, options={"cache_dir": tmp_path, "gemm_backends": ["aten"]})
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), linear_gelu(*args), rtol=1e-4, atol=1e-4)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    (line,) = (line for line in wrapper.read_text().splitlines() if "# in place" in line)
    assert "reinterpret(" in line


def test_a_transposed_result_has_memory_of_its_own(tmp_path: Path) -> None:
    def crossed(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).t().contiguous() + 1

    torch._dynamo.reset()
    args = torch.randn(20, 32), torch.randn(32, 20)
    compiled = gyrator.compile(crossed, options={"cache_dir": tmp_path})
    torch.testing.assert_close(compiled(*args), crossed(*args), rtol=1e-4, atol=1e-4)
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    assert "# in place" not in wrapper.read_text()


def test_indices_are_not_overwritten_by_what_is_read_through_them(tmp_path: Path) -> None:
    """Where a kernel is timed it runs again, and would find values for indices."""

    def repeated(x: Tensor, counts: Tensor) -> Tensor:
        return torch.repeat_interleave(x, counts, dim=0, output_size=6)

    torch._dynamo.reset()
    args = torch.tensor([[100], [200], [300], [400]]), torch.tensor([0, 1, 2, 3])
    compiled = gyrator.compile(repeated, options={"cache_dir": tmp_path})
    torch.testing.assert_close(compiled(*args), repeated(*args))
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    assert "# in place" not in wrapper.read_text()


def test_a_tensor_of_inference_mode_is_written_in_that_mode_alone(tmp_path: Path) -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    run = gyrator.compile(lambda x: x.add_(1), options={"cache_dir": tmp_path})
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        run(x)
    with torch.inference_mode():
        assert run(x) is x


def test_a_number_is_copied_into_a_tensor() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(-1)
        y[0].copy_(2.5)
        return x + y

    given, wanted = ([torch.arange(6).view(2, 3), torch.ones(2, 3)] for _ in range(2))
    torch.testing.assert_close(torch.compile(fn, backend="gyrator")(*given), fn(*wanted))
    torch.testing.assert_close(given, wanted)


def test_writes_through_a_view_of_another_type_are_of_that_type(backend: str) -> None:
    """Elements that are shown in several places, or by `as_strided`, are written where the memory's owner has them."""

    def filled(x: Tensor) -> Tensor:
        y = x.clone()
        bits = y.view(torch.int32)
        bits[0].expand(3, -1).fill_(7)
        torch._foreach_zero_([bits[1].expand(2, -1)])
        bits[1:].as_strided((2,), (2,), 4).mul_(2)
        return y

    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(filled, backend=backend)(x), filled(x))


@pytest.mark.parametrize("view", [lambda x: x[1:], lambda x: x.split(2, -1)[0]], ids=["slice", "split"])
def test_views_of_a_parameter_that_is_written_without_gradients_can_be_returned(
    view: Callable[[Tensor], Tensor], backend: str
) -> None:
    def halved(x: Tensor) -> tuple[Tensor, Tensor]:
        part = view(x)
        x.mul_(0.5)
        return part, part + 1

    given = [torch.nn.Parameter(torch.arange(12.0).reshape(3, 4)) for _ in range(2)]
    with torch.no_grad():
        found, wanted = torch.compile(halved, backend=backend)(given[0]), halved(given[1])
    assert [x.tolist() for x in (*found, given[0])] == [x.tolist() for x in (*wanted, given[1])]
    assert found[0].data_ptr() == view(given[0]).data_ptr()
    assert [x.requires_grad for x in found] == [x.requires_grad for x in wanted]


def test_results_go_where_out_says_though_a_status_of_no_elements_is_resized(backend: str) -> None:
    def program(x: Tensor, inverse: Tensor, root: Tensor, size: Tensor) -> Tensor:
        torch.linalg.inv(x, out=inverse)
        torch.linalg.cholesky(x, out=root)
        torch.linalg.det(x, out=size)
        return inverse @ root * size

    x = torch.randn(4, 4)
    check(program, (x @ x.t() + torch.eye(4), *[torch.zeros(4, 4) for _ in range(2)], torch.zeros(())), backend=backend)


@pytest.mark.parametrize("size", [(2, 2), (4, 3), (3, 4)])
def test_a_resized_copy_begins_with_what_was_there(size: tuple[int, int], backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.aten.resize(x.t() * 2, size)

    x = torch.randn(3, 4)
    found, wanted = torch.compile(program, backend=backend)(x), program(x)
    assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
    assert torch.equal(found.flatten(), wanted.flatten())
    assert found.data_ptr() != x.data_ptr()
