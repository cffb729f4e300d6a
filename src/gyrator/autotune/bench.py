"""A program that times compiled graphs: a line of JSON in, a line out, until its input ends. Called with a folder for
what it writes, and a device. A request has the `folder` of a wrapper, the number of the `choice` (its candidates share
random inputs and must agree with the first one's results), the user's `threads` and `precision` of float32 products,
the `store` of kernels, and which inputs are `panels` of others."""

import gc
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gyrator.cache.store import Store
from gyrator.runtime.cuda_graphs import record_on_gpu
from gyrator.runtime.gpu_kernels import GpuKernels
from gyrator.runtime.load import WRAPPER, Runtime, names_of
from gyrator.runtime.pool import Pool
from gyrator.runtime.profile import seconds_a_call
from gyrator.runtime.triton_worker import private_output, requests
from gyrator.schedule.cpu_gemm import panels_of
from gyrator.torch_compat import outside_tracing

Call = Callable[[], object]
Batch = Callable[[], float]
"""Runs a few calls; milliseconds of one."""

ROUNDING = 2.0**-4, 2.0**-9
"""How far from the first one's a candidate's results may be, as a share: of types of 16 bits or less, of others."""

BATCH_MS, MOST_CALLS, MOST_RECORDED = 2.0, 200, 50
"""How long a batch is about, so that what starts and ends it does not count; most calls in it, and in a recording."""


def main(folder: Path, device: str) -> None:
    """Serve requests until the input ends."""
    answers, _ = private_output(folder)
    torch.mm(*torch.ones(2, 64, 64, device=device)).sum().item()  # a GPU's context, and the library's handles
    gc.freeze()
    print("{}", file=answers, flush=True)
    choice, given, wanted, batches = -1, list[Any](), list[Any](), dict[str, Batch]()
    for request in requests(sys.stdin):
        if request["choice"] != choice:
            choice, given, wanted, batches = request["choice"], [], [], {}
            torch.set_num_threads(request["threads"])
            torch.set_float32_matmul_precision(request["precision"])
        try:
            with torch.no_grad(), outside_tracing():
                at = request["folder"]
                batches[at] = batches.get(at) or load(Path(at), device, request, given, wanted)
                answer: dict[str, object] = {"milliseconds": batches[at]()}
        except Exception as error:  # whatever a candidate thinks of random inputs is the answer
            answer = {"failure": f"{type(error).__name__}: {error}"[:2000], "broken": device != "cpu" and _broken()}
        print(json.dumps(answer), file=answers, flush=True)


def load(folder: Path, device: str, request: Mapping[str, Any], given: list[Any], wanted: list[Any]) -> Batch:
    """A candidate after one call to warm up. The first of a choice fills `given` and `wanted`. On a GPU calls are
    replayed from a recording if they can, so that small kernels do not wait for the processor.

    Raises: ValueError for results that are not `wanted`. What a candidate raises."""
    program = names_of((folder / WRAPPER).read_text("utf-8"), folder)
    if not given:
        torch.manual_seed(0)
        given += program["inputs"]()
        for panels, source, *layout in request["panels"]:
            given[panels] = panels_of(given[source], *layout)
    gpu = None if device == "cpu" else GpuKernels(folder, Store(Path(request["store"]), "kernels"))
    bound = program["bind"](Runtime(folder, Pool(), gpu=gpu))
    results = list(bound(list(given)) or ())
    wanted += results if not wanted else ()
    check(results, wanted)
    once, batch = _repeated(lambda: bound(list(given)), gpu is not None)
    if gpu is None:
        return batch
    try:
        count = max(1, min(MOST_RECORDED, int(BATCH_MS / once)))
        replay, _ = record_on_gpu(lambda: deque((bound(list(given)) for _ in range(count)), maxlen=0))
        _, recorded = _repeated(lambda: (replay(), bound), True)  # counters lie in memory of the bound program
    except RuntimeError:
        torch.cuda.synchronize()
        return batch
    return lambda: recorded() / count


def check(results: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raises: ValueError for results that differ by more than sums in another order do."""
    for result, right in zip(results, wanted, strict=True):
        if isinstance(right, torch.Tensor) and right.dtype is not torch.bool:
            a, b = (t.float().nan_to_num(0.0, 0.0, 0.0) for t in (result, right))
            off = float((a - b).norm() / b.norm().clamp(min=1e-30))
            if off > ROUNDING[right.itemsize > 2]:
                raise ValueError(f"its results are off by {off:.0%}")


def _repeated(call: Call, on_gpu: bool) -> tuple[float, Batch]:
    """Milliseconds of one call, and a batch of calls."""

    def batch(count: int) -> float:
        return 1e3 * seconds_a_call(call, count, on_gpu=on_gpu)

    batch(1)
    once = batch(1)
    count = max(1, min(MOST_CALLS, int(BATCH_MS / once)))
    return once, lambda: batch(count)


def _broken() -> bool:
    """Whether the GPU's context does not answer any more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
