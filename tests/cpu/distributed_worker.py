"""One of two processes of the distributed tests: ``python -m tests.cpu.distributed_worker RANK STORE CHECK``
prints how far what a check computes is from what one process or eager does.
"""

import copy
import os
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

BACKEND, WORLD = "gyrator", 2


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).square().mean()


def batch(rank: int, device: str) -> Tensor:
    """The part of the data that a process sees."""
    return torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(rank)).to(device)


def replicated(model: Model, mesh: DeviceMesh) -> nn.Module:
    return torch.compile(DistributedDataParallel(model), backend=BACKEND)


def sharded(model: Model, mesh: DeviceMesh) -> nn.Module:
    """Blocks that are compiled each, of parameters that are gathered before each."""
    for block in model.blocks:
        block.compile(backend=BACKEND)
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_whole(model: Model, mesh: DeviceMesh) -> nn.Module:
    return torch.compile(fully_shard(model, mesh=mesh), backend=BACKEND)


def tensor_parallel(model: Model, mesh: DeviceMesh) -> nn.Module:
    """Each process has half of the columns, or rows, of weights, which are DTensors."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return torch.compile(model, backend=BACKEND)


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest error, as a share of the largest element; DTensors are gathered."""
    whole = [t.detach().full_tensor() if isinstance(t, DTensor) else t.detach() for t in (found, expected)]
    return float((whole[0] - whole[1]).abs().max() / whole[1].abs().max())


def training(way: Callable[[Model, DeviceMesh], nn.Module], rank: int, mesh: DeviceMesh) -> float:
    """The error of gradients of a model that the processes share in some way."""
    torch.manual_seed(0)
    alone = Model().to(mesh.device_type)
    model = way(copy.deepcopy(alone), mesh)
    parts = [batch(k, mesh.device_type) for k in range(WORLD)]
    (sum(map(alone, parts)) / WORLD).backward()
    loss = sum(map(model, parts)) / WORLD if way is tensor_parallel else model(parts[rank])
    loss.backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(apart(found.grad, expected.grad) for found, expected in pairs)


def distributed_function(rank: int, mesh: DeviceMesh) -> float:
    """The error of a function that gets, makes and returns DTensors, with its gradient."""

    def function(x: Tensor, w: DTensor) -> tuple[DTensor, Tensor]:
        y = F.softmax(DTensor.from_local(x, mesh, [Shard(0)]) @ w, -1)
        return y.sum(0), y.redistribute(mesh, [Replicate()]).to_local() * 2

    torch.manual_seed(0)
    weight = distribute_tensor(torch.randn(32, 32, device=mesh.device_type), mesh, [Replicate()])
    found = []
    for call in (function, torch.compile(function, backend=BACKEND)):
        w = weight.detach().requires_grad_()
        total, rows = call(batch(rank, mesh.device_type), w)
        (total.full_tensor().square().sum() + rows.square().sum()).backward()
        found.append([total, rows, w.grad])
    return max(map(apart, *reversed(found)))


def optimizer(rank: int, mesh: DeviceMesh) -> float:
    """The error of parameters in parts after a step of AdamW."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = fully_shard(Model().to(mesh.device_type), mesh=mesh)
        for parameter in model.parameters():
            parameter.grad = parameter.detach() + 1
        step = torch.optim.AdamW(model.parameters()).step
        (torch.compile(step, backend=BACKEND) if compiled else step)()
        found.append(list(model.parameters()))
    return max(map(apart, *reversed(found)))


CHECKS: dict[str, Callable[[int, DeviceMesh], float]] = {
    **{way.__name__: partial(training, way) for way in (replicated, sharded, sharded_whole, tensor_parallel)},
    **{check.__name__: check for check in (distributed_function, optimizer)},
}


def main(rank: int, store: str, check: str) -> None:
    device = "cuda" if torch.cuda.device_count() >= WORLD else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=WORLD, store=dist.FileStore(store, WORLD))
    mesh = init_device_mesh(device, (WORLD,))
    print(CHECKS[check](rank, mesh), flush=True)
    sys.stdin.read()  # no process leaves while the other may still hear from it
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
