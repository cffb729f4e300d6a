"""Random programs on tensors larger than a GPU's caches: ``python -m benchmarks.random_programs --seeds 0:300``.

A seed draws two to six steps as authors of models write them (norms, softmax, reductions, views, lookups, resizing)
over tensors of 16 or 32 million elements, plain, transposed, in channels-last memory or parts of larger ones; two in
five with gradients. What runs slower than by Inductor shows where a heuristic does not hold. Processes make first calls
side by side; one at a time times a program, beside the GPU kernels that the others' first calls launch: what looks slow
is to be timed again with fewer ``--jobs``."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import multiprocessing
import random
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from benchmarks.gpu_check import timed
from benchmarks.measure import compiled, machine

Shape = tuple[int, ...]
Made = tuple[str, Shape]
"""A value's name and shape."""

IDLE_CYCLES, REPEATS = 6_000_000, 9
"""A GPU is kept busy while a call, with its backward, is launched."""


@dataclass(frozen=True)
class Input:
    name: str
    shape: Shape
    kind: str
    """float, bool, a permutation (``perm8``), or integers below a number (``int8``)."""
    layout: str


@dataclass
class Drawing:
    """A program being drawn: what it takes, and its lines."""

    rng: random.Random
    elements: int
    """Of the first tensor; one program in three has twice as many."""
    inputs: list[Input] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gradients = self.rng.random() < 0.4
        self.dtype = self.rng.choice(["float32", "float32", "bfloat16"])

    def shape(self) -> Shape:
        r = self.rng
        total, rank = self.elements * r.choice([1, 1, 2]), r.choice([2, 2, 3, 3, 4, 4])
        dims = [r.choice([32, 64, 128, 256, 768, 1000, 1024, 2048, 4096, 50257 if rank == 2 else 512, 3, 7])]
        for _ in range(rank - 2):
            dims.insert(0, r.choice([8, 16, 64, 197, 256, 512, 1024, 12, 3]))
            if math.prod(dims) * 4 > total:
                dims[0] = max(1, total // (4 * math.prod(dims[1:])))
        dims.insert(0, max(1, total // math.prod(dims)))
        if r.random() < 0.15:
            r.shuffle(dims)
        return tuple(dims)

    def input(self, shape: Shape, kind: str = "float") -> str:
        layout = "plain"
        if kind == "float" and len(shape) > 1:
            layout = self.rng.choice(["plain"] * 5 + ["t", "cl", "part"])
        if layout == "cl" and len(shape) != 4:
            layout = "plain"
        self.inputs.append(Input(f"x{len(self.inputs)}", shape, kind, layout))
        return self.inputs[-1].name

    def say(self, text: str, shape: Sequence[int]) -> Made:
        self.lines.append(f"    v{len(self.lines)} = {text}")
        return f"v{len(self.lines) - 1}", tuple(shape)

    def axes(self, rank: int) -> int | Shape:
        k = self.rng.randint(1, max(1, min(rank, 2)))
        found = tuple(sorted(self.rng.sample(range(rank), k)))
        return found if len(found) > 1 else found[0]


Step = Callable[[Drawing, str, Shape], "Made | list[Made] | None"]


def _of_choices(*texts: str) -> Step:
    """A step that keeps the shape, of a few texts with the value's name at {0}."""
    return lambda d, v, s: d.say(d.rng.choice(texts).format(v), s)


unary = _of_choices(
    "F.relu({0})", "F.gelu({0})", "F.silu({0})", "torch.sigmoid({0})", "torch.tanh({0})", "({0} * 0.7 + 0.1)",
    "torch.exp(-{0}.abs())", "{0}.clamp(-1, 1)", "{0} * {0}", "F.softplus({0})", "torch.sin({0})",
)  # fmt: skip


def binary(d: Drawing, v: str, s: Shape) -> Made:
    other = d.rng.choice(["same", "vector", "rows", "last", "mid"])
    middle = tuple(n if i == 1 % len(s) else 1 for i, n in enumerate(s))
    shapes = {"same": s, "vector": s[-1:], "rows": (*s[:-1], 1), "last": (1,) * (len(s) - 1) + s[-1:], "mid": middle}
    texts = ["{0} + {1}", "{0} * {1}", "torch.maximum({0}, {1})", "{0} * torch.sigmoid({1})"]
    text = d.rng.choice([*texts, "torch.where({1} > 0, {0}, {0} * 0.1)"])
    return d.say(text.format(v, d.input(shapes[other])), s)


def norm(d: Drawing, v: str, s: Shape) -> Made:
    axes = d.axes(len(s))
    texts = [
        "{0} - {0}.mean({1}, keepdim=True)",
        "({0} - {0}.mean({1}, keepdim=True)) * torch.rsqrt({0}.var({1}, keepdim=True) + 1e-5)",
        "{0} * torch.rsqrt({0}.float().pow(2).mean({1}, keepdim=True) + 1e-6)",
        "{0} / ({0}.abs().amax({1}, keepdim=True) + 1e-3)",
        "{0} - torch.logsumexp({0}, {1}, keepdim=True)",
        "{0} / ({0}.norm(dim={1}, keepdim=True) + 1e-3)",
    ]
    return d.say(d.rng.choice(texts).format(v, axes), s)


def soft(d: Drawing, v: str, s: Shape) -> Made:
    text = d.rng.choice(["torch.softmax({0}, {1})", "torch.log_softmax({0}, {1})"])
    return d.say(text.format(v, d.rng.choice([-1, -1, d.rng.randrange(len(s))])), s)


def row_norm(d: Drawing, v: str, s: Shape) -> Made | None:
    if s[-1] < 2:
        return None
    if d.dtype != "float32":
        return d.say(f"F.layer_norm({v}, ({s[-1]},))", s)
    weights = [d.input(s[-1:]) for _ in range(3)]
    texts = [f"F.layer_norm({v}, ({s[-1]},), {weights[0]}, {weights[1]})", f"F.rms_norm({v}, ({s[-1]},), {weights[2]})"]
    return d.say(d.rng.choice(texts), s)


def group_norm(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) < 3 or s[1] % 4 or math.prod(s[2:]) < 2:
        return None
    return d.say(f"F.group_norm({v}, {d.rng.choice([2, 4])})", s)


def reduce(d: Drawing, v: str, s: Shape) -> Made | list[Made] | None:
    axes, kept = d.axes(len(s)), d.rng.random() < 0.5
    gone = axes if isinstance(axes, tuple) else (axes,)
    shape = tuple(1 if i in gone else n for i, n in enumerate(s) if kept or i not in gone)
    if not shape:
        return None
    name = d.rng.choice(["{0}.sum", "{0}.mean", "{0}.amax", "{0}.var", "{0}.abs().sum"])
    made = d.say(f"{name}({{1}}, keepdim={{2}})".format(v, axes, kept), shape)
    return [made, (v, s)] if d.rng.random() < 0.5 else made


def transpose(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) < 2:
        return None
    i, j = d.rng.sample(range(len(s)), 2)
    shape = list(s)
    shape[i], shape[j] = shape[j], shape[i]
    return d.say(f"{v}.transpose({i}, {j})" + d.rng.choice(["", "", ".contiguous()"]), shape)


def with_transposed(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) < 2:
        return None
    return d.say(f"{v} {d.rng.choice('+*')} {d.input((*s[:-2], s[-1], s[-2]))}.mT", s)


def reshape(d: Drawing, v: str, s: Shape) -> Made | None:
    i = d.rng.randrange(len(s))
    sizes = [n for n in (2, 3, 4, 8, 12, 16, 64) if s[i] % n == 0 and s[i] > n]
    if not sizes or len(s) > 4:
        return None
    n = d.rng.choice(sizes)
    parts = (n, s[i] // n) if d.rng.random() < 0.5 else (s[i] // n, n)
    shape = s[:i] + parts + s[i + 1 :]
    return d.say(f"{v}.reshape({shape})", shape)


def merge(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) < 3:
        return None
    i = d.rng.randrange(len(s) - 1)
    shape = (*s[:i], s[i] * s[i + 1], *s[i + 2 :])
    return d.say(f"{v}.reshape({shape})", shape)


def halves(d: Drawing, v: str, s: Shape) -> Made | None:
    axis = d.rng.choice([-1, d.rng.randrange(len(s))])
    if s[axis] % 2:
        return None
    half = list(s)
    half[axis] //= 2
    a, b = (f"{v}.chunk(2, {axis})[{n}]" for n in range(2))
    texts = (f"F.silu({a}) * {b}", f"torch.cat([-{b}, {a}], {axis})", f"{a} + {b}")
    k = d.rng.randrange(3)
    return d.say(texts[k], s if k == 1 else half)


def rotary(d: Drawing, v: str, s: Shape) -> Made | None:
    if s[-1] % 2:
        return None
    angle, middle = d.input(s[-2:] if len(s) > 1 else s), s[-1] // 2
    turned = f"torch.cat([-{v}[..., {middle}:], {v}[..., :{middle}]], -1)"
    return d.say(f"{v} * torch.cos({angle}) + {turned} * torch.sin({angle})", s)


def cat(d: Drawing, v: str, s: Shape) -> Made:
    axis = d.rng.randrange(len(s))
    other, both = list(s), list(s)
    other[axis] = max(1, s[axis] // d.rng.choice([1, 2, 8]))
    both[axis] += other[axis]
    return d.say(f"torch.cat([{v}, {d.input(tuple(other))}], {axis})", both)


def narrow(d: Drawing, v: str, s: Shape) -> Made | None:
    axis = d.rng.randrange(len(s))
    if s[axis] < 4:
        return None
    size = s[axis] - d.rng.choice([1, s[axis] // 4, s[axis] // 2])
    return d.say(f"{v}.narrow({axis}, {s[axis] - size}, {size})", [*s[:axis], size, *s[axis + 1 :]])


def pad(d: Drawing, v: str, s: Shape) -> Made:
    sides = d.rng.choice([1, 2]) if len(s) > 1 else 1
    by, shape = [d.rng.randint(0, 3) for _ in range(2 * sides)], list(s)
    for i in range(sides):
        shape[-1 - i] += by[2 * i] + by[2 * i + 1]
    return d.say(f"F.pad({v}, {by})", shape)


def mask(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) < 2:
        return None
    later = f"torch.ones({s[-2:]}, dtype=torch.bool, device={v}.device).triu(1)"
    rows, each = d.input((*s[:-1], 1), "bool"), d.input(s, "bool")
    texts = [f"{v}.tril()", f"{v}.masked_fill({later}, -1e4)", f"{v}.masked_fill({rows}, 0.0)"]
    return d.say(d.rng.choice([*texts, f"{v}.masked_fill({each}, 0.0)"]), s)


def select(d: Drawing, v: str, s: Shape) -> Made:
    axis = d.rng.randrange(len(s))
    return d.say(f"{v}.index_select({axis}, {d.input((s[axis],), f'perm{s[axis]}')})", s)


def gather(d: Drawing, v: str, s: Shape) -> Made:
    shape = (*s[:-1], 1)
    return d.say(f"{v}.gather(-1, {d.input(shape, f'int{s[-1]}')})", shape)


def lookup(d: Drawing, v: str, s: Shape) -> Made:
    rows = d.rng.choice([1000, 50000])
    return d.say(f"{v} + {d.input((rows, s[-1]))}[{d.input(s[:-1], f'int{rows}')}]", s)


def pool(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) != 4 or min(s[2:]) < 4:
        return None
    k = d.rng.choice([2, 3])
    return d.say(
        f"F.{d.rng.choice(['avg', 'max'])}_pool2d({v}, {k}, 2)", s[:2] + tuple((n - k) // 2 + 1 for n in s[2:])
    )


def resize(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) != 4:
        return None
    mode = d.rng.choice(["nearest", "bilinear"])
    return d.say(f"F.interpolate({v}, scale_factor=2, mode={mode!r})", (*s[:2], 2 * s[2], 2 * s[3]))


def product(d: Drawing, v: str, s: Shape) -> Made:
    return d.say(f"{unary(d, v, s)[0]} * {norm(d, v, s)[0]}", s)  # type: ignore[index]


def difference(d: Drawing, v: str, s: Shape) -> Made | None:
    axis = d.rng.randrange(len(s))
    return None if s[axis] < 3 else d.say(f"{v}.diff(dim={axis})", [*s[:axis], s[axis] - 1, *s[axis + 1 :]])


def stack(d: Drawing, v: str, s: Shape) -> Made | None:
    if len(s) > 4:
        return None
    axis = d.rng.randrange(len(s) + 1)
    return d.say(f"torch.stack([{v}, {v} * 2], {axis})", [*s[:axis], 2, *s[axis:]])


def interleave(d: Drawing, v: str, s: Shape) -> Made:
    axis = d.rng.randrange(len(s))
    return d.say(f"{v}.repeat_interleave(2, {axis})", [*s[:axis], 2 * s[axis], *s[axis + 1 :]])


def scatter(d: Drawing, v: str, s: Shape) -> Made | None:
    rows = d.rng.choice([128, 4096])
    if rows > 4 * s[0] and rows * math.prod(s[1:]) > 2**26:
        return None
    zeros = f"torch.zeros({(rows, *s[1:])}, device={v}.device, dtype={v}.dtype)"
    return d.say(f"{zeros}.index_add(0, {d.input((s[0],), f'int{rows}')}, {v})", (rows, *s[1:]))


STEPS: dict[Step, float] = {
    unary: 12, binary: 12, norm: 10, soft: 5, row_norm: 4, group_norm: 3, reduce: 8, transpose: 6, with_transposed: 3,
    reshape: 5, merge: 3, halves: 4, rotary: 3, cat: 4, narrow: 3, pad: 2, mask: 4, select: 2, gather: 2, lookup: 2,
    pool: 3, resize: 2, product: 4, difference: 1, stack: 1, interleave: 1, scatter: 1.5,
    lambda d, v, s: d.say(f"{v}.flip({d.rng.randrange(len(s))})", s): 1,
    lambda d, v, s: d.say(f"{v}.roll({d.rng.randint(1, 3)}, {d.rng.randrange(len(s))})", s): 2,
    lambda d, v, s: d.say(f"{v}.cumsum({d.rng.choice([-1, d.rng.randrange(len(s))])})", s): 2,
    lambda d, v, s: d.say(f"{v}.max({d.rng.randrange(len(s))}, keepdim=True).values * {v}", s): 1.5,
    _of_choices("{0}.float()", "{0}.bfloat16()", "{0}.half()"): 4,
}  # fmt: skip
"""Each with how often it is drawn."""


def drawn(seed: int, elements: int = 2**24) -> tuple[Drawing, str]:
    """What a program takes, and its text."""
    d = Drawing(random.Random(seed), elements)
    shape = d.shape()
    values: list[Made] = [(d.input(shape), shape)]
    for _ in range(d.rng.randint(2, 6)):
        v, s = d.rng.choice(values[-2:] if d.rng.random() < 0.9 else values)
        (step,) = d.rng.choices(list(STEPS), list(STEPS.values()))
        made = step(d, v, s)
        for value in made if isinstance(made, list) else [made]:
            if value is not None and 0 < math.prod(value[1]) <= 4 * math.prod(shape):
                values.append(value)
    returned = [values[-1][0]]
    if d.rng.random() < 0.35:
        v, s = values[-1]
        returned.append(d.say(f"{v}.{d.rng.choice(['sum', 'mean', 'amax'])}({d.axes(len(s))})", (1,))[0])
    if d.rng.random() < 0.2 and len(values) > 2:
        returned.append(values[-2][0])
    used = [x for x in d.inputs if any(f"{x.name}" in line for line in d.lines)] or d.inputs[:1]
    head = f"def program({', '.join(x.name for x in used)}):"
    d.inputs = used
    return d, "\n".join([head, *d.lines, f"    return ({', '.join(dict.fromkeys(returned))},)", ""])


def program_of(text: str) -> Callable[..., tuple[Tensor, ...]]:
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(text, space)
    found: Callable[..., tuple[Tensor, ...]] = space["program"]
    return found


def tensors(d: Drawing, seed: int, device: str) -> list[Tensor]:
    torch.manual_seed(seed)
    made = []
    for x in d.inputs:
        if x.kind == "bool":
            made.append(torch.rand(x.shape, device=device) < 0.3)
        elif x.kind.startswith("perm"):
            made.append(torch.randperm(int(x.kind[4:]), device=device))
        elif x.kind.startswith("int"):
            made.append(torch.randint(int(x.kind[3:]), x.shape, device=device))
        else:
            made.append(_laid_out(x, getattr(torch, d.dtype), device).requires_grad_(d.gradients))
    return made


def _laid_out(x: Input, dtype: torch.dtype, device: str) -> Tensor:
    *outer, last = x.shape
    if x.layout == "t":
        return torch.randn(*outer[:-1], last, outer[-1], device=device).to(dtype).mT
    if x.layout == "part":
        return torch.randn(*outer, last + 8, device=device).to(dtype)[..., :last]
    made = torch.randn(x.shape, device=device).to(dtype)
    return made.contiguous(memory_format=torch.channels_last) if x.layout == "cl" else made


def step_of(
    fn: Callable[..., tuple[Tensor, ...]], args: Sequence[Tensor], grads: Sequence[Tensor] | None
) -> list[Tensor]:
    """The results of a call and, with ``grads`` of them, the inputs' gradients."""
    results = list(fn(*args))
    if grads is None:
        return results
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if r.requires_grad]
    leaves = [a for a in args if a.requires_grad]
    found = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return [*(r.detach() for r in results), *(g for g in found if g is not None)]


def milliseconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        return timed(run, torch.empty(0, device=device), repeats=REPEATS, idle=IDLE_CYCLES)
    run()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def worst_error(got: Sequence[Tensor], exact: Sequence[Tensor], eager: Sequence[Tensor]) -> float:
    """The largest share of what is allowed: twice eager's error and 4·eps of the scale, both as roots of means."""
    worst = 0.0
    for mine, true, other in zip(got, exact, eager, strict=True):
        if mine.is_floating_point() and (finite := torch.isfinite(true)).any():
            scale, own, theirs = (
                x[finite].double().square().mean().sqrt().item() for x in (true, mine - true, other - true)
            )
            worst = max(worst, own / (2 * theirs + 4 * torch.finfo(mine.dtype).eps * scale + 1e-30))
    return worst


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def measured(seed: int, options: argparse.Namespace, lock: Path) -> dict[str, Any]:
    """Times, first calls and errors of a program, by peer; what went wrong in their place."""
    d, text = drawn(seed, options.elements)
    peers, device = options.peers, options.device
    fn, args = program_of(text), tensors(d, seed, device)
    inputs = [asdict(x) for x in d.inputs]
    row: dict[str, Any] = {"seed": seed, "program": text, "dtype": d.dtype, "gradients": d.gradients, "inputs": inputs}
    row |= {"ms": {}, "first_call": {}, "error": {}, "problems": {}}
    with alone(lock):
        results = fn(*args)
        given = d.gradients and any(r.requires_grad for r in results)
        grads = [torch.randn_like(r.detach()) for r in results] if given else None
        eager = step_of(fn, args, grads)
        del results
        wide = [a.detach().double().requires_grad_(a.requires_grad) if a.is_floating_point() else a for a in args]
        plain = text.replace(".float()", "").replace(".bfloat16()", "").replace(".half()", "")
        exact = step_of(program_of(plain), wide, None if grads is None else [g.double() for g in grads])
        del wide
    for peer in peers:
        torch._dynamo.reset()
        call, begin = compiled(fn, peer, dynamic=False), time.perf_counter()
        try:
            got = step_of(call, args, grads)
            row["first_call"][peer] = time.perf_counter() - begin
            with alone(lock):
                row["error"][peer] = worst_error(got, exact, eager)
                del got
                row["ms"][peer] = milliseconds(lambda call=call: step_of(call, args, grads), device)  # type: ignore[misc]
        except Exception:
            row["problems"][peer] = traceback.format_exc()[-1000:]
    return row


def work(seeds: Sequence[int], options: argparse.Namespace, lock: Path, out: Any) -> None:
    torch.set_num_threads(1)
    for seed in seeds:
        if time.time() > options.end:
            break
        try:
            out.put(measured(seed, options, lock))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    out.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", default="0:100", help="first and end, as 0:100, or single ones, as 3,17")
    parser.add_argument(
        "--elements", type=int, default=2**24, help="of the first tensor: fewer for one core of a processor"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="after which no program is begun")
    parser.add_argument("--peers", nargs="+", default=["eager", "inductor", "gyrator"])
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args()
    first, colon, end = options.seeds.partition(":")
    seeds = list(range(int(first), int(end))) if colon else [int(n) for n in options.seeds.split(",")]
    options.end = time.time() + options.seconds
    spawn = multiprocessing.get_context("spawn")
    out: Any = spawn.Queue()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "gpu"
        shares = [seeds[n :: options.jobs] for n in range(options.jobs)]
        processes = [spawn.Process(target=work, args=(share, options, lock, out)) for share in shares]
        for process in processes:
            process.start()
        running = len(processes)
        while running:
            row = out.get()
            running -= row is None
            if row is not None:
                rows.append(row)
                print(row["seed"], {k: round(ms, 3) for k, ms in row["ms"].items()}, *row["problems"], flush=True)
        for process in processes:
            process.join()
    both = [r["ms"]["gyrator"] / r["ms"]["inductor"] for r in rows if {"gyrator", "inductor"} <= r["ms"].keys()]
    if both:
        print(f"{len(both)} programs: {statistics.geometric_mean(both):.3f} of Inductor's time,")
        print({f"over {n}": sum(ratio > n for ratio in both) for n in (1.1, 1.3, 2.0)})
    if options.json:
        found = {"device": machine(), "programs": sorted(rows, key=lambda row: int(row["seed"]))}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
