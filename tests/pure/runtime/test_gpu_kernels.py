"""GPU kernels of a compiled graph: chosen, loaded and launched through a driver that only takes notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gyrator.cache.store import Entry, Store
from gyrator.codegen.triton_source import Pointer, SizeArgument, TritonKernel
from gyrator.errors import CacheCorrupt, IndexOutOfRange, KernelBuildError, LaunchFailed
from gyrator.ir.index import Size
from gyrator.ir.tree import Config
from gyrator.origin import Origin
from gyrator.runtime import gpu_kernels
from gyrator.runtime.cuda_driver import DEVICE_ASSERT, CudaDriver
from gyrator.runtime.gpu_kernels import DESCRIPTION, GpuKernels, describe
from gyrator.runtime.triton_build import BINARY, Binary, Wanted
from gyrator.runtime.triton_tune import Variant
from tests.pure.runtime.test_triton_launch import Library

SUM = 0x1000  # an address that is a multiple of 16


class Driver(CudaDriver):
    """Loads binaries by noting their text."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)  # type: ignore[arg-type]
        self.loaded: list[str] = []

    def load(self, binary: bytes, name: str, shared: int) -> int:
        self.loaded.append(binary.decode())
        return len(self.loaded)

    def version(self) -> int:
        return self.cuda

    cuda = 13000


def same(driver: Driver) -> Driver:
    return driver


def variant(file: str, block: int) -> dict[str, Any]:
    blocks = {"XBLOCK": block}
    return {
        "file": file, "blocks": blocks, "category": "pointwise",
        "function": "add_0", "shared": 0, "warps": 4, "cooperative": False,
    }  # fmt: skip


def folder(path: Path, **more: Any) -> Path:
    """A compiled graph's folder with a kernel of two configs."""
    about = {
        "arguments": 3,
        "sizes": [2],
        "checked": [[0, 16], [2, 16]],
        "variants": [variant("a.cubin", 256), variant("b.cubin", 1024)],
        "unaligned": {"constants": {"XBLOCK": 256}, "divisors": [[1, 16]]},
        "choice": "k",
        "place": None,
    }
    path.mkdir(exist_ok=True)
    (path / DESCRIPTION).write_text(json.dumps({"add_0": about | more}))
    for name in ("a", "b", "c"):
        (path / f"{name}.cubin").write_text(name)
    return path


def programs(s0: int, XBLOCK: int) -> int:
    return -(-s0 // XBLOCK)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    return Library()


def test_one_config_is_loaded_at_the_first_launch(library: Library, tmp_path: Path) -> None:
    driver = Driver(library)
    kernels = GpuKernels(folder(tmp_path, variants=[variant("a.cubin", 256)]), driver=lambda: driver)
    launch = kernels.kernel("add_0", programs)
    assert driver.loaded == []
    launch(7, SUM, SUM + 64, 512)
    launch(7, SUM, SUM + 64, 1024)
    assert driver.loaded == ["a"]
    assert [seen.blocks for seen in library.launches] == [[2, 1, 1], [4, 1, 1]]


@pytest.mark.parametrize(
    ("about", "cuda", "attributes"),
    [
        ({"early": True}, 12030, [(6, 1)]),
        ({"early": True}, 12020, []),
        ({"early": False}, 13000, []),
        ({}, 13000, []),
        ({"early": True, "cooperative": True}, 13000, [(2, 1)]),
    ],
)
def test_kernels_that_wait_themselves_are_launched_early_where_recordings_know_that(
    about: dict[str, bool], cuda: int, attributes: list[tuple[int, int]], library: Library, tmp_path: Path
) -> None:
    driver = Driver(library)
    driver.cuda = cuda
    kernels = GpuKernels(folder(tmp_path, variants=[variant("a.cubin", 256) | about]), driver=lambda: driver)
    kernels.kernel("add_0", programs)(7, SUM, SUM + 64, 512)
    assert [seen.attributes for seen in library.launches] == [attributes]


def test_tritons_own_scratch_memory_is_an_argument_after_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Tensor] = []

    def empty(nbytes: int, **_: object) -> torch.Tensor:
        made.append(torch.zeros(nbytes, dtype=torch.int8))
        return made[-1]

    library = Library(4)
    one = variant("a.cubin", 256) | {"scratch": 384}
    kernels = GpuKernels(folder(tmp_path, variants=[one]), driver=lambda: Driver(library))
    monkeypatch.setattr(torch, "empty", empty)
    kernels.kernel("add_0", programs)(7, SUM, SUM, 512)
    assert made[0].nbytes == 2 * 384
    assert library.launches[0].args == [SUM, SUM, 512, made[0].data_ptr(), 0, 0]


