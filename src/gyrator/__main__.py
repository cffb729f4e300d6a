"""The command line: `python -m gyrator demo | doctor | bench | bisect | cache`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from gyrator.cli.bench import run_bench
from gyrator.cli.bisect import run_bisect
from gyrator.cli.cache import clear_cache, show_cache
from gyrator.cli.demo import run_demo
from gyrator.cli.doctor import run_doctor
from gyrator.cli.measure import Job
from gyrator.config import Config
from gyrator.errors import GyratorError
from gyrator.folders import cache_folder
from gyrator.version import __version__

app = typer.Typer(
    name="gyrator",
    help="gyrator: a compiler for PyTorch programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="What the cache on disk holds.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")


class Size(StrEnum):
    """How large the demo's transformer is."""

    TINY = "tiny"
    SMALL = "small"
    BASE = "base"


class Model(StrEnum):
    """The two kinds of transformer."""

    GPT = "gpt"
    BERT = "bert"


@app.command()
def demo(
    model: Annotated[Model, typer.Option(help="Decoder or encoder.")] = Model.GPT,
    size: Annotated[Size, typer.Option(help="How large the model is.")] = Size.SMALL,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a batch.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 10,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    against: Annotated[
        list[str] | None,
        typer.Option(help="Another backend of torch.compile to compare with, such as inductor."),
    ] = None,
    backend: Annotated[str, typer.Option(hidden=True)] = "gyrator",
    json: Annotated[Path | None, typer.Option(help="Also write the results to this file.")] = None,
) -> None:
    """Run a transformer with random weights in eager and gyrator, and print times, memory and errors."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter("float32, bfloat16 or float16", param_hint="--dtype")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no CUDA device", param_hint="--device")
    job = Job(
        *(backend, "inference", size.value, model is Model.GPT, batch, steps, device, dtype), reference=""
    )
    raise typer.Exit(run_demo(job, (backend, *(against or ())), Console(), json))


@app.command()
def doctor() -> None:
    """Show the toolchain and devices found, what will be used, and what is wrong."""
    raise typer.Exit(run_doctor(Config.from_options(), Console(width=None)))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Run the benchmarks with peers side by side (`bench --help` lists their options)."""
    raise typer.Exit(run_bench(context.args))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bisect(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A program that uses gyrator.")],
    out: Annotated[Path, typer.Option(help="Folder for the repro.")] = Path("gyrator_repro"),
) -> None:
    """Find the pass that makes a script's program fail, and a few operators that show it."""
    raise typer.Exit(run_bisect(script, context.args, out, Console()))


@cache_app.command("info")
def cache_info() -> None:
    """Show the cache's folder, and files and bytes of each kind."""
    show_cache(cache_folder(Config.from_options()), Console())


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove everything in the cache."""
    clear_cache(cache_folder(Config.from_options()), Console())


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
