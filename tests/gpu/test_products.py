"""Templates of matrix products on a GPU: every candidate is right, sums are the same in every run, streams and
recordings do not disturb each other."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
from gyrator.ir.tree import Config
from gyrator.schedule import choose, stage
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_gemm import gpu_configs
from gyrator.schedule.products import Alternative, Product, Question
from gyrator.session import Count
from tests import experts
from tests.acceptance import assert_matches

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPLIT = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 256, "GROUP_M": 8, "ALLOW_TF32": 0, "SPLIT_K": 16, "SHARE": 1}


def taken(question: Question) -> tuple[Alternative, ...]:
    """An answer to every question: the first template, with what follows it if that is asked."""
    return (next(a for a in question.alternatives if a.backend == "triton"),)


@pytest.fixture
def taking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Callable[..., Any], str, Config], Callable[..., Any]]:
    """Compiles a function with all its products computed by one template. Nothing that was compiled before is taken."""
    folders = count()

    def compiled(fn: Callable[..., Any], template: str, config: Config) -> Callable[..., Any]:
        torch._dynamo.reset()
        monkeypatch.setattr(choose, "gpu_configs", lambda product, gpu: [(template, config)])
        own = choose.choose_products
        monkeypatch.setattr(
            stage, "choose_products", lambda units, program, ask, *rest: own(units, program, taken, *rest)
        )
        options = {"cache_dir": tmp_path / f"cache_{next(folders)}"}
        return torch.compile(fn, backend="gyrator", options=options)  # type: ignore[no-any-return]

    return compiled


def random(*shape: int, dtype: torch.dtype = F16) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


def assert_right(got: Tensor, fn: Callable[..., Tensor], args: list[Tensor]) -> None:
    """Within twice eager's own error."""
    exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    assert_matches(got, fn(*args), exact, slack=4)


def mm(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w))


def batched(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.baddbmm(r, x, w.transpose(1, 2)) * 0.5 + r


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], torch.dtype]] = {
    "square": (mm, [(512, 512), (512, 512)], BF16),
    "large": (mm, [(2048, 1024), (1024, 4096)], BF16),
    "odd": (mm, [(333, 777), (777, 555)], F16),
    "aligned odd": (bias_gelu, [(1001, 520), (520, 1000), (1000,)], F16),
    "skinny": (mm, [(32, 4096), (4096, 32)], F16),
    "long": (mm, [(32, 28672), (28672, 32)], F16),
    "row": (bias_gelu, [(1, 4096), (4096, 1024), (1024,)], BF16),
    "large batch": (batched, [(24, 520, 256), (24, 512, 256), (24, 520, 512)], F16),
    "batched": (batched, [(5, 65, 130), (5, 70, 130), (5, 65, 70)], BF16),
    "float32": (mm, [(200, 300), (300, 100)], F32),
}


def candidates(fn: Callable[..., Tensor], args: list[Tensor], taking: Any) -> Iterator[tuple[str, Config]]:
    """What the schedule would offer for the product of a function."""
    seen: list[tuple[str, Config]] = []

    def noted(product: Product, gpu: Gpu) -> list[tuple[str, Config]]:
        seen.extend(gpu_configs(product, gpu))
        return seen[-1:]

    function = taking(fn, "", Config((), 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "gpu_configs", noted)
        function(*args)
    return iter(seen)


@pytest.mark.parametrize("case", CASES)
def test_every_candidate_computes_what_eager_computes(case: str, taking: Any) -> None:
    fn, shapes, dtype = CASES[case]
    args = [random(*shape, dtype=dtype) for shape in shapes]
    found = list(candidates(fn, args, taking))
    assert len(found) >= 4
    for template, config in found:
        assert_right(taking(fn, template, config)(*args), fn, args)


def test_operands_that_are_not_aligned_need_no_descriptors(taking: Any) -> None:
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "ALLOW_TF32": 0, "PROGRAMS": 132}
    function = taking(mm, "described", Config(tuple(blocks.items()), 8, 3))
    x, w = random(256, 512), random(512, 384)
    assert_right(function(x, w), mm, [x, w])
    shifted = torch.empty(256 * 512 + 1, device="cuda", dtype=F16)[1:].view(256, 512).copy_(x)
    assert torch.equal(function(shifted, w), function(x, w))


