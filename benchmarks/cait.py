"""CaiT (Touvron et al. 2021, "Going deeper with Image Transformers"), which transformers does not carry.

Patch tokens go through blocks with talking-heads attention and layer scale; a class token then attends to
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class CaitConfig:
    """Sizes of a CaiT classifier; the defaults are those of cait_xxs24_224."""

    image_size: int = 224
    patch_size: int = 16
    width: int = 192
    heads: int = 4
    layers: int = 24
    class_layers: int = 2
    mlp_ratio: int = 4
    classes: int = 1000
    layer_scale: float = 1e-5


class TalkingHeadsAttention(nn.Module):
    """Self-attention whose scores and whose weights are each mixed across heads by a linear map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.mix_scores = nn.Linear(heads, heads)
        self.mix_weights = nn.Linear(heads, heads)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        scores = self.mix_scores(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.mix_weights(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))


class ClassAttention(nn.Module):
    """The first token attends to all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q(x[:, 0]).view(batch, 1, self.heads, -1).transpose(1, 2) * self.scale
        k = self.k(x).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.heads, -1).transpose(1, 2)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, 1, width))


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm and scaled per channel before it is added."""

    def __init__(self, config: CaitConfig, attention: nn.Module) -> None:
        super().__init__()
        width = config.width
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        hidden = width * config.mlp_ratio
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.gamma1 = nn.Parameter(torch.full((width,), config.layer_scale))
        self.gamma2 = nn.Parameter(torch.full((width,), config.layer_scale))

    def forward(self, tokens: Tensor, cls: Tensor | None = None) -> Tensor:
        x = tokens if cls is None else cls
        seen = tokens if cls is None else torch.cat([cls, tokens], dim=1)
        x = x + self.gamma1 * self.attention(self.norm1(seen))
        return x + self.gamma2 * self.mlp(self.norm2(x))


class Cait(nn.Module):
    """Classifies images of shape (batch, 3, size, size): logits, and the loss when labels are given."""

    def __init__(self, config: CaitConfig) -> None:
        super().__init__()
        width, patches = config.width, (config.image_size // config.patch_size) ** 2
        self.patch = nn.Conv2d(3, width, config.patch_size, config.patch_size)
        self.position = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(config, TalkingHeadsAttention(width, config.heads)) for _ in range(config.layers)
        )
        self.class_blocks = nn.ModuleList(
            Block(config, ClassAttention(width, config.heads)) for _ in range(config.class_layers)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config.classes)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.patch(pixel_values).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        cls = self.cls.expand(x.shape[0], -1, -1)
        for block in self.class_blocks:
            cls = block(x, cls)
        logits = self.head(self.norm(torch.cat([cls, x], dim=1))[:, 0])
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
