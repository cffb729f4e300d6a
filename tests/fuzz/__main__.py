"""Runs random programs from the command line: ``python -m tests.fuzz --count 2000 --backend gyrator``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.harness import BATCH, Settings, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--backend", default="gyrator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=BATCH, help="programs compiled together")
    parser.add_argument("--no-shrink", action="store_true", help="report failing programs as they were drawn")
    parser.add_argument("--folder", type=Path, default=Path("fuzz_failures"), help="where failing programs go")
    options = parser.parse_args()
    settings = Settings(options.backend, options.folder, options.batch, not options.no_shrink, options.device)
    start, failures = time.perf_counter(), 0
    for first in range(options.seed, options.seed + options.count, 100):
        seeds = range(first, min(first + 100, options.seed + options.count))
        for failure in run(seeds, settings):
            failures += 1
            print(f"{failure}\n", flush=True)
        print(
            f"{seeds.stop - options.seed} programs, {failures} failures, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
