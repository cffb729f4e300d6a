"""Picture models of the timm library (https://github.com/huggingface/pytorch-image-models), a wider population
than that of :mod:`benchmarks.full_size`: they were chosen before the compiler was tuned for any of them.

``python -m benchmarks.run models --device cuda --size timm`` needs ``pip install timm``. Random weights, 224 x 224,
dropout off, and as many pictures as fill the device (a few on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo import Workload

ON_GPU, ON_CPU, SIDE, CLASSES = 64, 2, 224, 1000
NAMES = (
    "beit_base_patch16_224",
    "botnet26t_256",
    "coat_lite_tiny",
    "coatnet_0_rw_224",
    "convit_small",
    "convmixer_1024_20_ks9_p14",
    "convnextv2_tiny",
    "crossvit_9_240",
    "cspresnext50",
    "davit_tiny",
    "deit3_small_patch16_224",
    "densenet121",
    "dla34",
    "dpn68",
    "edgenext_small",
    "efficientformer_l1",
    "efficientnet_b0",
    "efficientvit_b1",
    "eva02_tiny_patch14_224",
    "fastvit_sa12",
    "focalnet_tiny_srf",
    "ghostnet_100",
    "gmlp_s16_224",
    "hiera_tiny_224",
    "hrnet_w18_small",
    "inception_v3",
    "levit_192",
    "mambaout_tiny",
    "maxvit_tiny_rw_224",
    "mixer_b16_224",
    "mobilenetv3_large_100",
    "mobilevit_s",
    "nf_resnet50",
    "nfnet_f0",
    "pit_s_224",
    "poolformer_s12",
    "pvt_v2_b1",
    "regnety_016",
    "repvit_m1_1",
    "res2net50_26w_4s",
    "resmlp_12_224",
    "resnest26d",
    "rexnet_100",
    "seresnet50",
    "sequencer2d_s",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "tiny_vit_11m_224",
    "tnt_s_patch16_224",
    "twins_svt_small",
    "visformer_small",
    "volo_d1_224",
    "xception41",
    "xcit_small_12_p16_224",
)


class Classifier(nn.Module):
    """A model of the library with the loss that training needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.model(pixel_values)
        if labels is None:
            return {"logits": logits}
        return {"logits": logits, "loss": F.cross_entropy(logits.float(), labels)}


def build(name: str) -> Workload:
    """A model with random weights on torch's default device, and a batch for it in the size it takes."""
    model = import_module("timm").create_model(name, num_classes=CLASSES, drop_rate=0.0)
    for module in model.modules():
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    side = model.default_cfg["input_size"][-1] if model.default_cfg.get("fixed_input_size") else SIDE
    batch = ON_GPU if torch.get_default_device().type == "cuda" else ON_CPU
    pixels = torch.randn(batch, 3, side, side)
    return Workload(Classifier(model), {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (batch,))})


MODELS: Mapping[str, Callable[[], Workload]] = {name: partial(build, name) for name in NAMES}
