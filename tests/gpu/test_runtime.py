"""The runtime on a GPU: streams, devices, alignment, choices, the cache, errors."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import gyrator
from gyrator import benchmark_fusion
from gyrator.report.data import roofline
from gyrator.runtime.cuda_driver import cuda_driver
from gyrator.runtime.load import Runtime
from gyrator.runtime.profile import step_times
from gyrator.runtime.triton_tune import times
from tests.acceptance import check

MIB = 1 << 20


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


def test_coordinate_descent_ends_at_a_config_that_is_found_again() -> None:
    x = random(1000, 3001)
    wanted = torch.softmax(x * 2, -1) + 1
    told = []
    for _ in range(2):
        torch._dynamo.reset()
        options = {"coordinate_descent": True}
        function = torch.compile(lambda x: softmax(x) + 1, backend="gyrator", dynamic=False, options=options)
        start = time.perf_counter()
        torch.testing.assert_close(function(x), wanted)
        told.append(time.perf_counter() - start)
    assert told[1] < told[0]


def bert_layer(dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        256, 4, 1024, dropout=dropout, batch_first=True, activation="gelu", device="cuda"
    )
    return layer.bfloat16()


def test_a_bert_layer_forward_and_backward() -> None:
    x = random(4, 128, 256, dtype=torch.bfloat16).requires_grad_()
    check(bert_layer(), [x], backend="gyrator", backward=True)


def test_sizes_that_change() -> None:
    compiled = torch.compile(softmax, backend="gyrator", dynamic=True)
    for shape in ((16, 1024), (5, 33), (1, 16), (64, 4000)):
        x = random(*shape)
        torch.testing.assert_close(compiled(x), softmax(x))


def test_sizes_that_grow_beyond_32_bits() -> None:
    """Places have 32 bits until a launch finds that they need more."""

    def shifted(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (1, 0)) + 1

    compiled = torch.compile(shifted, backend="gyrator", dynamic=True)
    for rows, columns in ((16, 1000), (3, 1 << 30), (5, 33)):
        x = torch.randint(-100, 100, (rows, columns), dtype=torch.int8, device="cuda")
        assert torch.equal(compiled(x), shifted(x))


def test_launches_go_to_the_current_stream() -> None:
    compiled = torch.compile(softmax, backend="gyrator")
    x = random(4096, 4096)
    compiled(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = random(4096, 4096)
        result = compiled(late)
        assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(result, softmax(late))


def test_threads_launch_at_the_same_time() -> None:
    compiled = torch.compile(softmax, backend="gyrator")
    inputs = [random(256, 512) for _ in range(4)]
    compiled(inputs[0])
    results: dict[int, Tensor] = {}

    def run(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                results[k] = compiled(inputs[k])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, x in enumerate(inputs):
        torch.testing.assert_close(results[k], softmax(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device_than_the_current_one() -> None:
    x = torch.randn(64, 512, device="cuda:1")
    torch.testing.assert_close(torch.compile(softmax, backend="gyrator")(x), softmax(x))
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("assume", [False, True])
def test_inputs_that_are_not_aligned(assume: bool) -> None:
    compiled = torch.compile(softmax, backend="gyrator", options={"assume_aligned_inputs": assume})
    memory = random(64 * 512 + 1)
    for start in (0, 1, 0):
        x = memory[start : start + 64 * 512].view(64, 512)
        torch.testing.assert_close(compiled(x), softmax(x))


def test_updates_of_inputs_survive_the_choice_of_a_config() -> None:
    def update(x: Tensor, y: Tensor) -> None:
        x.mul_(0.5).add_(y)

    x, y = random(1 << 23), random(1 << 23)
    wanted = x * 0.5 + y
    torch.compile(update, backend="gyrator")(x, y)
    torch.testing.assert_close(x, wanted)


def test_numbers_on_the_cpu() -> None:
    x, k = random(1000), torch.tensor(2.5)
    torch.testing.assert_close(torch.compile(lambda x, k: x * k + 1, backend="gyrator")(x, k), x * k + 1)


def test_two_devices_in_one_operator_are_eagers_error() -> None:
    with pytest.raises(Exception, match="device"):
        torch.compile(lambda x, y: x + y, backend="gyrator")(random(8), torch.randn(8))


def test_dropout_draws_anew_and_repeats_under_a_seed() -> None:
    drop = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend="gyrator")
    x = torch.ones(1 << 16, device="cuda")
    torch.manual_seed(1)
    first, second = drop(x), drop(x)
    torch.manual_seed(1)
    assert torch.equal(drop(x), first) and not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.5) < 0.02


def test_profilers_show_kernels_by_name() -> None:
    compiled, x = torch.compile(softmax, backend="gyrator"), random(64, 512)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        compiled(x)
        torch.cuda.synchronize()
    assert any("amax_default" in event.key for event in recorded.key_averages())


def test_peak_memory_is_not_above_eagers() -> None:
    layer, x = bert_layer(), random(8, 512, 256, dtype=torch.bfloat16).requires_grad_()

    def peak(call: nn.Module) -> int:
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            call(x).sum().backward()
        return torch.cuda.max_memory_allocated()

    eager = peak(layer)
    compiled = torch.compile(layer, backend="gyrator")
    assert peak(compiled) <= eager + MIB


def test_a_second_process_builds_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\n"
        "from gyrator.runtime import workers\n"
        "if 'again' in sys.argv:\n"
        "    workers.Worker.start = None  # no worker can start\n"
        "f = torch.compile(lambda x: torch.softmax(x * 2, -1), backend='gyrator')\n"
        "x = torch.randn(64, 512, device='cuda')\n"
        "torch.testing.assert_close(f(x), torch.softmax(x * 2, -1))\n"
    )
    for more in ([], ["again"]):
        subprocess.run([sys.executable, str(program), *more], check=True)


def test_an_index_out_of_range_names_the_line(tmp_path: Path) -> None:
    """In a process of its own: after a failed check a GPU's context is lost."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "def pick(x, i):\n"
        "    return x[i] * 2  # this line\n"
        "f = torch.compile(pick, backend='gyrator')\n"
        "x, i = torch.randn(10, device='cuda'), torch.tensor([3, 77], device='cuda')\n"
        "f(x, i)\n"
        "torch.cuda.synchronize()\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "program.py:3" in done.stderr


