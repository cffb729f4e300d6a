"""The pool: memory is taken again only when nobody else holds it, and keeping it never costs memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from gyrator.runtime.pool import Pool

MIB = 1 << 20


def take(pool: Pool, dtype: torch.dtype = torch.float32, nbytes: int = MIB, *, lasting: bool = False) -> torch.Tensor:
    count = nbytes // dtype.itemsize
    return pool.take(nbytes, (count,), (1,), dtype, lasting=lasting)


def test_freed_memory_is_taken_again() -> None:
    pool = Pool()
    first = take(pool)
    address = first.data_ptr()
    del first
    assert take(pool).data_ptr() == address


HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "a view": lambda t: t[10:20],
    "a detached alias": lambda t: t.detach(),
    "a parameter": lambda t: torch.nn.Parameter(t),
    "an array": lambda t: t.numpy(),
    "its storage": lambda t: t.untyped_storage(),
    "an autograd node": lambda t: (t.requires_grad_() * t).sum(),
    "another dtype": lambda t: t.view(torch.int32),
    "a capsule": lambda t: torch.utils.dlpack.to_dlpack(t),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_someone_holds_is_left_alone(holder: str) -> None:
    pool = Pool()
    tensor = take(pool)
    address = tensor.data_ptr()
    held = HOLDERS[holder](tensor)
    del tensor
    assert take(pool).data_ptr() != address
    del held
    gc.collect()
    addresses = [t.data_ptr() for t in [take(pool), take(pool)]]
    assert address in addresses


def test_one_block_serves_several_dtypes_and_shapes() -> None:
    pool = Pool()
    first = take(pool, torch.float32)
    address = first.data_ptr()
    del first
    second = take(pool, torch.int64)
    assert second.data_ptr() == address and second.dtype == torch.int64
    del second
    third = pool.take(MIB, (512, 512), (1, 512), torch.float32)
    assert third.data_ptr() == address and third.stride() == (1, 512)


def test_only_what_ends_with_the_call_lies_in_a_much_larger_block() -> None:
    pool = Pool()
    address = take(pool, nbytes=2 * MIB).data_ptr()
    assert take(pool).data_ptr() == address
    assert take(pool, nbytes=MIB - 64).data_ptr() != address  # less than half
    result = take(pool, lasting=True)
    assert result.data_ptr() != address and result.untyped_storage().nbytes() == MIB


def test_a_call_finds_all_blocks_of_the_one_before() -> None:
    """Also where it takes many sizes one after the other."""
    pool, calls = Pool(), []
    for _ in range(3):
        small = [take(pool) for _ in range(8)]
        calls.append({t.data_ptr() for t in small})
        del small
        large = take(pool, nbytes=6 * MIB)
        calls[-1].add(large.data_ptr())
        del large
    assert calls[0] == calls[1] == calls[2]
    assert pool.held() == (14 * MIB, 14 * MIB)


def test_what_is_held_never_exceeds_twice_what_was_in_use_at_once() -> None:
    pool, most = Pool(), 0
    for sizes in ([4, 4, 2], [3, 8], [1] * 10, [2, 2, 2], [9], [12], [7]):
        tensors = [take(pool, nbytes=s * MIB) for s in sizes]
        total, idle = pool.held()
        most = max(most, total - idle)
        del tensors
        assert pool.held()[0] <= 2 * most * 9 // 8


def test_of_idle_blocks_the_longest_idle_go_first() -> None:
    pool = Pool()
    for size in (4, 3, 4, 2):  # at most 4 MiB at once: 8 are kept
        take(pool, nbytes=size * MIB, lasting=True)
    assert [block.nbytes for block in pool._blocks] == [2 * MIB, 4 * MIB]


def test_a_new_block_takes_the_place_of_idle_ones_that_it_serves_for() -> None:
    pool = Pool()
    held = take(pool, nbytes=3 * MIB)
    for size in (MIB, 2 * MIB, 3 * MIB, 4 * MIB):
        take(pool, nbytes=size)
    assert [block.nbytes for block in pool._blocks] == [3 * MIB, 4 * MIB]
    assert held.untyped_storage().nbytes() == 3 * MIB
    address = take(pool, nbytes=4 * MIB).data_ptr()
    assert take(pool, nbytes=2 * MIB).data_ptr() == address


def test_blocks_that_grow_come_to_rest() -> None:
    """Calls that take several sizes at once and one after the other make no block after the second."""
    pool, blocks = Pool(), list[int]()
    for _ in range(4):
        first = [take(pool, nbytes=size * MIB) for size in (2, 3)]
        del first
        second = [take(pool, nbytes=size * MIB, lasting=size == 3) for size in (4, 3, 2)]
        del second
        blocks.append(pool.held()[0])
    assert blocks[1:] == [blocks[1]] * 3


def test_idle_memory_goes_when_memory_is_short() -> None:
    available = [1 << 40]
    pool = Pool(lambda: available[0])
    kept = [take(pool, nbytes=s * MIB) for s in (3, 4)]
    del kept
    available[0] = 0
    one = take(pool)
    assert pool.held() == (MIB, 0)
    del one


def test_clear_forgets_memory_in_use_too() -> None:
    pool = Pool()
    tensor = take(pool)
    pool.clear()
    tensor.fill_(1)
    assert pool.held() == (0, 0)
    assert take(pool).data_ptr() != tensor.data_ptr()


def test_storage_that_was_resized_is_not_taken_again() -> None:
    pool = Pool()
    tensor = take(pool)
    tensor.untyped_storage().resize_(0)
    del tensor
    take(pool).fill_(1)


def test_threads_never_share_memory() -> None:
    pool = Pool()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = take(pool)
            mine[:64].fill_(number)
            other = take(pool)
            other[:64].fill_(-number)
            if not bool((mine[:64] == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
