"""Sweeps torch's own database of operators and samples (OpInfo) through a backend.

A *task* is one op in one dtype, forward or with backward, on a few small samples. Compiling costs far more
than running, so the tasks of several ops are compiled as one function; a group that fails is taken apart.

    python -m tests.opinfo --backend gyrator --shard 0/2 --json opinfo_0.json [--full] [--only softmax ...]

A wider net than CI's: ``--strided`` gives tensors gaps, ``--dynamic`` makes sizes symbols, ``--dtypes float16 int8``
takes others than the usual four.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from tests.acceptance import Expected, Observation, expect, mismatches

FORWARD = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 4
LARGEST = 4096
GROUP = 8
EXCEPTIONS = Path(__file__).parent / "cpu" / "opinfo_exceptions.toml"
Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """One op in one dtype, on samples that eager accepts; ``values`` is False where results are random."""

    op: OpInfo
    dtype: torch.dtype
    backward: bool
    samples: tuple[Sample, ...]
    values: bool

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{op_name(self.op)}:{dtype}{':backward' if self.backward else ''}"


@dataclass(frozen=True)
class Result:
    """What became of a task: ``reason`` is None if it passed."""

    op: str
    task: str
    reason: str | None


def op_name(op: OpInfo) -> str:
    return op.formatted_name


def exceptions() -> dict[str, str]:
    """Ops (or tasks) that need not pass, with the reason; kept in opinfo_exceptions.toml."""
    return {key: str(value) for key, value in tomllib.loads(EXCEPTIONS.read_text()).get("exceptions", {}).items()}


# --- tasks ---


def tasks(
    op: OpInfo, *, full: bool, device: str = "cpu", strided: bool = False, dtypes: Sequence[torch.dtype] = FORWARD
) -> Iterator[Task]:
    """The tasks of one op. Without ``full``: float32 with backward if there is one, and one other dtype. A complex one
    takes float32's place in backward."""
    forward = [dtype for dtype in dtypes if dtype in op.supported_dtypes(device)]
    trained = next((dtype for dtype in dtypes if dtype.is_complex), torch.float32)
    backward = op.supports_autograd and trained in op.supported_backward_dtypes(device)
    if not full:
        others = [dtype for dtype in forward if dtype != trained or not backward]
        forward = [others[sum(map(ord, op.name)) % len(others)]] if others else []
    wanted = [(dtype, False) for dtype in forward] + [(trained, True)] * backward
    for dtype, with_backward in wanted:
        samples = _samples(op, dtype, with_backward, device, strided=strided)
        if samples:
            yield Task(op, dtype, with_backward, samples, values=_is_deterministic(op, samples))


def _samples(
    op: OpInfo, dtype: torch.dtype, backward: bool, device: str, *, strided: bool = False
) -> tuple[Sample, ...]:
    """The first, the last and the oddest small samples that eager accepts."""
    torch.manual_seed(0)
    try:
        samples = op.sample_inputs(device, dtype, requires_grad=backward)
        drawn = [_plain(sample.noncontiguous() if strided else sample) for sample in samples]
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return ()
    small = [sample for sample in drawn if all(t.numel() <= LARGEST for t in _tensors(sample))]
    chosen: list[Sample] = []
    for index in _spread(len(small)):
        if len(chosen) < SAMPLES and _accepted(op, small[index], backward):
            chosen.append(small[index])
    return tuple(chosen)


def _plain(sample: SampleInput) -> Sample:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _spread(count: int) -> list[int]:
    """All indices below ``count``: the ends first, then ever finer between."""
    order: list[int] = []
    step = max(count - 1, 1)
    while step > 0:
        order += list(range(0, count, step))
        step //= 2
    return list(dict.fromkeys([*order, *range(count)]))


def _accepted(op: OpInfo, sample: Sample, backward: bool) -> bool:
    try:
        expect(_caller([op]), (((sample,),),), backward=backward)
    except Exception:
        return False
    return True


def _is_deterministic(op: OpInfo, samples: Sequence[Sample]) -> bool:
    if "empty" in op.name:
        return False
    runs = [expect(_caller([op]), ((tuple(samples),),), seed=seed).eager for seed in (0, 1)]
    return not mismatches(runs[0], runs[1], runs[1])


def _caller(ops: Sequence[OpInfo]) -> Callable[..., list[Any]]:
    """A function of one tuple of samples per op that calls each op on each of its samples."""
    functions = [op.op for op in ops]

    def call(groups: tuple[tuple[Sample, ...], ...]) -> list[Any]:
        return [
            [fn(given, *args, **kwargs) for given, args, kwargs in samples]
            for fn, samples in zip(functions, groups, strict=True)
        ]

    return call


# --- running ---


