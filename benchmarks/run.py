"""Runs benchmarks with the peers side by side: ``python -m benchmarks.run kernels models --threads 1,2``."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import gyrator as gyrator
from benchmarks import compile_time, kernels, models
from benchmarks.measure import PEERS, Limits, Row, limits, line, report, say
from gyrator.config import Config
from gyrator.metrics.tables import start_tables

SUITES = ("overhead", "kernels", "models", "compile_time")


def rows(suite: str, measured: Limits, options: argparse.Namespace, *, dynamic: bool) -> Iterator[Row]:
    """The rows of one suite."""
    peers, only = options.peers, options.only
    if suite == "overhead":
        return kernels.run_overhead(measured, peers, dynamic=dynamic)
    module = {"kernels": kernels, "models": models, "compile_time": compile_time}[suite]
    return module.run(measured, peers, dynamic=dynamic, quick=options.quick, only=only)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", default=["overhead", "kernels"], help=f"any of {', '.join(SUITES)}, or all"
    )
    parser.add_argument("--threads", default="1", help="thread counts, separated by commas; 'all' for every core")
    parser.add_argument("--dynamic", choices=("static", "dynamic", "both"), default="static")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), help="any of eager, inductor, gyrator")
    parser.add_argument("--only", nargs="+", default=[], help="names of cases")
    parser.add_argument("--quick", action="store_true", help="few cases, short repeats")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args(argv)
    if options.suites == ["all"]:
        options.suites = list(SUITES)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}, all")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; prints a line per case and writes the JSON file. Returns 0."""
    options = parse(argv)
    warnings.simplefilter("ignore")
    start_tables(Config.from_options())
    found: list[Row] = []
    measured: list[Limits] = []
    kept = torch.get_num_threads()
    for text in options.threads.split(","):
        threads = os.cpu_count() or 1 if text == "all" else int(text)
        measured.append(limits(threads))
        found_limits = f"{measured[-1].bandwidth / 1e9:.1f} GB/s, {measured[-1].flops / 1e9:.0f} GFLOP/s"
        say(f"{threads} threads: {found_limits}")
        for dynamic in {"static": (False,), "dynamic": (True,), "both": (False, True)}[options.dynamic]:
            for suite in options.suites:
                for row in rows(suite, measured[-1], options, dynamic=dynamic):
                    found.append(row)
                    say(line(row))
                    if options.json:
                        options.json.write_text(json.dumps(report(found, measured), indent=1) + "\n")
    torch.set_num_threads(kept)
    for mean in report(found, measured)["geomeans"]:
        say(
            ", ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in mean.items()
            )
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
