"""Single kernels on tensors larger than the caches: what a user's hot loop is made of.

Each case states its compulsory traffic (each input read once, each output written once) and its operations,
from which the physical limit follows.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Limits, Row, compiled, interleaved, prepared

ROWS, COLUMNS = 8192, 2048  # 64 MiB in fp32
CELLS = ROWS * COLUMNS
OVERHEAD_CALLS = 2000


@dataclass(frozen=True)
class Kernel:
    """A function, its arguments, and how many bytes and operations it cannot do without.

    With ``backward``, the gradients of all floating-point arguments are taken too.
    """

    fn: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    traffic: float
    operations: float = 0.0
    backward: bool = False


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x, labels)


def swiglu(x: Tensor, gate: Tensor) -> Tensor:
    return F.silu(gate) * x


def rope(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat([-b, a], -1) * sin


def rope_complex(q: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(q.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.view_as_complex(turns)).flatten(-2)


def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def reflection_pad(x: Tensor) -> Tensor:
    return F.pad(x, (2, 2, 2, 2), mode="reflect")


def roll(x: Tensor) -> Tensor:
    return x.roll((3, 5), (2, 3))


def flip(x: Tensor) -> Tensor:
    return x.flip(-1)


def cache_update(cache: Tensor, token: Tensor) -> Tensor:
    cache[:, 100:101] = token
    return cache[:, 100] * 2


def states(x: Tensor, w: Tensor) -> Tensor:
    """A tensor that is filled row by row, each made of the one before."""
    out = x.new_zeros(64, *x.shape)
    for t in range(64):
        out[t] = torch.tanh(out[t - 1] * w + x)
    return out


def bias_gelu_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh") + residual


def _matrix(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def _vector(size: int = COLUMNS) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(9))


def _rotation() -> tuple[Tensor, ...]:
    angles = torch.arange(2048.0)[:, None] * torch.exp(-torch.arange(64.0) / 64 * math.log(10_000))
    angles = torch.cat([angles, angles], -1)
    q = torch.randn(2, 32, 2048, 128, generator=torch.Generator().manual_seed(0))
    return q, angles.cos(), angles.sin()


def _turns() -> tuple[Tensor, ...]:
    q, cos, sin = _rotation()
    return q, torch.stack([cos[:, :64], sin[:, :64]], -1)


def _images() -> tuple[Tensor, ...]:
    return (_matrix(2, 4096, 4096).view(32, 128, 64, 64),)


CELL = 4 * CELLS
KERNELS: dict[str, Kernel] = {
    "layer_norm": Kernel(layer_norm, lambda: (_matrix(), _vector(), _vector()), 2 * CELL),
    "layer_norm_fwd_bwd": Kernel(layer_norm, lambda: (_matrix(), _vector(), _vector()), 5 * CELL, backward=True),
    "rms_norm": Kernel(rms_norm, lambda: (_matrix(), _vector()), 2 * CELL),
    "rms_norm_fwd_bwd": Kernel(rms_norm, lambda: (_matrix(), _vector()), 5 * CELL, backward=True),
    "softmax": Kernel(softmax, lambda: (_matrix(),), 2 * CELL),
    "softmax_fwd_bwd": Kernel(softmax, lambda: (_matrix(),), 5 * CELL, backward=True),
    "gelu_erf": Kernel(gelu_erf, lambda: (_matrix(),), 2 * CELL),
    "gelu_tanh": Kernel(gelu_tanh, lambda: (_matrix(),), 2 * CELL),
    "bias_gelu_residual": Kernel(bias_gelu_residual, lambda: (_matrix(), _vector(), _matrix(1)), 3 * CELL),
    "cross_entropy": Kernel(cross_entropy, lambda: (_matrix(0, 2048, 8192), torch.arange(2048)), CELL),
    "cross_entropy_fwd_bwd": Kernel(
        cross_entropy, lambda: (_matrix(0, 2048, 8192), torch.arange(2048)), 3 * CELL, backward=True
    ),
    "swiglu": Kernel(swiglu, lambda: (_matrix(), _matrix(1)), 3 * CELL),
    "swiglu_fwd_bwd": Kernel(swiglu, lambda: (_matrix(), _matrix(1)), 8 * CELL, backward=True),
    "rope": Kernel(rope, _rotation, 2 * CELL),
    "rope_complex": Kernel(rope_complex, _turns, 2 * CELL),
    "rope_complex_fwd_bwd": Kernel(rope_complex, _turns, 5 * CELL, backward=True),
    "max_pool_fwd_bwd": Kernel(max_pool, _images, 3 * CELL, backward=True),
    "column_sum": Kernel(column_sum, lambda: (_matrix(),), CELL),
    "transpose_add": Kernel(transpose_add, lambda: (_matrix(), _matrix(1, COLUMNS, ROWS)), 3 * CELL),
    "cumsum": Kernel(cumsum, lambda: (_matrix(),), 2 * CELL),
    "reflection_pad": Kernel(reflection_pad, _images, 2 * CELL),
    "roll": Kernel(roll, _images, 2 * CELL),
    "flip": Kernel(flip, _images, 2 * CELL),
    "cache_update": Kernel(
        cache_update, lambda: (_matrix().view(8, 1024, COLUMNS), _matrix(1, 8).view(8, 1, -1)), 2**17
    ),
    "states": Kernel(states, lambda: (_matrix(0, 128), _vector()), 64 * 3 * 2**20),
}
QUICK = ("layer_norm", "softmax", "gelu_erf", "column_sum", "transpose_add")


def _call(kernel: Kernel, peer: str, dynamic: bool) -> Callable[[], object]:
    fn, arguments = compiled(kernel.fn, peer, dynamic=dynamic), kernel.arguments()
    if not kernel.backward:

        def forward() -> object:
            with torch.no_grad():
                return fn(*arguments)

        return forward
    leaves = [a.requires_grad_() for a in arguments if a.is_floating_point()]
    shape = kernel.fn(*arguments).detach()
    tangent = torch.ones_like(shape)
    return lambda: torch.autograd.grad(fn(*arguments), leaves, tangent)


def adam(tensors: int, peer: str, dynamic: bool) -> Callable[[], object]:
    """A step of Adam over many tensors of 1 MiB."""
    parameters = [torch.nn.Parameter(torch.randn(512, 512)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn(512, 512)
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    return compiled(optimizer.step, peer, dynamic=dynamic)


def overhead(peer: str, dynamic: bool) -> Callable[[], object]:
    """Many calls of ``x + 1`` on 16 elements, where all time is overhead."""
    x = torch.ones(16)
    fn = compiled(lambda x: x + 1, peer, dynamic=dynamic)

    def calls() -> None:
        with torch.no_grad():
            for _ in range(OVERHEAD_CALLS):
                fn(x)

    return calls


def run(limits: Limits, peers: Sequence[str], *, dynamic: bool, quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yields a row per kernel."""
    budget = 1.0 if quick else 4.0
    for name, kernel in KERNELS.items():
        if (only and name not in only) or (quick and not only and name not in QUICK):
            continue
        limit = limits.seconds(kernel.traffic, kernel.operations)
        build = functools.partial(_call, kernel, dynamic=dynamic)
        yield _row(name, build, limits.threads, peers, dynamic, budget, limit)
    if not only or "adam" in only:
        tensors = 10 if quick else 40
        build = functools.partial(adam, tensors, dynamic=dynamic)
        yield _row("adam", build, limits.threads, peers, dynamic, budget, limits.seconds(7 * tensors * 2**20, 0))