def run(chosen: Sequence[Task], backend: str, *, dynamic: bool = False) -> Iterator[Result]:
    """Compiles tasks in groups and yields each one's result."""
    for backward in (False, True):
        alike = [task for task in chosen if task.backward == backward]
        for start in range(0, len(alike), GROUP):
            group = alike[start : start + GROUP]
            together = _reasons(group, backend, dynamic)
            for task in group:
                reason = together.get(task.name, "") and _reasons([task], backend, dynamic).get(task.name)
                yield Result(op_name(task.op), task.name, reason or None)


def _reasons(group: Sequence[Task], backend: str, dynamic: bool) -> dict[str, str]:
    """Why tasks compiled as one function fail, by task; an error of the compiler is everybody's."""
    fn = _caller([task.op for task in group])
    arguments = (tuple(task.samples for task in group),)
    torch._dynamo.reset()
    try:
        expected = expect(fn, arguments, backward=group[0].backward)
        compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
        actual = expected.observe(compiled)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()[:600]
        return {task.name: text for task in group}
    return _compare(group, expected, actual)


def _compare(group: Sequence[Task], expected: Expected, actual: Observation) -> dict[str, str]:
    lines = mismatches(actual, expected.eager, expected.reference)
    if lines:
        lines = mismatches(actual, expected.eager, expected.reference, expected.perturbed())
    reasons: dict[str, str] = {}
    for index, task in enumerate(group):
        mine = [line for line in lines if f"[{index}]" in _position(line) and (task.values or not _of_values(line))]
        if mine:
            reasons[task.name] = "; ".join(mine)[:600]
    return reasons


def _position(line: str) -> str:
    """The part of a tensor's name that says which op of the group it belongs to, or all of them."""
    name = line.split(": ")[0]
    if name.startswith("output["):
        return name[6 : name.index("]") + 1]
    if name.startswith(("argument[0][", "gradient[0][")):
        return name[11 : name.index("]", 11) + 1]
    return "".join(f"[{index}]" for index in range(GROUP))


def _of_values(line: str) -> bool:
    return any(mark in line for mark in ("rms error", "values differ", "NaN or infinity"))


# --- the command ---


def summary(results: Sequence[Result], seconds: float, backend: str) -> dict[str, Any]:
    """Counts per op, the pass rate in percent, and every failure with its reason."""
    excepted = exceptions()
    failed = [r for r in results if r.reason is not None]
    ops = {result.op for result in results}
    failing = {result.op for result in failed}
    return {
        "backend": backend,
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "ops": len(ops),
        "tasks": len(results),
        "ops_passing": len(ops - failing),
        "percent": round(100 * len(ops - failing) / max(len(ops), 1), 2),
        "unexpected": [asdict(r) for r in failed if not {r.op, r.task} & set(excepted)],
        "excepted": [asdict(r) for r in failed if {r.op, r.task} & set(excepted)],
    }


def ops_of_shard(index: int, count: int, only: Sequence[str] = ()) -> list[OpInfo]:
    """Every ``count``-th op, from ``index``; with ``only``, those whose name contains one of the texts."""
    known = [op for op in op_db if not only or any(text in op_name(op) for text in only)]
    return known[index::count]


def sweep(
    ops: Sequence[OpInfo],
    backend: str,
    *,
    full: bool,
    device: str = "cpu",
    strided: bool = False,
    dynamic: bool = False,
    dtypes: Sequence[torch.dtype] = FORWARD,
) -> list[Result]:
    chosen = [task for op in ops for task in tasks(op, full=full, device=device, strided=strided, dtypes=dtypes)]
    return list(run(chosen, backend, dynamic=dynamic))


def main(arguments: Sequence[str] | None = None) -> Mapping[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument("--backend", default="gyrator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", default="0/1", help="INDEX/COUNT: every COUNT-th op from INDEX")
    parser.add_argument("--full", action="store_true", help="all four dtypes of every op")
    parser.add_argument("--only", nargs="*", default=(), help="ops whose name contains one of these")
    parser.add_argument("--json", type=Path, help="where the summary is written")
    parser.add_argument("--strided", action="store_true", help="tensors with gaps")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    parser.add_argument(
        "--dtypes", nargs="*", default=FORWARD, type=lambda name: getattr(torch, name), help="float16, int8, ..."
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    index, count = map(int, options.shard.split("/"))
    start = time.perf_counter()
    results: list[Result] = []
    for op_start in range(0, 10_000, 40):
        ops = ops_of_shard(index, count, options.only)[op_start : op_start + 40]
        if not ops:
            break
        results += sweep(
            ops,
            options.backend,
            full=options.full,
            device=options.device,
            strided=options.strided,
            dynamic=options.dynamic,
            dtypes=options.dtypes,
        )
        report = summary(results, time.perf_counter() - start, options.backend)
        print(f"{report['ops']} ops, {report['percent']} % pass, {report['seconds']} s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    for failure in report["unexpected"]:
        print(f"{failure['task']}: {failure['reason'][:300]}")
    return report


if __name__ == "__main__":
    main()
