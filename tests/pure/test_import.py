"""Importing gyrator is cheap, and makes the backend known to torch, installed or not."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gyrator
from gyrator.config import Config
from gyrator.errors import UnknownOption

SOURCE = Path(gyrator.__file__).parents[1]

STAND_IN = """
import sys, types
module = types.ModuleType("gyrator.backend")
module.gyrator = lambda graph, inputs, **kwargs: print("compiled", kwargs) or graph.forward
"""


def python(program: str) -> str:
    """What a program prints in a new process that sees the plain source tree."""
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *libraries]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = ["torch._dynamo", "torch._inductor", "rich", "typer"]


def test_import_is_light_and_does_not_bring_torchs_compiler() -> None:
    out = python(
        "import torch, sys\nfrom time import process_time as now\n"
        "start = now()\nimport gyrator\n"
        f"print(now() - start < 0.3, [m for m in {HEAVY} if m in sys.modules])"
    )
    assert out == "True []\n"


def test_what_a_first_call_loads_does_not_bring_what_builds_extensions() -> None:
    """torch.utils.benchmark would: setuptools, 50 ms."""
    out = python(
        "import torch, torch._dynamo, sys\nhad = {*sys.modules}\nimport gyrator.backend, gyrator.runtime.standalone\n"
        "print([m for m in ('torch.utils.cpp_extension', 'setuptools') if m in sys.modules and m not in had])"
    )
    assert out == "[]\n"


def test_threads_may_be_the_first_to_compile_together() -> None:
    """torch's own look-up of a backend's name fails in all threads but one."""
    out = python(
        "import gyrator, threading\n"
        "threads = [threading.Thread(target=gyrator.compile, args=(abs,)) for _ in range(4)]\n"
        "threading.excepthook = print\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    assert out == ""


@pytest.mark.parametrize("earlier", ["", "import torch._dynamo.backends.registry as r; r.list_backends()"])
def test_torch_finds_the_backend_by_name_from_a_source_tree(earlier: str) -> None:
    """Whether or not torch had looked up its backends before gyrator was imported."""
    out = python(
        f"{STAND_IN}\nimport torch\n{earlier}\nimport gyrator\nsys.modules['gyrator.backend'] = module\n"
        "f = torch.compile(lambda x: x + 1, backend='gyrator', options={'fusion': False})\n"
        "print(f(torch.ones(1)).item())"
    )
    assert out == "compiled {'options': {'fusion': False}}\n2.0\n"


@pytest.mark.parametrize("module", ["gyrator", "gyrator.backend"])
def test_import_asks_nothing_of_tensors(module: str) -> None:
    """Which may be anywhere, or not there at all: people make models on the device `meta`."""
    assert python(f"import torch\nwith torch.device('meta'):\n    import {module}\nprint('done')") == "done\n"


def test_compile_hands_everything_to_torch() -> None:
    out = python(
        f"{STAND_IN}\nimport torch, gyrator\nsys.modules['gyrator.backend'] = module\n"
        "@gyrator.compile(mode='max-autotune', fullgraph=True)\ndef f(x):\n    return x + 1\n"
        "print(f(torch.ones(1)).item())"
    )
    assert out == "compiled {'mode': 'max-autotune'}\n2.0\n"


def test_compile_reports_a_wrong_option_at_once() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'fusion'"):
        gyrator.compile(lambda x: x, options={"fusoin": False})


def test_the_public_names() -> None:
    assert set(gyrator.__all__) == {"Config", "__version__", "compile", "counters", "explain", "reset"}
    assert gyrator.Config is Config


def test_the_metadata_of_the_source_tree_name_the_backend_of_the_project() -> None:
    entries = configparser.ConfigParser()
    entries.read(SOURCE / "gyrator.dist-info" / "entry_points.txt")
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    assert {name: dict(entries[name]) for name in entries.sections()} == project["entry-points"]
