"""Nearest upsampling and the gradients of nearest, linear and cubic upsampling, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.pure.lowering.harness import check, tensor

aten = torch.ops.aten
SIZES = [
    ((4, 6), (8, 24), (None, None)),  # doubled and quadrupled: every output has one input
    ((4, 6), (8, 18), (2.0, 3.0)),  # thrice: 1/3 is rounded
    ((5, 7), (3, 4), (None, None)),
    ((3, 5), (5, 8), (1.7, 1.7)),  # the factors are not quite the ratios of sizes
    ((1, 4), (3, 1), (None, None)),
]
IDS = [f"{old}->{new}" for old, new, _ in SIZES]
Pair = tuple[int, int]
Factors = tuple[float | None, float | None]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("old", "new", "factors"), SIZES, ids=IDS)
@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest_and_its_gradient(name: str, old: Pair, new: Pair, factors: Factors, dynamic: bool) -> None:
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    check(lambda x: forward(x, new, *factors), tensor(2, 3, *old), dynamic=dynamic)
    for dtype in (torch.float32, torch.bfloat16):
        given = tensor(2, 3, *new, dtype=dtype)
        check(lambda g: backward(g, new, [2, 3, *old], *factors), given, dynamic=dynamic)


@pytest.mark.parametrize(("size", "factors"), [((4, 12), (2.3, 2.0)), ((2, 6), (1.3, 1.1)), ((2, 9), (1.3, 1.5))])
def test_a_size_that_stays_or_doubles_does_so_whatever_the_factor(size: Pair, factors: Factors) -> None:
    x = tensor(2, 3, 2, 6)
    check(lambda x: aten.upsample_nearest2d.default(x, size, *factors), x)
    check(lambda g: aten.upsample_nearest2d_backward.default(g, size, x.shape, *factors), tensor(2, 3, *size))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("aligned", [False, True], ids=["borders", "aligned"])
@pytest.mark.parametrize(
    ("old", "new", "factors"), [*SIZES, ((2, 3), (16, 7), (None, 2.5)), ((9, 8), (2, 1), (0.3, 0.2))]
)
@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d"])
def test_gradients_of_weighted_means(
    name: str, old: Pair, new: Pair, factors: Factors, aligned: bool, dynamic: bool
) -> None:
    backward = getattr(aten, f"{name}_backward").default
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = tensor(2, 3, *new, dtype=dtype)
        check(lambda g: backward(g, new, [2, 3, *old], aligned, *factors), given, dynamic=dynamic)


@pytest.mark.parametrize("aligned", [False, True], ids=["borders", "aligned"])
@pytest.mark.parametrize(("new", "factor"), [(14, 2.0), (10, 1.5), (3, None)])
def test_gradients_of_weighted_means_in_one_and_three_dimensions(new: int, factor: float | None, aligned: bool) -> None:
    given = tensor(2, 3, new)
    check(lambda g: aten.upsample_linear1d_backward.default(g, [new], [2, 3, 7], aligned, factor), given)
    given, sizes = tensor(2, 3, 4, new, 5), ([4, new, 5], [2, 3, 2, 7, 5])
    check(lambda g: aten.upsample_trilinear3d_backward.default(g, *sizes, aligned, 2.0, factor, None), given)
