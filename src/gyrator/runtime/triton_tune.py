"""Timing a kernel's configs on the arguments of the first call, so that the fastest is chosen. What the kernel would
change twice is put aside before and put back after. The choice is kept in the store under the kernel, the GPU and the
sizes, so that later processes load that one binary alone."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gyrator.errors import LaunchFailed
from gyrator.ir.tree import Config
from gyrator.runtime.cuda_driver import CudaDriver
from gyrator.runtime.triton_launch import Launch

WARM_UP = 2
BATCHES = 4
BATCH_MS = 0.5
"""The fastest of four batches counts; a batch is as many launches as take half a millisecond."""

MOST_LAUNCHES = 50
FASTER = 0.98
"""How much of the time a change must leave to be worth it: less may be chance."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of a kernel's configs, as ``XBLOCK: 512, num_warps: 4``, its category (see `TritonKernel`), its binary,
    and milliseconds of a launch; None if the GPU lacks the registers or the shared memory for it."""

    config: str
    category: str
    file: str
    milliseconds: float | None
    chosen: bool


Tuned = Callable[[str, Sequence[Variant], bool], None]
"""Told a kernel's name, its candidates, and whether they were timed just now (or by an earlier process)."""


def neighbours(config: Config, room: Mapping[str, int]) -> Iterator[Config]:
    """Configs with a block (if there is ``room``) or the warps (to 32) doubled or halved, or a stage more or less."""
    for k, (name, size) in enumerate(config.blocks):
        for new in (2 * size, size // 2):
            if 1 <= new <= room.get(name, 0):
                yield replace(config, blocks=(*config.blocks[:k], (name, new), *config.blocks[k + 1 :]))
    yield from (replace(config, num_warps=n) for n in (2 * config.num_warps, config.num_warps // 2) if 1 <= n <= 32)
    yield from (replace(config, num_stages=n) for n in (config.num_stages + 1, config.num_stages - 1) if 1 <= n <= 4)


def descend(config: Config, took: float, room: Mapping[str, int], measure: Callable[[Config], float | None]) -> Config:
    """The config from which no neighbour is faster by 2%.

    From a config, which ``took`` so long, to the first faster neighbour, and on from there. None: it cannot run."""
    found: dict[Config, float | None] = {config: took}
    while True:
        for other in neighbours(config, room):
            if other not in found and (ms := found.setdefault(other, measure(other))) and ms < FASTER * took:
                config, took = other, ms
                break
        else:
            return config


def times(
    launches: Sequence[Launch], stream: int, args: Sequence[int], updated: Sequence[tuple[int, int]], driver: CudaDriver
) -> list[float | None] | None:
    """Milliseconds of each candidate on the current stream, which is `stream`; None for one that cannot be launched.

    Args:
        launches: of candidates, forms of one kernel that give the same results.
        updated: (address, bytes) of memory whose contents matter afterwards and must not change here.

    Returns None where nothing can be timed: while a graph is recorded, or without memory for the copies.

    Raises: LaunchFailed if no candidate can be launched."""
    if torch.cuda.is_current_stream_capturing():
        return None
    try:
        with _put_aside(updated, stream, driver):
            found = [_milliseconds(launch, stream, args) for launch in launches]
    except torch.cuda.OutOfMemoryError:
        return None
    if all(took is None for took in found):
        launches[0](stream, *args)  # raises why
    return found


@contextlib.contextmanager
def _put_aside(updated: Sequence[tuple[int, int]], stream: int, driver: CudaDriver) -> Iterator[None]:
    copies = [(at, n, torch.empty(n, dtype=torch.uint8, device="cuda")) for at, n in updated if n]
    for at, nbytes, copy in copies:
        driver.copy(copy.data_ptr(), at, nbytes, stream)
    try:
        yield
    finally:
        for at, nbytes, copy in copies:
            driver.copy(at, copy.data_ptr(), nbytes, stream)


def _milliseconds(launch: Launch, stream: int, args: Sequence[int]) -> float | None:
    """Of one launch; None if the GPU lacks the registers or the shared memory for it."""
    try:
        for _ in range(WARM_UP):
            launch(stream, *args)
    except LaunchFailed:
        return None
    count = max(1, min(MOST_LAUNCHES, int(BATCH_MS / max(_batch(launch, stream, args, 1), 1e-3))))
    return min(_batch(launch, stream, args, count) for _ in range(BATCHES)) / count


def _batch(launch: Launch, stream: int, args: Sequence[int], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        launch(stream, *args)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
