"""The demo's command line: ``python -m benchmarks.demo``, or ``python -m gyrator demo``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.demo.measure import Job
from benchmarks.demo.run import run_demo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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
        list[str] | None, typer.Option(help="Another backend of torch.compile to compare with, such as inductor.")
    ] = None,
    backend: Annotated[str, typer.Option(hidden=True)] = "gyrator",
    json: Annotated[Path | None, typer.Option(help="Also write the results to this file.")] = None,
) -> None:
    """Run a transformer with random weights in eager and gyrator, and print times, memory and errors."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter("float32, bfloat16 or float16", param_hint="--dtype")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no CUDA device", param_hint="--device")
    job = Job(*(backend, "inference", size.value, model is Model.GPT, batch, steps, device, dtype), reference="")
    raise typer.Exit(run_demo(job, (backend, *(against or ())), Console(), json))


if __name__ == "__main__":
    app(prog_name="python -m gyrator demo")
