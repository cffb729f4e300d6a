"""Functions that wider random programs call, by name: what takes more than one line to write.

Each is made of values that a program has, so that a seed needs no other inputs; numbers are small multiples of 1/16.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def weights(x: Tensor, *shape: int) -> Tensor:
    """Numbers of a shape, in the type of ``x``; they depend on it, so that they have gradients."""
    count = math.prod(shape)
    whole = (torch.arange(count) * 7 % 17 - 8) / 16
    return whole.reshape(shape).to(x.dtype) * (1 + x.mean() / 64)


def chain(x: Tensor, count: int, dim: int, keep: int = 0) -> Tensor:
    """States that follow from each other, side by side; with ``keep`` one of them is also added to the result."""
    states, state = [], x
    for number in range(count):
        state = torch.tanh(state * 0.5 + x) if number % 3 else state + x.mean()
        states.append(state)
    joined = torch.cat(states, dim)
    return joined + states[keep].mean() if keep else joined


def dense_block(x: Tensor, count: int, width: int) -> Tensor:
    """Each state is computed from all that came before it."""
    states = [x]
    for _ in range(count):
        every = torch.cat(states, -1)
        states.append(torch.relu(F.linear(every, weights(x, width, every.shape[-1]))) * 0.5)
    return torch.cat(states, -1)


def recurrence(x: Tensor, way: str) -> Tensor:
    """A loop along dimension 0 whose states are written in place, stacked, or joined."""
    state = x[0]
    if way == "slices":
        out = torch.zeros_like(x)
        for step in range(x.shape[0]):
            state = torch.tanh(state * 0.5 + x[step])
            out[step] = state
        return out
    if way == "add":
        out = x.clone()
        for step in range(1, x.shape[0]):
            out[step] += out[step - 1] * 0.5
        return out
    if way == "columns":
        out = x.new_zeros((*x.shape[1:], x.shape[0]))
        for step in range(x.shape[0]):
            state = state * 0.5 + x[-1 - step]
            out[..., step] = state
        return out
    states = []
    for step in range(x.shape[0]):
        state = torch.sigmoid(state + x[step]) * 2 - 1
        states.append(state)
    return torch.stack(states) if way == "stack" else torch.cat([s[None] for s in states])


def attention(x: Tensor, heads: int, mask: str, *, written: bool, scale: float | None = None) -> Tensor:
    """Attention of the rows of ``x`` [batch, rows, columns] to each other."""
    batch, rows, columns = x.shape
    q, k, v = (
        F.linear(x, weights(x, columns, columns)).view(batch, rows, heads, -1).transpose(1, 2) * factor
        for factor in (1, 0.5, 2)
    )
    at = torch.arange(rows)
    masks: dict[str, Any] = {
        "none": None,
        "causal": torch.ones(rows, rows, dtype=torch.bool).tril(),
        "window": (at[:, None] - at[None]).abs() < 2,
        "added": (at[None] - at[:, None]).to(x.dtype) * 0.25,
        "padding": (at < max(1, rows - 1))[None, None, None],
        "infinite": torch.zeros(rows, rows).masked_fill(at[None] > at[:, None], -math.inf).to(x.dtype),
        "from values": x[:, None, None, :, 0] > -3,
        "heads": (at[None, None, :] + torch.arange(heads)[:, None, None]).to(x.dtype).expand(heads, rows, rows) / 8,
    }
    chosen = masks[mask]
    if not written:
        out = F.scaled_dot_product_attention(q, k, v, chosen, scale=scale).contiguous()  # fake ones lie otherwise
        return out.transpose(1, 2).reshape(batch, rows, columns)
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(columns // heads))
    if chosen is not None:
        filled = chosen.dtype == torch.bool
        scores = scores.masked_fill(~chosen, -1e4) if filled else scores + chosen
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, rows, columns)


def hashed(x: Tensor, way: str) -> Tensor:
    """Integers that wrap around."""
    h = x.to(torch.int64)
    if way == "mix":
        h = (h ^ (h >> 30)) * -4658895280553007687
        h = (h ^ (h >> 27)) * -7723592293110705685
        return (h ^ (h >> 31)) % 1000
    if way == "int32":
        h = x.to(torch.int32) * 1103515245 + 12345
        return (h >> 16) & 0x7FFF
    if way == "uint8":
        return (x.to(torch.uint8) * 37 + 200) ^ 85
    if way == "int8":
        return x.to(torch.int8) * 37 - 100
    if way == "int16":
        return (x.to(torch.int16) * 1237 << 2) // 7
    return (h * 6364136223846793005 + 1442695040888963407).remainder(97)


def image(x: Tensor, channels: int, height: int, width: int, *, last: bool = False) -> Tensor:
    """The elements of ``x``, again and again, as images; with ``last`` they lie in channels-last memory."""
    count = 2 * channels * height * width
    flat = x.reshape(-1)
    flat = flat.repeat(count // flat.shape[0] + 1)[:count]
    made = flat.reshape(2, channels, height, width)
    return made.contiguous(memory_format=torch.channels_last) if last else made
