"""One model in one mode by all peers, in a process of its own: ``python -m benchmarks.model_row TASK RESULT``.

``benchmarks.isolated`` starts these processes. TASK is a :class:`Task` as JSON; RESULT is the file where a
:class:`Result` is kept up to date, so that what was found survives a crash. First calls are made at once,
beside those of other processes. Then the process says that it is ready and waits for a line on its standard
input: what follows (accuracy, times, memory) has the machine to itself.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import gyrator.backend
from benchmarks import full_size, measure, timm_models, zoo
from tests.acceptance import SLACK, ZERO_GRADIENT, double_precision
from tests.model_steps import exact_experts

Step = Callable[[], object]
WARMUP, ROUND, LEAST_ROUNDS, MOST_ROUNDS = 5, 5, 2, 20
CHUNK = 1 << 25
COLLECTIONS: Mapping[str, Mapping[str, Callable[[], zoo.Workload]]] = {
    "full": full_size.MODELS,
    "timm": timm_models.MODELS,
    **{size: {name: partial(make, size) for name, make in zoo.MODELS.items()} for size in get_args(zoo.Size)},
}
KERNELS_SHOWN = 15
FRAMES_SHOWN = 8


# --- what is asked and what is found ---


@dataclass(frozen=True)
class Task:
    """``mode`` is inference or training, ``size`` a key of COLLECTIONS; ``budget`` seconds of timing a peer."""

    model: str
    mode: str
    size: str
    device: str
    dtype: str
    peers: Sequence[str]
    dynamic: bool = False
    budget: float = 1.0
    kernels: bool = False

    @property
    def case(self) -> str:
        return f"{self.model}_{self.mode}"


@dataclass
class Result:
    """What is known so far, by peer; ``peer`` is the one at work. Memory in bytes, the rest as in measure.Row."""

    stage: str = "start"
    peer: str | None = None
    first_call: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)
    accuracy: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Journal:
    """Keeps the result's file up to date."""

    result: Result
    path: Path

    def enter(self, stage: str, peer: str | None = None) -> None:
        self.result.stage, self.result.peer = stage, peer
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.result)))
        partial.replace(self.path)

    @contextmanager
    def guarded(self, stage: str, peer: str) -> Iterator[None]:
        """Notes an exception as the peer's error; ends the process if the device is lost with it."""
        self.enter(stage, peer)
        try:
            yield
        except Exception as error:
            self.result.errors.setdefault(peer, f"{stage}: {described(error)}")
            self.enter(stage, peer)
            try:
                synchronize()
            except RuntimeError:
                os._exit(3)


def described(error: BaseException) -> str:
    """The message of an exception's root cause and the last frames that led to it."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = "".join(traceback.format_exception_only(error)).strip()[:1500]
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    lines = [f"  {Path(f.filename).parent.name}/{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    return "\n".join([message, *lines])


# --- the model ---


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def workload(task: Task) -> zoo.Workload:
    """The task's model and batch on its device, floats in its dtype."""
    torch.manual_seed(0)
    with torch.device(task.device):
        made = COLLECTIONS[task.size][task.model]()
    dtype = getattr(torch, task.dtype)
    model = made.model.to(task.device, dtype).train(task.mode == "training")
    made = zoo.Workload(model, in_dtype(made.batch, dtype))
    return made if task.mode == "training" else zoo.Workload(model, made.inference_batch())


def in_dtype(batch: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, dict(batch))


def step(call: Callable[..., Any], model: nn.Module, batch: Mapping[str, Any], mode: str) -> Step:
    """What is timed: a forward, in training with loss and backward. Gradients are dropped after each step."""

    def infer() -> object:
        with torch.no_grad():
            return call(**batch)

    def train() -> None:
        call(**batch)["loss"].backward()
        model.zero_grad(set_to_none=True)

    return train if mode == "training" else infer


