"""Whole models: the time of an inference call and of a training step (forward, loss, backward).

The step leaves gradients in place of the optimiser, whose time is a kernel benchmark. Peak memory is that of
one call besides what lives before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch._dynamo

from benchmarks.measure import Limits, Row, compiled, interleaved, peak_memory, prepared
from benchmarks.zoo import MODELS, Size, build

QUICK = ("bert", "gpt2", "resnet")


def inference(name: str, size: Size, peer: str, dynamic: bool) -> Callable[[], object]:
    workload = build(name, size)
    model = compiled(workload.model.eval(), peer, dynamic=dynamic)
    batch = workload.inference_batch()

    def call() -> object:
        with torch.no_grad():
            return model(**batch)

    return call


def training(name: str, size: Size, peer: str, dynamic: bool) -> Callable[[], object]:
    workload = build(name, size)
    model = compiled(workload.model.train(), peer, dynamic=dynamic)

    def call() -> None:
        model(**workload.batch)["loss"].backward()
        for parameter in workload.model.parameters():
            parameter.grad = None

    return call


def run(limits: Limits, peers: Sequence[str], *, dynamic: bool, quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yields two rows per model."""
    names = [name for name in MODELS if name in only or (not only and (not quick or name in QUICK))]
    for name in names:
        os.environ["GYRATOR_MODEL_NAME"] = name  # of rows in metric tables
        for kind, make in (("inference", inference), ("training", training)):
            make_row = partial(make, name, "small", dynamic=dynamic)
            yield _row(f"{name}_{kind}", make_row, limits, peers, dynamic)


def _row(
    case: str, make: Callable[[str], Callable[[], object]], limits: Limits, peers: Sequence[str], dynamic: bool
) -> Row:
    torch._dynamo.reset()
    time.sleep(0.05)
    ready, first, errors = prepared(make, peers)
    seconds = interleaved(ready, budget=2.0 * max(len(ready), 1))
    peaks = {peer: peak_memory(call) for peer, call in ready.items()}
    notes = {"peak_memory": peaks}
    return Row("models", case, limits.threads, dynamic, seconds, first, errors, notes=notes)
