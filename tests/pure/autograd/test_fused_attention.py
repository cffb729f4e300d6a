"""flex_attention as one operator: where templates are, its results and gradients are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask

from gyrator.autograd import fused_attention
from tests.pure.autograd.harness import compiled, leaf, same_as_eager


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "DEVICES", ("cpu",))


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    """Row 0 attends to nothing."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, bias: Tensor = bias) -> Tensor:
        return torch.tanh(s) * bias[h, i - j] + bias[0, j]

    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 0), None, None, 6, 6, device="cpu", BLOCK_SIZE=16)
    reads = () if torch.compiler.is_compiling() else ((bias,), ())  # capture finds them by itself
    return flex_attention(q, k, v, score, mask.as_tuple(), 0.5, {}, *reads)[:2]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_values_and_gradients_are_eagers(dynamic: bool) -> None:
    same_as_eager(attention, leaf(2, 2, 6, 4), leaf(2, 2, 6, 4), leaf(2, 2, 6, 3), torch.randn(2, 6), dynamic=dynamic)


def test_results_lie_in_memory_as_the_query() -> None:
    q = torch.randn(2, 6, 2, 4).transpose(1, 2)
    k, bias = torch.randn(1, 1, 6, 4), torch.randn(2, 6)
    same_as_eager(attention, q, k, k, bias, backward=False)
    same_as_eager(attention, *(x.bfloat16() for x in (q, k, k, bias)), backward=False)


def test_autocast_leaves_float64_as_it_is() -> None:
    def under_autocast(*given: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return attention(*given)

    given = [x.double() for x in (*torch.randn(3, 2, 2, 6, 4), torch.randn(2, 6))]
    run, _ = compiled(under_autocast)
    torch.testing.assert_close(run(*given), under_autocast(*given))


def test_no_tensor_holds_the_scores() -> None:
    run, graphs = compiled(attention)
    out = run(leaf(1, 4, 6, 4), leaf(1, 2, 6, 4), leaf(1, 2, 6, 4), torch.randn(4, 6))
    sum(x.sum() for x in out).backward()
    called = {kind: [str(node.target) for node in g.graph.nodes] for kind, g in graphs.modules.items()}
    assert called["forward"].count("gyrator_attention") == 1
    assert called["backward"].count("gyrator_attention") == 2
    assert not any("mm" in op for op in (*called["forward"], *called["backward"]))


def test_a_gradient_of_what_score_mod_reads_takes_the_operators_that_define_it() -> None:
    same_as_eager(attention, leaf(2, 2, 6, 4), leaf(2, 2, 6, 4), leaf(2, 2, 6, 3), leaf(2, 6))
