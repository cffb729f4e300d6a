"""One contender of the demo, in a process of its own: cold caches, its own peak memory.

Reads a job as JSON from its argument. Writes lines of a mark and JSON: an `Event` before each phase, at last
a `Result`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

import gyrator as gyrator  # registers the backend, also where it is not installed
from benchmarks.demo.memory import peak_bytes, reset_peak
from benchmarks.demo.model import SIZES, Batch, ModelConfig, Transformer, loss_of, random_batch

EAGER = "eager"
REFERENCE = "float64"
SEED = 0
EVENT_MARK = "gyrator-event "
RESULT_MARK = "gyrator-result "

Called = Callable[[Tensor, Tensor | None], Tensor]
"""A model, or what torch.compile made of it."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a contender begins, and how many of its parts are done."""

    phase: str
    done: int


@dataclass(frozen=True, slots=True)
class Job:
    """What a contender is asked to do. `backend` is "eager", "float64" (writes the reference) or one of
    torch.compile's.
    """

    backend: str
    task: str
    size: str
    causal: bool
    batch: int
    steps: int
    device: str
    dtype: str
    reference: str


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured: seconds, bytes, and the largest RMS error of a tensor relative to the reference's
    RMS.
    """

    first_call: float
    step: float
    peak: int
    error: float


def main(text: str) -> None:
    """Do the job that the JSON text describes."""
    torch.manual_seed(SEED)
    job = Job(**json.loads(text))
    device = torch.device(job.device)
    config = model_config(job)
    model = Transformer(config).train(job.task == "training")
    if job.backend == REFERENCE:
        reference = _outputs(model.double().to(device), model, _batch(job, config, device), job.task)
        torch.save({name: value.cpu() for name, value in reference.items()}, job.reference)
        print(RESULT_MARK + json.dumps(asdict(Result(0.0, 0.0, 0, 0.0))), flush=True)
        return
    model.to(device, getattr(torch, job.dtype))
    result = _measure(job, model, _batch(job, config, device))
    print(RESULT_MARK + json.dumps(asdict(result)), flush=True)


def model_config(job: Job) -> ModelConfig:
    """The sizes that a job names."""
    return ModelConfig(**{**asdict(SIZES[job.size]), "causal": job.causal})


def _batch(job: Job, config: ModelConfig, device: torch.device) -> Batch:
    return random_batch(config, job.batch, SEED, device)


def _measure(job: Job, model: nn.Module, batch: Batch) -> Result:
    called: Called = model if job.backend == EAGER else torch.compile(model, backend=job.backend)
    _report("first call", 0)
    start = time.perf_counter()
    outputs = _outputs(called, model, batch, job.task)
    first_call = time.perf_counter() - start
    _report("errors", 1)
    error = _largest_error(outputs, torch.load(job.reference, weights_only=True))
    del outputs
    step = _step(called, model, batch, job.task)
    reset_peak(torch.device(job.device))
    times = []
    for n in range(job.steps):
        _report(f"step {n + 1}", n + 1)
        start = time.perf_counter()
        step()
        _wait(job.device)
        times.append(time.perf_counter() - start)
    return Result(first_call, statistics.median(times), peak_bytes(torch.device(job.device)), error)


def _outputs(called: Called, model: nn.Module, batch: Batch, task: str) -> dict[str, Tensor]:
    """The logits of inference, or the loss and all gradients of training. `called` is `model`, perhaps
    compiled.
    """
    if task == "inference":
        with torch.no_grad():
            logits: Tensor = called(batch.tokens, batch.padding)
        return {"logits": logits}
    loss = loss_of(called, batch)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    outputs = {"loss": loss.detach(), **{name: grad.clone() for name, grad in gradients.items()}}
    model.zero_grad()
    return outputs


def _step(called: Called, model: nn.Module, batch: Batch, task: str) -> Callable[[], None]:
    """One timed step: a forward pass, or forward, backward and an update by AdamW."""
    if task == "inference":

        def infer() -> None:
            with torch.no_grad():
                called(batch.tokens, batch.padding)

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train() -> None:
        loss_of(called, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _largest_error(outputs: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """The largest RMS error of a tensor, relative to the RMS of its reference in float64."""
    return max(_relative_error(value.double().cpu(), reference[name]) for name, value in outputs.items())


def _relative_error(value: Tensor, reference: Tensor) -> float:
    scale = reference.square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return float((value - reference).square().mean().sqrt() / scale)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _report(phase: str, done: int) -> None:
    print(EVENT_MARK + json.dumps(asdict(Event(phase, done))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
