"""Graphs for a GPU that is not here, through the whole compiler: binaries, wrapper, cache."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from gyrator.config import Config
from gyrator.errors import DeviceUnsupported, ToolchainMissing
from gyrator.pipeline import Process, compile_graph
from gyrator.runtime import targets, triton_build
from gyrator.runtime.gpu_kernels import DESCRIPTION
from gyrator.session import Count, Session
from tests.triton.emulated import GPU, on_gpu

CAPABILITIES = (80, 90)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.workers.stop()


def graphs_of(module: nn.Module, *inputs: torch.Tensor) -> list[tuple[fx.GraphModule, list[object], GraphInfo]]:
    """The forward and backward graphs of a module, with their metadata on a GPU."""
    found = []

    def keep(graph: fx.GraphModule, values: Sequence[object], info: GraphInfo) -> Compiled:
        run = interpret(graph, values, info)
        found.append((graph, on_gpu(graph, values), info))
        return run

    torch._dynamo.reset()
    torch.compile(module, backend=lambda gm, values: aot_compile(gm, values, fw_compiler=keep))(*inputs)
    return found


def compiled(config: Config, process: Process, module: nn.Module, *inputs: torch.Tensor) -> list[Session]:
    sessions = []
    for graph, values, info in graphs_of(module, *inputs):
        with Session(config, GPU, info.kind) as session:
            compile_graph(graph, values, info, session, process)()
            sessions.append(session)
    return sessions


def folders(config: Config) -> list[Path]:
    assert config.cache_dir is not None
    return [path.parent for path in config.cache_dir.glob(f"graphs/*/*/{DESCRIPTION}")]


def test_kernels_are_not_built_for_a_gpu_that_is_too_old() -> None:
    with pytest.raises(DeviceUnsupported, match=r"cuda_capability has compute capability 7\.5; one of"):
        triton_build.find_gpu(Config(cuda_capability=75), GPU)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_layer_is_built_for_a_gpu_that_is_not_here(capability: int, process: Process, tmp_path: Path) -> None:
    config = Config(cuda_capability=capability, cache_dir=tmp_path)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, activation="gelu")
    compiled(config, process, layer, torch.randn(2, 8, 32, requires_grad=True))
    assert len(folders(config)) == 2
    for folder in folders(config):
        described = json.loads((folder / DESCRIPTION).read_text())
        assert described
        for about in described.values():
            for variant in about["variants"]:
                usage = resources(folder / variant["file"])
                assert "STACK:0" in usage and "LOCAL:0" in usage, usage


def resources(binary: Path) -> str:
    """What the binary's own tables say of registers, stack and memory."""
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), "--dump-resource-usage", str(binary)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_kernels_that_take_longest_are_built_first(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, begun = triton_build.build_binary, []

    def noted(request: Mapping[str, Any], *rest: Any) -> triton_build.Built:
        begun.append((request["source"].count("\n"), "gyrator.templates" in request["source"]))
        return build(request, *rest)

    monkeypatch.setattr(triton_build, "build_binary", noted)
    module = nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 64, bias=False), nn.LayerNorm(64), nn.Softmax(0))
    config = Config(cuda_capability=90, cache_dir=tmp_path, build_threads=1)
    with torch.no_grad():
        compiled(config, process, module.bfloat16(), torch.randn(8, 1024).bfloat16())
    lines = [n for n, template in begun if not template]
    assert begun[0][1] and len(lines) > 1 and lines == sorted(lines, reverse=True)


def test_what_was_built_is_found_again_without_triton(process: Process, tmp_path: Path) -> None:
    config, module = Config(cuda_capability=90, cache_dir=tmp_path), nn.LayerNorm(48)
    (first, *_) = compiled(config, process, module, torch.randn(10, 48))
    assert first.counters[Count.KERNELS_BUILT] == len(first.builds) > 0
    assert all(build.seconds > 0 and "," not in build.name for build in first.builds)
    again = Process()
    (second, *_) = compiled(config, again, module, torch.randn(10, 48))
    assert second.counters[Count.GRAPH_CACHE_HITS] == 1 and not again.workers._idle
    other = Process()
    (third, *_) = compiled(config, other, nn.Sequential(nn.LayerNorm(48), nn.Identity()), torch.randn(10, 48))
    assert third.counters[Count.KERNELS_BUILT] == 0 and not other.workers._idle


def test_reductions_whose_rows_stay_in_registers_are_counted_and_nothing_as_cpp(
    process: Process, tmp_path: Path
) -> None:
    config = Config(cuda_capability=90, cache_dir=tmp_path)
    (session, *_) = compiled(config, process, nn.Softmax(-1), torch.randn(10, 2048).bfloat16())
    assert session.counters[Count.PERSISTENT_REDUCTIONS] == session.counters[Count.KERNELS] == 1
    assert session.counters[Count.CPP_VECTORISED] == session.counters[Count.CPP_CASTS] == 0


