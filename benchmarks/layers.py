"""Layers around a product or two on a GPU, convolutions, linear layers in 8-bit floats, and experts: eager, Inductor,
gyrator, gyrator with `max_autotune`.

    python -m benchmarks.layers [convolutions|float8|experts …] [--inductor default max-autotune-no-cudagraphs]
        [--only 3x3] [--json FILE]

Each way is recorded as a CUDA graph and replayed in turns with the others; medians count. `library` is the library's
calls alone: cuDNN's convolution, the fastest by trial, of channels-last images; a product of bfloat16 matrices; both
grouped products.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gemm import medians
from benchmarks.measure import write_gpu_rows

CONVOLUTIONS = {
    "1x1 256→64 56²": (64, 256, 64, 56, 1, 1),
    "1x1 64→256 56²": (64, 64, 256, 56, 1, 1),
    "1x1 512→2048 7²": (64, 512, 2048, 7, 1, 1),
    "1x1 step 256→512 56²": (64, 256, 512, 56, 1, 2),
    "3x3 64→64 56²": (64, 64, 64, 56, 3, 1),
    "3x3 128→128 28²": (64, 128, 128, 28, 3, 1),
    "3x3 256→256 14²": (64, 256, 256, 14, 3, 1),
    "3x3 512→512 7²": (64, 512, 512, 7, 3, 1),
    "3x3 step 128→128 56²": (64, 128, 128, 56, 3, 2),
    "7x7 step 3→64 224²": (64, 3, 64, 224, 7, 2),
    "3x3 256→256 14² one image": (1, 256, 256, 14, 3, 1),
    "5x5 48→96 33²": (16, 48, 96, 33, 5, 1),
}
"""Images, channels, filters, side, kernel, stride."""

LINEAR = {
    "8192x4096→4096": (8192, 4096, 4096),
    "8192x4096→14336": (8192, 4096, 14336),
    "8192x14336→4096": (8192, 14336, 4096),
    "512x4096→4096": (512, 4096, 4096),
    "16x4096→14336": (16, 4096, 14336),
}
"""Rows, columns, columns of the result. Weights are quantised before, rows as part of the layer, by a scale each."""

EXPERTS = {
    "8 of 4096→14336, 32 rows": (8, 4096, 14336, 32),
    "8 of 4096→14336, 2048 rows": (8, 4096, 14336, 2048),
    "8 of 4096→14336, 16384 rows": (8, 4096, 14336, 16384),
    "128 of 2048→768, 64 rows": (128, 2048, 768, 64),
    "128 of 2048→768, 4096 rows": (128, 2048, 768, 4096),
    "128 of 2048→768, 32768 rows": (128, 2048, 768, 32768),
}
"""Experts, columns outside and inside, and rows, which are not shared evenly."""


@dataclass(frozen=True)
class Layer:
    """A function and its inputs, the exact result, the library's call, and the relative error that is allowed."""

    name: str
    fn: Callable[..., Tensor]
    args: list[Tensor]
    exact: Tensor
    library: Callable[[], Tensor]
    error: float


