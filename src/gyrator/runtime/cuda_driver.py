"""The CUDA driver's library, as far as running kernels needs it: loading binaries and launching. It is called through
ctypes, so that neither a C++ compiler nor a further package is needed."""

import ctypes
from collections.abc import Callable
from functools import cache

from gyrator.errors import DeviceUnsupported, LaunchFailed

LIBRARY = "libcuda.so.1"

INVALID_CONTEXT, DEVICE_ASSERT = 201, 710
"""Statuses that have a meaning here; `cuda.h` lists all."""

_DYNAMIC_SHARED = 8  # of CUfunction_attribute
_PLAIN_SHARED = 48 << 10
"""Bytes of shared memory that a block gets without asking."""


class CudaDriver:
    """Loads and launches kernels on the device that is current."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.launch_ex: Callable[..., int] = library.cuLaunchKernelEx
        library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4

    def version(self) -> int:
        """The newest CUDA that it supports: 12040 for 12.4."""
        number = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(number))
        return number.value

    def load(self, binary: bytes, name: str, shared: int) -> int:
        """The driver's handle of the kernel `name` of a cubin, allowed to use `shared` bytes of memory per block.

        Raises: LaunchFailed if the driver refuses it."""
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        status = self._library.cuModuleLoadData(ctypes.byref(module), binary)
        if status == INVALID_CONTEXT and self.enter_context():
            status = self._library.cuModuleLoadData(ctypes.byref(module), binary)
        self.check(status, name)
        self.check(self._library.cuModuleGetFunction(ctypes.byref(handle), module, name.encode()), name)
        if shared > _PLAIN_SHARED:
            self.check(self._library.cuFuncSetAttribute(handle, _DYNAMIC_SHARED, ctypes.c_int(shared)), name)
        assert handle.value is not None
        return handle.value

    def copy(self, into: int, source: int, nbytes: int, stream: int) -> None:
        """Copy device memory, in the order of a stream."""
        pointers = (ctypes.c_void_p(into), ctypes.c_void_p(source))
        status = self._library.cuMemcpyDtoDAsync_v2(*pointers, ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))
        self.check(status, "a copy")

    def check(self, status: int, what: str) -> None:
        """Raises: LaunchFailed for a status other than 0, with the driver's name for it."""
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            raise LaunchFailed(what, text.value.decode() if text.value else f"CUDA error {status}")

    def enter_context(self) -> bool:
        """Make device 0's context current on a thread that has none; whether that succeeded.

        torch does so when a device is chosen; only a thread that never chose one, and so is on device 0, lacks it."""
        device, context = ctypes.c_int(0), ctypes.c_void_p()
        got = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        return got == 0 and self._library.cuCtxSetCurrent(context) == 0


@cache
def cuda_driver() -> CudaDriver:
    """The driver of this machine. Raises: DeviceUnsupported if it has none."""
    try:
        return CudaDriver(ctypes.CDLL(LIBRARY))
    except (OSError, AttributeError) as problem:
        hint = "install the driver of the GPU (for CUDA 12 or later), or compile for the CPU"
        raise DeviceUnsupported(f"no usable CUDA driver ({problem})", "CUDA 12", hint) from problem
