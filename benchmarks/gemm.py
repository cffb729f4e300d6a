"""Matrix products on a GPU: the library, gyrator's choice among its templates, all candidates, and Inductor.

    python -m benchmarks.gemm [--only 8192 …] [--inductor] [--json FILE]

Each is recorded as a CUDA graph of several calls and replayed in turns with the others; medians count. Candidates are
timed in the same process, so that one that breaks the GPU ends the run: use --only then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.cache.store import Store
from gyrator.codegen.wrapper import print_wrapper
from gyrator.config import Config
from gyrator.errors import GyratorError
from gyrator.ir.simplify import simplifier
from gyrator.ir.symbols import Symbols
from gyrator.lowering.graph import lower
from gyrator.runtime.gpu_kernels import GpuKernels
from gyrator.runtime.load import WRAPPER, Runtime, names_of
from gyrator.runtime.pool import Pool
from gyrator.runtime.targets import find_targets, start_kernels
from gyrator.runtime.workers import Workers
from gyrator.schedule.memory import plan_memory
from gyrator.schedule.plan import Plan
from gyrator.schedule.products import Alternative, Question
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from gyrator.torch_compat import shape_env_of

BF16, F16 = torch.bfloat16, torch.float16
ROUNDS, BATCH_MS = 15, 4.0
Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A function of a left and a right matrix, and of a bias if it has one."""

    name: str
    m: int
    k: int
    n: int
    dtype: torch.dtype
    fn: Callable[..., Tensor]
    bias: bool = False


def mm(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w))


def bias_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(torch.addmm(b, x, w))


def cases() -> Iterator[Case]:
    """The shapes of the goals."""
    yield Case("8192x8192x8192", 8192, 8192, 8192, BF16, mm)
    yield Case("4096x4096x4096", 4096, 4096, 4096, BF16, mm)
    yield Case("8192x512x8192", 8192, 512, 8192, BF16, mm)
    yield Case("8192x4096x16384 bias gelu", 8192, 4096, 16384, BF16, bias_gelu, bias=True)
    yield Case("4097x4097x4097", 4097, 4097, 4097, BF16, mm)
    yield Case("8191x8191x8191", 8191, 8191, 8191, BF16, mm)
    yield Case("512x1024x1024 bias relu", 512, 1024, 1024, BF16, bias_relu, bias=True)
    for k in range(4096, 32769, 4096):
        yield Case(f"32x{k}x32", 32, k, 32, F16, mm)


@dataclass
class Row:
    """Milliseconds of a call; ``candidates`` of each question by title and name, with their parameters."""

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    chosen: str = ""
    seconds: float = 0.0
    candidates: dict[str, dict[str, Any]] = field(default_factory=dict)


