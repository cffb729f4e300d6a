"""Programs of several processes: what they share is gradients, parameters, or tensors in parts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gyrator.schedule.plan import Allocate
from tests.cpu.distributed_worker import WAYS, WORLD
from tests.pure.schedule.harness import scheduled


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, "distributed_function", "optimizer"])
def test_two_processes_find_what_one_does(way: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cpu.distributed_worker"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(WORLD)
    ]
    printed = [worker.stdout.readline() for worker in workers if worker.stdout]
    for worker in workers:
        worker.communicate(timeout=180)
    assert all(float(error) < 1e-4 for error in printed)  # 1 - 0.999 in float32 is off by 1e-5


def test_nothing_is_written_upon_what_a_collective_may_still_read(tmp_path: Path) -> None:
    collectives = torch.ops._c10d_functional

    def gathered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ x
        pending = collectives.all_gather_into_tensor(y, 1, "0")
        return y * 2, collectives.wait_tensor(pending) + 1

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    try:
        plan = scheduled(gathered, [torch.randn(8, 8)]).plan
    finally:
        dist.destroy_process_group()
    assert [step for step in plan.steps if isinstance(step, Allocate) and step.upon is not None] == []
