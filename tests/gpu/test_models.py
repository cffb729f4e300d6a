"""Every model of the zoo on a GPU: inference, and a training step with each parameter's gradient."""

from __future__ import annotations

import pytest
import torch

from benchmarks.zoo import MODELS
from tests.acceptance import SLACK
from tests.model_steps import check_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_model(name: str, training: bool, dtype: torch.dtype) -> None:
    # A gradient of one number, or one that is rounding alone, is as wrong as the order of a library's sums makes it.
    check_model(name, training, "gyrator", "cuda", dtype, slack=4 * SLACK[dtype])
