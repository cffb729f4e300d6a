"""From a folder with a wrapper, its kernels and constants to a callable.

Each kernel of a library becomes a Python function, as cheap as a call from Python can be: a call through ctypes costs
1 us, one through our launcher (`include/launch.cpp`) 0.14 us for five arguments. ctypes stands in for kernels with too
many arguments, and where the launcher is missing."""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy
import torch

from gyrator import torch_compat
from gyrator.autograd.builder import flatten
from gyrator.autograd.interface import BoxedCallable
from gyrator.errors import CacheCorrupt, IndexOutOfRange
from gyrator.ir.evaluate import as_reals
from gyrator.origin import Origin
from gyrator.runtime import externs
from gyrator.runtime.gpu_kernels import GpuKernels, Sized
from gyrator.runtime.pool import Pool, Workspaces
from gyrator.runtime.toolchain import cpu_isa
from gyrator.schedule.plan import POOLED_BYTES

WRAPPER = "wrapper.py"
LAUNCHER = "launcher.so"

T = TypeVar("T")
Note = Callable[[str, float], None]
"""Told the name of a kernel or operator and the seconds that a call of it took."""

OnError = Callable[[int], object]
Launch = Callable[..., int]
"""Takes a kernel's pointers and sizes and the number of threads, as ints."""

Bind = Callable[[int, int, OnError], Launch]
"""(address of a kernel, how many pointers and sizes it takes, what to call with a status other than 0) → launch."""


def library_file(name: str) -> str:
    """The file of a kernel library in a compiled graph's folder."""
    return f"{name}.so"


def constant_file(key: str) -> str:
    """The file of a constant in a compiled graph's folder."""
    return f"{key}.bin"


