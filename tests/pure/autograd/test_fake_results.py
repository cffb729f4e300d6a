"""Fake tensors made from remembered metadata are what torch's fake mode makes."""

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from gyrator.autograd.fake_results import FakeResults, metadata_key
from tests.pure.autograd.harness import compiled

aten = torch.ops.aten

CALLS = [
    (aten.view.default, ([6, 4],)),
    (aten.slice.Tensor, (1, 1, 3)),
    (aten.select.int, (0, 1)),
    (aten.as_strided.default, ([2, 3], [1, 4], 5)),
    (aten.view.dtype, (torch.int16,)),
    (aten.split.Tensor, (1,)),
    (aten._conj.default, ()),
    (aten.mul.Tensor, (2,)),
    (aten.var_mean.correction, ([0],)),
    (aten.native_layer_norm.default, ([4], None, None, 1e-5)),
]


def described(value: Tensor | tuple[Tensor, ...] | list[Tensor]) -> list[object]:
    parts = [value] if isinstance(value, Tensor) else value
    return [metadata_key(part) for part in parts]


@pytest.mark.parametrize(("op", "args"), CALLS, ids=lambda value: str(value))
def test_the_second_call_has_results_like_the_first(op: OpOverload, args: tuple[object, ...]) -> None:
    mode = FakeTensorMode()
    results = FakeResults(mode)
    with mode, torch.no_grad():
        x = torch.empty(2, 3, 4, dtype=torch.complex64 if op is aten._conj.default else torch.float32)
        y = torch.empty_like(x)
        first, second = results.call(op, (x, *args), {}), results.call(op, (y, *args), {})
        assert type(first) is type(second)
        assert described(second) == described(first) == described(op(y, *args))


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.lcm.default, aten.tanh_backward.default, aten.logaddexp.default])
def test_results_of_two_operands_lie_as_those_of_kernels(op: OpOverload) -> None:
    x = torch.ones(4, 4, dtype=torch.int64 if op is aten.lcm.default else torch.float32)
    operands = x.t()[1:, :2], x.t()[1:, None, :2]
    factor = {"alpha": 2} if op is aten.add.Tensor else {}
    mode = FakeTensorMode()
    given = tuple(mode.from_tensor(operand) for operand in operands)
    assert FakeResults(mode).call(op, given, factor).stride() == op(*operands, **factor).stride()


@pytest.mark.parametrize("op", [aten.t.default, aten.detach.default])
def test_a_view_lies_in_the_memory_of_its_own_operand(op: OpOverload) -> None:
    mode = FakeTensorMode()
    results = FakeResults(mode)
    with mode, torch.no_grad():
        operands = [torch.empty(3, 4) for _ in range(2)]
        views = [results.call(op, (x,), {}) for x in operands]
    storages = [value.untyped_storage()._cdata for value in (*operands, *views)]
    assert storages[:2] == storages[2:]
    assert storages[0] != storages[1]


@pytest.mark.parametrize(
    ("op", "args", "value"),
    [
        (aten.floor_divide.default, (17, 8), 2),
        (aten.logical_and.default, ([3], [0]), 0),
        (aten.index_fill.int_Scalar, ([3], 0, [0], 5), 5),
        (aten.add.Tensor, ([3], [[4]]), 7),
    ],
    ids=lambda value: str(value),
)
def test_results_of_known_values_are_known(op: OpOverload, args: tuple[object, ...], value: int) -> None:
    mode = FakeTensorMode()
    with mode, torch.no_grad():
        given = [torch.tensor(arg) if isinstance(arg, list) else arg for arg in args]
        assert FakeResults(mode).call(op, given, {}).item() == value


