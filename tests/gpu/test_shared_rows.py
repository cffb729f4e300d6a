"""Few long rows on a GPU: programs share each, wait for each other, and compute what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from gyrator.session import Count
from tests.acceptance import assert_matches
from tests.rows import layer_norm, layer_norm_backward, softmax

BF16, F32 = torch.bfloat16, torch.float32


def random(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.abs().sum(-1, keepdim=True)
    return x / total, total


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], torch.dtype]] = {
    "softmax": (softmax, [(16, 131072)], BF16),
    "softmax of two parts": (softmax, [(64, 65536)], BF16),
    "softmax of ragged rows": (softmax, [(5, 100003)], F32),
    "softmax of one row": (softmax, [(1, 1 << 22)], BF16),
    "softmax of short rows": (softmax, [(16, 8192)], F32),
    "layer norm": (layer_norm, [(8, 65536), (65536,), (65536,)], F32),
    "layer norm backward": (layer_norm_backward, [(8, 65536), (8, 65536), (65536,)], F32),
    "sum, and what follows from it": (normalised, [(4, 500000)], F32),
    "all elements": (lambda x: x - x.mean(), [(1000, 1001)], F32),
    "rows of several dimensions": (
        lambda x: F.batch_norm(x, None, None, training=True), [(64, 64, 28, 28)], F32,
    ),
}  # fmt: skip


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    gyrator.reset()
    return torch.compile(fn, backend="gyrator", dynamic=False)


def shared() -> int:
    """Kernels whose programs share rows, since the last compilation began."""
    return gyrator.counters()[Count.COOPERATIVE_REDUCTIONS]


def assert_right(found: Any, fn: Callable[..., Any], args: list[Tensor]) -> None:
    """Within twice eager's own error."""
    exact, eager = fn(*(a.double() for a in args)), fn(*args)
    for got, right, plain in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, exact, eager)), strict=True):
        assert_matches(got, plain, right, slack=4)


@pytest.mark.parametrize("case", CASES)
def test_programs_that_share_rows_compute_what_eager_computes(case: str) -> None:
    fn, shapes, dtype = CASES[case]
    args = [random(*shape, dtype=dtype) for shape in shapes]
    function = compiled(fn)
    found = function(*args)
    assert shared() == 1
    assert_right(found, fn, args)
    first = found if isinstance(found, tuple) else (found,)
    for _ in range(50):
        again = function(*args)
        assert all(map(torch.equal, again if isinstance(again, tuple) else (again,), first))


def test_of_equal_extremes_the_first_counts_whichever_program_finds_it() -> None:
    x = torch.zeros(3, 131072, device="cuda")
    x[0, [70000, 90000, 131071]] = 5
    x[1, [65535, 65536]] = torch.nan
    found = compiled(lambda x: (x.argmax(-1), x.argmin(-1)))(x)
    assert shared() == 1 and [r.tolist() for r in found] == [[70000, 65535, 0], [0, 65535, 0]]


def test_integers_are_exact() -> None:
    x = torch.randint(-(1 << 40), 1 << 40, (6, 50000), device="cuda")
    function = lambda x: (x.sum(-1), x - x.amax(-1, keepdim=True), (x > 5).sum(-1))  # noqa: E731
    found = compiled(function)(x)
    assert shared() == 1
    assert all(map(torch.equal, found, function(x)))
    found = compiled(lambda x: (x.sum(-1), x.amax(-1), (x > 5).sum(-1)))(x)
    assert all(map(torch.equal, found, (x.sum(-1), x.amax(-1), (x > 5).sum(-1))))


def test_rows_and_their_numbers_are_updated_in_place() -> None:
    def update(x: Tensor, scale: Tensor) -> None:
        scale.mul_(0.5).add_(x.abs().amax(-1))
        x.div_(x.abs().sum(-1, keepdim=True))

    given = [random(8, 65536), random(8)]
    wanted = [x.clone() for x in given]
    function = compiled(update)
    for _ in range(3):
        function(*given)
        update(*wanted)
        assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(given, wanted, strict=True))
    assert shared() >= 1


def test_streams_and_recordings_do_not_disturb_each_other() -> None:
    function = compiled(softmax)
    args = [k * random(16, 131072, dtype=BF16) for k in (1, 2)]
    wanted = [function(x) for x in args]
    streams = [torch.cuda.Stream() for _ in args]
    graphs, recorded = [torch.cuda.CUDAGraph() for _ in args], []
    torch.cuda.synchronize()
    for graph, x in zip(graphs, args, strict=True):
        with torch.cuda.graph(graph):
            recorded.append([function(x) for _ in range(20)])
    for _ in range(5):
        results = []
        for stream, x, graph in zip(streams, args, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                results.append([function(x) for _ in range(20)])
        torch.cuda.synchronize()
        for right, direct, replayed in zip(wanted, results, recorded, strict=True):
            assert all(torch.equal(got, right) for got in (*direct, *replayed))


def test_a_recording_by_reduce_overhead_replays() -> None:
    torch._dynamo.reset()
    function = torch.compile(softmax, backend="gyrator", dynamic=False, mode="reduce-overhead")
    with torch.no_grad():
        for k in range(5):
            x = random(16, 131072, dtype=BF16) * k
            torch.testing.assert_close(function(x), softmax(x))
