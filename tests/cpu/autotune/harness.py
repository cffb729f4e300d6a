"""Folders of wrappers written by hand, and a graph's product with its reader as a question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import gyrator
from gyrator.autotune.parts import Builder
from gyrator.autotune.sandbox import Sandboxes
from gyrator.autotune.tuner import Tuner
from gyrator.config import Config
from gyrator.ir.program import Program
from gyrator.ir.symbols import Symbols
from gyrator.lowering.graph import lower
from gyrator.report.data import GraphRecord
from gyrator.runtime.entries import open_stores
from gyrator.runtime.targets import find_targets
from gyrator.runtime.workers import Workers
from gyrator.schedule.fuse import fuse
from gyrator.schedule.products import Ask, Unit
from gyrator.session import Session

CPU = torch.device("cpu")
FORCED = {"max_autotune": True, "gemm_backends": "subgraph", "autotune_silent": True}
"""Options with which the first subgraph that is offered is taken, untimed."""


def record(function: object, *args: object, **options: object) -> GraphRecord:
    """What became of a function's one graph under these options."""
    report = gyrator.explain(function, *args, options={**FORCED, **options}, timing=False)  # type: ignore[arg-type]
    return next(iter(report.data.graphs())).record


def wrapper(body: str) -> str:
    """A wrapper whose calls run `body`."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return (
        "import ctypes, os, time\nimport torch\n"
        f"def bind(runtime):\n    def call(args):\n{lines}\n    return call\n"
        "def inputs():\n    return [torch.ones(4)]\n"
    )


def folder_of(parent: Path, name: str, body: str) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "wrapper.py").write_text(wrapper(body))
    return folder


def program_of(function: object, *inputs: torch.Tensor) -> Program:
    graph = make_fx(function)(*inputs)  # type: ignore[arg-type]
    return lower(graph, symbols=Symbols(), name="asked").program


def units_of(program: Program, most: int) -> tuple[Unit, ...]:
    """The program's nests in kernels of at most so many, and its calls."""
    return fuse(program, most)[0]


@contextmanager
def asker(folder: Path, sandboxes: Sandboxes, **options: object) -> Iterator[tuple[Ask, Tuner]]:
    """What a session with these options asks; its cache is in `folder`."""
    config = Config.from_options(options={"max_autotune": True, "cache_dir": folder, **options}, env={})
    with Session(config, CPU, "asked") as session:
        targets, stores = find_targets(config, CPU), open_stores(session, folder / "scratch", None)
        tuner = Tuner(Builder(targets, stores, session, Workers(), None), CPU, sandboxes)
        yield tuner.ask, tuner
