"""Peak memory of a stretch of work: resident bytes of this process, or bytes allocated on a GPU."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> None:
    """Start a new peak. Where Linux does not allow it, the peak since the process began stays."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The peak since `reset_peak`, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
