"""Training steps that several processes share, a device each: ``python -m benchmarks.distributed --json FILE``.

The peers take turns within the processes of a row, at the same step. Seconds and memory are the largest of any process.
A model is replicated (DDP compiled as a whole), sharded (FSDP2, its blocks compiled each) or has its matrices in parts
(tensor parallel, compiled as a whole). Gradients are compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from benchmarks import isolated, measure, model_row
from benchmarks.measure import Limits, Row, line, report, say
from benchmarks.model_row import free_memory, rms, synchronize, warm, workload

BLOCKS: Mapping[str, str] = {"gpt2": "transformer.h", "llama": "model.layers"}
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
APART: Mapping[str, float] = {"bfloat16": 0.05, "float32": 1e-4}
"""How far gradients may be from eager's, as a share of them."""


@dataclass(frozen=True)
class Task:
    """What the processes of a row do; ``way`` is a key of WAYS, ``size`` of ``model_row.COLLECTIONS``."""

    model: str
    way: str
    size: str
    device: str
    dtype: str
    peers: Sequence[str]
    rounds: int


@dataclass(frozen=True)
class Result:
    """By peer, as in :class:`Row`; ``apart`` is how far gradients are from eager's."""

    seconds: Mapping[str, float]
    first_call: Mapping[str, float]
    peak_memory: Mapping[str, float]
    apart: Mapping[str, float]


# --- ways to share a model ---


def replicated(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, peer: str) -> nn.Module:
    whole: nn.Module = measure.compiled(DistributedDataParallel(model), peer, dynamic=False)
    return whole


def sharded(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, peer: str) -> nn.Module:
    for block in blocks:
        if peer != "eager":
            block.compile(backend=peer)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, peer: str) -> nn.Module:
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in COLUMNS}
    for block in blocks:
        parallelize_module(block, mesh, plan | {name: RowwiseParallel() for name in ROWS})
    whole: nn.Module = measure.compiled(model, peer, dynamic=False)
    return whole


WAYS: Mapping[str, Callable[[nn.Module, nn.ModuleList, DeviceMesh, str], nn.Module]] = {
    way.__name__: way for way in (replicated, sharded, tensor_parallel)
}
CASES = (("gpt2", "replicated"), ("gpt2", "sharded"), ("llama", "sharded"), ("llama", "tensor_parallel"))


# --- one process of a row ---


def largest(value: float, device: str) -> float:
    """The largest of what the processes have."""
    found = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def stepper(task: Task, peer: str, mesh: DeviceMesh) -> tuple[nn.Module, Callable[[], None]]:
    """The model as it is shared, and what runs it forward and back; each process has its part of the data, but for
    models whose matrices are in parts."""
    given = workload(model_row.Task(task.model, "training", task.size, task.device, task.dtype, task.peers))
    blocks = given.model.get_submodule(BLOCKS[task.model])
    assert isinstance(blocks, nn.ModuleList)
    model = WAYS[task.way](given.model, blocks, mesh, peer)
    torch.manual_seed(0 if task.way == "tensor_parallel" else mesh.get_rank())
    tokens = torch.randint_like(given.batch["input_ids"], 3, int(given.batch["input_ids"].max()))

    def step() -> None:
        model(input_ids=tokens, labels=tokens)["loss"].backward()

    return model, step