# -- timing --------------------------------------------------------------------------------------------------
def recorded(call: Call) -> tuple[Call, int]:
    """A function that replays so many calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        count = max(1, min(200, int(BATCH_MS / (200 * (time.perf_counter() - start)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph.replay, count


def medians(calls: Mapping[str, Call], rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds of each, in turns. What cannot be recorded is left out."""
    replays: dict[str, tuple[Call, int]] = {}
    for name, call in calls.items():
        try:
            replays[name] = recorded(call)
        except Exception as problem:
            print(f"  {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
    took: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(rounds):
        for name, (replay, count) in replays.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            replay()
            begin.record()
            replay()
            end.record()
            end.synchronize()
            took[name].append(begin.elapsed_time(end) / count)
    return {name: statistics.median(times) for name, times in took.items()}


# -- gyrator -------------------------------------------------------------------------------------------------
class Compiler:
    """Compiles graphs; products are chosen by times taken here, which it notes in ``row``."""

    def __init__(self, folder: Path, without: Sequence[str] = ()) -> None:
        self.without = without
        self.config = Config.from_options(options={"max_autotune": True, "max_epilogue_benchmarked_choices": 6})
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.targets, self.store = find_targets(self.config, self.device), Store(folder, "kernels")
        self.workers, self.row = Workers(), Row("")

    def compile(self, graph: fx.GraphModule, inputs: Sequence[object], info: GraphInfo) -> Compiled:
        """For `aot_compile`."""
        symbols = Symbols(shape_env_of(inputs))
        low = lower(graph, symbols=symbols)
        session = Session(self.config, self.device)
        scheduled = schedule(low.program, session, self.targets.gpu, ask=self.ask)
        self.row.chosen += f" {[type(unit).__name__ for unit in scheduled.units]}"
        return Compiled(self.bound(self.folder(self.start(scheduled.plan))))

    def start(self, plan: Plan) -> Callable[[], tuple[str, Mapping[str, str | Path]]]:
        """Begin to build a plan; returns what waits for its wrapper and files."""
        session = Session(self.config, self.device)
        kernels = start_kernels(plan, self.targets, self.store, session, self.workers)
        return lambda: (print_wrapper(plan, kernels.built), kernels.wait())

    def folder(self, wait: Callable[[], tuple[str, Mapping[str, str | Path]]]) -> Path:
        text, files = wait()
        return self.store.put_anonymous({WRAPPER: text, **files}, {}).folder

    def bound(self, folder: Path) -> Any:
        runtime = Runtime(folder, Pool(), gpu=GpuKernels(folder, self.store))
        return names_of((folder / WRAPPER).read_text(), folder)["bind"](runtime)

    def ask(self, question: Question) -> tuple[Alternative, ...]:
        rule, gpu = simplifier(exact_rounding=False), self.targets.gpu
        begun = time.perf_counter()
        started, calls = {}, dict[str, Call]()
        alternatives = [a for a in question.alternatives if not {name for name, _ in a.parameters} & set(self.without)]
        for a in alternatives:
            started[a.name] = self.start(plan_memory(question.program, a.units, rule, in_place=False, gpu=gpu))
        given: list[Any] = []
        for name, wait in started.items():
            try:
                folder = self.folder(wait)
                given = given or names_of((folder / WRAPPER).read_text(), folder)["inputs"]()
                calls[name] = partial(_fresh, self.bound(folder), given)
            except GyratorError as problem:
                print(f"  {name}: {str(problem)[:300]}", flush=True)
        built = time.perf_counter() - begun
        took = medians(calls, 7)
        ranked = sorted((a for a in alternatives if a.name in took), key=lambda a: took[a.name])
        found = {a.name: {"ms": took[a.name], "backend": a.backend, **dict(a.parameters)} for a in ranked}
        self.row.candidates[question.title] = found
        self.row.chosen += f" {ranked[0].name if ranked else 'nothing'}"
        total = time.perf_counter() - begun
        print(f"  {question.title}: built in {built:.1f} s, all in {total:.1f} s", flush=True)
        for a in ranked:
            sizes = ", ".join(f"{name}={value}" for name, value in a.parameters)
            print(f"    {took[a.name]:.5f} ms {a.name} {sizes}", flush=True)
        return tuple(ranked)


def _fresh(call: Callable[[list[Any]], object], given: list[Any]) -> object:
    """A call with a list that it may empty."""
    return call(list(given))


def measure(case: Case, compiler: Compiler, inductor: bool) -> Row:
    """One case by all contenders."""
    torch.manual_seed(0)
    shapes = [(case.m, case.k), (case.k, case.n), *([(case.n,)] if case.bias else [])]
    args = [torch.randn(shape, device="cuda", dtype=case.dtype) for shape in shapes]
    row = compiler.row = Row(case.name)
    begun = time.perf_counter()
    torch.compiler.reset()
    mine = torch.compile(case.fn, backend=lambda gm, given: aot_compile(gm, given, fw_compiler=compiler.compile))
    contenders: dict[str, Callable[..., Tensor]] = {"library": case.fn, "gyrator": mine}
    if inductor:
        contenders["inductor"] = torch.compile(case.fn, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        exact = case.fn(*(a.double() for a in args)) if case.m * case.k * case.n < 1 << 38 else case.fn(*args)
        row.error = float((mine(*args).double() - exact.double()).norm() / exact.double().norm())
        row.seconds = time.perf_counter() - begun
        row.milliseconds = medians({name: partial(fn, *args) for name, fn in contenders.items()})
    return row


def main() -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names contain one of these")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], help="leave out candidates with these parameters")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(Path(folder), args.without)
        for case in cases():
            if args.only and not any(part in case.name for part in args.only):
                continue
            try:
                rows.append(measure(case, compiler, args.inductor))
            except Exception:
                traceback.print_exc()
                failed += 1
                continue
            row = rows[-1]
            times = "  ".join(f"{name} {took:.5f}" for name, took in row.milliseconds.items())
            print(f"{row.name}: {times} ms, error {row.error:.1e}, {row.seconds:.1f} s,{row.chosen}", flush=True)
            if args.json:
                document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
                args.json.write_text(json.dumps(document | {"rows": [asdict(r) for r in rows]}, indent=1))
        compiler.workers.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