def test_partial_sums_are_added_in_the_same_order_in_every_run(taking: Any) -> None:
    function = taking(mm, "tiled", Config(tuple(SPLIT.items()), 4, 2))
    x, w = random(32, 8192), random(8192, 32)
    first = function(x, w)
    assert all(torch.equal(function(x, w), first) for _ in range(50))


def test_recordings_outlive_compiled_functions(taking: Any) -> None:
    function = taking(mm, "tiled", Config(tuple(SPLIT.items()), 4, 2))
    args = random(32, 4096), random(4096, 32)
    wanted, graph = function(*args), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = [function(*args) for _ in range(3)]
    del function
    torch._dynamo.reset()
    gc.collect()
    others = [torch.randint(256, (1 << 14,), dtype=torch.uint8, device="cuda") for _ in range(64)]
    graph.replay()
    torch.cuda.synchronize()
    assert len(others) == 64 and all(torch.equal(result, wanted) for result in recorded)


def test_streams_and_recordings_do_not_share_counters(taking: Any) -> None:
    function = taking(mm, "tiled", Config(tuple(SPLIT.items()), 4, 2))
    args = [(k * random(32, 4096), random(4096, 32)) for k in (1, 2)]
    wanted = [function(*given) for given in args]
    streams = [torch.cuda.Stream() for _ in args]
    graphs, recorded = [torch.cuda.CUDAGraph() for _ in args], []
    torch.cuda.synchronize()
    for graph, given in zip(graphs, args, strict=True):
        with torch.cuda.graph(graph):
            recorded.append([function(*given) for _ in range(20)])
    for _ in range(5):
        results = []
        for stream, given, graph in zip(streams, args, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                results.append([function(*given) for _ in range(20)])
        torch.cuda.synchronize()
        for right, direct, replayed in zip(wanted, results, recorded, strict=True):
            assert all(torch.equal(got, right) for got in (*direct, *replayed))


def test_the_library_applies_a_relu_that_alone_reads_a_product() -> None:
    """In training too, since gradients need the result alone."""
    x, w, b, v = random(64, 90, 512), random(1024, 512) / 32, random(1024), random(32, 1024) / 32

    def hidden(x: Tensor, v: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, w, b)), v)

    function = torch.compile(hidden, backend="gyrator", dynamic=False)
    for training in (False, True):
        gyrator.reset()
        given = [t.detach().requires_grad_(training) for t in (x, v)]
        found, expected = function(*given), hidden(*given)
        assert "aten._addmm_activation.default" in gyrator.counters().externs()
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=0.2)
    both = zip(torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given), strict=True)
    for got, wanted in both:
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=0.2)


THIN: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "a row": (lambda x, w, b: F.relu(F.linear(x, w, b)), [(1, 768), (1000, 768), (1000,)]),
    "a column": (lambda x, w, b: F.linear(x, w, b) * 2, [(3, 100, 768), (1, 768), (1,)]),
    "scaled": (lambda b, x, w: torch.addmm(b, x, w.t(), beta=0.5, alpha=2), [(300,), (1, 100), (300, 100)]),
    "outer": (mm, [(300, 1), (1, 200)]),
    "rows of many": (lambda q, k: torch.bmm(q, k.mT), [(6, 1, 64), (6, 333, 64)]),
}


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("case", THIN)
def test_products_with_a_side_of_one_are_kernels_of_their_own(case: str, dtype: torch.dtype) -> None:
    """So are those of their gradients where what is summed lies together."""
    fn, shapes = THIN[case]
    gyrator.reset()
    args = [random(*shape, dtype=dtype) for shape in shapes]
    assert_right(torch.compile(fn, backend="gyrator", dynamic=False)(*args), fn, args)
    assert not gyrator.counters().externs()

    def gradients(run: Callable[..., Tensor], given: list[Tensor]) -> Tensor:
        found = [x.detach().requires_grad_() for x in given]
        return torch.cat([g.flatten() for g in torch.autograd.grad(run(*found).square().mean(), found)])

    got = gradients(torch.compile(fn, backend="gyrator", dynamic=False), args)
    assert_matches(got, gradients(fn, args), gradients(fn, [x.double() for x in args]), slack=4)