# -- layers --------------------------------------------------------------------------------------------------
def ends_block(stride: int, x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """What ends a block of a residual network."""
    return torch.relu(F.conv2d(x, w, b, stride=stride, padding=w.shape[-1] // 2) + r)


def convolutions(only: str) -> Iterator[Layer]:
    for name, (images, channels, filters, side, kernel, stride) in CONVOLUTIONS.items():
        if only not in name:
            continue
        shapes = [(images, channels, side, side), (filters, channels, kernel, kernel)]
        shapes.append((images, filters, -(-side // stride), -(-side // stride)))
        made = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
        x, w, r = (t.to(memory_format=torch.channels_last) for t in made)
        w = w / (channels * kernel * kernel) ** 0.5
        args = [x, w, torch.randn(filters, device="cuda").bfloat16(), r]
        exact = ends_block(stride, *(a.double() for a in args))
        library = partial(F.conv2d, x, w, None, stride=stride, padding=kernel // 2)
        yield Layer(name, partial(ends_block, stride), args, exact, library, 1e-2)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as 8-bit floats, and a scale for each."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def linear_gelu(x: Tensor, w: Tensor, scale: Tensor, b: Tensor) -> Tensor:
    rows, row_scale = quantised(x)
    y = torch._scaled_mm(rows, w.t(), row_scale, scale.t(), bias=b, out_dtype=torch.bfloat16, use_fast_accum=True)
    return F.gelu(y)


def float8(only: str) -> Iterator[Layer]:
    for name, (m, k, n) in LINEAR.items():
        if only not in name:
            continue
        x, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16() / k**0.5
        b = torch.randn(n, device="cuda").bfloat16()
        exact = F.gelu(F.linear(x.float(), w.float(), b.float()))
        yield Layer(name, linear_gelu, [x, *quantised(w), b], exact, partial(F.linear, x, w, b), 6e-2)


def gated(x: Tensor, up: Tensor, down: Tensor, ends: Tensor, share: Tensor) -> Tensor:
    """The experts of a model, each for its rows."""
    gate, value = torch._grouped_mm(x, up.transpose(1, 2), offs=ends).chunk(2, -1)
    return torch._grouped_mm(F.silu(gate) * value, down.transpose(1, 2), offs=ends) * share


def experts(only: str) -> Iterator[Layer]:
    for name, (count, outside, inside, rows) in EXPERTS.items():
        if only not in name:
            continue
        x, share = (torch.randn(s, device="cuda").bfloat16() for s in ((rows, outside), (rows, 1)))
        up = torch.randn(count, 2 * inside, outside, device="cuda", dtype=torch.bfloat16) / outside**0.5
        down = torch.randn(count, outside, inside, device="cuda", dtype=torch.bfloat16) / inside**0.5
        chosen = torch.randn(count, device="cuda").softmax(0).multinomial(rows, replacement=True)
        ends = chosen.bincount(minlength=count).cumsum(0).int()
        places, exact = [0, *ends.tolist()], torch.empty(rows, outside, device="cuda")
        for k, (a, b) in enumerate(itertools.pairwise(places)):
            gate, value = (x[a:b].float() @ up[k].float().t()).chunk(2, -1)
            exact[a:b] = (F.silu(gate) * value) @ down[k].float().t() * share[a:b]
        library = partial(both_products, x, up, x.new_zeros(rows, inside), down, ends)
        yield Layer(name, gated, [x, up, down, ends, share], exact, library, 2e-2)


def both_products(x: Tensor, up: Tensor, inner: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    torch._grouped_mm(x, up.transpose(1, 2), offs=ends)
    return torch._grouped_mm(inner, down.transpose(1, 2), offs=ends)


FAMILIES = {"convolutions": convolutions, "float8": float8, "experts": experts}


# -- times ---------------------------------------------------------------------------------------------------
def measured(layer: Layer, modes: list[str]) -> dict[str, float]:
    """Milliseconds of a call, by way, and seconds of first calls."""
    calls, first = dict[str, Callable[[], object]](), dict[str, float]()
    ways = [("gyrator", partial(torch.compile, backend="gyrator"))]
    ways += [("tuned", partial(torch.compile, backend="gyrator", options={"max_autotune": True}))]
    ways += [(f"inductor {mode}", partial(torch.compile, mode=mode)) for mode in modes]
    for way, compiled in ways:
        torch.compiler.reset()
        fn = compiled(layer.fn, dynamic=False)
        began = perf_counter()
        got = fn(*layer.args)
        torch.cuda.synchronize()
        first[f"{way} first call"] = perf_counter() - began
        error = (got - layer.exact).square().mean().sqrt() / layer.exact.square().mean().sqrt()
        assert error <= layer.error, (layer.name, way, error)
        calls[way] = partial(fn, *layer.args)
    torch.backends.cudnn.benchmark = True
    found = medians(calls | {"library": layer.library, "eager": partial(layer.fn, *layer.args)})
    torch.backends.cudnn.benchmark = False
    return found | first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", metavar="family", help=f"of {', '.join(FAMILIES)}; all by default")
    parser.add_argument("--inductor", nargs="*", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for family in args.families or FAMILIES:
        for layer in FAMILIES[family](args.only):
            found = measured(layer, args.inductor)
            rows.append({"family": family, "layer": layer.name, **found})
            print(family, layer.name, *(f"{way} {t:.4f}" for way, t in found.items()), flush=True)
    if args.json:
        note = "python -m benchmarks.layers. Milliseconds of a call in a CUDA graph; seconds of first calls."
        write_gpu_rows(args.json, note, rows)


if __name__ == "__main__":
    main()