def test_both_forms_of_a_kernel_are_built_on_demand(process: Process, tmp_path: Path) -> None:
    for multi_kernel, wanted in ((False, {"persistent"}), (True, {"persistent", "looped"})):
        config = Config(cuda_capability=90, cache_dir=tmp_path / str(multi_kernel), multi_kernel=multi_kernel)
        compiled(config, process, nn.Softmax(-1), torch.randn(10, 4096).bfloat16())
        (folder,) = folders(config)
        (about,) = json.loads((folder / DESCRIPTION).read_text()).values()
        assert {variant["category"] for variant in about["variants"]} == wanted
        assert all((folder / variant["file"]).exists() for variant in about["variants"])


def test_programs_that_time_kernels_load_them_as_the_wrapper_does(process: Process, tmp_path: Path) -> None:
    config = Config(cuda_capability=90, cache_dir=tmp_path, benchmark_kernel=True)
    compiled(config, process, nn.Softmax(-1), torch.randn(10, 48))
    (folder,) = folders(config)
    (script,) = folder.glob("kernel_*.py")
    text, timed = ("".join(path.read_text().split()) for path in (folder / "wrapper.py", script))
    (loaded,) = re.findall(r"(runtime\.gpu_kernel\(.*?\))defcall", text)
    assert f"lambdaruntime:{loaded},tensors,[]" in timed
    assert 'random_tensor((10, 48), (48, 1), torch.float32, device="cuda")' in script.read_text()


def test_a_dump_holds_all_that_its_wrapper_loads(process: Process, tmp_path: Path) -> None:
    config = Config(cuda_capability=90, cache_dir=tmp_path / "cache", dump=tmp_path / "dump")
    compiled(config, process, nn.LayerNorm(48), torch.randn(10, 48))
    described = list((tmp_path / "dump").rglob(DESCRIPTION))
    assert described
    graphs = [path.read_text() for path in (tmp_path / "dump").rglob("*_aten.py")]
    assert graphs
    assert all('random_tensor((10, 48), (48, 1), torch.float32, device="cuda")' in graph for graph in graphs)
    for path in described:
        for about in json.loads(path.read_text()).values():
            assert all((path.parent / variant["file"]).exists() for variant in about["variants"])
        assert any("runtime.gpu_kernel" in wrapper.read_text() for wrapper in path.parent.glob("*_wrapper.py"))


def test_a_dump_names_the_launch_of_nests_that_share_one(process: Process, tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x[:3] * 2, x[3:] * 2

    config = Config(cuda_capability=90, cache_dir=tmp_path / "cache", dump=tmp_path / "dump")
    (session, *_) = compiled(config, process, Both(), torch.randn(10, 48))
    assert session.counters[Count.FOREACH] == 1
    (grouped,) = (tmp_path / "dump").rglob("*nests_after_fusion.txt")
    names = re.findall(r"^kernel (.*)$", grouped.read_text(), re.MULTILINE)
    assert len(names) == 2 and len(set(names)) == 1 and names[0].startswith("foreach")


def test_no_cpp_compiler_is_needed(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(config: Config) -> None:
        raise ToolchainMissing("a C++ compiler", "none here")

    monkeypatch.setattr(targets, "find_toolchain", missing)
    config = Config(cuda_capability=90, cache_dir=tmp_path)
    for module in (nn.LayerNorm(48), nn.Linear(48, 16)):  # the second has no kernel of its own
        (session, *_) = compiled(config, process, module, torch.randn(10, 48))
        assert session.counters[Count.GRAPH_CACHE_MISSES] == 1
    assert len(list(tmp_path.glob("graphs/*/*/wrapper.py"))) >= 2


def test_no_triton_and_an_old_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_build.importlib.metadata, "version", lambda package: "3.2.0")
    with pytest.raises(DeviceUnsupported, match=r"Triton 3\.2\.0; 3\.6 or later is needed"):
        triton_build.find_gpu(Config(), GPU)
    monkeypatch.setattr(triton_build, "available", lambda package: False)
    with pytest.raises(DeviceUnsupported, match=r"no Triton was found; 3\.6 or later is needed"):
        triton_build.find_gpu(Config(), GPU)


def test_a_missing_gpu_and_an_old_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnsupported, match=r"no GPU was found; one of compute capability 8\.0"):
        triton_build.find_gpu(Config(), GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(DeviceUnsupported, match=r"Tesla T4 has compute capability 7\.5"):
        triton_build.find_gpu(Config(), GPU)


class Updates(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch._foreach_mul(torch._foreach_exp(tensors), 0.5)


def test_a_foreach_kernel_is_built_counted_and_recorded(process: Process, tmp_path: Path) -> None:
    config = Config(cuda_capability=90, cache_dir=tmp_path)
    (session,) = compiled(config, process, Updates(), *[torch.randn(n) for n in (10, 1000, 33)])
    assert session.counters[Count.FOREACH] == session.counters[Count.LAUNCHES] == 1
    (folder,) = folders(config)
    (about,) = json.loads((folder / DESCRIPTION).read_text()).values()
    assert about["arguments"] == 6
    assert len(about["variants"]) == 1
    (step,) = json.loads((folder / "record.json").read_text())["steps"]
    assert len(step["nests"]) == 3
