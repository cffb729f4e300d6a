"""Programs of a source checkout that the command line passes its arguments on to: benchmarks and the demo."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gyrator.errors import ToolchainMissing


def checkout() -> Path:
    """The root of the checkout that holds benchmarks/: around the package, or the working directory.

    Raises:
        ToolchainMissing: neither has one.
    """
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "benchmarks" / "run.py").exists():
            return root
    raise ToolchainMissing(
        "the folder benchmarks/", "run this from a checkout of gyrator; the installed package does not carry it"
    )


def run_module(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the checkout with the arguments. Returns its exit status.

    Raises:
        ToolchainMissing: there is no checkout.
    """
    root = checkout()
    path = os.pathsep.join(filter(None, [str(root / "src"), str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
