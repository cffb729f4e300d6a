"""Convolutions with a bias, a residual and ReLU on a GPU: eager, Inductor, gyrator, gyrator with `max_autotune`.

    python -m benchmarks.convolutions [--inductor default max-autotune-no-cudagraphs] [--only 3x3] [--json FILE]

Images of bfloat16 with channels last. Each way is recorded as a CUDA graph and replayed in turns with the others;
medians count. `library` is cuDNN's convolution alone, its fastest by trial.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gemm import medians

LAYERS = {
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


def layer(stride: int, x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """What ends a block of a residual network."""
    return torch.relu(F.conv2d(x, w, b, stride=stride, padding=w.shape[-1] // 2) + r)


def inputs(name: str) -> list[Tensor]:
    images, channels, filters, side, kernel, stride = LAYERS[name]
    shapes = [(images, channels, side, side), (filters, channels, kernel, kernel)]
    shapes.append((images, filters, -(-side // stride), -(-side // stride)))
    x, w, r = (torch.randn(shape, device="cuda").bfloat16().to(memory_format=torch.channels_last) for shape in shapes)
    return [x, w / (channels * kernel * kernel) ** 0.5, torch.randn(filters, device="cuda").bfloat16(), r]


def measured(name: str, modes: list[str]) -> dict[str, float]:
    """Milliseconds of a call, by way, and seconds of first calls."""
    args, stride = inputs(name), LAYERS[name][-1]
    plain: Callable[..., Tensor] = partial(layer, stride)
    wanted = layer(stride, *(a.double() for a in args))
    calls, first = dict[str, Callable[[], object]](), dict[str, float]()
    ways = [("gyrator", partial(torch.compile, backend="gyrator"))]
    ways += [("tuned", partial(torch.compile, backend="gyrator", options={"max_autotune": True}))]
    ways += [(f"inductor {mode}", partial(torch.compile, mode=mode)) for mode in modes]
    for way, compiled in ways:
        torch.compiler.reset()
        fn = compiled(plain, dynamic=False)
        began = perf_counter()
        got = fn(*args)
        torch.cuda.synchronize()
        first[f"{way} first call"] = perf_counter() - began
        assert (got - wanted).square().mean().sqrt() <= 1e-2 * wanted.square().mean().sqrt(), way
        calls[way] = partial(fn, *args)
    x, w, *_ = args
    torch.backends.cudnn.benchmark = True
    calls["library"] = partial(F.conv2d, x, w, None, stride=stride, padding=w.shape[-1] // 2)
    calls["eager"] = partial(plain, *args)
    found = medians(calls)
    torch.backends.cudnn.benchmark = False
    return found | first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inductor", nargs="*", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in (name for name in LAYERS if args.only in name):
        rows.append({"layer": name, **measured(name, args.inductor)})
        print(*(f"{k} {v:.4f}" if isinstance(v, float) else v for k, v in rows[-1].items()), flush=True)
    if args.json:
        date, device = f"{datetime.now(UTC):%Y-%m-%d}", torch.cuda.get_device_name()
        head = {"date": date, "device": device, "torch": torch.__version__}
        note = "python -m benchmarks.convolutions. Milliseconds of a call in a CUDA graph; seconds of first calls."
        args.json.write_text(json.dumps({**head, "note": note, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
