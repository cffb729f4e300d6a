"""Runs benchmarks with the peers side by side: ``python -m benchmarks.run kernels models --threads 1,2``.

With ``--device``, models run in full size, each row in a process of its own:
``python -m benchmarks.run models --device cuda --dtype bf16 --jobs 6 --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import gyrator as gyrator
from benchmarks import compile_time, isolated, kernels, model_row, models, zoo
from benchmarks.measure import PEERS, Limits, Row, limits, line, report, say
from gyrator.config import Config
from gyrator.metrics.tables import start_tables

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SUITES = ("overhead", "kernels", "models", "compile_time")
CASES = (*kernels.KERNELS, "adam", *zoo.MODELS)


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
    own = parser.add_argument_group("models, each row in a process of its own")
    own.add_argument("--device", choices=("cuda", "cpu"), help="asks for such rows, on this device")
    own.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    own.add_argument("--size", choices=tuple(model_row.COLLECTIONS), default="full")
    own.add_argument("--mode", nargs="+", choices=isolated.MODES, default=list(isolated.MODES))
    own.add_argument("--jobs", type=int, default=1, help="rows whose first calls are made at the same time")
    own.add_argument("--row-timeout", type=float, default=240.0, help="seconds for a row's first calls, and the rest")
    own.add_argument("--kernels", action="store_true", help="count and time the GPU kernels of a step")
    options = parser.parse_args(argv)
    if options.suites == ["all"]:
        options.suites = list(SUITES)
    cases = model_row.COLLECTIONS[options.size] if options.device else CASES
    for kind, asked, known in (("suite", options.suites, SUITES), ("case", options.only, cases)):
        if unknown := sorted({*asked} - {*known}):
            parser.error(f"no {kind} {', '.join(unknown)}; there are {', '.join(known)}")
    if options.device and options.suites != ["models"]:
        parser.error("--device is for the suite models alone")
    return options


def run_isolated(options: argparse.Namespace) -> int:
    """Models in processes of their own; returns 1 if gyrator fails in a row."""
    plan = isolated.Plan(
        options.only,
        options.mode,
        options.size,
        options.device,
        DTYPES[options.dtype],
        options.peers,
        options.dynamic == "dynamic",
        options.jobs,
        options.row_timeout,
        options.kernels,
    )
    on_cpu = options.device == "cpu"
    measured = limits(torch.get_num_threads()) if on_cpu else isolated.device_limits(options.device)
    torch.cuda.empty_cache()
    say(f"{measured.bandwidth / 1e9:.0f} GB/s, {measured.flops / 1e12:.1f} TFLOP/s; {options.jobs} rows at a time")
    found: list[Row] = []
    for row in isolated.run(plan, measured):
        found.append(row)
        say(f"{line(row)}\n{isolated.details(row)}")
        if options.json:
            options.json.write_text(json.dumps(report(found, [measured]), indent=1) + "\n")
    say(isolated.summary(found, options.peers))
    return int(any("gyrator" in row.errors for row in found))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; prints a line per case and writes the JSON file. Returns the exit status."""
    options = parse(argv)
    warnings.simplefilter("ignore")
    if options.device:
        return run_isolated(options)
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
