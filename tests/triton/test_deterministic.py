"""In torch's deterministic mode no sum on a GPU depends on which of several writes to an element comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.cache.key import graph_key
from gyrator.config import Config
from gyrator.schedule.plan import Call
from tests.triton.emulated import Emulator
from tests.triton.worker import Worker


@pytest.fixture
def emulator(tmp_path: Path, interpreter: Worker) -> Iterator[Emulator]:
    torch._dynamo.reset()
    yield Emulator(tmp_path, interpreter)
    torch.use_deterministic_algorithms(False)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


WHERE = torch.tensor([3, 0, 3, 3, 1, 0, 6])
COLUMNS = WHERE[:, None].expand(7, 5)

ORDERED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_put accumulate": lambda t, x: t.index_put((WHERE,), x, accumulate=True),
    "index_put": lambda t, x: t.index_put((WHERE,), x),
    "scatter_add": lambda t, x: t.scatter_add(0, COLUMNS, x),
    "scatter": lambda t, x: t.scatter(0, COLUMNS, x),
    "index_add": lambda t, x: t.index_add(0, WHERE, x, alpha=2),
    "index_copy": lambda t, x: t.index_copy(0, WHERE, x),
    "sum": lambda t, x: t.scatter_reduce(0, COLUMNS, x, "sum", include_self=False),
    "mean": lambda t, x: t.scatter_reduce(0, COLUMNS, x, "mean"),
    "put": lambda t, x: t.put(WHERE, x[:, 0], accumulate=True),
}
READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda t, x: F.embedding(WHERE, t) * x,
    "gather": lambda t, x: t.gather(0, COLUMNS) * x,
    "index": lambda t, x: t[WHERE] * x,
}
SAME_IN_ANY_ORDER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a number": lambda t, x: t.scatter(0, COLUMNS, 2.5),
    "one element": lambda t, x: t.index_put((WHERE,), x[0, 0]),
    "maximum": lambda t, x: t.scatter_reduce(0, COLUMNS, x, "amax"),
    "integers": lambda t, x: t.long().index_add(0, WHERE, (100 * x).long()),
    "product": lambda t, x: t.scatter_reduce(0, COLUMNS, x, "prod"),
}


def texts(emulator: Emulator) -> str:
    return "\n".join(kernel.source for made in emulator.printed for kernel in made.kernels)


def calls(emulator: Emulator) -> int:
    return sum(isinstance(step, Call) for made in emulator.printed for step in made.plan.steps)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float32) for case in ORDERED), ("mean", torch.bfloat16), ("scatter_add", torch.bfloat16)],
)
def test_writes_whose_order_counts_are_the_librarys(case: str, dtype: torch.dtype, emulator: Emulator) -> None:
    fn, table, x = ORDERED[case], random(8, 5, dtype=dtype), random(7, 5, dtype=dtype)
    torch.use_deterministic_algorithms(True)
    got = torch.compile(lambda t, x: fn(t, x).sin(), backend=emulator.backend)(table, x)
    torch.testing.assert_close(got, fn(table, x).sin())
    assert "atomic" not in texts(emulator)
    assert calls(emulator) == 1


@pytest.mark.parametrize("case", READS)
def test_so_are_gradients_of_what_is_read_often(case: str, emulator: Emulator) -> None:
    fn, table, x = READS[case], random(8, 5).requires_grad_(), random(7, 5)
    torch.use_deterministic_algorithms(True)
    got = torch.compile(fn, backend=emulator.backend)(table, x)
    for found, wanted in zip(*(torch.autograd.grad(y, table, x) for y in (got, fn(table, x))), strict=True):
        torch.testing.assert_close(found, wanted)
    assert "atomic" not in texts(emulator) and calls(emulator) == 1


@pytest.mark.parametrize("case", SAME_IN_ANY_ORDER)
def test_writes_whose_order_does_not_count_stay_in_kernels(case: str, emulator: Emulator) -> None:
    fn, table, x = SAME_IN_ANY_ORDER[case], random(8, 5), random(7, 5)
    torch.use_deterministic_algorithms(True)
    got = torch.compile(fn, backend=emulator.backend)(table, x)
    torch.testing.assert_close(got, fn(table, x))
    assert calls(emulator) == 0


def test_the_mode_is_guarded_and_part_of_keys(emulator: Emulator) -> None:
    table, x = random(8, 5), random(7, 5)
    fn = torch.compile(lambda t, x: t.index_add(0, WHERE, x), backend=emulator.backend)
    graph = torch.fx.GraphModule({}, torch.fx.Graph())
    keys = set()
    for on in (False, True, False, True):
        torch.use_deterministic_algorithms(on)
        torch.testing.assert_close(fn(table, x), table.index_add(0, WHERE, x))
        key = graph_key(graph, Config())
        assert key is not None
        keys.add(key.digest)
    assert ["atomic" in made.kernels[0].source if made.kernels else False for made in emulator.printed] == [True, False]
    assert len(keys) == 2
