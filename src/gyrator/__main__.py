"""The command line: `python -m gyrator demo | doctor | bench | bisect | cache`."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from gyrator.cli import cache
from gyrator.cli.bisect import run_bisect
from gyrator.cli.checkout import run_module
from gyrator.cli.doctor import run_doctor
from gyrator.config import Config
from gyrator.errors import GyratorError
from gyrator.version import __version__

app = typer.Typer(
    name="gyrator",
    help="gyrator: a compiler for PyTorch programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cache.app, name="cache")

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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bisect(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A program that uses gyrator.")],
    out: Annotated[Path, typer.Option(help="Folder for the repro.")] = Path("gyrator_repro"),
) -> None:
    """Find the pass that makes a script's program fail, and a few operators that show it."""
    raise typer.Exit(run_bisect(script, context.args, out, Console()))


@app.command()
def version() -> None:
    """Print the versions of gyrator, torch and Python."""
    print(f"gyrator {__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")


def main() -> None:
    """Run the command line; an error of the catalogue is printed without a traceback."""
    try:
        app()
    except GyratorError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
