"""`python -m gyrator doctor`: what was found on this machine, what will be used, and what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from gyrator.config import Config, unknown_environment
from gyrator.folders import cache_folder
from gyrator.optional import available
from gyrator.version import __version__


class State(StrEnum):
    """How a finding stands: fine, missing but not needed, or in the way."""

    GOOD = "ok"
    ABSENT = "-"
    WRONG = "!!"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what, what was found, and what to do where something is wrong."""

    topic: str
    state: State
    found: str
    advice: str = ""


def run_doctor(config: Config, console: Console) -> int:
    """Print the findings. Returns the exit status: 1 if something is wrong."""
    found = tuple(findings(config))
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    style = {State.GOOD: "green", State.ABSENT: "dim", State.WRONG: "red"}
    for finding in found:
        table.add_row(f"[{style[finding.state]}]{finding.state}[/]", finding.topic, finding.found)
    console.print(table, highlight=False)
    for finding in found:
        if finding.advice:
            console.print(f"{finding.topic}: {finding.advice}", style=style[finding.state], highlight=False)
    return int(any(finding.state is State.WRONG for finding in found))


def findings(config: Config) -> Iterator[Finding]:
    """Everything that decides what gyrator can do here."""
    yield Finding("gyrator", State.GOOD, f"{__version__} in {Path(__file__).parents[1]}")
    yield _python()
    yield _torch()
    yield _backend()
    yield _compiler(config)
    yield _instruction_set(config)
    yield _threads(config)
    yield _triton()
    yield from _devices()
    yield _cache(config)
    for line in unknown_environment(os.environ):
        yield Finding(
            "environment", State.WRONG, line, "correct or unset it; docs/config.md lists the variables"
        )


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", State.WRONG, text, "use Python 3.11, 3.12 or 3.13")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return Finding("python", State.WRONG, text, "gyrator supports Linux on x86-64")
    return Finding("python", State.GOOD, text)


def _torch() -> Finding:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    text = f"{torch.__version__} ({build})"
    if not (2, 11) <= (major, minor) <= (2, 13):
        return Finding("torch", State.WRONG, text, "install torch 2.11 to 2.13")
    return Finding("torch", State.GOOD, text)


def _backend() -> Finding:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="gyrator")
    if not points:
        return Finding(
            "backend", State.WRONG, "not registered", "pip install gyrator, or import gyrator first"
        )
    return Finding("backend", State.GOOD, f'backend="gyrator" is {next(iter(points)).value}')


def _compiler(config: Config) -> Finding:
    advice = "install g++ 12 or later (Debian, Ubuntu: apt install g++); until then CPU graphs run uncompiled"
    candidates = [config.cxx or os.environ.get("CXX") or "g++", "clang++"]
    path = next((p for c in candidates if (p := shutil.which(c))), None)
    if path is None:
        return Finding("C++ compiler", State.WRONG, f"none (looked for {', '.join(candidates)})", advice)
    run = subprocess.run(
        [path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False
    )
    version = run.stdout.strip()
    if run.returncode != 0:
        return Finding("C++ compiler", State.WRONG, f"{path} does not run: {run.stderr.strip()[:80]}", advice)
    if (
        "clang" not in Path(path).name
        and version.partition(".")[0].isdigit()
        and int(version.split(".")[0]) < 12
    ):
        return Finding("C++ compiler", State.WRONG, f"{path} {version}", advice)
    return Finding("C++ compiler", State.GOOD, f"{path} {version}")


def _instruction_set(config: Config) -> Finding:
    widest = torch.backends.cpu.get_cpu_capability()
    chosen = config.cpu_isa if config.cpu_isa != "auto" else "the widest"
    return Finding("instruction set", State.GOOD, f"{widest}; kernels use {chosen}")


def _threads(config: Config) -> Finding:
    usable = len(os.sched_getaffinity(0))
    used = min(torch.get_num_threads(), config.threads or torch.get_num_threads())
    text = f"{used} of {usable} usable cores"
    if used > usable:
        return Finding(
            "threads", State.WRONG, text, f"torch.set_num_threads({usable}) or OMP_NUM_THREADS={usable}"
        )
    return Finding("threads", State.GOOD, text)


def _triton() -> Finding:
    if available("triton"):
        return Finding("Triton", State.GOOD, importlib.metadata.version("triton"))
    if torch.cuda.is_available():
        advice = "install the Triton that torch pins, or no GPU kernel can be built"
        return Finding("Triton", State.WRONG, "not installed", advice)
    return Finding("Triton", State.ABSENT, "not installed (only needed for GPUs)")


def _devices() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", State.ABSENT, "none found; kernels are built for the CPU")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        text = f"{properties.name}, capability {properties.major}.{properties.minor}, "
        text += f"{properties.total_memory / 2**30:.0f} GiB"
        good = properties.major >= 8
        advice = "" if good else "compute capability 8.0 or later is needed; use device='cpu'"
        yield Finding(f"GPU {index}", State.GOOD if good else State.WRONG, text, advice)


def _cache(config: Config) -> Finding:
    folder = cache_folder(config)
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return Finding(
            "cache", State.WRONG, f"{folder} is not writable", "set GYRATOR_CACHE_DIR to a folder of yours"
        )
    free = shutil.disk_usage(nearest).free
    text = f"{folder}, {free / 2**30:.0f} GiB free" + ("" if config.cache else " (switched off)")
    if free < 2**30:
        return Finding(
            "cache", State.WRONG, text, "less than 1 GiB is free; set GYRATOR_CACHE_DIR to another disk"
        )
    return Finding("cache", State.GOOD, text)
