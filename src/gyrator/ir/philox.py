"""The counter-based random numbers of the IR, in torch int64 arithmetic: what every backend must reproduce.

Philox 4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The key
is the 64-bit seed (low word first), the counter is ``(offset low, offset high, 0, 0)``: one call per element
gives four 32-bit words ``w0 … w3``. Below float64 four elements share a call, whose counter is ``offset // 4``.

=============  =========================================================================================
``rand``       f32 ``(w >> 8) · 2**-24``; f16 ``(w >> 21) · 2**-11``; bf16 ``(w >> 24) · 2**-8``, ``w`` being the
               word number ``offset % 4``; f64 ``((w1·2**32 + w0) >> 11) · 2**-53``
``randn``      ``sqrt(-2 ln(1 - u)) · cos(2π v)`` in f32, then rounded, ``u, v`` being the f32 ``rand`` of the words of
               ``offset`` and its neighbour, an even offset's first, and v a quarter less where ``offset`` is odd, which
               makes it a sine; f64: with the f64 ``rand`` of (w0, w1) and of (w2, w3)
``randint64``  ``low + (w1·2**32 + w0) mod (high - low)``, unsigned
=============  ========================================================================================="""

import math

import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_LOW = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox(seed: Tensor, offset: Tensor) -> Words:
    """Four words in ``[0, 2**32)`` per element; ``seed`` and ``offset`` are int64 and broadcast."""
    seed, offset = torch.broadcast_tensors(seed, offset)
    c0, c1 = offset & _LOW, (offset >> 32) & _LOW
    c2 = c3 = torch.zeros_like(offset)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        high0, low0 = _multiply(_M0, c0)
        high1, low1 = _multiply(_M1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def _multiply(constant: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low words of a product of words; int64 wraps, which loses nothing of the 64 bits."""
    wrapped = x * constant
    return (wrapped >> 32) & _LOW, wrapped & _LOW


_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def rand(seed: Tensor, offset: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1), each exact in ``dtype``."""
    if dtype == torch.float64:
        return _double(*philox(seed, offset)[:2])
    return _uniform(_word_of_four(seed, offset, offset & 3), _BITS[dtype]).to(dtype)


def randn(seed: Tensor, offset: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers by the Box-Muller transform."""
    if dtype == torch.float64:
        words = philox(seed, offset)
        u, v = _double(*words[:2]), _double(*words[2:])
    else:
        first = offset & 2
        u, v = (_uniform(_word_of_four(seed, offset, k), 24) for k in (first, first + 1))
        v = v - 0.25 * (offset & 1)
    return (torch.sqrt(-2.0 * torch.log(1.0 - u)) * torch.cos(2.0 * math.pi * v)).to(dtype)


def _word_of_four(seed: Tensor, offset: Tensor, number: Tensor) -> Tensor:
    words = torch.stack(philox(seed, offset >> 2))
    return words.gather(0, number.expand(1, *words.shape[1:]))[0]


def _uniform(word: Tensor, bits: int) -> Tensor:
    return (word >> (32 - bits)).to(torch.float32) * 2.0**-bits


def _double(low: Tensor, high: Tensor) -> Tensor:
    return ((high << 21) | (low >> 11)).to(torch.float64) * 2.0**-53


def integers(words: Words, low: Tensor, high: Tensor) -> Tensor:
    """``randint64``: integers in [low, high); the range may be as wide as 2**63 - 1."""
    bits = (words[1] << 32) | words[0]
    span = high - low
    half = (bits >> 1) & ((1 << 63) - 1)  # the unsigned value halved, so that signed division is right
    twice = (half % span) * 2 + (bits & 1)  # < 2·span, perhaps wrapped past 2**63
    return low + torch.where((twice < 0) | (twice >= span), twice - span, twice)