ONES = torch.ones(8)
AMBIGUOUS = [
    (aten.add.Tensor, (1,)),
    (aten.relu.default, ()),
    (aten.clone.default, ()),
    (aten.native_batch_norm.default, (ONES, ONES, ONES, ONES, False, 0.1, 1e-5)),
    (aten.upsample_bilinear2d.default, ([8, 8], False)),
    (aten.upsample_bicubic2d.default, ([8, 8], False)),
    (aten.upsample_nearest2d.default, ([8, 8],)),
    (aten.channel_shuffle.default, (1,)),
]


@pytest.mark.parametrize(
    ("op", "args"), AMBIGUOUS, ids=lambda value: str(value) if isinstance(value, OpOverload) else ""
)
@pytest.mark.parametrize("shape", [(2, 8, 1, 1), (2, 1, 4, 4)])
def test_where_channels_may_be_said_to_lie_last_results_lie_as_real_ones(
    op: OpOverload, args: tuple[object, ...], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    args = tuple(arg[: shape[1]] if isinstance(arg, Tensor) else arg for arg in args)
    mode = FakeTensorMode()
    fake = FakeResults(mode)
    with mode:
        given = [mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in (x, *args)]
        found = fake.call(op, given, {})
    real = op(x, *args)
    assert [y.stride() for y in tree_leaves(found)] == [y.stride() for y in tree_leaves(real)]


@pytest.mark.parametrize(
    ("strides", "size"), [((24, 1, 2), (1, 2, 3, 4)), ((1, 12, 1), (1, 24)), ((12, 12, 1), (1, 2, 12, 1))]
)
def test_dimensions_of_one_element_have_the_strides_of_a_real_view(
    strides: tuple[int, ...], size: tuple[int, ...]
) -> None:
    x = torch.empty(24).as_strided((1, 2, 12), strides)
    mode = FakeTensorMode()
    with mode:
        found = FakeResults(mode).call(aten.view.default, (mode.from_tensor(x), list(size)), {})
    assert found.stride() == x.view(size).stride()


@pytest.mark.parametrize("op", [aten.div.Tensor, aten.mul.Scalar, aten.gt.Scalar], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 8, 128])
def test_dimensions_of_one_element_have_the_strides_of_a_real_result_with_a_number(op: OpOverload, batch: int) -> None:
    x = torch.randn(1, 4, 4, 8).permute(0, 3, 1, 2).as_strided((1, 8, 4, 4), (batch, 1, 32, 8))
    mode = FakeTensorMode()
    with mode:
        found = FakeResults(mode).call(op, (mode.from_tensor(x), 2.0), {})
    assert found.stride() == op(x, 2.0).stride()


def test_what_stands_for_all_of_one_shape_has_no_value_of_its_own() -> None:
    mode = FakeTensorMode()
    with mode, torch.no_grad():
        results = FakeResults(mode)
        first, second = torch.tensor([-3]), torch.tensor([0])
        assert results.shared(first) is results.shared(second)
    assert isinstance(first, FakeTensor) and first.constant is not None
    assert results.shared(first).constant is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fn",
    [lambda x: F.pad(x, (1, 1)), lambda x: x.as_strided((x.shape[0],), (1,), 0) + 1],
    ids=["padded", "a window on memory"],
)
def test_a_size_that_data_tell_is_asked_for_no_number(fn: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor, rows: Tensor) -> Tensor:
        count = rows.item()
        torch._check(count >= 0)
        torch._check(count <= 8)
        return fn(x[:count])

    x = torch.randn(8, 4)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run, _ = compiled(program)
        for rows in (torch.tensor(5), torch.tensor(0)):
            torch.testing.assert_close(run(x, rows), program(x, rows))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_batch_of_no_images_is_resized_to_none(rank: int, mode: str) -> None:
    images = torch.zeros(0, 3, *[4] * rank, requires_grad=True)
    run, _ = compiled(lambda x: F.interpolate(x * 2, scale_factor=2, mode=mode))
    resized = run(images)
    resized.sum().backward()
    assert resized.shape == (0, 3, *[8] * rank)
    assert images.grad is not None and images.grad.shape == images.shape