def warm(peer: str, device: str) -> None:
    """A tiny first compilation: imports and worker processes are not what a model's first call measures."""
    given = torch.ones(64, 64, device=device, requires_grad=True)
    measure.compiled(lambda x: (x * 2 + 1).sum(), peer, dynamic=False)(given).backward()
    synchronize()


def first_calls(task: Task, given: zoo.Workload, journal: Journal) -> dict[str, Callable[..., Any]]:
    """The model as each peer runs it, where that works, after its first step."""
    calls: dict[str, Callable[..., Any]] = {}
    for peer in task.peers:
        with journal.guarded("first call", peer):
            warm(peer, task.device)
            FakeTensorMode.cache_clear()
            started = time.perf_counter()
            call = measure.compiled(given.model, peer, dynamic=task.dynamic)
            run = step(call, given.model, given.batch, task.mode)
            run()
            synchronize()
            journal.result.first_call[peer] = time.perf_counter() - started
            run()
            synchronize()
            calls[peer] = call
        free_memory()
    return calls


def free_memory() -> None:
    """Gives back what garbage, torch and gyrator keep."""
    gyrator.backend.gyrator.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- accuracy ---


def observed(call: Callable[..., Any], model: nn.Module, batch: Mapping[str, Any], mode: str) -> dict[str, Tensor]:
    """Outputs by name; in training the gradients of all parameters too."""
    with torch.set_grad_enabled(mode == "training"):
        output = dict(call(**batch))
    leaves = pytree.tree_flatten_with_path(output)[0]
    found = {"output" + pytree.keystr(path): leaf.detach() for path, leaf in leaves if isinstance(leaf, Tensor)}
    if mode == "training":
        output["loss"].backward()
        found |= {f"gradient {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
    return found


def reference(task: Task, given: zoo.Workload) -> dict[str, Tensor]:
    """Eager with the same weights: half precision is judged by float32, float32 by float64."""
    narrow = getattr(torch, task.dtype)
    wide = torch.float64 if narrow == torch.float32 else torch.float32
    model = copy.deepcopy(given.model).to(wide)
    if wide == torch.float64:
        exact_experts(model)
    with double_precision() if wide == torch.float64 else nullcontext():
        return observed(model, model, in_dtype(given.batch, wide), task.mode)


def rms(values: Tensor, exact: Tensor | None = None) -> float:
    """RMS of ``values``, or of their differences from ``exact`` where that is finite. Summed up in float64."""
    total = 0.0
    flat = values.detach().reshape(-1)
    base = torch.zeros_like(flat[:1]).expand(flat.shape) if exact is None else exact.detach().reshape(-1)
    for part, wanted in zip(flat.split(CHUNK), base.split(CHUNK), strict=True):
        total += torch.where(wanted.isfinite(), part.double() - wanted.double(), 0.0).square().sum().item()
    return math.sqrt(total / max(flat.numel(), 1))


def judged(actual: Mapping[str, Tensor], eager: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensor whose error is the largest share of what is allowed: 2 × eager's own + slack × eps × scale.

    ``share`` above 1 is wrong; a tensor that is missing or not finite has an infinite share.
    """
    gradients = [rms(tensor) for name, tensor in exact.items() if name.startswith("gradient")]
    least = ZERO_GRADIENT * max(gradients, default=0.0)
    worst: dict[str, Any] = {"share": -1.0}
    for name, wanted in exact.items():
        narrow = eager[name].dtype
        if not narrow.is_floating_point:
            continue
        own, scale = rms(eager[name], wanted), max(rms(wanted), least if name.startswith("gradient") else 0.0)
        error = rms(actual[name], wanted) if name in actual else math.inf
        allowed = 2 * own + SLACK.get(narrow, 1.0) * torch.finfo(narrow).eps * scale
        share = math.inf if math.isnan(error) else error / max(allowed, 1e-300)
        if share > worst["share"]:
            worst = {"share": share, "tensor": name, "error": error, "eager": own, "scale": scale}
    return worst


def check(task: Task, given: zoo.Workload, calls: Mapping[str, Callable[..., Any]], journal: Journal) -> None:
    """Compares each compiled peer with eager and the reference; a wrong answer is an error of the peer."""
    journal.enter("accuracy, reference")
    exact = reference(task, given)
    eager = observed(given.model, given.model, given.batch, task.mode)
    for peer, call in calls.items():
        with journal.guarded("accuracy", peer):
            found = judged(observed(call, given.model, given.batch, task.mode), eager, exact)
            journal.result.accuracy[peer] = found
            if found["share"] > 1:
                text = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in found.items()}
                journal.result.errors[peer] = f"wrong: {text}"
        free_memory()


# --- times, memory, kernels ---


def timed(run: Step, repeats: int, device: str) -> list[float]:
    """Seconds of each of some steps in a row: between CUDA events on a GPU, else by the clock."""
    if device == "cpu":
        return [measure.best_of(run, 1) for _ in range(repeats)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    synchronize()
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(marks)]


def called(run: Step) -> float:
    """Seconds until a call returns, the device idle before and not waited for."""
    synchronize()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def time_all(steps: Mapping[str, Step], task: Task, journal: Journal) -> None:
    """Medians of steps; the peers take turns, a few steps each."""
    samples: dict[str, list[float]] = {peer: [] for peer in steps}
    calls: dict[str, list[float]] = {peer: [] for peer in steps}
    for number in range(1 + MOST_ROUNDS):  # the first round warms up
        for peer, run in steps.items():
            if number > LEAST_ROUNDS and sum(samples[peer]) > task.budget:
                continue
            with journal.guarded("timing", peer):
                found, call = timed(run, ROUND if number else WARMUP, task.device), called(run)
                if number:
                    samples[peer] += found
                    calls[peer].append(call)
    for peer in steps:
        if samples[peer]:
            journal.result.seconds[peer] = statistics.median(samples[peer])
            journal.result.cpu_seconds[peer] = statistics.median(calls[peer])


def peak_memory(run: Step, device: str) -> int:
    """Most bytes allocated during a step; on a GPU with weights and batch, on a CPU without."""
    if device == "cpu":
        return measure.peak_memory(run)
    free_memory()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronize()
    return torch.cuda.max_memory_allocated()


def kernels(run: Step) -> dict[str, Any]:
    """Kernels of one step: how many, their milliseconds together, and the longest by name."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        run()
        synchronize()
    on_device = [
        (e.self_device_time_total / 1e3, e.count, e.key[:120])
        for e in recorded.key_averages()
        if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    return {
        "count": sum(count for _, count, _ in on_device),
        "ms": sum(ms for ms, _, _ in on_device),
        "longest": sorted(on_device, reverse=True)[:KERNELS_SHOWN],
    }


def measure_all(task: Task, given: zoo.Workload, calls: Mapping[str, Callable[..., Any]], journal: Journal) -> None:
    """Everything after the first calls."""
    check(task, given, {peer: call for peer, call in calls.items() if peer != "eager"}, journal)
    free_memory()
    steps = {peer: step(call, given.model, given.batch, task.mode) for peer, call in calls.items()}
    time_all(steps, task, journal)
    for peer, run in steps.items():
        with journal.guarded("memory", peer):
            journal.result.peak_memory[peer] = peak_memory(run, task.device)
    for peer, run in steps.items():
        if task.kernels:
            with journal.guarded("kernels", peer):
                journal.result.kernels[peer] = kernels(run)


def main(argv: Sequence[str]) -> int:
    task, journal = Task(**json.loads(argv[0])), Journal(Result(), Path(argv[1]))
    warnings.simplefilter("ignore")
    os.environ["GYRATOR_MODEL_NAME"] = task.model  # of rows in metric tables
    journal.enter("build")
    given = workload(task)
    calls = first_calls(task, given, journal)
    journal.enter("ready")
    sys.stdin.readline()
    measure_all(task, given, calls, journal)
    journal.enter("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
