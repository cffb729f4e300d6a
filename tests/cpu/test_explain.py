"""explain(): what it tells of a program, from the compiler and from the cache, as text, JSON and a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrator
import gyrator.insight
from gyrator.report.data import GraphReport
from gyrator.runtime.load import Runtime
from gyrator.runtime.triton_tune import Variant
from gyrator.torch_compat import ISOLATED

HERE = Path(__file__).name


def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.softmax(x @ w, -1)
    return F.layer_norm(y, (48,)).sum(0), torch.sort(y)[0]


def arguments() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(40, 32, requires_grad=True), torch.randn(32, 48, requires_grad=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return {"cache_dir": tmp_path_factory.mktemp("cache"), "gemm_backends": ("aten",)}  # products are calls everywhere


@pytest.fixture(scope="module")
def new(cache: dict[str, object]) -> Iterator[gyrator.insight.Report]:
    yield gyrator.explain(program, *arguments(), options=cache)


def forward(report: gyrator.insight.Report) -> GraphReport:
    return report.data.programs[0].graphs[0]


def test_every_pair_that_is_not_fused_has_a_reason_and_the_users_lines(new: gyrator.insight.Report) -> None:
    pairs = [pair for graph in new.data.graphs() for pair in graph.record.unfused]
    assert pairs and all(pair.reason and "unknown" not in pair.reason for pair in pairs)
    assert all(HERE in pair.reader_place for pair in forward(new).record.unfused)


def test_kernels_have_bytes_operations_places_and_times(new: gyrator.insight.Report) -> None:
    graph = forward(new)
    times = graph.kernel_seconds()
    assert len(graph.record.kernels) == len(times) > 0
    assert all(k.facts.bytes > 0 and k.facts.operations > 0 and times[k.name] > 0 for k in graph.record.kernels)
    assert all(HERE in place for k in graph.record.kernels for place in k.places)


def test_calls_of_operators_say_why_they_are_no_kernels(new: gyrator.insight.Report) -> None:
    calls = {step.name: step.why for step in forward(new).record.steps if step.kind == "extern"}
    assert calls["aten.mm.default"] == "matrix products are left to the library, which is fast at them"
    assert any("sort" in op and "no lowering" in why for op, why in calls.items())


def test_a_products_operations_and_bytes_are_exact(new: gyrator.insight.Report) -> None:
    product = next(step for step in forward(new).record.steps if step.name == "aten.mm.default")
    assert product.operations == 2 * 40 * 32 * 48
    assert product.bytes == 4 * (40 * 32 + 32 * 48 + 40 * 48)


def test_backward_says_what_is_saved_and_why(new: gyrator.insight.Report) -> None:
    kept = new.data.programs[0].record.kept
    assert any(value.saved and HERE in value.place for value in kept)
    assert all(HERE in value.place or value.place == "an input" for value in kept)
    assert all(value.reason for value in kept)


def test_stages_account_for_the_compile_time(new: gyrator.insight.Report) -> None:
    assert new.data.accounted() >= 0.95


def test_kernels_are_timed_with_the_options_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes: list[Runtime] = []
    monkeypatch.setattr("gyrator.insight.step_times", runtimes.append)
    gyrator.explain(torch.sin, torch.rand(8), options={"threads": 1, "cache": False})
    assert [runtime.most_threads for runtime in runtimes] == [1]


def test_memory_peaks_with_its_holders(new: gyrator.insight.Report) -> None:
    record = forward(new).record
    assert max(record.memory) == sum(holder.bytes for holder in record.holders)
    assert len(record.memory) == len(record.steps)


def test_the_cache_tells_the_same(new: gyrator.insight.Report, cache: dict[str, object]) -> None:
    again = gyrator.explain(program, *arguments(), options=cache, timing=False)
    assert again.data.programs[0].cached and all(graph.cached for graph in again.data.graphs())
    assert again.data.programs[0].record == new.data.programs[0].record
    names = [graph.record.name for graph in again.data.graphs()]
    assert [g.record for g in again.data.graphs()] == [g.record for g in new.data.graphs()], names


def test_counters_do_not_depend_on_the_cache(cache: dict[str, object]) -> None:
    gyrator.reset()
    assert gyrator.counters().all() == {}
    counts = []
    for _ in range(2):
        gyrator.explain(program, *arguments(), options=cache, timing=False)
        counts.append(gyrator.counters().about_code())
        gyrator.reset()
    assert counts[0] == counts[1] and counts[0]["KERNELS"] > 0


def test_graphs_within_a_graph_are_timed_as_calls(cache: dict[str, object]) -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).softmax(-1)

    (graph,) = gyrator.explain(branches, torch.randn(8, 16), options=cache).data.graphs()
    timed = list(graph.timed_steps())
    assert [step.kind for step, _ in timed] == ["kernel", "extern", "kernel"]
    assert all(seconds is not None and seconds > 0 for _, seconds in timed)


@pytest.mark.skipif(not ISOLATED, reason="torch counts these compilations among a function's others")
def test_a_function_is_explained_however_often_and_compiled_thereafter(cache: dict[str, object]) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    for _ in range(torch._dynamo.config.recompile_limit + 1):
        assert gyrator.explain(doubled, torch.randn(8), options=cache, timing=False).data.programs
    captured: list[object] = []
    torch.compile(doubled, backend=lambda gm, _: captured.append(gm) or gm.forward)(torch.randn(8))
    assert captured


def test_where_capture_ended_is_told(cache: dict[str, object]) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    first, second = gyrator.explain(broken, torch.ones(8), options=cache, timing=False).data.programs
    assert "graph_break" in first.ended and HERE in first.place
    assert second.ended == "the function returned"


def test_a_compiled_function_is_explained_like_the_function(
    new: gyrator.insight.Report, cache: dict[str, object]
) -> None:
    compiled = torch.compile(program, backend="gyrator")
    report = gyrator.explain(compiled, *arguments(), options=cache, timing=False)
    assert [g.record for g in report.data.graphs()] == [g.record for g in new.data.graphs()]


def test_text_and_json_hold_the_kernels(new: gyrator.insight.Report) -> None:
    name = forward(new).record.kernels[0].name
    assert name[:20] in str(new)
    assert name in json.dumps(json.loads(new.json())["programs"][0]["graphs"][0])


def test_a_folder_with_brackets_is_shown_as_it_is(new: gyrator.insight.Report) -> None:
    (program,) = new.data.programs
    graphs = (replace(program.graphs[0], wrapper="/[bold]/[/lab]/w.py"),)
    report = gyrator.insight.Report(replace(new.data, programs=(replace(program, graphs=graphs),)))
    assert "/[bold]/[/lab]/w.py" in str(report)


def test_configs_that_were_timed_are_shown_with_their_times(new: gyrator.insight.Report) -> None:
    name = forward(new).record.kernels[0].name
    candidates = (
        Variant("XBLOCK: 256, num_warps: 4", "pointwise", "a.cubin", 0.5, True),
        Variant("XBLOCK: 512, num_warps: 4", "pointwise", "b.cubin", None, False),
    )
    (program,) = new.data.programs
    graphs = (replace(program.graphs[0], candidates={name: candidates}), *program.graphs[1:])
    report = gyrator.insight.Report(replace(new.data, programs=(replace(program, graphs=graphs),)))
    assert re.search(r"XBLOCK: 256, num_warps: 4 +500\.0 +x", str(report))
    assert re.search(r"XBLOCK: 512, num_warps: 4 +refused", str(report))
    told = json.loads(report.json())["programs"][0]["graphs"][0]["candidates"][name]
    assert [candidate["milliseconds"] for candidate in told] == [0.5, None]
    assert '<td>XBLOCK: 256, num_warps: 4</td><td class="n">500.0</td>' in report.html()


def test_the_page_needs_no_other_file_and_its_links_lead_somewhere(new: gyrator.insight.Report, tmp_path: Path) -> None:
    page = new.html(tmp_path / "page.html")
    own = page.partition("</script>")[2]  # after plotly itself
    assert (tmp_path / "page.html").read_text() == page
    assert "src=" not in own.replace("src=&quot;", "")
    anchors = {part.partition('"')[0] for part in own.split(' id="')[1:]}
    links = {part.partition('"')[0] for part in own.split('href="#')[1:]}
    assert links and links <= anchors
    kernel = forward(new).record.kernels[0]
    assert f'id="g0-{kernel.name}"' in own and "y = F.softmax(x @ w, -1)" in own


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_the_plots_without_complaint(new: gyrator.insight.Report, tmp_path: Path) -> None:
    new.html(tmp_path / "page.html")
    command = "chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=8000 --enable-logging=stderr"
    done = subprocess.run(
        [*command.split(), f"--user-data-dir={tmp_path}/user", "--dump-dom", f"file://{tmp_path}/page.html"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("js-plotly-plot") >= 2 + len(list(new.data.graphs()))
