"""Memory that compiled calls take: blocks of a pool on the processor, workspaces of launches on a GPU.

The system hands out large blocks as pages that fault at first touch, anew for every call; writing 64 MiB into
fresh pages takes twice as long as into pages that are mapped already. A pool keeps such blocks. A block is
taken again only when nobody else holds its storage: no tensor, view, autograd node, array or storage object. A new
block takes the place of idle ones of at least half its size, as it serves for them from then on.

A pool holds at most twice what was in use at once some time before: a call takes blocks of many sizes one after the
other, and where only the most at once were kept, each call would find some gone. Those idle for longest go first;
all go when a compiled function dies, when free memory runs short, and on :meth:`Pool.clear`."""

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

import torch

from gyrator.torch_compat import reinterpret, storage_holders

_SLACK, _LASTING_SLACK = 2, 1.125
"""A block may be so many times as large as what it is taken for, and as a result, of which the caller may keep many."""

_FREE, _KEPT = 2, 2
"""Bytes that the system must have, by those that are taken; and of all blocks, by those that were in use at once."""

RESERVE = 1 << 14
"""Bytes at least that are zeroed together for launches that are recorded."""


@dataclass(slots=True, eq=False)
class _Block:
    """A storage, seen through one flat tensor for each dtype in which it was ever taken."""

    nbytes: int
    address: int
    holders: Callable[[], int]
    bases: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    own: int = 0  # what `holders` counts while only the pool holds the storage
    taken: int = 0  # how many were taken before it was, last

    def is_idle(self) -> bool:
        return self.holders() == self.own

    def is_intact(self) -> bool:
        """Whether nobody resized the storage or moved it elsewhere (to shared memory)."""
        base = self.bases[torch.uint8]
        return base.data_ptr() == self.address and base.untyped_storage().nbytes() == self.nbytes

    def base(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self.bases:
            self.bases[dtype] = self.bases[torch.uint8][: self.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
            self.own = self.holders()
        return self.bases[dtype]


_size = attrgetter("nbytes")


class Pool:
    """Blocks of one process's CPU memory, shared by all its compiled functions and threads."""

    def __init__(self, available: Callable[[], int] | None = None) -> None:
        self._blocks: list[_Block] = []  # by size
        self._lock = threading.RLock()  # a finalizer may call compiled code in the middle of a take
        self._available = available or available_memory
        self._most = 0  # bytes in use at once
        self._takes = 0

    def take(
        self, nbytes: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, *, lasting: bool = False
    ) -> torch.Tensor:
        """A tensor of undefined contents that needs `nbytes` bytes, on memory that nobody else holds."""
        with self._lock:
            self._takes += 1
            most = (_LASTING_SLACK if lasting else _SLACK) * nbytes
            for block in self._blocks[bisect_left(self._blocks, nbytes, key=_size) :]:
                if block.nbytes > most:
                    break
                if not block.is_idle():
                    continue
                if not block.is_intact():
                    self._blocks.remove(block)
                    continue
                tensor = reinterpret(block.base(dtype), shape, strides, 0)
                if block.holders() == block.own + 1:
                    block.taken = self._takes
                    return tensor
            return reinterpret(self._new_block(nbytes).base(dtype), shape, strides, 0)

    def trim(self, enough: float = inf) -> None:
        """Give idle blocks back to the system, the longest idle first, until `enough` bytes."""
        freed = 0
        with self._lock:
            for block in sorted(filter(_Block.is_idle, self._blocks), key=attrgetter("taken")):
                if freed >= enough:
                    break
                freed += block.nbytes
                self._blocks.remove(block)

    def clear(self) -> None:
        """Forget every block: idle ones are freed now, those in use when their last holder goes."""
        with self._lock:
            self._blocks.clear()

    def held(self) -> tuple[int, int]:
        """Bytes of all blocks, and bytes of the idle ones."""
        with self._lock:
            return sum(map(_size, self._blocks)), sum(map(_size, filter(_Block.is_idle, self._blocks)))

    def _new_block(self, nbytes: int) -> _Block:
        for block in [b for b in self._blocks if b.nbytes < nbytes <= _SLACK * b.nbytes and b.is_idle()]:
            self._blocks.remove(block)
        total, idle = self.held()
        self._most = max(self._most, total - idle + nbytes)
        self.trim(total + nbytes - _KEPT * self._most)
        if self._available() < _FREE * nbytes:
            self.trim()
        try:
            memory = torch.empty(nbytes, dtype=torch.uint8)
        except RuntimeError:
            self.trim()
            memory = torch.empty(nbytes, dtype=torch.uint8)
        holders = storage_holders(memory.untyped_storage())
        block = _Block(nbytes, memory.data_ptr(), holders, {torch.uint8: memory}, taken=self._takes)
        del memory
        block.own = holders()
        insort(self._blocks, block, key=_size)
        return block


def available_memory() -> int:
    """Bytes that processes can still take without swapping, as the kernel estimates; a large number if unknown."""
    with suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


class Workspaces:
    """Gives a launch on a GPU memory beside its arguments: any, or such that is 0 at first, of which launches leave all
    bits as they were but for signs.

    Launches on one stream share the latter. One that is recorded has its own, as recordings may be replayed on several
    streams at once; it comes from a reserve that was zeroed before, so that zeroing is not recorded. Recordings hold
    addresses in it and may outlive the compiled function: `recorded` keeps all such reserves."""

    def __init__(self, recorded: list[torch.Tensor]) -> None:
        self._of_stream: dict[int, torch.Tensor] = {}
        self._recorded = recorded
        self._reserve = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def __call__(self, nbytes: int, zeroed: bool, stream: int) -> torch.Tensor:
        """``nbytes`` on the current GPU."""
        if not zeroed:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        rest = self._reserve[self._used :]
        if torch.cuda.is_current_stream_capturing():
            if nbytes > rest.numel():
                return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
            if not self._used:
                self._recorded.append(self._reserve)
            self._used += -(-nbytes // 16) * 16
            return rest[:nbytes]
        kept = self._of_stream.get(stream)
        if kept is None or kept.numel() < nbytes:
            kept = self._of_stream[stream] = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        if rest.numel() < nbytes:
            self._reserve = torch.zeros(max(RESERVE, nbytes), dtype=torch.uint8, device="cuda")
            self._used = 0
        return kept
