"""Kernels on a GPU: are they right, and how fast next to eager, Inductor and the time to move their bytes.

    python -m benchmarks.gpu_check [--only softmax …] [--scale 0.1] [--dynamic] [--without inductor …] [--json FILE]

Each case is run by eager, by Inductor (default and, with --max-autotune, tuned) and by gyrator, side by side:
first checked against float64, then timed by CUDA events over single runs
with the second-level cache flushed between them. The GPU idles for a millisecond before each run, so that it
never waits for the processor, whose own time for a call is measured apart. The floor is bytes / measured copy
bandwidth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from benchmarks.kernels import cache_update, states

BF16, F32 = torch.bfloat16, torch.float32
REPEATS, WARMUP = 30, 5
IDLE_CYCLES = 2_000_000
FLUSH = 256 << 20
Function = Callable[..., Any]


# -- cases ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A function with the shapes and types of its arguments. ``backward``: gradients of the floats too.

    ``moved`` is how many bytes must go through memory at least; by default every argument and result once.
    """

    name: str
    fn: Function
    args: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    backward: bool = False
    moved: int | None = None


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target % x.shape[1])


def gelu(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(x + b) * 0.5 + r


def rotary(q: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(q.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.view_as_complex(turns)).flatten(-2).type_as(q)


def cases(scale: float) -> Iterator[Case]:
    """All cases; ``scale`` shrinks the number of rows."""

    def rows(n: int) -> int:
        return max(64, int(n * scale) // 64 * 64)

    def two(n: int, m: int, dtype: torch.dtype = BF16) -> tuple[tuple[int, ...], torch.dtype]:
        return (rows(n), m), dtype

    def norm(n: int, m: int, dtype: torch.dtype = BF16, *, bias: bool) -> Any:
        return (two(n, m, dtype), ((m,), dtype), *([((m,), dtype)] if bias else []))

    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    wide = rows(8192)
    yield Case("softmax 8192", softmax, (two(16384, 8192),))
    yield Case("softmax 131072", softmax, (two(2048, 131072),))
    yield Case("cross entropy", cross_entropy, (two(8192, 128256), ((wide,), torch.int64)))
    yield Case("layer norm", layer_norm, norm(16384, 4096, bias=True))
    for dtype in (BF16, F32):
        n = rows(576000) * 384 * dtype.itemsize
        yield Case(f"layer norm fwd+bwd {dtype}", layer_norm, norm(576000, 384, dtype, bias=True), True, 5 * n)
    n = rows(576000) * 384 * 2
    yield Case("RMS norm fwd+bwd 384", rms_norm, norm(576000, 384, bias=False), True, 5 * n)
    n = rows(16384) * 8192 * 2
    yield Case("RMS norm", rms_norm, norm(16384, 8192, bias=False))
    yield Case("RMS norm fwd+bwd 8192", rms_norm, norm(16384, 8192, bias=False), True, 5 * n)
    yield Case("GELU(x+b)*0.5+r", gelu, (two(32768, 4096), ((4096,), BF16), two(32768, 4096)))
    yield Case("SwiGLU", lambda a, b: F.silu(a) * b, (two(8192, 14336), two(8192, 14336)))
    places = rows(32768)
    yield Case("rotary, complex", rotary, (((places, 32, 128), BF16), ((places, 1, 64, 2), F32)))
    yield Case("transpose + add", lambda x, y: x.t() + y, (((wide, wide), BF16), ((wide, wide), BF16)))
    yield Case("sum of all", lambda x: x.sum(), (two(65536, 4096, F32),))
    yield Case("sum of columns", lambda x: x.sum(0), (two(65536, 4096, F32),))
    yield Case("sum of rows", lambda x: x.sum(1), (two(65536, 4096, F32),))
    yield Case("cumsum", lambda x: x.cumsum(-1), (two(2048, 65536, F32),))
    token = (rows(512), 1, 128), BF16
    yield Case("token into a cache", cache_update, (((rows(512), 4096, 128), BF16), token), moved=rows(512) * 1024)
    yield Case("filled row by row", states, (two(1024, 2048, F32), ((2048,), F32)))
    yield Case("mirrored edges", lambda x: F.pad(x, (2,) * 4, mode="reflect"), (((32, wide // 64, 128, 128), F32),))
    yield Case("rolled", lambda x: x.roll((3, 5), (2, 3)), (((32, wide // 64, 128, 128), F32),))


# -- measuring ---------------------------------------------------------------------------------------------
@dataclass
class Row:
    """One case: the floor, and by contender milliseconds on the GPU and on the host, kernels, what went wrong."""

    name: str
    floor_ms: float
    ms: dict[str, float] = field(default_factory=dict)
    host_ms: dict[str, float] = field(default_factory=dict)
    kernels_us: dict[str, dict[str, float]] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def arguments(case: Case) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    made = []
    for shape, dtype in case.args:
        if dtype.is_floating_point:
            given = torch.randn(shape, generator=generator, device="cuda", dtype=dtype)
            made.append(given.requires_grad_(case.backward))
        else:
            made.append(torch.randint(1 << 30, shape, generator=generator, device="cuda", dtype=dtype))
    return made


def step(fn: Function, args: Sequence[Tensor], tangent: Tensor | None) -> Callable[[], list[Tensor]]:
    """One run: the results, with a tangent the gradients too."""

    def run() -> list[Tensor]:
        out = fn(*args)
        leaves = [out] if isinstance(out, Tensor) else pytree.tree_leaves(out)
        if tangent is None:
            return leaves
        wanted = [a for a in args if a.requires_grad]
        return leaves + list(torch.autograd.grad(leaves[0], wanted, tangent.to(leaves[0].dtype)))

    return run


def timed(run: Callable[[], object], flush: Tensor, *, repeats: int = REPEATS, idle: int = IDLE_CYCLES) -> float:
    """Median milliseconds of one run, for which the GPU waits ``idle`` cycles while it is launched."""
    for _ in range(WARMUP):
        run()
    times = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda._sleep(idle)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def host_time(run: Callable[[], object]) -> float:
    """Median milliseconds until a call returns, the GPU having nothing else to do."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def kernel_times(run: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel of a run, by name."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
    return {e.key[:60]: round(e.self_device_time_total / 3, 1) for e in recorded.key_averages()}


def copy_bandwidth(flush: Tensor) -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2e3 * source.numel() / timed(lambda: target.copy_(source), flush)


def rms_errors(actual: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest of the tensors' RMS errors, relative to the RMS of what is exact."""
    worst = 0.0
    for got, wanted in zip(actual, exact, strict=True):
        off = (got.to(wanted.dtype) - wanted).pow(2).mean().sqrt()
        worst = max(worst, float(off / wanted.pow(2).mean().sqrt().clamp_min(1e-30)))
    return worst


def exact_results(case: Case, args: Sequence[Tensor], tangent: Tensor | None) -> list[Tensor]:
    """Eager in float64."""
    lifted = [a.detach().double().requires_grad_(a.requires_grad) if a.is_floating_point() else a for a in args]
    return [r.detach() for r in step(case.fn, lifted, tangent)()]


def measure(
    case: Case, contenders: dict[str, Callable[[Function], Function]], bandwidth: float, *, dynamic: bool
) -> Row:
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    args = arguments(case)
    rows = args[0].shape[0]
    for given in args if dynamic else ():
        torch._dynamo.mark_dynamic(given, [dim for dim, size in enumerate(given.shape) if size == rows])
    first = case.fn(*args)
    results = [first] if isinstance(first, Tensor) else pytree.tree_leaves(first)
    moved = sum(t.numel() * t.element_size() for t in [*args, *results])
    tangent = torch.randn_like(results[0]) if case.backward else None
    del first, results
    row = Row(case.name, 1e3 * (case.moved or moved) / bandwidth)
    exact = exact_results(case, args, tangent)
    for name, compile_ in contenders.items():
        torch._dynamo.reset()
        try:
            run = step(compile_(case.fn), args, tangent)
            row.error[name] = rms_errors(run(), exact)
            row.ms[name] = timed(run, flush)
            row.host_ms[name] = host_time(run)
            row.kernels_us[name] = kernel_times(run)
        except Exception as error:
            row.problems[name] = "".join(traceback.format_exception_only(error))[:500]
        torch.cuda.empty_cache()
    eager = row.error.get("eager", 0.0)
    if row.error.get("gyrator", 0.0) > 2 * eager + 4 * torch.finfo(args[0].dtype).eps:
        row.problems["gyrator"] = f"RMS error {row.error['gyrator']:.2e}, eager's is {eager:.2e}"
    return row


# -- the script ---------------------------------------------------------------------------------------------
def chosen(args: argparse.Namespace) -> dict[str, Callable[[Function], Function]]:
    tuned: dict[str, Any] = {"max_autotune": True}
    dynamic = None if args.dynamic else False
    found: dict[str, Callable[[Function], Function]] = {
        "eager": lambda fn: fn,
        "inductor": lambda fn: torch.compile(fn, dynamic=dynamic),
        "gyrator": lambda fn: torch.compile(fn, backend="gyrator", dynamic=dynamic),
    }
    if args.max_autotune:
        found["inductor tuned"] = lambda fn: torch.compile(fn, dynamic=dynamic, options=tuned)
        found["gyrator tuned"] = lambda fn: torch.compile(fn, backend="gyrator", dynamic=dynamic, options=tuned)
    return {name: f for name, f in found.items() if name not in args.without}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names contain one of these")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--dynamic", action="store_true", help="numbers of rows are symbols")
    parser.add_argument("--max-autotune", action="store_true", help="tuned contenders too")
    parser.add_argument("--json", type=Path, help="where to store the results")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    contenders = chosen(args)
    bandwidth = copy_bandwidth(torch.empty(FLUSH, dtype=torch.uint8, device="cuda"))
    print(f"{torch.cuda.get_device_name()}  torch {torch.__version__}  copy {bandwidth / 1e12:.2f} TB/s")
    print(f"{'ms':28}{'floor':>9}" + "".join(f"{name:>15}" for name in contenders))
    rows = []
    for case in cases(args.scale):
        if args.only and not any(word in case.name for word in args.only):
            continue
        row = measure(case, contenders, bandwidth, dynamic=args.dynamic)
        rows.append(row)
        times = "".join(f"{row.ms[n]:15.4f}" if n in row.ms else f"{'-':>15}" for n in contenders)
        print(f"{row.name:28}{row.floor_ms:9.4f}{times}", flush=True)
        print(f"{'':28}{'host':>9}" + "".join(f"{row.host_ms.get(n, 0):15.4f}" for n in contenders))
        for name, us in row.kernels_us.get("gyrator", {}).items():
            print(f"    {us:9.1f} us  {name}")
        for name, problem in row.problems.items():
            print(f"    {name}: {problem.strip()}", flush=True)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        device = {"name": torch.cuda.get_device_name(), "copy_bytes_per_second": bandwidth}
        stored = {
            "device": device,
            "torch": torch.__version__,
            "dynamic": args.dynamic,
            "rows": [asdict(r) for r in rows],
        }
        args.json.write_text(json.dumps(stored, indent=1))
    return 1 if any("gyrator" in row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
