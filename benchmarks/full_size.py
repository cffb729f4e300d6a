"""Models in the sizes that people use, for a GPU: published architectures with random weights, dropout off.

Names and workloads are those of :mod:`benchmarks.zoo`, whose sizes suit a CPU. Batches fill the device well:
at least four thousand tokens or 64 pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import transformers as hf
from torch import Tensor

from benchmarks.zoo import Workload

PICTURES, SIDE, CLASSES = 64, 224, 1000


def _causal(model: torch.nn.Module, batch: int, length: int, vocabulary: int) -> Workload:
    tokens = torch.randint(0, vocabulary, (batch, length))
    return Workload(model, {"input_ids": tokens, "labels": tokens.clone()})


def _pictures(batch: int = PICTURES) -> dict[str, Tensor]:
    pixels = torch.randn(batch, 3, SIDE, SIDE)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (batch,))}


def bert() -> Workload:
    """BERT-base, masked language modelling: 32 × 512 tokens."""
    config = hf.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return _causal(hf.BertForMaskedLM(config), 32, 512, config.vocab_size)


def gpt2() -> Workload:
    """GPT-2 small: 8 × 1024 tokens."""
    config = hf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return _causal(hf.GPT2LMHeadModel(config), 8, 1024, config.vocab_size)


def llama() -> Workload:
    """The shapes of Llama 3.2 1B: 2 × 2048 tokens."""
    config = hf.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return _causal(hf.LlamaForCausalLM(config), 2, 2048, config.vocab_size)


def t5() -> Workload:
    """T5-base: 8 × 512 tokens into 8 × 512."""
    config = hf.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, dropout_rate=0.0, decoder_start_token_id=0, use_cache=False
    )
    tokens, labels = (torch.randint(3, config.vocab_size, (8, 512)) for _ in range(2))
    return Workload(hf.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": labels})


def whisper() -> Workload:
    """Whisper base: 8 × 30 seconds of sound into 8 × 128 tokens."""
    config = hf.WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        use_cache=False,
    )
    labels = torch.randint(0, config.vocab_size, (8, 128))
    features = torch.randn(8, config.num_mel_bins, 2 * config.max_source_positions)
    return Workload(hf.WhisperForConditionalGeneration(config), {"input_features": features, "labels": labels})


def vit() -> Workload:
    """ViT-B/16: 64 pictures."""
    return Workload(hf.ViTForImageClassification(hf.ViTConfig(num_labels=CLASSES)), _pictures())


def convnext() -> Workload:
    """ConvNeXt-T: 64 pictures. Its blocks count a tenth instead of a millionth, so that errors in them show."""
    config = hf.ConvNextConfig(num_labels=CLASSES, layer_scale_init_value=0.1)
    return Workload(hf.ConvNextForImageClassification(config), _pictures())


def resnet() -> Workload:
    """ResNet-50: 64 pictures."""
    return Workload(hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=CLASSES)), _pictures())


def mobilenet_v2() -> Workload:
    """MobileNetV2: 128 pictures."""
    config = hf.MobileNetV2Config(num_labels=CLASSES, classifier_dropout_prob=0.0)
    return Workload(hf.MobileNetV2ForImageClassification(config), _pictures(2 * PICTURES))


MODELS: Mapping[str, Callable[[], Workload]] = {
    builder.__name__: builder for builder in (bert, gpt2, llama, t5, vit, convnext, resnet, mobilenet_v2, whisper)
}