def run_overhead(limits: Limits, peers: Sequence[str], *, dynamic: bool) -> Iterator[Row]:
    """Yields one row: seconds of one call of ``x + 1``, also with the backend that only captures."""
    build = functools.partial(overhead, dynamic=dynamic)

    def with_capture(peer: str) -> Callable[[], object]:
        return build("eager" if peer == "uncompiled" else peer) if peer != "eager" else _captured()

    row = _row("x_plus_1", with_capture, limits.threads, [*peers, "uncompiled"], dynamic, 2.0, None)
    seconds = {peer: value / OVERHEAD_CALLS for peer, value in row.seconds.items()}
    yield Row("overhead", row.case, row.threads, dynamic, seconds, row.first_call, row.errors)


def _captured() -> Callable[[], object]:
    x, fn = torch.ones(16), torch.compile(lambda x: x + 1, backend="eager")

    def calls() -> None:
        with torch.no_grad():
            for _ in range(OVERHEAD_CALLS):
                fn(x)

    return calls


def _row(
    name: str,
    build: Callable[[str], Callable[[], object]],
    threads: int,
    peers: Sequence[str],
    dynamic: bool,
    budget: float,
    limit: float | None,
) -> Row:
    torch._dynamo.reset()
    time.sleep(0.05)
    ready, first, errors = prepared(build, peers)
    seconds = interleaved(ready, budget=budget * max(len(ready), 1))
    return Row("kernels", name, threads, dynamic, seconds, first, errors, limit)