@pytest.mark.parametrize("shape", [(32, 768, 768), (5, 300, 200), (77, 384, 96), (128, 768, 3072)])
def test_small_products_of_16_bits_are_kernels_with_what_follows(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    gyrator.reset()
    args = [random(m, k, dtype=BF16), random(n, k, dtype=BF16), random(n, dtype=BF16)]

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b))

    assert_right(torch.compile(layer, backend="gyrator", dynamic=False)(*args), layer, args)
    counters = gyrator.counters()
    assert not counters.externs() and counters[Count.LAUNCHES] == 1


CONVOLUTIONS = {
    "3x3": ((4, 64, 28, 28), (128, 64, 3, 3), 1, BF16),
    "in steps": ((2, 32, 33, 31), (48, 32, 3, 3), 2, F16),
    "pixels": ((8, 128, 17, 16), (256, 128, 1, 1), 1, BF16),
    "three channels": ((2, 3, 64, 64), (64, 3, 7, 7), 2, BF16),
    "few": ((1, 256, 14, 14), (256, 256, 3, 3), 1, BF16),
}


def block(stride: int, x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, b, stride=stride, padding=w.shape[-1] // 2) + r)


def in_block(case: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Images, filters, bias and residual with channels last."""
    given, filters, stride, dtype = CONVOLUTIONS[case]
    out = (given[0], filters[0], *(-(-side // stride) for side in given[2:]))
    x, w, r = (random(*s, dtype=dtype).to(memory_format=torch.channels_last) for s in (given, filters, out))
    return partial(block, stride), [x, w, random(filters[0], dtype=dtype), r]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_every_candidate_of_a_convolution_computes_what_eager_computes(case: str, taking: Any) -> None:
    fn, args = in_block(case)
    found = list(candidates(fn, args, taking))
    assert len(found) >= 3
    for template, config in found:
        assert_right(taking(fn, template, config)(*args), fn, args)


@pytest.mark.parametrize("case", experts.ENDS)
def test_every_candidate_of_a_product_of_groups_computes_what_eager_computes(case: str, taking: Any) -> None:
    ends = [20 * end for end in experts.ENDS[case]]
    x, w, at = (t.cuda() for t in experts.operands(ends, 192, 384))
    y, share = random(len(x), 384, dtype=BF16), random(len(x), dtype=BF16)
    for fn, args in (
        (experts.up, [x, w, at]),
        (experts.down, [*experts.transposed(x, w, at), share]),
        (experts.of_rows, [y, w, at]),
        (experts.of_matrices, [x, y, at]),
    ):
        found = list(candidates(fn, args, taking))
        assert len(found) >= 3
        for template, config in found:
            assert_right(taking(fn, template, config)(*args), fn, args)


def test_no_candidate_waits_for_counters_that_others_wrote_over(tmp_path: Path) -> None:
    """Recordings of candidates are timed in turns: each needs the memory of its counters until the last one."""
    fn, args = in_block("few")
    log = tmp_path / "log"
    options = {"max_autotune": True, "autotune_log": str(log)}
    assert_right(torch.compile(fn, backend="gyrator", options=options)(*args), fn, args)
    trials = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(trials) > 12 and not [trial for trial in trials if "no answer" in json.dumps(trial)]
