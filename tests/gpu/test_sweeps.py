"""What is swept on the CPU, on a GPU: torch's database of operators, random programs, and models in the ways that
users train them (``--training-full`` for each model in each way).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.zoo import MODELS
from tests.fuzz.harness import Settings, run
from tests.fuzz.known import KNOWN
from tests.opinfo import ops_of_shard, summary, sweep
from tests.training_ways import QUICK, WAYS, check_training

SHARDS, PROGRAMS, CHUNK = 48, 480, 20


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.filterwarnings("ignore")
def test_operators(shard: int) -> None:
    report = summary(sweep(ops_of_shard(shard, SHARDS), "gyrator", full=False, device="cuda"), 0.0, "gyrator")
    assert not report["unexpected"], "\n".join(f"{f['task']}: {f['reason']}" for f in report["unexpected"])


@pytest.mark.parametrize("first_seed", range(0, PROGRAMS, CHUNK))
def test_random_programs(first_seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    start = first_seed + request.config.getoption("--fuzz-seed")
    seeds = [seed for seed in range(start, start + CHUNK) if seed not in KNOWN]
    failures = list(run(seeds, Settings("gyrator", tmp_path, device="cuda")))
    assert not failures, "\n\n".join(map(str, failures))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_training(name: str, way: str, request: pytest.FixtureRequest) -> None:
    if (name, way) not in QUICK and not request.config.getoption("--training-full"):
        pytest.skip("only with --training-full")
    if (name, way) == ("mobilenet_v2", "autocast"):
        pytest.skip("eager errs by more than the gradients: norms over one to four numbers")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check_training(name, WAYS[way], "gyrator", "cuda")
