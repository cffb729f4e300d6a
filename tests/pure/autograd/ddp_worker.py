"""One process of the data-parallel test: ``python -m tests.pure.autograd.ddp_worker RANK STORE`` prints
its gradients.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from tests.pure.autograd.harness import BACKEND


def build() -> torch.nn.Module:
    """The model that every process trains, with equal weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def batch(rank: int) -> torch.Tensor:
    """The part of the data that a process sees."""
    return torch.full((2, 4), float(rank + 1))


def main(rank: int, store: str) -> None:
    """Runs one step, prints the gradients as JSON, and stays until standard input ends: no process
    leaves while the other may still hear from it.
    """
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    model = build()
    parallel = torch.nn.parallel.DistributedDataParallel(torch.compile(model, backend=BACKEND))
    parallel(batch(rank)).square().sum().backward()
    print(json.dumps([parameter.grad.tolist() for parameter in model.parameters()]), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
