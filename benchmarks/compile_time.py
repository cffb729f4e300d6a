"""How long the first training step of a BERT takes: with empty caches, and in a second process.

Each measurement is a process of its own. ``capture`` is the same first step with ``backend="eager"``, which
is what torch's capture alone costs. Compiler runs are counted by a shim that stands before the C++ compiler
in PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.measure import Limits, Row

LAYERS = (12, 24)
HIDDEN, HEADS, BATCH, LENGTH = 64, 4, 4, 64
SHIM = '#!/bin/sh\necho x >> "{log}"\nexec "{real}" "$@"\n'


def bert(layers: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model and a batch, always the same."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
    )
    tokens = torch.randint(0, 1000, (BATCH, LENGTH))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1] * 2)}
    return transformers.BertForSequenceClassification(config).train(), batch


def worker(layers: int, backend: str, dynamic: bool) -> dict[str, float]:
    """Runs in the measured process: seconds of the first and of a later step, peak memory in bytes.

    ``first_cpu`` is the processor time of the first step, compiler processes included; it hardly depends on
    what else the machine does.
    """
    model, batch = bert(layers)
    step = model if backend == "none" else torch.compile(model, backend=backend, dynamic=dynamic or None)
    times, processor = [], []
    for _ in range(4):
        start, before = time.perf_counter(), _processor_time()
        step(**batch)["loss"].backward()
        times.append(time.perf_counter() - start)
        processor.append(_processor_time() - before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"first": times[0], "first_cpu": processor[0], "later": min(times[2:]), "peak_memory": float(peak)}


def _processor_time() -> float:
    """Seconds that this process and the children it has waited for spent computing."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def measure(layers: int, backend: str, folder: Path, *, dynamic: bool, threads: int) -> dict[str, Any]:
    """Runs a worker whose caches lie in ``folder``."""
    log = folder / "compiler_runs"
    log.write_text("")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.compile_time", str(layers), backend]
    done = subprocess.run(
        [*command, "--dynamic"] if dynamic else command,
        env=_environment(folder, log, threads),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-600:]}
    return json.loads(done.stdout.splitlines()[-1]) | {"compiler_runs": len(log.read_text().splitlines())}


def _environment(folder: Path, log: Path, threads: int) -> Mapping[str, str]:
    shims = folder / "bin"
    shims.mkdir(exist_ok=True)
    for name in ("g++", "clang++", "c++"):
        real = shutil.which(name)
        if real is not None and not (shims / name).exists():  # a compiler that was written anew is another compiler
            (shims / name).write_text(SHIM.format(log=log, real=real))
            (shims / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{shims}:{os.environ['PATH']}",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "GYRATOR_CACHE_DIR": str(folder / "gyrator"),
        "OMP_NUM_THREADS": str(threads),
        "GYRATOR_PROGRESS": "off",
    }


def run(limits: Limits, peers: Sequence[str], *, dynamic: bool, quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yields rows ``bert12_cold`` and ``bert12_warm``, and those of 24 layers unless ``quick``."""
    for layers in LAYERS[:1] if quick else LAYERS:
        found: dict[str, dict[str, dict[str, Any]]] = {"cold": {}, "warm": {}}
        with tempfile.TemporaryDirectory() as place:
            for peer in peers:
                backend = {"eager": "none"}.get(peer, peer)
                folder = Path(place) / peer
                folder.mkdir()
                for state in found:
                    found[state][peer] = measure(layers, backend, folder, dynamic=dynamic, threads=limits.threads)
            folder = Path(place)
            capture = measure(layers, "eager", folder, dynamic=dynamic, threads=limits.threads)
        for state, results in found.items():
            yield Row(
                "compile_time",
                f"bert{layers}_{state}",
                limits.threads,
                dynamic,
                {peer: result["first"] for peer, result in results.items() if "first" in result},
                errors={peer: result["error"] for peer, result in results.items() if "error" in result},
                notes={"capture": capture, "details": results},
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("layers", type=int)
    parser.add_argument("backend")
    parser.add_argument("--dynamic", action="store_true")
    options = parser.parse_args()
    if options.backend == "gyrator":
        __import__("gyrator")
    print(json.dumps(worker(options.layers, options.backend, options.dynamic)))


if __name__ == "__main__":
    main()
