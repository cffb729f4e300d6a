"""`python -m gyrator doctor`: what was found on this machine, what will be used, and what is wrong."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from gyrator.config import Config, unknown_environment
from gyrator.errors import DeviceUnsupported, ToolchainMissing
from gyrator.optional import available
from gyrator.runtime.cuda_driver import cuda_driver
from gyrator.runtime.toolchain import ISA_FLAGS, cpu_isa, find_toolchain
from gyrator.runtime.triton_build import LOWEST_CAPABILITY, find_gpu
from gyrator.version import __version__


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what, what was found, what to do if that is wrong; ``absent``: missing, not needed."""

    topic: str
    found: str
    advice: str = ""
    absent: bool = False


def run_doctor(config: Config, console: Console) -> int:
    """Print the findings. Returns the exit status: 1 if something is wrong."""
    found = tuple(findings(config))
    table = Table("", Column(no_wrap=True), Column(overflow="fold"), show_header=False, box=None, pad_edge=False)
    for finding in found:
        style, mark = ("red", "!!") if finding.advice else ("dim", "-") if finding.absent else ("green", "ok")
        table.add_row(f"[{style}]{mark}[/]", finding.topic, escape(finding.found))
    console.print(table, highlight=False)
    for finding in found:
        if finding.advice:
            console.print(escape(f"{finding.topic}: {finding.advice}"), style="red", highlight=False)
    return int(any(finding.advice for finding in found))


def findings(config: Config) -> Iterator[Finding]:
    """Everything that decides what gyrator can do here."""
    yield Finding("gyrator", f"{__version__} in {Path(__file__).parents[1]}")
    yield from (_python(), _torch(), _backend(), _compiler(config), _instruction_set(config))
    yield from (_threads(config), _triton(), *_gpus(), _cache(config))
    for line in unknown_environment(os.environ):
        yield Finding("environment", line, "correct or unset it; docs/config.md lists the variables")


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", text, "use Python 3.11, 3.12 or 3.13")
    return Finding("python", text, "" if text.endswith(" on Linux x86_64") else "gyrator supports Linux on x86-64")


def _torch() -> Finding:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    good = (2, 11) <= (major, minor) <= (2, 14)
    return Finding("torch", f"{torch.__version__} ({build})", "" if good else "install torch 2.11 to 2.14")


def _backend() -> Finding:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="gyrator")
    if not points:
        return Finding("backend", "not registered", "pip install gyrator, or import gyrator first")
    return Finding("backend", f'backend="gyrator" is {next(iter(points)).value}')


def _compiler(config: Config) -> Finding:
    try:
        compiler = find_toolchain(replace(config, cpu_isa="auto")).compiler
    except ToolchainMissing as error:
        return Finding("C++ compiler", error.message, f"{error.hint}; until then CPU graphs run as library calls")
    _, version = _run(str(compiler), "-dumpfullversion", "-dumpversion")
    text, advice = f"{compiler} {version}", "install g++ 12 or later, with its OpenMP library"
    old = "clang" not in compiler.resolve().name and version.split(".")[0].isdigit() and int(version.split(".")[0]) < 12
    program = '#include <cmath>\n#include <omp.h>\nextern "C" int f() { return omp_get_max_threads(); }\n'
    flags = ("-x", "c++", "-std=c++20", "-fopenmp", "-shared", "-fPIC", "-", "-o", os.devnull)
    if old or not _run(str(compiler), *flags, text=program)[0]:
        return Finding("C++ compiler", text + (" is too old" if old else " does not build"), advice)
    return Finding("C++ compiler", text)


def _run(*command: str, text: str = "") -> tuple[bool, str]:
    """Whether a program succeeds on a text, and what it prints."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError:
        return False, ""
    return done.returncode == 0, done.stdout.strip()


def _instruction_set(config: Config) -> Finding:
    has, wanted = cpu_isa(), config.cpu_isa
    if wanted != "auto" and tuple(ISA_FLAGS).index(wanted) > tuple(ISA_FLAGS).index(has):
        return Finding("instruction set", f"{has}, not {wanted}", "unset GYRATOR_CPU_ISA")
    return Finding("instruction set", has if wanted in ("auto", has) else f"{has}; kernels use {wanted}")


def _threads(config: Config) -> Finding:
    usable = len(os.sched_getaffinity(0))
    used = min(torch.get_num_threads(), config.threads or torch.get_num_threads())
    advice = f"torch.set_num_threads({usable}) or OMP_NUM_THREADS={usable}" if used > usable else ""
    return Finding("threads", f"{used} of {usable} usable cores", advice)


def _triton() -> Finding:
    if not available("triton"):
        advice = "install the one that torch pins, or no GPU kernel can be built" if torch.cuda.is_available() else ""
        return Finding("Triton", "not installed (only needed for GPUs)", advice, absent=True)
    version = importlib.metadata.version("triton")
    try:
        find_gpu(Config(cuda_capability=LOWEST_CAPABILITY), torch.device("cuda"))
    except DeviceUnsupported as error:
        return Finding("Triton", f"{version}; {error.needed} is needed", str(error.hint))
    return Finding("Triton", version)


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", "none found; kernels are built for the CPU", absent=True)
        return
    try:
        version = cuda_driver().version()
        yield Finding("CUDA driver", f"for CUDA {version // 1000}.{version % 1000 // 10}")
    except DeviceUnsupported as error:
        yield Finding("CUDA driver", error.found, str(error.hint))
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        text = f"{properties.name}, capability {properties.major}.{properties.minor}, "
        text += f"{properties.total_memory / 2**30:.0f} GiB"
        good = 10 * properties.major + properties.minor >= LOWEST_CAPABILITY
        advice = "" if good else "compute capability 8.0 or later is needed; use device='cpu'"
        yield Finding(f"GPU {index}", text, advice)


def _cache(config: Config) -> Finding:
    folder = config.cache_folder
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    usable = nearest.is_dir() and os.access(nearest, os.W_OK)
    if not usable or os.statvfs(nearest).f_flag & os.ST_NOEXEC:  # whence no library can be loaded
        why = "is mounted noexec" if usable else "is not writable"
        return Finding("cache", f"{folder} {why}", "set GYRATOR_CACHE_DIR to a folder of yours")
    free = shutil.disk_usage(nearest).free
    text = f"{folder}, {free / 2**30:.0f} GiB free" + ("" if config.cache else " (switched off)")
    advice = "less than 1 GiB is free; set GYRATOR_CACHE_DIR to another disk" if free < 2**30 else ""
    return Finding("cache", text, advice)
