"""Attention on a processor: the library's call, Inductor, and gyrator's templates.

    taskset -c 1 python -m benchmarks.attention_cpu --threads 1 --dtype bfloat16 --json out.json

Milliseconds of forward, and of a whole step with its gradient, in turns in one process; medians count. Inductor calls
the library for `scaled_dot_product_attention` and has a template for flex_attention, without gradients. Eager computes
flex_attention score by score. Every result is compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
ROUNDS = 9


@dataclass(frozen=True)
class Case:
    """Attention of so many heads, rows (as many ``keys`` unless said) and columns; ``groups`` heads have the same keys.
    With keys said it is a step of decoding: there are no gradients. Masks that are ``made`` are so in the program, from
    the ends of sequences: keys after the row are hidden too, by a ``window`` also those far before it."""

    name: str
    batch: int
    heads: int
    rows: int
    width: int
    groups: int = 1
    mask: str = ""
    flex: str = ""
    keys: int = 0

    def tensors(self, dtype: torch.dtype, *, track: bool) -> list[Tensor]:
        few = (self.keys or self.rows, self.heads // self.groups)
        shapes = [(self.batch, m, n, self.width) for m, n in ((self.rows, self.heads), few, few)]
        return [torch.randn(s, dtype=dtype).transpose(1, 2).requires_grad_(track) for s in shapes]

    def attention(self) -> Attention:
        if self.flex:
            return self._flexible()
        b, h, m = self.batch, self.heads, self.rows
        masks = {"padding": torch.zeros(b, 1, 1, m), "bias": torch.randn(1, h, m, m)}
        seen = torch.arange(m) < m - 100 - torch.arange(b)[:, None]

        def made() -> Tensor:
            row, key = torch.arange(m)[:, None], torch.arange(m)
            near = key > row - 256 if self.mask == "made window" else key >= 0
            return seen[:, None, None] & (key <= row) & near

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mask = masks[self.mask].to(q.dtype) if self.mask in masks else made() if "made" in self.mask else None
            causal = self.mask == "causal"
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=self.groups > 1)

        return attend

    def _flexible(self) -> Attention:
        numbers = torch.arange(self.rows) // 300
        keeps: dict[str, Callable[..., Tensor]] = {
            "causal": lambda b, h, i, j: i >= j,
            "window": lambda b, h, i, j: (i >= j) & (i - j < 256),
            "documents": lambda b, h, i, j: (numbers[i] == numbers[j]) & (i >= j),
        }
        scores: dict[str, Callable[..., Tensor]] = {
            "alibi": lambda s, b, h, i, j: s + (j - i) * torch.exp2(-(h + 1.0)),
            "softcap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
        }
        keep = keeps.get(self.flex, keeps["causal"])
        mask = create_block_mask(keep, None, None, self.rows, self.rows, device="cpu")
        return partial(flex_attention, score_mod=scores.get(self.flex), block_mask=mask)


CASES = [
    Case("BERT, 8 x 128", 8, 12, 128, 64),
    Case("BERT with padding", 8, 12, 128, 64, mask="padding"),
    Case("ViT, 4 x 197", 4, 12, 197, 64),
    Case("T5, 4 x 256", 4, 8, 256, 64, mask="bias"),
    Case("GPT-2, 2 x 512", 2, 12, 512, 64, mask="causal"),
    Case("Llama, 2 x 512", 2, 16, 512, 128, groups=4, mask="causal"),
    Case("2,048 causal", 1, 12, 2048, 64, mask="causal"),
    Case("2,048", 1, 12, 2048, 64),
    Case("2 x 512, made", 2, 12, 512, 64, mask="made"),
    Case("2,048 made", 1, 12, 2048, 64, mask="made"),
    Case("2,048 made window", 1, 12, 2048, 64, mask="made window"),
    Case("decode, 2,048 keys", 4, 16, 1, 128, keys=2048),
    Case("decode, 2,048 keys of 4 heads", 4, 32, 1, 128, groups=4, keys=2048),
    *[Case(f"flex {name}, 2,048", 1, 8, 2048, 64, flex=name) for name in
      ("causal", "window", "documents", "alibi", "softcap")],
]  # fmt: skip


def medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each call, in turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            took[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(statistics.median(times), 3) for name, times in took.items()}


def step(attention: Attention, tensors: list[Tensor]) -> list[Tensor]:
    """The result and its gradients."""
    out = attention(*tensors)
    return [out, *torch.autograd.grad(out, tensors, torch.ones_like(out))]


def measure(case: Case, dtype: torch.dtype) -> Iterator[dict[str, object]]:
    """A row for forward, and one for a step where no contender lacks gradients."""
    torch._dynamo.reset()
    eager = case.attention()
    close = 1e-4 if dtype == torch.float32 else 0.05
    for kind in ("forward",) if case.flex or case.keys else ("forward", "step"):
        tensors = case.tensors(dtype, track=kind == "step")
        ways = {"eager": eager, "inductor": torch.compile(eager), "gyrator": torch.compile(eager, backend="gyrator")}
        calls = {name: partial(step if kind == "step" else _result, way, tensors) for name, way in ways.items()}
        wanted = calls["eager"]()
        for name in ("inductor", "gyrator"):
            for found, exact in zip(calls[name](), wanted, strict=True):
                torch.testing.assert_close(found, exact, rtol=close, atol=close)
            calls[name]()
        yield {"case": case.name, "kind": kind, "dtype": f"{dtype}".removeprefix("torch."), **medians(calls)}  # type: ignore[arg-type]


def _result(attention: Attention, tensors: list[Tensor]) -> list[Tensor]:
    return [attention(*tensors)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows: list[dict[str, object]] = []
    for case in (case for case in CASES if given.only in case.name):
        for row in measure(case, getattr(torch, given.dtype)):
            rows.append(row | {"threads": given.threads})
            print(rows[-1], flush=True)
    if given.json is not None:
        cpu = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name"))
        about = {"cpu": cpu.partition(": ")[2], "torch": torch.__version__, "date": datetime.now(UTC).isoformat()}
        given.json.write_text(json.dumps({"machine": about, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
