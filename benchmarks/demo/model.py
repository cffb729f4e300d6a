"""A transformer in plain PyTorch, as a decoder (GPT) or an encoder (BERT), with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a transformer. `causal` makes it a decoder that predicts the next token; otherwise it is an
    encoder that predicts masked ones and sees a padding mask.
    """

    causal: bool = True
    vocabulary: int = 8192
    length: int = 128
    layers: int = 6
    hidden: int = 384
    heads: int = 6
    dropout: float = 0.0


SIZES = {
    "tiny": ModelConfig(vocabulary=512, length=32, layers=2, hidden=64, heads=4),
    "small": ModelConfig(),
    "base": ModelConfig(vocabulary=32_000, length=512, layers=12, hidden=768, heads=12),
}


@final
class Attention(nn.Module):
    """Multi-head self-attention: (B, L, hidden) → (B, L, hidden)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = config.heads, config.causal, config.dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`mask` is True where a key may be attended to, broadcast over (B, heads, L, L)."""
        batch, length, hidden = x.shape
        heads = (batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = self.qkv(x).view(heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal, dropout_p=dropout)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))


@final
class Block(nn.Module):
    """Attention and a feed-forward network, each with layer norm before it and a residual around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.feed_norm = nn.LayerNorm(config.hidden)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L, hidden) → (B, L, hidden)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        return x + self.dropout(self.down(F.gelu(self.up(self.feed_norm(x)))))


@final
class Transformer(nn.Module):
    """Tokens (B, L) to logits (B, L, vocabulary); output weights are shared with the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.length, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """`padding`: (B, L), True at real tokens; used by encoders."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        mask = None if self.config.causal or padding is None else padding[:, None, None, :]
        x = self.tokens(tokens) + self.positions(place)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens, the padding mask (None for decoders) and the labels; -100 marks a position without a label."""

    tokens: Tensor
    padding: Tensor | None
    labels: Tensor


def random_batch(config: ModelConfig, size: int, seed: int, device: torch.device) -> Batch:
    """Random tokens with the labels that the kind of model is trained on."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocabulary, (size, config.length), generator=generator)
    if config.causal:
        labels = torch.cat([tokens[:, 1:], torch.full((size, 1), -100)], dim=1)
        return Batch(tokens.to(device), None, labels.to(device))
    lengths = torch.randint(config.length // 2, config.length + 1, (size, 1), generator=generator)
    padding = torch.arange(config.length) < lengths
    chosen = (torch.rand(tokens.shape, generator=generator) < 0.15) & padding
    labels = torch.where(chosen, tokens, -100)
    return Batch(tokens.masked_fill(chosen, 0).to(device), padding.to(device), labels.to(device))


def loss_of(model: Callable[[Tensor, Tensor | None], Tensor], batch: Batch) -> Tensor:
    """Mean cross-entropy over the labelled positions, in float32 or better."""
    logits = model(batch.tokens, batch.padding)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)
