"""Launching kernels: what arrives, what is raised, and that the interpreter runs on meanwhile."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gyrator.config import Config
from gyrator.errors import IndexOutOfRange
from gyrator.origin import Origin
from gyrator.runtime.build import LAUNCHER_SOURCE
from gyrator.runtime.load import Bind, Runtime, address_of, load_launcher, raise_index_error
from gyrator.runtime.toolchain import find_toolchain

KERNELS = """
#include <stdint.h>
#include <time.h>
#define PUBLIC extern "C" __attribute__((visibility("default")))
PUBLIC int32_t none(int32_t threads) { return threads == 3 ? 0 : 9; }
PUBLIC int32_t weighted(const int64_t* in, int64_t* out, int64_t n, int64_t m, int32_t threads) {
  *out = in[0] + 10 * n + 100 * m + 1000 * threads;
  return 0;
}
PUBLIC int32_t fails(int64_t status, int32_t threads) { return (int32_t)status; }
PUBLIC int32_t waits(int64_t ms, int32_t threads) {
  timespec t{0, ms * 1000000};
  nanosleep(&t, nullptr);
  return 0;
}
"""


def many(count: int) -> str:
    """A kernel of `count` sizes that stores their sum, weighted by position, at the first."""
    numbers = ", ".join(f"int64_t a{k}" for k in range(count))
    total = " + ".join(f"{k} * a{k}" for k in range(1, count)) or "0"
    body = f"*(int64_t*)a0 = {total} + 1000000 * (int64_t)threads; return 0;"
    return f"PUBLIC int32_t many{count}({numbers}, int32_t threads) {{ {body} }}\n"


COUNTS = (1, 5, 6, 7, 8, 22, 23, 24, 40, 62, 63, 64, 65, 1000, 1023)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, Bind]:
    folder: Path = tmp_path_factory.mktemp("launch")
    toolchain = find_toolchain(Config())
    source = folder / "kernels.cpp"
    source.write_text(KERNELS + "".join(many(count) for count in COUNTS))
    for text, library in ((source, "kernels.so"), (LAUNCHER_SOURCE, "launcher.so")):
        command = [str(toolchain.compiler), *toolchain.flags, str(text), "-o", str(folder / library)]
        subprocess.run([*command, *toolchain.libraries], check=True)
    return ctypes.CDLL(str(folder / "kernels.so")), load_launcher(folder / "launcher.so")


def raise_status(status: int) -> object:
    raise ValueError(f"status {status}")


@pytest.fixture
def kernel(built: tuple[ctypes.CDLL, Bind]) -> Callable[[str, int], Callable[..., int]]:
    library, bind = built
    return lambda name, count: bind(address_of(library, name), count, raise_status)


def test_pointers_sizes_and_threads_arrive(kernel: Callable[[str, int], Callable[..., int]]) -> None:
    given, result = ctypes.c_int64(-5), ctypes.c_int64()
    assert kernel("weighted", 4)(ctypes.addressof(given), ctypes.addressof(result), 2, -3, 4) == 0
    assert result.value == -5 + 20 - 300 + 4000
    assert kernel("none", 0)(3) == 0


@pytest.mark.parametrize("count", COUNTS)
def test_any_number_of_arguments(kernel: Callable[[str, int], Callable[..., int]], count: int) -> None:
    result = ctypes.c_int64()
    numbers = [k * k - 40 for k in range(1, count)]
    kernel(f"many{count}", count)(ctypes.addressof(result), *numbers, 2)
    assert result.value == sum(k * n for k, n in enumerate(numbers, 1)) + 2_000_000


def test_status_is_raised(kernel: Callable[[str, int], Callable[..., int]]) -> None:
    fails = kernel("fails", 1)
    assert fails(0, 1) == 0
    with pytest.raises(ValueError, match="status 7"):
        fails(7, 1)


def test_wrong_arguments_raise(built: tuple[ctypes.CDLL, Bind]) -> None:
    library, bind = built
    none = bind(address_of(library, "none"), 0, raise_status)
    with pytest.raises(TypeError):
        none()
    with pytest.raises(TypeError):
        none("3")
    with pytest.raises(OverflowError):
        none(1 << 70)
    with pytest.raises(TypeError, match="too many"):
        bind(address_of(library, "none"), 1024, raise_status)


def test_interpreter_runs_while_a_kernel_does(kernel: Callable[[str, int], Callable[..., int]]) -> None:
    thread = threading.Thread(target=kernel("waits", 1), args=(400, 1))
    start = time.perf_counter()
    thread.start()
    assert time.perf_counter() - start < 0.3
    thread.join()
    assert time.perf_counter() - start > 0.3


def test_kernels_outlive_their_functions_owner(built: tuple[ctypes.CDLL, Bind]) -> None:
    library, bind = built
    functions = [bind(address_of(library, "fails"), 1, raise_status) for _ in range(100)]
    del functions
    assert bind(address_of(library, "fails"), 1, raise_status)(0, 1) == 0


def test_whatever_process_loads_kernels_asks_for_the_processors_tiles(
    built: tuple[ctypes.CDLL, Bind], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A permission for AMX is not inherited by a new program: a script, or one that times candidates."""
    asked: list[str] = []
    monkeypatch.setattr("gyrator.runtime.load.cpu_isa", lambda: asked.append("isa"))
    monkeypatch.setattr("gyrator.runtime.load.load_launcher", lambda path: built[1])
    Runtime(tmp_path, None, _libraries={"library": built[0]}).kernel("library", "fails", 1)
    assert asked == ["isa"]


def test_index_out_of_range_names_the_users_place() -> None:
    sites = (10, Origin("model.py", 3, "forward", "aten.gather.default")), (None, None)
    with pytest.raises(IndexError, match=r"size 10[\s\S]*model.py:3"):
        raise_index_error(sites, 1)
    with pytest.raises(IndexOutOfRange):
        raise_index_error(sites, 2)
    with pytest.raises(RuntimeError):
        raise_index_error(sites, 1)
