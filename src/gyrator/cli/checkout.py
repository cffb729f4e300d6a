"""Programs of a source checkout that the command line passes its arguments on to: benchmarks and the demo."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gyrator.errors import ToolchainMissing


def run_module(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the checkout around the package or in the working directory. Returns its exit status.

    Raises: ToolchainMissing without one.
    """
    places = (Path(__file__).parents[3], Path.cwd())
    root = next((place for place in places if (place / "benchmarks" / "run.py").exists()), None)
    if root is None:
        hint = "run this from a checkout of gyrator; the installed package does not carry it"
        raise ToolchainMissing("the folder benchmarks/", hint)
    path = os.pathsep.join(filter(None, [str(root / "src"), str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
