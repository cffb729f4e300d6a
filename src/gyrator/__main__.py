"""The command line: `python -m gyrator demo | doctor | bench | bisect | cache`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import typer
from rich.console import Console

from gyrator.cli.doctor import run_doctor
from gyrator.config import Config
from gyrator.errors import GyratorError, ToolchainMissing
from gyrator.runtime.entries import KINDS
from gyrator.version import __version__

app = typer.Typer(
    name="gyrator",
    help="gyrator: a compiler for PyTorch programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache = typer.Typer(help="What the cache on disk holds.", no_args_is_help=True)
app.add_typer(cache, name="cache")

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PASSED_ON)
def demo(context: typer.Context) -> None:
    """Run a transformer in eager and gyrator and print times, memory and errors (`demo --help`)."""
    raise typer.Exit(run_module("benchmarks.demo", context.args))


@app.command()
def doctor() -> None:
    """Show the toolchain and devices found, what will be used, and what is wrong."""
    raise typer.Exit(run_doctor(Config.from_options(), Console()))


@app.command(context_settings=_PASSED_ON)
def bench(context: typer.Context) -> None:
    """Run the benchmarks with peers side by side (`bench --help` lists their options)."""
    raise typer.Exit(run_module("benchmarks.run", context.args))


@app.command(context_settings=_PASSED_ON)
def bisect(context: typer.Context) -> None:
    """Find the pass that makes a script's program fail, and a few operators that show it (`bisect --help`)."""
    raise typer.Exit(run_module("tools.bisect", context.args))


@cache.command()
def info() -> None:
    """Show the cache's folder, and files and bytes of each kind."""
    folder = Config.from_options().cache_folder
    print(folder)
    for kind in KINDS:
        sizes = [p.stat().st_size for p in (folder / kind).rglob("*") if p.is_file()]
        print(f"  {kind}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")


@cache.command()
def clear() -> None:
    """Remove what the cache keeps, and nothing else in its folder. Running processes keep what they have loaded."""
    folder = Config.from_options().cache_folder
    for path in map(folder.joinpath, KINDS):
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    print(f"{folder} is cleared")


@app.command()
def version() -> None:
    """Print the versions of gyrator, torch and Python."""
    print(f"gyrator {__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")


def run_module(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the checkout around the package or in the working directory. Returns its exit status.

    Raises: ToolchainMissing without one."""
    places = (Path(__file__).parents[2], Path.cwd())
    root = next((place for place in places if (place / "benchmarks" / "run.py").exists()), None)
    if root is None:
        hint = "run this from a checkout of gyrator; the installed package does not carry it"
        raise ToolchainMissing("the folder benchmarks/", hint)
    path = os.pathsep.join(filter(None, [str(root / "src"), str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def main() -> None:
    """Run the command line; an error of the catalogue is printed without a traceback."""
    try:
        app()
    except GyratorError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
