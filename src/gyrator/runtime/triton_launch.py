"""Launching Triton kernels: a Python function for each, which costs about 2 us of processor time.

A launch is one `struct` pack and one call of the driver. Both work on a block of memory that is made once:

    0        28   32       40            56
    +--------+----+--------+-------------+-----------------+
    | grid,  |    | stream | attribute,  | the kernel's    |
    | block  |    |        | if any      | own arguments   |
    +--------+----+--------+-------------+-----------------+
      `CUlaunchConfig` of cuda.h           of 8 bytes each

A thread takes the block for as long as its call of the driver lasts, since the driver runs without the
interpreter's lock; a second thread makes itself another one."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from struct import Struct, calcsize

from gyrator.runtime.cuda_driver import DEVICE_ASSERT, INVALID_CONTEXT, CudaDriver

Launch = Callable[..., None]
"""Takes a stream, a kernel's pointers, then its numbers."""

Programs = int | Callable[..., int]
"""How many programs run; where that depends on sizes, a function of all the kernel's arguments."""

Divisors = Sequence[tuple[int, int]]
"""Places of arguments, each with 16 or 8 that divides it."""

ALIGNMENT = 16
"""Bytes that one thread loads or stores at once, if an address is known to be a multiple of it."""

_CONFIG = "7I4xQQI4x"
_ATTRIBUTE = Struct("@I4xi60x")
TOGETHER = _ATTRIBUTE.pack(2, 1)
"""A `CUlaunchAttribute`: all blocks run at once, as they wait for each other."""
EARLY = _ATTRIBUTE.pack(6, 1)
"""As TOGETHER: blocks may start before earlier launches are done, for which the kernel waits itself."""
RECORDS_EARLY = 12030
"""The first version of the driver that also records such launches in a CUDA graph."""
_SCRATCH = 2
"""Triton's kernels end with so many pointers that are null unless asked for."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory of one launch at a time: what `pack_into` takes, then the addresses that the driver takes."""

    memory: bytearray
    config: int
    arguments: int
    attribute: int
    owners: tuple[object, ...]


def bind(
    driver: CudaDriver,
    handle: int,
    name: str,
    arguments: int,
    programs: Programs,
    warps: int,
    shared: int,
    attribute: bytes = b"",
    on_assert: Callable[[], object] = lambda: None,
) -> Launch:
    """The function that launches a kernel.

    `driver` loaded it under `handle`; `name` is for messages; it takes so many `arguments`, addresses and numbers of 64
    bits. A block has `warps` of 32 threads and `shared` bytes of memory. `attribute` is TOGETHER or EARLY, if the
    launch has one. `on_assert` is called when a check of an earlier kernel had failed; it may raise a better error.

    Raises (when called): LaunchFailed. A launch of no blocks does nothing."""
    whole = Struct(f"@{_CONFIG}{arguments}q{8 * _SCRATCH}x")
    places = range(calcsize(f"@{_CONFIG}"), whole.size, 8)
    threads, count_of = 32 * warps, None if isinstance(programs, int) else programs

    def new_block() -> _Block:
        memory = bytearray(whole.size) + attribute
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        start = ctypes.addressof(view)
        pointers = (ctypes.c_void_p * len(places))(*[start + at for at in places])
        return _Block(memory, start, ctypes.addressof(pointers), start + whole.size, (view, pointers))

    blocks, attributes = [new_block()], int(bool(attribute))
    take, give, pack, start_kernel = blocks.pop, blocks.append, whole.pack_into, driver.launch_ex

    def failed(status: int, block: _Block) -> None:
        if status == INVALID_CONTEXT and driver.enter_context():
            status = start_kernel(block.config, handle, block.arguments, None)
        if status == DEVICE_ASSERT:
            on_assert()
        driver.check(status, name)

    def launch(stream: int, *args: float) -> None:
        count = programs if count_of is None else count_of(*args)
        if not count:
            return
        try:
            block = take()
        except IndexError:
            block = new_block()
        pack(block.memory, 0, count, 1, 1, threads, 1, 1, shared, stream, block.attribute, attributes, *args)
        status = start_kernel(block.config, handle, block.arguments, None)
        if status:
            failed(status, block)
        give(block)

    return launch


def guarded(
    current: list[Launch],
    checked: Divisors,
    sizes: Sequence[int],
    otherwise: Callable[[Divisors], Launch],
    fits: Callable[..., int] | None = None,
) -> Launch:
    """A function that calls the one launch in `current`, which may be exchanged.

    Its kernel relies on what is `checked`, and on arguments that it `fits`. Where these do not hold, `otherwise` makes
    one at the first need that relies on what does divide `sizes`, and on the others if all are multiples of 16."""
    places, unaligned = tuple([(at, ALIGNMENT // by) for at, by in checked]), cache(otherwise)

    def known(args: Sequence[int]) -> Divisors:
        found = [(at, gcd(args[at], by)) for at, by in checked]
        aligned = all(by == ALIGNMENT for at, by in found if at not in sizes)
        return tuple([(at, by) for at, by in found if (by >= ALIGNMENT // 2 if at in sizes else aligned)])

    def launch(stream: int, *args: int) -> None:
        bits = 0
        for at, times in places:
            bits |= args[at] * times
        if bits & (ALIGNMENT - 1) or (fits and not fits(*args)):
            unaligned(known(args))(stream, *args)
        else:
            current[0](stream, *args)

    return launch if places or fits else lambda stream, *args: current[0](stream, *args)