@dataclass(frozen=True)
class Runtime:
    """What a wrapper's `bind` receives: the functions that it calls, and the contents of its folder.

    Attributes:
        folder: where the wrapper, its kernel libraries and constants lie.
        pool: gives memory to large values; None: torch's allocator does.
        constants: tensors of the compiled graph that need not be read from files.
        moved: where the user's places that the wrapper names lie now.
        most_threads: a limit to threads of a kernel; 0 for torch's number alone.
        note: is told the time of every launch and call.
        named: every launch is shown to profilers under the kernel's name.
        regions: what the wrapper calls by the names of graphs within the graph (branches, bodies of loops).
        gpu: its kernels that run on a GPU; None where they are found by the folder alone.
        workspace: gives launches on a GPU memory beside their arguments."""

    folder: Path
    pool: Pool | None
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    moved: Mapping[Origin, Origin] = field(default_factory=dict)
    most_threads: int = 0
    named: bool = False
    note: Note | None = None
    regions: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    gpu: GpuKernels | None = None
    workspace: Workspaces = field(default_factory=lambda: Workspaces([]))
    _libraries: dict[str, ctypes.CDLL] = field(default_factory=dict)

    empty = staticmethod(torch_compat.empty_strided_cpu)
    reinterpret = staticmethod(torch_compat.reinterpret)
    checked = staticmethod(externs.checked)
    within = staticmethod(externs.within)
    leaves = staticmethod(flatten)
    empty_cuda = staticmethod(torch_compat.empty_strided_cuda)
    current_stream = staticmethod(torch_compat.raw_stream)
    on_device = staticmethod(torch_compat.on_device)
    aligned = staticmethod(externs.aligned)
    as_reals = staticmethod(as_reals)
    as_complex = staticmethod(externs.as_complex)

    @property
    def take(self) -> Callable[..., torch.Tensor]:
        """(bytes, shape, strides, dtype, lasting=False) → memory for a large value."""
        if self.pool is not None:
            return self.pool.take
        return lambda nbytes, shape, strides, dtype, **_: torch_compat.empty_strided_cpu(shape, strides, dtype)

    def allocate(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, *, lasting: bool = False
    ) -> torch.Tensor:
        """Memory for a value whose size is known only now: from the pool if it is large."""
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        nbytes = 0 if 0 in shape else (last + 1) * dtype.itemsize
        if nbytes < POOLED_BYTES:
            return torch_compat.empty_strided_cpu(shape, strides, dtype)
        return self.take(nbytes, shape, strides, dtype, lasting=lasting)

    def operator(self, name: str) -> Callable[..., object]:
        """The region or the operator of that name. Raises: UnsupportedOperator if there is neither."""
        return self._watched(name, self.regions.get(name) or externs.operator(name))

    @property
    def num_threads(self) -> Callable[[], int]:
        """A function that says how many threads kernels may use, asked at each call."""
        most, current = self.most_threads, torch.get_num_threads
        return (lambda: min(most, current())) if most else current

    def kernel(self, library: str, symbol: str, count: int, sites: Sequence[tuple[int | None, Any]] = ()) -> Launch:
        """The launch function of a kernel of `count` pointers and sizes; `sites` are its checked indices: the size that
        each must stay below, where known, and the fields of the user's place.

        Raises: CacheCorrupt if the library does not load or lacks the symbol."""
        path = self.folder / library_file(library)
        try:
            if library not in self._libraries:
                self._libraries[library] = ctypes.CDLL(str(path))
            address, bind = address_of(self._libraries[library], symbol), self._bind
        except (OSError, AttributeError) as error:
            raise CacheCorrupt(str(path), str(error)) from error
        moved = [(size, at and self.moved.get(Origin(*at), Origin(*at))) for size, at in sites]
        launch = bind(address, count, partial(raise_index_error, moved))
        return self._watched(symbol, partial(_in_range, symbol, launch) if self.named else launch)

    def gpu_kernel(
        self, name: str, programs: Sized, updated: Mapping[int, Sized] | None = None, fits: Sized | None = None
    ) -> Callable[..., Any]:
        """The launch function of a kernel on the GPU; see `GpuKernels.kernel`."""
        launch = (self.gpu or GpuKernels(self.folder, moved=self.moved)).kernel(name, programs, updated, fits)
        return self._watched(name, partial(_in_range, name, launch) if self.named else launch, gpu=True)

    def _watched(self, name: str, function: Callable[..., T], gpu: bool = False) -> Callable[..., T]:
        """`function`, after each call of which `note` is told the time of its work: on a GPU if operands are there."""
        if (note := self.note) is None:
            return function

        def timed(*args: Any, **kwargs: Any) -> T:
            on_gpu = gpu or any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in flatten(args))
            result, seconds = measured(partial(function, *args, **kwargs), on_gpu)
            note(name, seconds)
            return result

        return timed

    def constant(self, key: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the compiled graph: as given, or read from its file, which holds its elements row by row.

        Raises: CacheCorrupt if the file is missing or of another size."""
        if key in self.constants:
            return self.constants[key]
        path = self.folder / constant_file(key)
        try:
            flat = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)).view(dtype)
            return torch.empty_strided(shape, strides, dtype=dtype).copy_(flat.view(tuple(shape)))
        except (OSError, RuntimeError) as error:
            raise CacheCorrupt(str(path), str(error)) from error

    @cached_property
    def _bind(self) -> Bind:
        cpu_isa()  # asks for the tiles of AMX, which a script, or a process that times candidates, did not yet
        return load_launcher(self.folder / LAUNCHER)


def names_of(text: str, folder: Path) -> dict[str, Any]:
    """The names that a wrapper's program defines: `bind`, `inputs`."""
    path = str(folder / WRAPPER)
    namespace: dict[str, Any] = {"__name__": "gyrator_wrapper", "__file__": path}
    exec(compile(text, path, "exec"), namespace)  # written by this process, or found in the user's own cache
    return namespace


def load(text: str, runtime: Runtime) -> BoxedCallable:
    """Run a wrapper's program and bind it to a runtime.

    While a profiler records, calls go through a second binding whose launches are named ranges."""
    bind: Callable[[Runtime], BoxedCallable] = names_of(text, runtime.folder)["bind"]
    with torch_compat.outside_tracing():
        plain = bind(runtime)
    named = cache(lambda: bind(replace(runtime, named=True)))
    return lambda args: (named() if torch_compat.profiler_enabled() else plain)(args)


def measured(function: Callable[[], T], gpu: bool) -> tuple[T, float]:
    """What `function` returns, and the seconds of its work: on a GPU, from its first kernel to its last."""
    if not gpu:
        start = time.perf_counter()
        return function(), time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch_compat.keep_gpu_busy()
    begin.record()
    result = function()
    end.record()
    end.synchronize()
    return result, begin.elapsed_time(end) / 1e3


def _in_range(name: str, launch: Callable[..., T], *args: int) -> T:
    """A launch inside a range that profilers show under `name`."""
    with torch.profiler.record_function(name):
        return launch(*args)


def address_of(library: ctypes.CDLL, symbol: str) -> int:
    """Where a kernel of a loaded library lies in memory. Raises: AttributeError if it has no such symbol."""
    found = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert found is not None
    return found


def load_launcher(path: Path) -> Bind:
    """The function `bind` of a built `launch.cpp`."""
    library = ctypes.PyDLL(str(path))
    library.gyrator_launcher.restype = ctypes.py_object
    return library.gyrator_launcher()


def raise_index_error(sites: Sequence[tuple[int | None, Origin | None]], status: int) -> NoReturn:
    """What a kernel's status raises: its n-th checked index was out of range.

    Raises: IndexOutOfRange, which is both an IndexError and a RuntimeError."""
    size, where = sites[status - 1] if 0 < status <= len(sites) else (None, None)
    raise IndexOutOfRange(None, size, where=where)
