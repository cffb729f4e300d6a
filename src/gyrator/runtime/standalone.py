"""What a wrapper uses when it is run as a script."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gyrator.autograd.ops  # noqa: F401  # registers gyrator's own operators
from gyrator.autograd.interface import BoxedCallable
from gyrator.runtime.load import Runtime
from gyrator.runtime.pool import Pool
from gyrator.runtime.profile import bandwidth_line, seconds_a_call

SECONDS, BLOCK = 1.0, 0.01
"""How long a script measures, and about how long the calls of one measurement take."""

MOST_RANDOM = 1_000_003
"""Random numbers of a tensor; they are repeated in larger ones, as making 100 million takes a second and more."""


def random_tensor(
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    below: int | None = None,
    device: str = "cpu",
    ends: int | None = None,
) -> torch.Tensor:
    """A random tensor: normal floats (those of 8 bits up to a few hundred, as quantised ones are: what numbers are
    multiplied sets a GPU's clock), booleans, integers from 0 up to `below` (by default 2), or the `ends` of groups,
    of which some are three times as large as others."""
    new = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype in (torch.float32, torch.float64) or dtype.is_complex else torch.float32
        scale = 64 if dtype.itemsize == 1 else 1
        some = torch.randn(min(new.numel(), MOST_RANDOM), dtype=wide, device=device) * scale
        many = some.to(dtype).repeat(-(-new.numel() // max(len(some), 1)))
        return new.copy_(many[: new.numel()].view(new.shape))
    if ends is not None:
        upto = (torch.rand(shape[0], device=device) + 0.5).cumsum(0)
        return new.copy_((upto / upto[-1:] * ends).round())
    return new.copy_(torch.randint(0, below or 2, tuple(shape), device=device))


def main(file: str, bind: Callable[[Runtime], BoxedCallable], inputs: Callable[[], list[Any]]) -> None:
    """Call the graph in the folder of `file` for a second and print the median time of a call."""
    _print_time(bind(Runtime(Path(file).resolve().parent, Pool())), inputs)


def _times(call: BoxedCallable, inputs: list[Any]) -> list[float]:
    """Seconds of a call, each the mean of a few."""
    mean = partial(seconds_a_call, lambda: call([*inputs]), on_gpu=torch.cuda.is_available())
    mean(1)
    calls = round(BLOCK / mean(1)) or 1
    times, end = [mean(calls)], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        times.append(mean(calls))
    return times


def run_graph(module: Callable[..., Any], inputs: Callable[[], list[Any]]) -> None:
    """Call an FX graph's program for a second and print the median time of a call."""
    _print_time(lambda args: module(*args), inputs)


def _print_time(call: BoxedCallable, inputs: Callable[[], list[Any]]) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        times = _times(call, inputs())
    print(f"{statistics.median(times) * 1e6:.1f} us a call (median of {len(times)})")


def benchmark_kernel(
    file: str,
    name: str,
    load: Callable[[Runtime], Callable[..., object]],
    tensors: Callable[[], list[torch.Tensor]],
    sizes: Sequence[int],
    nbytes: int,
) -> None:
    """Launch one kernel of the folder of `file` for a second; print the median time, bytes and GB/s."""
    torch.manual_seed(0)
    given = tensors()
    runtime = Runtime(Path(file).resolve().parent, Pool())
    launch, args = load(runtime), [*(tensor.data_ptr() for tensor in given), *sizes]
    args = [runtime.current_stream(0), *args] if given[0].is_cuda else [*args, runtime.num_threads()]
    times = _times(lambda args: (launch(*args),), args)
    print(bandwidth_line(name, statistics.median(times), nbytes, len(times)))