def test_the_fastest_config_is_kept_for_later_processes(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def second(candidates: Any, stream: int, args: Any, updated: Any, driver: Any) -> list[float]:
        asked.append((len(candidates), list(args), list(updated)))
        return [0.5, 0.25]

    monkeypatch.setattr(gpu_kernels, "times", second)
    store = Store(tmp_path / "store", "choices")
    for loaded in (["a", "b"], ["b"]):  # the second process loads the chosen one alone
        driver = Driver(library)
        kernels = GpuKernels(folder(tmp_path / "graph"), choices=store, driver=partial(same, driver))
        kernels.kernel("add_0", programs, {1: lambda s0: 4 * s0})(7, SUM, SUM, 4096)
        assert driver.loaded == loaded
    assert asked == [(2, [SUM, SUM, 4096], [(SUM, 16384)])]
    assert [seen.blocks for seen in library.launches] == [[4, 1, 1], [4, 1, 1]]


def built_in(place: Path, text: str, notes: Mapping[str, Any]) -> Entry:
    place.mkdir(exist_ok=True)
    (place / BINARY).write_text(text)
    return Entry(place, notes)


def test_coordinate_descent_goes_on_from_the_best_and_later_processes_build_what_it_found(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"source": "…", "constants": {"XBLOCK": 256}, "options": {"num_stages": 1}}
    room = {"room": {"XBLOCK": 1024}, "request": request}
    variants = [variant("a.cubin", 256) | room, variant("b.cubin", 128) | room]
    speeds = {"a": 0.5, "b": 0.6, "512": 0.25, "1024": 0.3}

    def rebuild(asked: Mapping[str, Any]) -> Binary:
        block, warps = asked["constants"]["XBLOCK"], asked["options"]["num_warps"]
        text = str(block) if warps == 4 and asked["options"]["num_stages"] == 1 else "slow"
        notes = {"function": "add_0", "shared": 0, "warps": warps, "cooperative": False}
        return built_in(tmp_path / str(block), text, notes) if warps != 8 else "no such kernel"

    store = Store(tmp_path / "store", "choices")
    for expected in (["a", "b", "512", "1024", "slow", "slow"], ["512"]):
        driver = Driver(library)

        def took(launches: Any, *, driver: Driver, **_: Any) -> list[float | None]:
            names = driver.loaded[: len(launches)] if len(driver.loaded) == 2 else ["a", driver.loaded[-1]]
            return [speeds.get(name, 1.0) for name in names]

        monkeypatch.setattr(gpu_kernels, "times", took)
        kernels = GpuKernels(
            folder(tmp_path / "graph", variants=variants), store, rebuild, driver=partial(same, driver)
        )
        kernels.kernel("add_0", programs)(7, SUM, SUM, 4096)
        assert driver.loaded[: len(expected)] == expected and "512" in driver.loaded
    assert [seen.blocks for seen in library.launches] == [[8, 1, 1], [8, 1, 1]]


def test_candidates_and_their_times_are_told_also_where_an_earlier_process_took_them(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernels, "times", lambda *_, **__: [0.5, None])
    store, told = Store(tmp_path / "store", "choices"), []
    for _ in range(2):
        kernels = GpuKernels(
            folder(tmp_path / "graph"), store, driver=lambda: Driver(library), tuned=lambda *about: told.append(about)
        )
        kernels.kernel("add_0", programs)(7, SUM, SUM, 4096)
    candidates = [
        Variant("XBLOCK: 256, num_warps: 4", "pointwise", "a.cubin", 0.5, True),
        Variant("XBLOCK: 1024, num_warps: 4", "pointwise", "b.cubin", None, False),
    ]
    assert told == [("add_0", candidates, True), ("add_0", candidates, False)]


def test_nothing_is_told_of_a_kernel_that_had_no_choice(library: Library, tmp_path: Path) -> None:
    told: list[object] = []
    path = folder(tmp_path, variants=[variant("a.cubin", 256)])
    kernels = GpuKernels(path, driver=lambda: Driver(library), tuned=lambda *about: told.append(about))
    kernels.kernel("add_0", programs)(7, SUM, SUM, 512)
    assert told == []


def test_what_cannot_be_timed_now_is_not_recorded(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernels, "times", lambda *_, **__: None)
    store = Store(tmp_path / "store", "choices")
    driver = Driver(library)
    GpuKernels(folder(tmp_path / "graph"), store, driver=lambda: driver).kernel("add_0", programs)(7, SUM, SUM, 16)
    assert list(store.newest(5)) == []


def test_unaligned_arguments_build_a_kernel_that_relies_on_the_others(library: Library, tmp_path: Path) -> None:
    driver, built = Driver(library), []

    def rebuild(request: Mapping[str, Any]) -> Binary:
        built.append(request)
        notes = {"function": "add_0", "shared": 0, "warps": 4, "cooperative": False}
        return built_in(tmp_path / "c", "c", notes)

    kernels = GpuKernels(folder(tmp_path, variants=[variant("a.cubin", 1024)]), rebuild=rebuild, driver=lambda: driver)
    launch = kernels.kernel("add_0", programs)
    for size in (17, 33):
        launch(7, SUM, SUM, size)
    launch(7, SUM, SUM, 16)
    launch(7, SUM + 4, SUM, 16)
    assert [request["divisors"] for request in built] == [[[0, 16], [1, 16]], [[1, 16], [2, 16]]]
    assert driver.loaded == ["c", "a", "c"]


def test_a_kernel_that_cannot_be_rebuilt_says_why(library: Library, tmp_path: Path) -> None:
    driver = Driver(library)
    without = GpuKernels(folder(tmp_path), driver=lambda: driver).kernel("add_0", programs)
    with pytest.raises(LaunchFailed, match="not aligned"):
        without(7, SUM + 4, SUM, 16)
    broken = GpuKernels(folder(tmp_path), rebuild=lambda _: "no", driver=lambda: driver)
    with pytest.raises(KernelBuildError, match="no"):
        broken.kernel("add_0", programs)(7, SUM + 4, SUM, 16)


def test_a_failed_check_on_the_gpu_names_the_users_line(library: Library, tmp_path: Path) -> None:
    place = ["model.py", 12, "forward", "aten.gather"]
    moved = {Origin(*place): Origin("model.py", 14, "forward", "aten.gather")}
    path = folder(tmp_path, variants=[variant("a.cubin", 256)], place=place)
    launch = GpuKernels(path, moved=moved, driver=lambda: Driver(library)).kernel("add_0", programs)
    library.status = DEVICE_ASSERT
    with pytest.raises(IndexOutOfRange, match=r"model\.py:14 in forward"):
        launch(7, SUM, SUM, 16)


def test_a_folder_without_the_kernel_is_damaged(library: Library, tmp_path: Path) -> None:
    with pytest.raises(CacheCorrupt):
        GpuKernels(folder(tmp_path)).kernel("mul_0", programs)
    (tmp_path / "a.cubin").unlink()
    lone = folder(tmp_path, variants=[variant("d.cubin", 256)])
    with pytest.raises(CacheCorrupt, match=r"d\.cubin"):
        GpuKernels(lone, driver=lambda: Driver(library)).kernel("add_0", programs)(7, SUM, SUM, 16)


def test_a_kernel_is_described_by_the_configs_that_were_built(tmp_path: Path) -> None:
    """Its text for arguments that are not divisible is that of the same form; checked are those that may not be."""
    x, y = (Pointer(name, torch.float32, name == "y") for name in "xy")
    form = partial(TritonKernel, "k", params=(x, y, SizeArgument("n", Size("n", hint=40), True)), grid=())
    blocks, whole = Config((("RBLOCK", 64),), 4), Config((("RBLOCK", 1024),), 4)
    looped = form(source="loop", configs=(blocks,), category="looped", plain="plain loop")
    kernel = form(source="whole", configs=(whole,), category="persistent", plain="plain whole", other=looped)
    for number, text, config in ((0, "plain whole", whole), (1, "plain loop", blocks)):
        notes = {"function": "k", "shared": 0, "warps": 4, "cooperative": False}
        built = built_in(tmp_path / str(number), "binary", notes)
        files = describe([(Wanted(kernel, frozenset({1}), None), {number: built})], 90)
        about = json.loads(str(files[DESCRIPTION]))["k"]
        request = about["unaligned"]
        assert (request["source"], request["constants"]) == (text, dict(config.blocks))
        assert request["divisors"] == [[1, 16]] and about["checked"] == [[0, 16], [2, 8]]
