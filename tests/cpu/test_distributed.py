"""Programs of several processes: what they share is gradients, parameters, or tensors in parts."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gyrator
from gyrator.schedule.plan import Allocate
from tests.cpu.distributed_worker import CHECKS
from tests.processes import lines_of_two
from tests.pure.schedule.harness import scheduled

COLLECTIVES = torch.ops._c10d_functional


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_two_processes_find_what_one_does(check: str, tmp_path: Path) -> None:
    allowed = 1e-4 if check == "optimizer" else 1e-5  # in float32 its 1 - 0.999 is off by 1e-5
    errors = map(float, lines_of_two("tests.cpu.distributed_worker", tmp_path, check))
    assert all(error < allowed for error in errors)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_nothing_is_written_upon_what_a_collective_may_still_read() -> None:
    def gathered(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ x
        pending = COLLECTIVES.all_gather_into_tensor(y, 1, "0")
        return y * 2, COLLECTIVES.wait_tensor(pending) + 1

    plan = scheduled(gathered, [torch.randn(8, 8)]).plan
    assert [step for step in plan.steps if isinstance(step, Allocate) and step.upon is not None] == []


@pytest.mark.usefixtures("alone")
def test_an_input_that_a_collective_reads_is_updated_at_the_end(tmp_path: Path) -> None:
    def updated(x: Tensor) -> Tensor:
        whole = COLLECTIVES.wait_tensor(COLLECTIVES.all_gather_into_tensor(x, 1, "0"))
        x.mul_(2)
        return whole + 1

    x = torch.randn(8, 8)
    eager = x.clone()
    found = gyrator.compile(updated, options={"cache_dir": tmp_path})(x)
    torch.testing.assert_close((found, x), (updated(eager), eager))
    (wrapper,) = tmp_path.glob("graphs/??/*/wrapper.py")
    assert ".copy_(" in wrapper.read_text()


class Stack(torch.nn.Module):
    """Layers of a megabyte each, of which DDP makes parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_parts_that_ddp_cuts_a_graph_into_are_compiled(tmp_path: Path, dynamic: bool) -> None:
    model = Stack()
    eager = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, bucket_cap_mb=1)
    run = torch.compile(parallel, backend="gyrator", dynamic=dynamic, options={"cache_dir": tmp_path})
    for batch in (4, 3):
        x = torch.randn(batch, 512)
        found, expected = run(x), eager(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        for parameter, other in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(run(x), eager(x))
    assert len([*tmp_path.glob("graphs/??/*/wrapper.py")]) >= 4  # parts that are equal have one


class Attending(Stack):
    """Attention to ``reach`` earlier rows, by a mask that is made before the parts in which it is read."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, x: Tensor) -> Tensor:
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        mask = (back >= 0) & (back < self.reach)
        for layer in self.layers:
            heads = layer(x).unflatten(-1, (8, 64)).transpose(1, 2)
            x = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask).transpose(1, 2).flatten(2)
        return x


@pytest.mark.usefixtures("alone")
def test_parts_that_get_other_masks_are_others(tmp_path: Path) -> None:
    """Of what a mask lets pass, which the part that made it knows, kernels are made of in all parts."""
    for reach in (32, 3):
        model, x = Attending(reach), torch.randn(2, 32, 512)
        torch._dynamo.reset()
        run = torch.compile(
            DistributedDataParallel(model, bucket_cap_mb=1), backend="gyrator", options={"cache_dir": tmp_path}
        )
        torch.testing.assert_close(run(x), model(x))
