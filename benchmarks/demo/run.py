"""`python -m gyrator demo`: a transformer in eager, gyrator and peers, each in its own process with empty
caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.demo.measure import EAGER, EVENT_MARK, REFERENCE, RESULT_MARK, Event, Job, Result, model_config

TASKS = ("inference", "training")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Failure:
    """A contender that ended without a result, and the last lines it wrote."""

    message: str


LEGEND = """\
first call: with empty caches. step: the median; training includes AdamW.
peak memory: resident bytes of the process during the steps.
error: the worst tensor's RMS error against float64, relative to its RMS."""

Results = Mapping[tuple[str, str], Result | Failure]
"""By task and backend."""


def run_demo(jobs: Job, backends: Sequence[str], console: Console, json_path: Path | None = None) -> int:
    """Run every task with every backend and print the table. `jobs` is the pattern of each job; eager
    always runs.

    Returns the exit status: 1 if a contender failed.
    """
    contenders = tuple(dict.fromkeys((EAGER, *backends)))
    config = model_config(jobs)
    kind = "GPT" if config.causal else "BERT"
    console.print(
        f"{kind}-style transformer, {config.layers} layers, hidden {config.hidden}, random weights; batch "
        f"{jobs.batch} × {config.length} tokens, {jobs.dtype} on {jobs.device}"
    )
    results: dict[tuple[str, str], Result | Failure] = {}
    with _progress(console) as progress, tempfile.TemporaryDirectory(prefix="gyrator-demo-") as folder:
        for task in TASKS:
            reference = _follow(_job(jobs, REFERENCE, task, folder), Path(folder), progress)
            for backend in contenders:
                job = _job(jobs, backend, task, folder)
                done = isinstance(reference, Result)
                results[task, backend] = _follow(job, Path(folder), progress) if done else reference
    console.print(results_table(results))
    console.print(LEGEND, highlight=False)
    for (task, backend), result in results.items():
        if isinstance(result, Failure):
            console.print(f"[red]{backend} failed in {task}:[/red]\n{result.message}", highlight=False, soft_wrap=True)
    if json_path is not None:
        json_path.write_text(json.dumps(_as_json(jobs, results), indent=2) + "\n")
    return int(any(isinstance(result, Failure) for result in results.values()))


def results_table(results: Results) -> Table:
    """One row for each task and backend; speed-up is against eager in the same task."""
    table = Table(box=SIMPLE, padding=0)
    table.add_column("task")
    table.add_column("backend")
    for title in ("first call", "step", "speed-up", "peak memory", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    for (task, backend), result in results.items():
        last = backend == list(results)[-1][1]
        if isinstance(result, Failure):
            table.add_row(task, backend, *["failed"] * 5, end_section=last)
            continue
        eager = results.get((task, EAGER))
        speed_up = f"{eager.step / result.step:.2f}×" if isinstance(eager, Result) else ""
        figures = (_seconds(result.first_call), _seconds(result.step), speed_up)
        memory, error = f"{result.peak / 2**20:,.0f} MiB", f"{result.error:.1e}"
        table.add_row(task, backend, *figures, memory, error, end_section=last)
    return table


def _job(pattern: Job, backend: str, task: str, folder: str) -> Job:
    changes = {"backend": backend, "task": task, "reference": str(Path(folder) / f"{task}.pt")}
    return Job(**{**asdict(pattern), **changes})


def _follow(job: Job, folder: Path, progress: Progress) -> Result | Failure:
    """Run a job in its own process, show its events, and return how it ended."""
    name = f"{job.task}: {job.backend}"
    row = progress.add_task(name, total=job.steps + 1)
    result: Result | None = None
    tail: deque[str] = deque(maxlen=12)
    with _worker(job, folder / f"{job.task}-{job.backend}") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(RESULT_MARK):
                result = Result(**json.loads(line.removeprefix(RESULT_MARK)))
            elif line.startswith(EVENT_MARK):
                event = Event(**json.loads(line.removeprefix(EVENT_MARK)))
                progress.update(row, description=f"{name}, {event.phase}", completed=event.done)
            else:
                tail.append(line)
                if line.startswith("gyrator "):  # the compiler's own progress
                    progress.update(row, description=f"{name}, {line.strip()}")
    progress.remove_task(row)
    if process.returncode == 0 and result is not None:
        return result
    return Failure("".join(tail).rstrip() or f"exit status {process.returncode}")


def _worker(job: Job, caches: Path) -> subprocess.Popen[str]:
    """A process that does the job with empty caches; its stderr is merged into its stdout."""
    command = [sys.executable, "-m", "benchmarks.demo.measure", json.dumps(asdict(job))]
    variables = {
        "GYRATOR_CACHE_DIR": str(caches / "gyrator"),
        "GYRATOR_PROGRESS": "lines",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [ROOT / "src", ROOT, os.environ.get("PYTHONPATH")]))),
    }
    env = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _as_json(jobs: Job, results: Results) -> dict[str, object]:
    rows = [{"task": task, "backend": backend, **asdict(result)} for (task, backend), result in results.items()]
    return {"job": asdict(jobs), "results": rows}
