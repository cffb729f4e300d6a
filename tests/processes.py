"""Two processes of a distributed test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def lines_of_two(module: str, folder: Path, *args: str) -> list[str]:
    """What ``python -m MODULE RANK STORE ARGS`` prints first, for both ranks; then their standard input ends."""
    command = [sys.executable, "-m", module]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    printed = [worker.stdout.readline() for worker in workers if worker.stdout]
    for worker in workers:
        worker.communicate(timeout=180)
    return printed
