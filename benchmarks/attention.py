"""Attention on a GPU: gyrator's template, flex_attention compiled by Inductor, and the library's kernels.

    python -m benchmarks.attention [--only causal …] [--inductor default|max-autotune] [--json FILE]

Milliseconds of forward, and of backward alone, in turns in one process; medians count. ``forward_tflops`` counts the
scores that the mask keeps, of whole blocks of it. The library's kernels compute the causal and the plain case alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

ROUNDS, BATCH_MS = 9, 8.0
Call = Callable[[], object]
Mod = Callable[..., Tensor]
LIBRARY = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Case:
    """Attention of ``heads`` on ``groups`` times fewer heads of keys; ``library`` says that SDPA can do it."""

    name: str
    keep: Mod | None = None
    score: Mod | None = None
    batch: int = 2
    heads: int = 16
    groups: int = 1
    rows: int = 8192
    length: int = 8192
    width: int = 128
    library: bool = False

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        kinds = self.heads // self.groups
        shapes = [(self.batch, self.heads, self.rows, self.width)] + [(self.batch, kinds, self.length, self.width)] * 2
        query, key, value = (
            torch.randn(s, device="cuda", dtype=torch.bfloat16, generator=generator).requires_grad_() for s in shapes
        )
        return query, key, value

    def mask(self) -> BlockMask | None:
        if self.keep is None:
            return None
        return create_block_mask(self.keep, None, None, self.rows, self.length, device="cuda")


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 1024)


def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor, number: Tensor) -> Tensor:
    return (number[i] == number[j]) & (i >= j)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (j - i) * torch.exp2(-((h + 1) * 8.0 / 16))


def softcap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def cases() -> Iterator[Case]:
    """Those of the goals."""
    number = torch.repeat_interleave(
        torch.arange(10, device="cuda"), torch.tensor([500, 1500, 200, 1000, 800, 92, 1100, 2000, 600, 400]).cuda()
    )
    with_numbers = lambda b, h, i, j: documents(b, h, i, j, number)  # noqa: E731 (flex wants four arguments)
    yield Case("causal", causal, library=True)
    yield Case("causal D=64", causal, width=64, library=True)
    yield Case("plain", library=True)
    yield Case("causal GQA 4", causal, groups=4, library=True)
    yield Case("window 1024", window)
    yield Case("documents", with_numbers)
    yield Case("causal ALiBi", causal, alibi)
    yield Case("causal soft-cap", causal, softcap)
    yield Case("decode", batch=8, heads=32, groups=4, rows=1, length=16384, library=True)


@dataclass
class Row:
    """Milliseconds by who computes; seconds of the first call of those that compile."""

    name: str
    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    forward_tflops: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


# -- who computes --------------------------------------------------------------------------------------------
def contenders(case: Case, inductor: str) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Functions of query, key and value."""
    mask = case.mask()

    def flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, case.score, mask, enable_gqa=case.groups > 1)

    yield "gyrator", torch.compile(flex, backend="gyrator", options={"max_autotune": True})
    if inductor:
        yield "inductor", torch.compile(flex, mode=None if inductor == "default" else f"{inductor}-no-cudagraphs")
    for name, backend in LIBRARY.items() if case.library else ():
        yield name, partial(_library, backend, case)


def _library(backend: SDPBackend, case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=case.keep is causal, enable_gqa=case.groups > 1
        )


# -- timing --------------------------------------------------------------------------------------------------
def medians(calls: Mapping[str, Call]) -> dict[str, float]:
    """Milliseconds of each, in turns."""
    counts = {name: max(1, int(BATCH_MS / max(_milliseconds(call, 2), 1e-3))) for name, call in calls.items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            took[name].append(_milliseconds(call, min(counts[name], 50)))
    return {name: statistics.median(times) for name, times in took.items()}


def _milliseconds(call: Call, count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000)  # the calls wait in the queue meanwhile
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def measured(case: Case, inductor: str, *, backward: bool) -> Row:
    """All contenders on one case."""
    row, tensors = Row(case.name), case.tensors()
    forward: dict[str, Call] = {}
    behind: dict[str, Call] = {}
    plain = tuple(x.detach() for x in tensors)
    for name, function in contenders(case, inductor):
        try:
            begun = time.perf_counter()
            function(*plain)
            forward[name] = partial(function, *plain)
            if backward:
                out = function(*tensors)
                grad = torch.ones_like(out)
                behind[name] = partial(torch.autograd.grad, out, tensors, grad, retain_graph=True)
                behind[name]()
            torch.cuda.synchronize()
            row.seconds[name] = round(time.perf_counter() - begun, 1)
        except Exception as problem:
            row.failed[name] = f"{type(problem).__name__}: {str(problem)[:300]}"
    row.forward = medians(forward)
    row.backward = medians(behind)
    mask = case.mask()
    kept = 1 - mask.sparsity() / 100 if mask is not None else 1.0
    products = 4 * case.batch * case.heads * case.rows * case.length * case.width * kept
    row.forward_tflops = {name: round(products / ms / 1e9, 1) for name, ms in row.forward.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--inductor", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    rows: list[Row] = []
    for case in cases():
        if options.only and case.name not in options.only:
            continue
        torch._dynamo.reset()
        row = measured(case, options.inductor, backward=case.rows > 1)
        rows.append(row)
        numbers = {k: v for k, v in asdict(row).items() if k != "name"}
        print(row.name, json.dumps(numbers, default=lambda x: None if math.isnan(x) else x), flush=True)
        if options.json is not None:
            about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
            options.json.write_text(json.dumps({**about, "rows": [asdict(r) for r in rows]}, indent=1))


if __name__ == "__main__":
    main()
