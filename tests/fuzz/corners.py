"""Programs of views, values and writes in any order, with autograd's corners: in place through views of views, shapes
changed in place, functions of the user's, regions that are computed again, transforms, operators that write.

Each line is one that eager accepts after those before it. They are drawn from seed ``CORNERS`` on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Scale(torch.autograd.Function):
    """Saves its argument, and has a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.k + grad * ctx.saved_tensors[0] * 0.125, None


class Dirty(torch.autograd.Function):
    """Writes to its argument and returns it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Two(torch.autograd.Function):
    """Two results, one of integers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        places = x.argsort(-1)
        ctx.mark_non_differentiable(places)
        return x * 2, places

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        return grad * 2


@torch.library.custom_op("fuzz::both_", mutates_args=("x", "y"))
def both_(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x + y


@both_.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty(torch.broadcast_shapes(x.shape, y.shape), dtype=torch.result_type(x, y), device=x.device)


CORNER_NAMES: Mapping[str, object] = {"Scale": Scale, "Dirty": Dirty, "Two": Two}

SHAPES = ("(3, 4)", "(3, 4)", "(4, 3)", "(4,)", "(3, 1)")


def _texts(lines: str) -> list[str]:
    return [text.strip() for line in lines.strip().splitlines() for text in line.split(" | ")]


VIEWS = _texts("""
    {x}[1:] | {x}[:, ::2] | {x}.T | {x}.view(-1) | {x}[0] | {x}.diagonal() | {x}[None] | {x}.expand(2, -1, -1)
    {x}.unfold(-1, 2, 2) | {x}.narrow(-1, 1, 2) | {x}.unbind(0)[-1] | {x}.chunk(2, -1)[1] | {x}.split(2, -1)[0]
    {x}.detach() | {x}.view_as({x}) | {x}.contiguous().as_strided((2, 2), (1, 2)) | {x}[...] | {x}.squeeze(0)
    {x}.transpose(0, -1)
    {x}.detach()[1:] | {x}.reshape(-1) | {x}.flatten()[1:] | {x}.unsqueeze(1) | {x}.movedim(0, -1) | {x}.data
    {x}.select(-1, 2) | {x}.data[..., 1:] | torch.atleast_3d({x}) | {x}.contiguous() | {x}.to({x}.dtype) | {x}.clone()
    torch.broadcast_to({x}, (2, *{x}.shape)) | {x}.flip(0) | {x}.mT | {x}.tensor_split(2)[0]
    {x}.unflatten(-1, (2, -1)) | torch.complex({x}, {y}).conj().imag
    {x}.take_along_dim({x}.argsort(-1), -1) | {x}.real | {x}.ravel()
""")
VALUES = _texts("""
    {x} * {y} | {x}.sin() | {x} * 2 | {x} @ {y}.T | {x}.sum(0) | {x}.cumsum(-1)
    {x}.flatten().cumsum(0).view({x}.shape)
    {x}.softmax(-1) | {x}.tanh() | {x}.mean() | {x}.max(-1)[0] | torch.where({x} > 0, {x}, {y}) | {x} + {y}
    torch.cat([{x}, {y}]) | torch.stack([{x}, {x}]) | Scale.apply({x}, 2) | Dirty.apply({x}) | Two.apply({x})[0]
    Two.apply({x})[1] | checkpoint(lambda t: t.sin() * t, {x}, use_reentrant=False) | {x}.flatten().argmax()
    checkpoint(lambda t, u: t.sin() * u, {x}, {y}, use_reentrant=False) | torch._foreach_mul([{x}, {y}], 2)[1]
    torch.func.grad(lambda t: (t * t.sin()).sum())({x}) | torch.vmap(lambda t: t * t.sum())({x}) | {x}.sort(-1)[0]
    torch.func.jvp(torch.sin, ({x},), ({x},))[1] | {x}.var(-1) | {x}.index_add(0, torch.tensor([0]), {x}[:1])
    {x}[{x} > 0].sum() | {x}.masked_fill({x} > 0, 0.5) | {x} * {x}.amax().detach() | {x}.new_zeros({x}.shape)
    {x}.index_put((torch.tensor([0]),), {x}[-1:]) | torch.autograd.grad(({x} * {x}).sum(), {x})[0]
    torch.autograd.grad(({x} * {x}.sin()).sum(), {x}, create_graph=True)[0]
    torch.autograd.grad({x}.softmax(-1)[..., 0].sum(), {x}, create_graph=True)[0] * {y}
    torch.autograd.grad({x}.sum(), {y}, create_graph=True, allow_unused=True, materialize_grads=True)[0]
    torch.autograd.grad({x}, {y}, {x}.detach(), retain_graph=True)[0]
    torch.zeros_like({x}).copy_({x}) | torch.empty_like({x}).fill_(1).mul_({x}) | torch.no_grad()(lambda t: t * 2)({x})
    {x}.masked_scatter({x} > 0, {x} * 2) | {x}.T.contiguous() | {x}.roll(1) | {x}.prod(-1) | {x}.T.flatten().argmin()
""")
WRITES = _texts("""
    {x}.mul_(0.5) | {x}.add_({y}) | {x}.copy_({y}) | {x}.zero_() | {x}[0] = 0.5 | {x}[..., 0] = {y}[..., 0] | {x}.t_()
    {x}[..., :1].mul_(2) | {x}.detach().mul_(0.5) | {x}.sin_() | {x}.sigmoid_() | {x}.relu_() | {x}.unsqueeze_(0)
    with torch.no_grad(): {x}.mul_(0.5) | with torch.no_grad(): {x}[0].add_(1) | {x}.squeeze_(0) | {x}.transpose_(0, -1)
    torch.sin({x}.detach(), out={x}.detach()) | with torch.no_grad(): torch.mul({x}, 2, out={x}) | {x}.detach_()
    {x}.masked_fill_({x} > 0.5, 0.25) | {x}.index_fill_(0, torch.tensor([0]), 1) | {x}.fill_diagonal_(1)
    {x}.index_put_((torch.tensor([0]),), {y}[0], accumulate=True) | {x}.index_add_(0, torch.tensor([0]), {x}[:1] * 1)
    torch.ops.fuzz.both_({x}.detach(), {y}.detach()) | with torch.no_grad(): torch.ops.fuzz.both_({x}, {y})
    {x}.requires_grad_() | {x}.cumsum_(-1) | {x}.addcmul_({x}, {y}) | {x}.clamp_(-1, 1) | {x}.tril_() | {x}.pow_(2)
    {x}.sub_({x}.mean()) | {x}.div_({y}.abs() + 1) | {x}.view(-1)[1:].mul_(3) | {x} += {y} | {x} *= {x} | {x}.T.mul_(2)
    {x}[1:] += {x}[:-1].clone() | F.relu({x}, inplace=True) | {x}.masked_scatter_({x} > 0, {x} * 2) | {x}.neg_()
    F.embedding(torch.tensor([0]), {x}.detach(), max_norm=0.5) | {x}.select(0, 0).add_({y}.select(0, 1))
    {x}.diagonal().mul_(3) | {x}.expand(1, *{x}.shape).mul_(2) | torch._foreach_mul_([{x}], 0.5)
    checkpoint(lambda t: t.mul_(0.5).sum(), {x}, use_reentrant=False) | torch._foreach_zero_([{x}.detach()])
    {x}.as_strided((2,), (1,)).mul_(5) | {x}.renorm_(2, 0, 1) | {x}.put_(torch.tensor([0]), {y}.flatten()[:1])
""")

Arguments = Mapping[str, str]
Accepts = Callable[[Arguments, Sequence[str], Sequence[str]], bool]


def corners(rng: random.Random, accepts: Accepts) -> tuple[Arguments, tuple[str, ...], tuple[str, ...]]:
    """Arguments, statements and outputs of a program; eager ``accepts`` it."""
    arguments = {}
    for number in range(rng.choice([1, 2, 2, 3])):
        shape, layout = SHAPES[0] if number == 0 else rng.choice(SHAPES), rng.choice(["", "", "", ".T.contiguous().T"])
        arguments[f"a{number}"] = f"(draw({shape}, torch.float32, {rng.randrange(1000)}) * 0.25){layout}"
    names, lines, made = list(arguments), list[str](), list[str]()
    for _ in range(rng.randint(3, 12)):
        x, y = (names[max(rng.randrange(len(names)), rng.randrange(len(names)))] for _ in range(2))
        (texts,) = rng.choices((VIEWS, VALUES, WRITES), (6, 5, 9))
        text, name = rng.choice(texts).format(x=x, y=y), "" if texts is WRITES else f"v{len(made)}"
        line = f"{name} = {text}" if name else text
        if accepts(arguments, (*lines, line), (name or (made or ["a0"])[-1],)):
            lines.append(line)
            names += [name] if name else []
            made += [name] if name else []
    wanted = [name for name in names if rng.random() < 0.4]
    return arguments, tuple(lines), tuple(dict.fromkeys([*wanted, *made[-1:]])) or ("a0",)