def gradients(model: nn.Module) -> list[Tensor]:
    """Of this process, a copy on the CPU."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [(g.to_local() if isinstance(g, DTensor) else g).float().cpu() for g in found]


def distance(found: Sequence[Tensor], eager: Sequence[Tensor]) -> float:
    """The RMS of the difference as a share of that of ``eager``, of all gradients together."""
    pairs = zip(found, eager, strict=True)
    off, whole = zip(*((rms(f, e) ** 2 * e.numel(), rms(e) ** 2 * e.numel()) for f, e in pairs), strict=True)
    return float((sum(off) / sum(whole)) ** 0.5)


def once(model: nn.Module, step: Callable[[], None]) -> float:
    """Seconds of a step that all processes begin together; gradients are dropped before."""
    model.zero_grad(set_to_none=True)
    synchronize()
    dist.barrier()
    started = time.perf_counter()
    step()
    synchronize()
    return time.perf_counter() - started


def observed(task: Task, mesh: DeviceMesh) -> Result:
    """What this process finds, together with the others."""
    ready, first, peak, apart, eager = {}, {}, {}, {}, None
    for peer in task.peers:
        warm(peer, task.device)
        model, step = ready[peer] = stepper(task, peer, mesh)
        first[peer] = largest(once(model, step), task.device)
        found = gradients(model)
        eager = eager or found
        apart[peer] = largest(distance(found, eager), task.device)
        once(model, step)
        model.zero_grad(set_to_none=True)
        free_memory()
    samples: dict[str, list[float]] = {peer: [] for peer in ready}
    for number in range(task.rounds + 2):  # the first two warm up
        for peer, (model, step) in ready.items():
            samples[peer] += [once(model, step)] * (number > 1)
            model.zero_grad(set_to_none=True)
    for peer, (model, step) in ready.items() if task.device == "cuda" else ():
        free_memory()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        once(model, step)
        peak[peer] = largest(torch.cuda.max_memory_allocated() - held, task.device)
        model.zero_grad(set_to_none=True)
    seconds = {peer: largest(statistics.median(each), task.device) for peer, each in samples.items()}
    return Result(seconds, first, peak, apart)


def work(rank: int, world: int, task: Task, folder: str) -> None:
    warnings.simplefilter("ignore")
    cuda = torch.device("cuda", rank) if task.device == "cuda" else None
    if cuda is not None:
        torch.cuda.set_device(cuda)
    os.environ.update(isolated.environment(Path(folder, str(rank)), world))
    store = FileStore(str(Path(folder, "store")), world)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world, store=store, device_id=cuda)
    found = observed(task, init_device_mesh(task.device, (world,)))
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(asdict(found)))
    dist.barrier()
    os._exit(0)  # nothing is heard from a process that has left


# --- all rows ---


def rows(options: argparse.Namespace, limits: Limits) -> Iterator[Row]:
    for model, way in CASES:
        if options.only and way not in options.only and model not in options.only:
            continue
        dtype = "bfloat16" if options.device == "cuda" else "float32"
        task = Task(model, way, options.size, options.device, dtype, options.peers, options.rounds)
        with tempfile.TemporaryDirectory(prefix="gyrator_rows_", ignore_cleanup_errors=True) as folder:
            context = start_processes(
                work, (options.processes, task, folder), options.processes, join=False, start_method="spawn"
            )
            error = None
            try:
                ended = time.monotonic() + options.row_timeout
                while not context.join(timeout=1.0) and time.monotonic() < ended:
                    pass
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"[-1500:]
            for process in context.processes:
                process.kill()
            yield row(task, options.processes, Path(folder, "result.json"), error or "timed out", limits)


def row(task: Task, processes: int, path: Path, error: str, limits: Limits) -> Row:
    suite, case = (
        f"training by {processes} process{'es' * (processes > 1)} {task.device} {task.dtype}",
        f"{task.model}_{task.way}",
    )
    if not path.exists():
        return Row(suite, case, limits.threads, False, {}, errors=dict.fromkeys(task.peers, error))
    found = Result(**json.loads(path.read_text()))
    wrong = {p: f"gradients off by {share:.2g}" for p, share in found.apart.items() if not share < APART[task.dtype]}
    notes = {"peak_memory": found.peak_memory, "apart": found.apart}
    return Row(suite, case, limits.threads, False, found.seconds, found.first_call, wrong, notes=notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per row and writes the JSON file. Returns 1 if gyrator fails in a row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(model_row.COLLECTIONS), default="full")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--peers", nargs="+", default=list(measure.PEERS))
    parser.add_argument("--only", nargs="+", default=[], help=f"models, or any of {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--row-timeout", type=float, default=240.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    cuda = options.device == "cuda"
    limits = isolated.device_limits("cuda") if cuda else measure.limits(torch.get_num_threads())
    found: list[Row] = []
    for each in rows(options, limits):
        found.append(each)
        say(f"{line(each)}\n    first call s {each.first_call}\n    {each.notes}\n    {each.errors}")
        if options.json:
            options.json.write_text(json.dumps(report(found, [limits]), indent=1) + "\n")
    return int(any("gyrator" in each.errors for each in found))


if __name__ == "__main__":
    sys.exit(main())
