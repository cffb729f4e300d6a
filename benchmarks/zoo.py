"""The models that tests and benchmarks compile: real architectures, built from configs with random weights.

Each comes in two sizes. ``tiny`` takes well under a second a step, also in float64, and is what the tests
run; ``small`` is what a 2-core machine runs in tens or hundreds of milliseconds, and is what the benchmarks
time. Dropout is off, so that two runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers as hf
from torch import Tensor, nn

from benchmarks.cait import Cait, CaitConfig

Size = Literal["tiny", "small"]


@dataclass(frozen=True)
class Workload:
    """A model and a batch of keyword arguments, labels among them; ``model(**batch)["loss"]`` is its loss."""

    model: nn.Module
    batch: Mapping[str, Any]

    def inference_batch(self) -> dict[str, Tensor]:
        """The batch without what only training needs; decoders get the labels as their tokens."""
        kept = {key: value for key, value in self.batch.items() if key not in ("labels", "return_loss")}
        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            kept["decoder_input_ids"] = self.batch["labels"]
        return kept


@dataclass(frozen=True)
class TextSize:
    """Sizes of a language model: batch, sequence length, layers, hidden width, heads, vocabulary."""

    batch: int
    length: int
    layers: int
    width: int
    heads: int
    vocabulary: int


TEXT: Mapping[Size, TextSize] = {
    "tiny": TextSize(batch=2, length=12, layers=2, width=32, heads=4, vocabulary=101),
    "small": TextSize(batch=4, length=128, layers=4, width=256, heads=4, vocabulary=8192),
}
Builder = Callable[[Size], Workload]


def _tokens(s: TextSize) -> Tensor:
    return torch.randint(3, s.vocabulary, (s.batch, s.length))


def _classified(model: nn.Module, s: TextSize) -> Workload:
    """A sequence classifier on a batch whose last sequence is padded to half."""
    mask = torch.ones(s.batch, s.length, dtype=torch.int64)
    mask[-1, s.length // 2 :] = 0
    labels = torch.randint(0, 2, (s.batch,))
    return Workload(model, {"input_ids": _tokens(s), "attention_mask": mask, "labels": labels})


def _causal(model: nn.Module, s: TextSize) -> Workload:
    tokens = _tokens(s)
    return Workload(model, {"input_ids": tokens, "labels": tokens.clone()})


def _translated(model: nn.Module, s: TextSize) -> Workload:
    return Workload(model, {"input_ids": _tokens(s), "labels": _tokens(s)[:, : s.length // 2].contiguous()})


# --- language ---


def bert(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.BertConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        intermediate_size=4 * s.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _classified(hf.BertForSequenceClassification(config), s)


def distilbert(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.DistilBertConfig(
        vocab_size=s.vocabulary,
        dim=s.width,
        n_layers=s.layers,
        n_heads=s.heads,
        hidden_dim=4 * s.width,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return _classified(hf.DistilBertForSequenceClassification(config), s)


def gpt2(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.GPT2Config(
        vocab_size=s.vocabulary,
        n_embd=s.width,
        n_layer=s.layers,
        n_head=s.heads,
        n_positions=2 * s.length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return _causal(hf.GPT2LMHeadModel(config), s)


def _decoder(s: TextSize) -> dict[str, object]:
    return {
        "vocab_size": s.vocabulary,
        "hidden_size": s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.heads // 2,
        "intermediate_size": 3 * s.width,
        "max_position_embeddings": 2 * s.length,
        "use_cache": False,
    }


def llama(size: Size) -> Workload:
    s = TEXT[size]
    return _causal(hf.LlamaForCausalLM(hf.LlamaConfig(**_decoder(s))), s)


def qwen3(size: Size) -> Workload:
    s = TEXT[size]
    return _causal(hf.Qwen3ForCausalLM(hf.Qwen3Config(**_decoder(s), head_dim=s.width // s.heads)), s)


def mixtral(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.MixtralConfig(**_decoder(s), num_local_experts=4, num_experts_per_tok=2)
    return _causal(hf.MixtralForCausalLM(config), s)


def t5(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.T5Config(
        vocab_size=s.vocabulary,
        d_model=s.width,
        d_kv=s.width // s.heads,
        d_ff=4 * s.width,
        num_layers=s.layers,
        num_heads=s.heads,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return _translated(hf.T5ForConditionalGeneration(config), s)


def _encoder_decoder(s: TextSize) -> dict[str, object]:
    return {
        "vocab_size": s.vocabulary,
        "d_model": s.width,
        "encoder_layers": s.layers,
        "decoder_layers": s.layers,
        "encoder_attention_heads": s.heads,
        "decoder_attention_heads": s.heads,
        "encoder_ffn_dim": 4 * s.width,
        "decoder_ffn_dim": 4 * s.width,
        "max_position_embeddings": 2 * s.length,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "use_cache": False,
    }


def bart(size: Size) -> Workload:
    s = TEXT[size]
    return _translated(hf.BartForConditionalGeneration(hf.BartConfig(**_encoder_decoder(s))), s)


def blenderbot_small(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.BlenderbotSmallConfig(**_encoder_decoder(s))
    return _translated(hf.BlenderbotSmallForConditionalGeneration(config), s)


def deberta_v2(size: Size) -> Workload:
    s = TEXT[size]
    config = hf.DebertaV2Config(
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        intermediate_size=4 * s.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pooler_dropout=0.0,
        position_biased_input=False,
    )
    return _classified(hf.DebertaV2ForSequenceClassification(config), s)


def mamba(size: Size) -> Workload:
    s = TEXT[size]
    length = s.length if size == "tiny" else s.length // 4  # its scan in eager is a Python loop over the sequence
    config = hf.MambaConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        num_hidden_layers=min(s.layers, 2),
        state_size=8,
        use_cache=False,
        use_mambapy=False,
    )
    tokens = _tokens(s)[:, :length].contiguous()
    return Workload(hf.MambaForCausalLM(config), {"input_ids": tokens, "labels": tokens.clone()})


# --- sound and images ---


def whisper(size: Size) -> Workload:
    s = TEXT[size]
    sizes = {k: v for k, v in _encoder_decoder(s).items() if k != "max_position_embeddings"}
    frames = 2 * s.length
    config = hf.WhisperConfig(
        **sizes,
        num_mel_bins=16,
        max_source_positions=frames // 2,
        max_target_positions=2 * s.length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    features = torch.randn(s.batch, 16, frames)
    model = hf.WhisperForConditionalGeneration(config)
    return Workload(model, {"input_features": features, "labels": _tokens(s)[:, : s.length // 2].contiguous()})


def _images(size: Size, side: int | None = None) -> dict[str, Tensor]:
    side = side or {"tiny": 32, "small": 96}[size]
    batch = {"tiny": 2, "small": 4}[size]
    return {"pixel_values": torch.randn(batch, 3, side, side), "labels": torch.randint(0, 10, (batch,))}


def vit(size: Size) -> Workload:
    s, images = TEXT[size], _images(size)
    config = hf.ViTConfig(
        hidden_size=s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_labels=10,
        intermediate_size=4 * s.width,
        image_size=images["pixel_values"].shape[-1],
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Workload(hf.ViTForImageClassification(config), images)


def clip(size: Size) -> Workload:
    s, images = TEXT[size], _images(size)
    tower = {
        "hidden_size": s.width,
        "intermediate_size": 4 * s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "attention_dropout": 0.0,
    }
    text = tower | {"vocab_size": s.vocabulary, "max_position_embeddings": s.length, "eos_token_id": 2}
    vision = tower | {"image_size": images["pixel_values"].shape[-1], "patch_size": 8}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=s.width)
    tokens = _tokens(s)
    tokens[:, -1] = 2
    batch = {"input_ids": tokens, "pixel_values": images["pixel_values"], "return_loss": True}
    return Workload(hf.CLIPModel(config), batch)


def convnext(size: Size) -> Workload:
    sizes = {"tiny": ([8, 16, 24, 32], [1, 1, 2, 1]), "small": ([32, 64, 128, 256], [2, 2, 4, 2])}[size]
    config = hf.ConvNextConfig(hidden_sizes=sizes[0], depths=sizes[1], num_labels=10, drop_path_rate=0.0)
    return Workload(hf.ConvNextForImageClassification(config), _images(size))


def swin(size: Size) -> Workload:
    images = _images(size, {"tiny": 32, "small": 128}[size])
    width, depths = {"tiny": (16, [2, 2]), "small": (48, [2, 2, 2])}[size]
    config = hf.SwinConfig(
        image_size=images["pixel_values"].shape[-1],
        patch_size=4,
        embed_dim=width,
        depths=depths,
        num_heads=[2, 4, 8][: len(depths)],
        window_size=4,
        num_labels=10,
        drop_path_rate=0.0,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Workload(hf.SwinForImageClassification(config), images)


def resnet(size: Size) -> Workload:
    images = _images(size, {"tiny": 48, "small": 128}[size])
    sizes = {"tiny": ([8, 16, 24, 32], [1, 1, 1, 1]), "small": ([64, 128, 256, 512], [2, 2, 2, 2])}[size]
    config = hf.ResNetConfig(
        embedding_size=sizes[0][0], hidden_sizes=sizes[0], depths=sizes[1], layer_type="basic", num_labels=10
    )
    return Workload(hf.ResNetForImageClassification(config), images)


def mobilenet_v2(size: Size) -> Workload:
    images = _images(size, {"tiny": 64, "small": 128}[size])
    config = hf.MobileNetV2Config(
        image_size=images["pixel_values"].shape[-1],
        num_labels=10,
        classifier_dropout_prob=0.0,
        depth_multiplier={"tiny": 0.25, "small": 1.0}[size],
    )
    return Workload(hf.MobileNetV2ForImageClassification(config), images)


def cait(size: Size) -> Workload:
    s, images = TEXT[size], _images(size)
    side = images["pixel_values"].shape[-1]
    config = CaitConfig(side, 8, s.width, s.heads, s.layers, class_layers=1, classes=10, layer_scale=0.1)
    return Workload(Cait(config), images)


MODELS: Mapping[str, Builder] = {
    builder.__name__: builder
    for builder in (
        bert,
        distilbert,
        gpt2,
        llama,
        qwen3,
        mixtral,
        t5,
        bart,
        deberta_v2,
        whisper,
        vit,
        clip,
        convnext,
        swin,
        resnet,
        mobilenet_v2,
        mamba,
        blenderbot_small,
        cait,
    )
}


def build(name: str, size: Size, seed: int = 0) -> Workload:
    """The workload ``name`` with weights and batch drawn from ``seed``."""
    torch.manual_seed(seed)
    return MODELS[name](size)