def test_a_kernel_that_is_too_large_is_passed_over() -> None:
    """Of two launches the one that the GPU refuses has no time."""
    driver = cuda_driver()
    launches: list[int] = []

    def refused(stream: int, *args: int) -> None:
        driver.check(701, "k")

    def good(stream: int, *args: int) -> None:
        launches.append(stream)

    found = times([refused, good], torch.cuda.current_stream().cuda_stream, [], [], driver)
    assert found is not None and found[0] is None and found[1] is not None
    assert launches


def rows_of(table: str) -> list[dict[str, str]]:
    with Path(f"metric_table_{table}.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_configs_that_are_timed_are_rows_and_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, options = random(4096, 4096), {"metrics": "kernel_autotune", "model_name": "softmax"}
    torch.compile(softmax, backend="gyrator", options=options)(x)
    rows = rows_of("kernel_autotune")
    assert len(rows) >= 2 and {row["model_name"] for row in rows} == {"softmax"}
    assert all(float(row["latency_ms"]) > 0 and Path(row["kernel_path"]).exists() for row in rows)
    assert all("num_warps" in row["triton_config"] for row in rows)
    report = gyrator.explain(softmax, x)  # from the cache: nothing is timed again, and all is told
    ((name, candidates),) = next(iter(report.data.graphs())).candidates.items()
    assert {name} == {row["kernel_name"] for row in rows}
    assert [c.config for c in candidates] == [row["triton_config"] for row in rows]
    best = min(candidates, key=lambda c: c.milliseconds or 1e9)
    assert [c for c in candidates if c.chosen] == [best] and best.config in str(report)


def test_a_large_copy_is_explained_as_near_the_machines_reach() -> None:
    report = gyrator.explain(lambda x: x + 1, random(8192, 8192))
    (graph,) = report.data.graphs()
    (kernel,) = graph.record.kernels
    assert report.data.peaks is not None
    assert 0.7 < roofline(kernel, graph.kernel_seconds()[kernel.name], report.data.peaks) < 1.2


def test_fusions_are_timed_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given: list[float] = []

    def noted(runtime: Runtime, seconds: float) -> tuple[float, ...]:
        given.append(sum(step_times(runtime, seconds)))
        return (given[-1] * (100 if len(given) == 3 else 1),)  # the third is the whole of the first two

    monkeypatch.setattr(benchmark_fusion, "step_times", noted)
    x, options = random(4096, 512), {"benchmark_fusion": True, "metrics": "slow_fusion"}
    compiled = torch.compile(lambda x: x.sum(1) * 2, backend="gyrator", options=options)
    torch.testing.assert_close(compiled(x), x.sum(1) * 2, rtol=1e-4, atol=1e-4)
    assert len(given) == 3 and all(0 < seconds < 0.1 for seconds in given)
    (row,) = rows_of("slow_fusion")
    assert float(row["slow_down_ratio"]) > 1.05 and Path(row["fused_kernel_path"]).exists()


def test_each_kernel_has_a_program_that_times_it(tmp_path: Path) -> None:
    x, options = random(512, 4096), {"benchmark_kernel": True}
    torch.compile(softmax, backend="gyrator", options=options)(x)
    (script,) = (tmp_path / "cache").rglob("kernel_*.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert re.search(r"\d+\.\d+ ms +0\.016777 GB +\d+\.\d+ GB/s", done.stdout)


@pytest.mark.parametrize("columns", [4096, 16384])
def test_of_two_forms_of_a_reduction_the_faster_is_kept(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, options = random(4096, columns), {"metrics": "persistent_red_perf", "multi_kernel": True}
    compiled = torch.compile(softmax, backend="gyrator", options=options)
    torch.testing.assert_close(compiled(x), softmax(x))
    (row,) = rows_of("persistent_red_perf")
    paths = [row[f"kernel{k}_path"] for k in range(4)]
    times = [row[f"kernel{k}_latency"] for k in range(4)]
    assert all(Path(path).exists() for path in paths[:2]) and paths[0] != paths[1]
    assert all(float(took) > 0 for took in times[:2]) and paths[2:] == times[2:] == ["", ""]
    assert row["size_hints"] == f"[{columns}, 4096, {columns}]" and row["reduction_hint"] == "PERSISTENT"


def test_a_call_is_captured_into_a_graph() -> None:
    compiled, x = torch.compile(softmax, backend="gyrator"), random(64, 512)
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    x.copy_(random(64, 512))
    graph.replay()
    torch.testing.assert_close(result, softmax(x))


def test_launches_are_cheap() -> None:
    """A chain of small kernels takes less than 20 us for each, allocation and the GPU's own part included."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(50):
            x = torch.softmax(x, -1).cumsum(0)
        return x

    compiled, x = torch.compile(chain, backend="gyrator"), random(32, 32)
    compiled(x)
    torch.cuda.synchronize()
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        compiled(x)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    assert min(times) / 100 < 0.02


def test_reduce_overhead_replays_a_recording_and_keeps_earlier_results() -> None:
    layer = bert_layer().eval()
    compiled = torch.compile(layer, backend="gyrator", mode="reduce-overhead")
    with torch.no_grad():
        inputs = [random(2, 64, 256, dtype=torch.bfloat16) for _ in range(5)]
        results = [compiled(x) for x in inputs]
        for x, got in zip(inputs, results, strict=True):
            torch.testing.assert_close(got, layer(x), rtol=2e-2, atol=2e-2)


def test_training_is_replayed_too() -> None:
    layer = bert_layer().train()
    compiled = torch.compile(layer, backend="gyrator", mode="reduce-overhead")
    target = random(2, 64, 256)
    for _ in range(6):
        x = random(2, 64, 256, dtype=torch.bfloat16).requires_grad_()
        grads = []
        for function in (compiled, layer):
            layer.zero_grad(set_to_none=True)
            (function(x).float() * target).sum().backward()
            grads.append([x.grad, *(p.grad for p in layer.parameters())])
            x.grad = None
        for got, want in zip(*grads, strict=True):
            difference = (got.float() - want.float()).square().mean().sqrt()
            assert difference <= 0.05 * want.float().square().mean().sqrt()


def test_replays_draw_new_random_numbers_and_backward_the_same_ones() -> None:
    def dropped(x: Tensor) -> Tensor:
        return nn.functional.dropout(x.sin(), 0.5) * 2

    compiled = torch.compile(dropped, backend="gyrator", mode="reduce-overhead")
    masks = []
    for _ in range(6):
        x = torch.ones(4096, device="cuda", requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad != 0, y != 0)
        masks.append(y != 0)
    assert all(not torch.equal(a, b) for a, b in pairwise(masks))
    torch.manual_seed(7)
    first = compiled(torch.ones(4096, device="cuda"))
    torch.manual_seed(7)
    assert torch.equal(first, compiled(torch.ones(4096, device="cuda")))


def test_logits_of_an_odd_vocabulary() -> None:
    """Their rows are padded; what the caller sees is not."""
    head = nn.Linear(256, 30522, device="cuda", dtype=torch.bfloat16)
    x = random(512, 256, dtype=torch.bfloat16).requires_grad_()
    words = torch.randint(0, 30522, (512,), device="cuda")

    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(x)
        return nn.functional.cross_entropy(logits.float(), words), logits

    check(loss, [x], backend="gyrator", backward=True)


def test_a_product_is_rounded_wherever_it_is_used() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = x * y
        return product - product, x * y - product, torch.nn.functional.silu(x).var(-1, correction=0)

    found = torch.compile(program, backend="gyrator")(random(4099, 1), random(4099, 1))
    assert not any(result.any() for result in found)


def test_kernels_that_are_launched_early_read_what_earlier_ones_wrote() -> None:
    """Large kernels before small ones, one for each operator, in a stream and in a recording."""

    def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(4):
            x, y = x * 1.01 + y[:1], y * 0.5 + x.mean(0)
        return x, y

    torch._dynamo.reset()
    function = torch.compile(chain, backend="gyrator", dynamic=False, options={"fusion": False})
    args = [random(16384, 1024), random(8, 1024)]
    wanted = chain(*args)
    for _ in range(20):
        torch.testing.assert_close(function(*args), wanted, rtol=1e-4, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = function(*args)
    for _ in range(20):
        graph.replay()
        torch.testing.assert_close(recorded, wanted, rtol=1e-4, atol=1e-4)
