"""What batches of other lengths cost a model that was compiled for any: ``python -m benchmarks.changing_lengths``.

Each model is compiled with `dynamic=True` in a process of its own and an empty cache, then gets batches of other sizes,
each three times: milliseconds of the first, in which code may be built for such sizes, and of the last."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from benchmarks.measure import write_gpu_rows

SIZES = [(8, 128), (8, 77), (7, 128), (5, 99), (8, 136), (8, 256)]
"""Sequences and words in each, of one batch after the other; the last words are padding."""
NOTE = "Milliseconds of the first and the third call with each batch, after a first call of all with the first batch."
LLAMA = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16
)


def measure(name: str, mode: str, backend: str) -> Iterator[dict[str, object]]:
    """A row for each batch, in order."""
    torch.manual_seed(0)
    model = (BertModel(BertConfig()) if name == "BERT" else LlamaModel(LLAMA)).cuda().to(torch.bfloat16)
    model.train(mode == "training")
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for batch, length in SIZES:
        words = torch.randint(0, 30000, (batch, length), device="cuda")
        mask = torch.ones_like(words)
        mask[:, -5:] = 0
        took = []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.set_grad_enabled(mode == "training"):
                out = compiled(input_ids=words, attention_mask=mask).last_hidden_state
            if mode == "training":
                out.sum().backward()
            torch.cuda.synchronize()
            took.append(round(1e3 * (time.perf_counter() - start), 1))
        about = {"model": name, "mode": mode, "backend": backend, "batch": batch, "length": length}
        yield {**about, "first_ms": took[0], "ms": took[2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="runs with this in their name, such as 'Llama training inductor'")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.one:
        for row in measure(*given.one):
            print(json.dumps(row), flush=True)
        return
    rows: list[dict[str, object]] = []
    runs = [(n, m, b) for n in ("BERT", "Llama") for m in ("inference", "training") for b in ("gyrator", "inductor")]
    for run in (run for run in runs if given.only in " ".join(run)):
        with tempfile.TemporaryDirectory() as cache:
            folders = dict.fromkeys(("GYRATOR_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"), cache)
            command = [sys.executable, "-m", "benchmarks.changing_lengths", "--one", *run]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **folders})
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        print(*run, [row["first_ms"] for row in rows[-len(SIZES) :]], flush=True)
        if given.json is not None:
            write_gpu_rows(given.json, NOTE, rows)


if __name__ == "__main__":
    main()
