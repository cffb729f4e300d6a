"""What a launch of a GPU kernel costs the processor, with a driver that does nothing."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path

from gyrator.runtime.cuda_driver import CudaDriver
from gyrator.runtime.triton_launch import bind, guarded

LAUNCHES = 200

SOURCE = """
#include <stdint.h>
struct Config { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; };
int64_t seen = 0;
extern "C" int cuLaunchKernelEx(const Config* c, void*, void** args, void**) {
  seen += c->grid[0] + *(int64_t*)args[0] + *(int64_t*)args[7];
  return 0;
}
extern "C" int64_t total() { return seen; }
"""


def test_a_launch_costs_less_than_5_us(tmp_path: Path) -> None:
    library = tmp_path / "driver.so"
    command = ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    driver = ctypes.CDLL(str(library))
    one = bind(CudaDriver(driver), 1, "k", 8, lambda *args: -(-args[7] // 1024), 4, 0)
    launch = guarded([one], [(0, 16), (1, 16), (2, 16), (7, 8)], (7,), lambda _: one)
    addresses = [0x7F0000000000 + 512 * k for k in range(7)]
    times = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            launch(17, *addresses, 4096)
        times.append(time.perf_counter() - start)
    driver.total.restype = ctypes.c_int64
    assert driver.total() == 50 * LAUNCHES * (4 + addresses[0] + 4096)
    assert min(times) / LAUNCHES < 5e-6
