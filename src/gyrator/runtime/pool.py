"""Memory that compiled calls take and give back.

The system hands out large blocks as pages that fault at first touch, anew for every call; writing 64 MiB into
fresh pages takes twice as long as into pages that are mapped already. A pool keeps such blocks. A block is
taken again only when nobody else holds its storage: no tensor, view, autograd node, array or storage object.

What is kept never costs memory: before a pool asks the system for a block it gives back as many idle bytes,
so it holds no more than what was in use at once some time before. It gives back all idle blocks when a
compiled function dies, when free memory runs short, and on :meth:`Pool.clear`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from gyrator.torch_compat import reinterpret, storage_holders

SMALLEST = 1 << 20
"""Tensors of fewer bytes come from torch's allocator, which keeps such memory itself."""

_SLACK = 8
"""A block may be larger than what it is taken for by 1/8."""

_RESERVE = 2


@dataclass(slots=True)
class _Block:
    """A storage, seen through one flat tensor for each dtype in which it was ever taken."""

    nbytes: int
    address: int
    holders: Callable[[], int]
    bases: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    own: int = 0  # what `holders` counts while only the pool holds the storage

    def is_idle(self) -> bool:
        return self.holders() == self.own

    def is_intact(self) -> bool:
        """Whether nobody resized the storage or moved it elsewhere (to shared memory)."""
        base = self.bases[torch.uint8]
        return base.data_ptr() == self.address and base.untyped_storage().nbytes() == self.nbytes

    def base(self, dtype: torch.dtype) -> torch.Tensor:
        found = self.bases.get(dtype)
        if found is None:
            whole = self.nbytes // dtype.itemsize * dtype.itemsize
            found = self.bases[dtype] = self.bases[torch.uint8][:whole].view(dtype)
            self.own = self.holders()
        return found


class Pool:
    """Blocks of one process's CPU memory, shared by all its compiled functions and threads."""

    def __init__(self, available: Callable[[], int] | None = None) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._lock = threading.RLock()  # a finalizer may call compiled code in the middle of a take
        self._available = available or available_memory

    def take(self, nbytes: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of undefined contents that needs `nbytes` bytes, on memory that nobody else holds."""
        with self._lock:
            for block in self._candidates(nbytes):
                if not block.is_idle():
                    continue
                if not block.is_intact():
                    self._blocks[block.nbytes].remove(block)
                    continue
                base = block.base(dtype)
                tensor = reinterpret(base, shape, strides, 0)
                if block.holders() == block.own + 1:
                    return tensor
            block = self._new_block(nbytes)
            return reinterpret(block.base(dtype), shape, strides, 0)

    def trim(self, enough: int | None = None) -> int:
        """Give idle blocks back to the system, the largest first, until `enough` bytes (None: all); how many."""
        freed = 0
        with self._lock:
            for nbytes in sorted(self._blocks, reverse=True):
                kept = []
                for block in self._blocks[nbytes]:
                    if (enough is None or freed < enough) and block.is_idle():
                        freed += nbytes
                    else:
                        kept.append(block)
                if kept:
                    self._blocks[nbytes] = kept
                else:
                    del self._blocks[nbytes]
        return freed

    def clear(self) -> None:
        """Forget every block: idle ones are freed now, those in use when their last holder goes."""
        with self._lock:
            self._blocks.clear()

    def held(self) -> tuple[int, int]:
        """Bytes of all blocks, and bytes of the idle ones."""
        with self._lock:
            blocks = [b for same in self._blocks.values() for b in same]
            return sum(b.nbytes for b in blocks), sum(b.nbytes for b in blocks if b.is_idle())

    def _candidates(self, nbytes: int) -> Iterator[_Block]:
        """Blocks of exactly this size, then of slightly larger ones."""
        yield from list(self._blocks.get(nbytes, ()))
        limit = nbytes + nbytes // _SLACK
        for size in sorted(size for size in self._blocks if nbytes < size <= limit):
            yield from list(self._blocks[size])

    def _new_block(self, nbytes: int) -> _Block:
        self.trim(nbytes)
        if self._available() < _RESERVE * nbytes:
            self.trim()
        try:
            memory = torch.empty(nbytes, dtype=torch.uint8)
        except RuntimeError:
            self.trim()
            memory = torch.empty(nbytes, dtype=torch.uint8)
        holders = storage_holders(memory.untyped_storage())
        block = _Block(nbytes, memory.data_ptr(), holders, {torch.uint8: memory})
        del memory
        block.own = holders()
        self._blocks.setdefault(nbytes, []).append(block)
        return block


def available_memory() -> int:
    """Bytes that processes can still take without swapping, as the kernel estimates; a large number if unknown."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62
