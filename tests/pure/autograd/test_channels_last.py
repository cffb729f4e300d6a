"""Which convolutions on a GPU get channels-last operands; values and strides are tested where they run (cpu)."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gyrator.autograd.builder import GraphBuilder
from gyrator.autograd.channels_last import prefer_layouts
from gyrator.autograd.fake_results import FakeResults

aten = torch.ops.aten
FLOAT, HALF = torch.float32, torch.bfloat16


def is_moved(
    dtype: torch.dtype,
    image: tuple[int, ...],
    filters: tuple[int, ...],
    *,
    transposed: bool = False,
    device: str = "cuda",
) -> bool:
    build = GraphBuilder(FakeResults(FakeTensorMode()))
    with build.fake_mode:
        nodes = [build.placeholder("x", torch.empty(shape, dtype=dtype, device=device)) for shape in (image, filters)]
    channels = filters[0] if transposed else filters[1]
    how = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], image[1] // channels)
    build.graph.output((build.call(aten.convolution.default, (*nodes, None, *how), {}),))
    prefer_layouts(build, always=True)
    return bool(build.graph.find_nodes(op="call_function", target=aten.clone.default))


@pytest.mark.parametrize(
    ("dtype", "image", "filters", "moved"),
    [
        (HALF, (2, 3, 8, 8), (16, 3, 3, 3), True),
        (FLOAT, (2, 32, 56, 56), (64, 32, 3, 3), True),
        (FLOAT, (2, 3, 224, 224), (64, 3, 7, 7), False),  # few channels
        (FLOAT, (2, 32, 24, 24), (64, 32, 3, 3), False),  # little work, for which eager may not use tensor cores
        (FLOAT, (2, 36, 56, 56), (64, 36, 3, 3), False),  # likewise
        (FLOAT, (2, 32, 56, 56), (32, 1, 3, 3), False),  # depthwise: loops, which any layout suits
        (HALF, (2, 32, 56, 56), (32, 1, 11, 11), True),
        (HALF, (2, 32, 56, 56), (32, 1, 13, 13), False),  # the library's, slow in that layout
        (torch.float64, (2, 32, 56, 56), (64, 32, 3, 3), False),
    ],
)
def test_images_of_16_bits_and_those_for_which_float32_gains(
    dtype: torch.dtype, image: tuple[int, ...], filters: tuple[int, ...], moved: bool
) -> None:
    assert is_moved(dtype, image, filters) is moved


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_transposed_convolutions(dtype: torch.dtype) -> None:
    assert is_moved(dtype, (2, 32, 56, 56), (32, 64, 3, 3), transposed=True)


def test_float32_without_tensor_cores_stays() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not is_moved(FLOAT, (2, 32, 56, 56), (64, 32, 3, 3))


@pytest.mark.parametrize(
    ("image", "filters", "moved"),
    [
        ((2, 960, 4, 4), (256, 960, 3, 3), False),  # which would be laid anew for a few pixels
        ((2, 960, 4, 4), (256, 960, 1, 1), True),  # the same in both layouts
        ((2, 960, 32, 32), (256, 960, 3, 3), True),
        ((2, 960, 7, 7), (960, 1, 5, 5), True),
    ],
)
def test_large_filters_of_small_images_stay_on_a_processor(
    image: tuple[int, ...], filters: tuple[int, ...], moved: bool
) -> None:
    assert is_moved(FLOAT, image, filters, device="cpu") is moved
    assert is_moved(HALF, image, filters)  # on a GPU


def test_images_come_back_to_their_layout_for_filters_that_outweigh_them() -> None:
    build = GraphBuilder(FakeResults(FakeTensorMode()))
    with build.fake_mode:
        shapes = ((2, 960, 8, 8), (960, 1, 3, 3), (256, 960, 3, 3))
        x, own, all_channels = (build.placeholder(f"x{k}", torch.empty(shape)) for k, shape in enumerate(shapes))
    y = build.call(aten.convolution.default, (x, own, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 960), {})
    z = build.call(aten.convolution.default, (y, all_channels, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {})
    build.graph.output((z,))
    prefer_layouts(build, always=True)
    first, second = build.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert first.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last)
    assert second.args[0].meta["val"].is_contiguous() and second.meta["val"].is_contiguous()


@pytest.mark.parametrize(("dtype", "moved"), [(HALF, True), (FLOAT, False)])
def test_gradients_of_depthwise_filters_in_float32_take_the_layout_that_comes(dtype: torch.dtype, moved: bool) -> None:
    build = GraphBuilder(FakeResults(FakeTensorMode()))
    with build.fake_mode:
        shapes = ((2, 32, 56, 56), (2, 32, 56, 56), (32, 1, 3, 3))
        nodes = [build.placeholder("x", torch.empty(shape, dtype=dtype, device="cuda")) for shape in shapes]
    how = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 32, [False, True, False])
    build.graph.output((build.call(aten.convolution_backward.default, (*nodes, *how), {}),))
    prefer_layouts(build, always=True)
    assert bool(build.graph.find_nodes(op="call_function", target=aten.clone.default)) is moved
