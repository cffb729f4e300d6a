"""Launching kernels through a driver that only notes what it is told."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gyrator.errors import DeviceUnsupported, LaunchFailed
from gyrator.runtime import cuda_driver
from gyrator.runtime.cuda_driver import CudaDriver
from gyrator.runtime.triton_launch import EARLY, TOGETHER, Launch, bind, guarded

FUNCTION = 4711


class Noted:
    """One launch as the driver saw it."""

    def __init__(self, config: int, handle: int, arguments: int, count: int) -> None:
        *self.blocks, self.threads, _, _, self.shared, self.stream = struct.unpack(
            "@7I4xQ", ctypes.string_at(config, 40)
        )
        at, number = struct.unpack("@QI", ctypes.string_at(config + 40, 12))
        self.attributes = [struct.unpack("@I4xi", ctypes.string_at(at + 72 * k, 12)) for k in range(number)]
        pointers = (ctypes.c_void_p * (count + 2)).from_address(arguments)
        self.args = [struct.unpack("@q", ctypes.string_at(at, 8))[0] for at in pointers]
        self.handle = handle


class Library:
    """Stands for libcuda: notes launches, and answers with `status` until the context is set."""

    def __init__(self, arguments: int = 3, status: int = 0) -> None:
        self.arguments, self.status, self.launches = arguments, status, list[Noted]()
        self.meanwhile: Callable[[], None] = lambda: None

        def cuLaunchKernelEx(config: int, handle: int, arguments: int, _: None) -> int:
            self.meanwhile()
            if self.status == 0:
                self.launches.append(Noted(config, handle, arguments, self.arguments))
            return self.status

        self.cuLaunchKernelEx = cuLaunchKernelEx

    def cuDevicePrimaryCtxRetain(self, *_: Any) -> int:
        return 0

    def cuCtxSetCurrent(self, _: Any) -> int:
        self.status = 0
        return 0

    def cuGetErrorName(self, status: ctypes.c_int, into: Any) -> int:
        into._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
        return 0


def launcher(library: Library, arguments: int, programs: Any = 5, **more: Any) -> Launch:
    options = {"warps": 4, "shared": 96, **more}
    return bind(CudaDriver(library), FUNCTION, "softmax_0", arguments, programs, **options)  # type: ignore[arg-type]


def test_a_launch_passes_the_grid_the_stream_and_every_argument() -> None:
    library = Library(5)
    launcher(library, 5)(7, 1 << 40, -3, 1 << 41, 1 << 42, 1)
    (seen,) = library.launches
    assert (seen.blocks, seen.threads, seen.shared, seen.stream) == ([5, 1, 1], 128, 96, 7)
    assert seen.args == [1 << 40, -3, 1 << 41, 1 << 42, 1, 0, 0]
    assert seen.handle == 4711 and seen.attributes == []


def test_a_number_of_programs_that_depends_on_sizes_is_computed_from_the_arguments() -> None:
    library = Library()
    launch = launcher(library, 3, lambda x, y, n: -(-n // 1024))
    launch(0, 16, 32, 1025)
    launch(0, 16, 32, 0)
    launch(0, 16, 32, 9000)
    assert [seen.blocks for seen in library.launches] == [[2, 1, 1], [9, 1, 1]]
    assert [seen.threads for seen in library.launches] == [128, 128]


def test_a_kernel_without_blocks_is_not_launched() -> None:
    library = Library()
    launcher(library, 3, 0)(0, 16, 32, 0)
    assert library.launches == []


def test_a_cooperative_kernel_is_launched_with_that_attribute() -> None:
    library = Library(1)
    launcher(library, 1, attribute=TOGETHER)(9, 16)
    (seen,) = library.launches
    assert seen.attributes == [(2, 1)]  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert (seen.blocks, seen.threads, seen.shared, seen.stream) == ([5, 1, 1], 128, 96, 9)


def test_a_kernel_that_waits_itself_may_start_early() -> None:
    library = Library(2)
    launcher(library, 2, attribute=EARLY)(9, 16, 3)
    (seen,) = library.launches
    assert seen.attributes == [(6, 1)]  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert seen.args == [16, 3, 0, 0]


def test_launches_at_the_same_time_do_not_share_memory() -> None:
    library = Library()
    launch = launcher(library, 3)

    def second() -> None:
        library.meanwhile = lambda: None
        other = threading.Thread(target=launch, args=(2, 160, 320, 2))
        other.start()
        other.join()

    library.meanwhile = second
    launch(1, 16, 32, 1)
    assert [(seen.stream, seen.args[:3]) for seen in library.launches] == [(2, [160, 320, 2]), (1, [16, 32, 1])]


def test_a_thread_without_a_context_gets_one() -> None:
    library = Library(1, status=cuda_driver.INVALID_CONTEXT)
    launcher(library, 1)(0, 16)
    assert len(library.launches) == 1


def test_a_refused_launch_names_the_kernel_and_the_status() -> None:
    with pytest.raises(LaunchFailed, match="softmax_0 was not launched: CUDA_ERROR_ILLEGAL_ADDRESS"):
        launcher(Library(1, status=700), 1)(0, 16)


def test_arguments_that_are_not_divisible_take_a_kernel_that_relies_on_what_does_divide_them() -> None:
    calls: list[object] = []

    def otherwise(known: tuple[tuple[int, int], ...]) -> Launch:
        calls.append("build")
        return lambda stream, *args: calls.append(known)

    launch = guarded([lambda stream, *args: calls.append("first")], [(0, 16), (2, 16), (3, 8)], (1, 2, 3), otherwise)
    for arguments in ((32, 33, 64, 24), (32, 33, 72, 24), (32, 33, 88, 40), (36, 33, 64, 8), (32, 33, 68, 7)):
        launch(0, *arguments)
    at_8, addresses_not, sizes_not = ((0, 16), (2, 8), (3, 8)), ((2, 16), (3, 8)), ((0, 16),)
    assert calls == ["first", "build", at_8, at_8, "build", addresses_not, "build", sizes_not]


def test_arguments_that_do_not_fit_take_another_kernel() -> None:
    calls: list[object] = []
    launch = guarded(
        [lambda stream, *args: calls.append("first")],
        [(0, 16)],
        (1, 2),
        lambda known: lambda stream, *args: calls.append(known),
        lambda at, rows, columns: rows * columns < 100,
    )
    for arguments in ((32, 5, 19), (32, 5, 20), (33, 5, 20)):
        launch(0, *arguments)
    assert calls == ["first", ((0, 16),), ()]


def test_a_launch_may_be_exchanged_for_another() -> None:
    calls: list[str] = []
    current: list[Launch] = [lambda stream, *args: calls.append("first")]
    launch = guarded(current, (), (), lambda _: current[0])
    launch(0, 33)
    current[0] = lambda stream, *args: calls.append("second")
    launch(0, 33)
    assert calls == ["first", "second"]


def test_a_machine_without_a_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-which-is-not-here.so")
    cuda_driver.cuda_driver.cache_clear()
    with pytest.raises(DeviceUnsupported, match="no usable CUDA driver"):
        cuda_driver.cuda_driver()
