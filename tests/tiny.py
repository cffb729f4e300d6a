"""The whole stack in one sitting: small programs through ``torch.compile``, each compared with eager.

Read it to see what the compiler promises; run it to see whether a change broke something obvious:

    python -m tests.tiny [backend]        or        pytest tests/tiny.py [--backend NAME]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.acceptance import check

Program = Callable[..., object]
PROGRAMS: list[tuple[Program, Callable[[], tuple[Tensor, ...]], dict[str, object]]] = []


def program(*shapes: tuple[int, ...], grad: bool = False, **options: object) -> Callable[[Program], Program]:
    """Registers a program with the shapes of its arguments."""

    def arguments() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator, requires_grad=grad) for shape in shapes)

    def register(fn: Program) -> Program:
        PROGRAMS.append((fn, arguments, {"backward": grad, **options}))
        return fn

    return register


# One kernel: a chain of pointwise ops over two broadcast inputs.


@program((8, 33), (33,), grad=True)
def pointwise(x: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(x * 2 + bias).relu() - x


# Views are index maps; nothing is copied until a result needs its own strides.


@program((4, 6, 10), grad=True)
def views(x: Tensor) -> Tensor:
    return x.transpose(0, 2)[1:, ::2].reshape(-1, 4).flip(0) + 1


@program((3, 5), (4, 5), grad=True)
def pad_and_cat(x: Tensor, y: Tensor) -> Tensor:
    return F.pad(torch.cat([x, y]), (1, 2), value=0.5) * 3


# Reductions, alone and fused with what feeds and reads them.


@program((16, 70), grad=True)
def softmax(x: Tensor) -> Tensor:
    return F.softmax(x / 8, dim=-1)


@program((16, 70), (70,), (70,), grad=True)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (70,), weight, bias)


@program((40, 30))
def column_statistics(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), x.var(0), x.amax(1), x.argmax(1), x.cumsum(1)


# Reading and writing through indices.


@program((10, 7), grad=True)
def gather_and_scatter(x: Tensor) -> Tensor:
    index = torch.tensor([[0, 3, -1], [9, 3, 3]])
    table = torch.zeros_like(x).index_put((index[0],), x[index[1]], accumulate=True)
    return table + x[index].sum((0, 1))


# Mutation and aliasing are seen by the caller as in eager.


@program((4, 5))
def mutates_its_input(x: Tensor) -> Tensor:
    y = x + 1
    x.mul_(2)
    x[1].zero_()
    return x + y


@program((4, 5))
def returns_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return x, x.t(), y, y[1:], x[0]


# Library calls keep their place between kernels.


@program((6, 8), (8, 4), (4,), grad=True)
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x @ weight + bias)


@program((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16), grad=True)
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program((2, 3, 8, 8), (5, 3, 3, 3), (5,), grad=True)
def convolution_and_pooling(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x, weight, bias).relu(), 2)


# Numbers: integers, booleans, half precision, empty and 0-d tensors, values that leave as Python objects.


@program((3, 4))
def other_dtypes(x: Tensor) -> tuple[object, ...]:
    low = x.to(torch.bfloat16) * 3
    whole = (x * 8).to(torch.int64)
    return low, low.float() + x, whole // 3, whole % 3, whole >> 1, x > 0, ~(x > 0), None, 7


@program((0, 4), ())
def empty_and_scalar(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return x + s, x.sum(), s * 2, x.sum(0)


@program((64,))
def random_shape_and_range(x: Tensor) -> tuple[Tensor, ...]:
    drawn = torch.rand_like(x)
    kept = F.dropout(x, 0.5)
    return (drawn >= 0).all() & (drawn < 1).all(), ((kept == 0) | (kept == 2 * x)).all()


# Sizes are symbols.


@program((5, 12), (12, 7), grad=True, dynamic=True)
def dynamic_sizes(x: Tensor, weight: Tensor) -> Tensor:
    return F.softmax(x.view(x.shape[0], 3, -1).sum(1) @ weight[: x.shape[1] // 3], -1) * x.shape[0]


@program((5, 6))
def size_from_data(x: Tensor) -> tuple[Tensor, ...]:
    return x[x > 0] * 2, x.gt(0).nonzero() + 1


@pytest.mark.parametrize(("fn", "arguments", "options"), PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_program(fn, arguments, options, backend):
    check(fn, arguments(), backend=backend, **options)


def test_training_lowers_the_loss_as_eager_does(backend):
    losses = [train(lambda step: step), train(lambda step: torch.compile(step, backend=backend))]
    assert losses[0][-1] < 0.5 * losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-4, atol=1e-5)


def train(compiler: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> list[float]:
    """Losses of twenty steps of a small network whose forward and loss went through ``compiler``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    data, target = torch.randn(16, 8), torch.randint(4, (16,))
    loss_of = compiler(lambda x, y: F.cross_entropy(model(x), y))
    losses = []
    for _ in range(20):
        loss = loss_of(data, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(backend: str) -> None:
    for fn, arguments, options in PROGRAMS:
        start = time.perf_counter()
        try:
            check(fn, arguments(), backend=backend, **options)
            verdict = "ok"
        except Exception as error:
            verdict = f"FAILED {type(error).__name__}: {error}"
        print(f"{fn.__name__:28} {time.perf_counter() - start:6.2f} s  {verdict[:600]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gyrator")
