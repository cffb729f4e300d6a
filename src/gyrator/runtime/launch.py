"""Calling kernels: a Python function for each kernel of a library, as cheap as a call from Python can be.

A call through ctypes costs 1 us, one through our launcher (`include/launch.cpp`) 0.14 us for five arguments.
ctypes stands in for kernels with too many arguments, and where the launcher is missing.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from gyrator.errors import IndexOutOfRange
from gyrator.origin import Origin

OnError: TypeAlias = Callable[[int], object]
Launch: TypeAlias = Callable[..., int]
"""Takes a kernel's pointers and sizes and the number of threads, as ints."""

Bind: TypeAlias = Callable[[int, int, OnError], Launch]
"""(address of a kernel, how many pointers and sizes it takes, what to call with a status other than 0) → launch."""

Site: TypeAlias = "tuple[int | None, Origin | None]"
"""A checked index of a kernel: the size it must stay below, where known, and the user's place."""

MOST_ARGUMENTS = 63
"""Pointers and sizes that the launcher can pass; a constant of `launch.cpp`."""


def address_of(library: ctypes.CDLL, symbol: str) -> int:
    """Where a kernel of a loaded library lies in memory. Raises: AttributeError if it has no such symbol."""
    found = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert found is not None
    return found


def load_launcher(path: Path) -> Bind:
    """The function `bind` of a built `launch.cpp`."""
    library = ctypes.PyDLL(str(path))
    library.gyrator_launcher.restype = ctypes.py_object
    native: Bind = library.gyrator_launcher()

    return lambda address, count, error: (native if count <= MOST_ARGUMENTS else bind_by_ctypes)(address, count, error)


def bind_by_ctypes(address: int, count: int, on_error: OnError) -> Launch:
    """The same as the launcher's `bind`, slower."""
    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * count, ctypes.c_int32)(address)

    def launch(*args: int) -> int:
        status = kernel(*args)
        if status:
            on_error(status)
        return status

    return launch


def index_error(sites: tuple[Site, ...]) -> OnError:
    """What a kernel's status raises: its n-th checked index was out of range.

    Raises (when called): IndexOutOfRange, which is both an IndexError and a RuntimeError.
    """

    def raise_error(status: int) -> object:
        size, where = sites[status - 1] if 0 < status <= len(sites) else (None, None)
        raise IndexOutOfRange(None, size, where=where)

    return raise_error
