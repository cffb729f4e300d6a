"""scaled_dot_product_attention of few keys or under a mask on a GPU: the operator of our template."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrator.autograd import fused_attention
from tests.pure.autograd.harness import Graphs, compiled

KEYS, MASKS = 7, ("none", "causal", "bool", "padding", "bias", "number")


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 4 are narrow, of 8 as those of 64 are; 16 keys are few."""
    monkeypatch.setattr(fused_attention, "FASTER_ON", "cpu")
    monkeypatch.setattr(fused_attention, "NARROW", 4)
    monkeypatch.setattr(fused_attention, "FEW", 16)
    monkeypatch.setattr(fused_attention, "DEVICES", ("cpu",))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def operands(*, heads: int = 4, groups: int = 4, rows: int = 5, keys: int = KEYS, width: int = 6) -> list[Tensor]:
    shapes = (2, rows, heads, width), (2, keys, groups, width), (2, keys, groups, width)
    return [torch.randn(shape, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for shape in shapes]


def mask_of(kind: str) -> Tensor | None:
    """A row of `bool` sees no key."""
    if kind == "bool":
        return torch.arange(KEYS) < torch.arange(5)[:, None]
    if kind == "padding":
        return (torch.arange(KEYS) < torch.tensor([[3], [7]]))[:, None, None]
    if kind == "bias":
        return torch.randn(1, 4, 5, KEYS, dtype=torch.bfloat16)
    return (
        torch.zeros(5, KEYS, dtype=torch.bfloat16).index_fill(1, torch.tensor([2]), -3e4) if kind == "number" else None
    )


def operators(graphs: Graphs) -> list[str]:
    return [str(n.target) for g in graphs.modules.values() for n in g.graph.nodes if "attention" in str(n.target)]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("kind", MASKS)
def test_values_and_gradients_are_the_librarys(kind: str, groups: int) -> None:
    given, mask = operands(groups=groups), mask_of(kind)
    run, graphs = compiled(attention, fuses=True)
    found, tangent = [], torch.randn(2, 4, 5, 6)
    for call, dtype in ((run, torch.bfloat16), (attention, torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in given]
        exact = mask.double() if mask is not None and mask.dtype != torch.bool and dtype == torch.float64 else mask
        out = call(*leaves, exact, kind == "causal")
        found.append([out, *torch.autograd.grad(out, leaves, tangent.to(dtype))])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, atol=0.05, rtol=0.02)
    assert found[0][0].stride() == attention(*given, mask, kind == "causal").stride()
    assert operators(graphs) == ["gyrator_attention"] * 3


@pytest.mark.parametrize("heads", [(1, 4), (1, 1)], ids=["keys", "keys and values"])
def test_heads_that_are_repeated_by_broadcasting_mean_the_same(heads: tuple[int, int]) -> None:
    (q, *_), (key_heads, value_heads) = operands(), heads
    k, v = (torch.randn(2, n, KEYS, 6, dtype=torch.bfloat16) for n in (key_heads, value_heads))
    run, _ = compiled(F.scaled_dot_product_attention, fuses=True)
    torch.testing.assert_close(run(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("keys", [KEYS, 72])
def test_copies_for_heads_that_share_keys_are_not_made(keys: int) -> None:
    def repeated(x: Tensor) -> Tensor:
        batch, groups, rows, width = x.shape
        return x[:, :, None].expand(batch, groups, 2, rows, width).reshape(batch, 2 * groups, rows, width)

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), mask)

    (q, k, v), seen = operands(groups=2, rows=16, keys=keys, width=8), torch.rand(2, 1, 16, keys) > 0.3
    mask = seen if keys == 72 else None
    compiled_run, graphs = compiled(run, fuses=True)
    found = [[out := call(q, k, v, mask), *torch.autograd.grad(out.sum(), (q, k, v))] for call in (compiled_run, run)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.02)
    assert operators(graphs) == ["gyrator_attention"] * 3
    assert not any("clone" in str(n.target) for g in graphs.modules.values() for n in g.graph.nodes)


def test_no_key_gives_zeros() -> None:
    given = operands(keys=0)
    run, _ = compiled(F.scaled_dot_product_attention, fuses=True)
    torch.testing.assert_close(run(*given), F.scaled_dot_product_attention(*given))


@pytest.mark.parametrize("case", ["many keys", "wide", "float32", "dropout", "bias with a gradient", "math alone"])
def test_the_library_stays(case: str) -> None:
    given = operands(keys=17 if case == "many keys" else KEYS, width=16 if case == "wide" else 6)
    given = [x.float() for x in given] if case == "float32" else given
    bias = mask_of("bias")
    mask = bias.requires_grad_() if bias is not None and "gradient" in case else None

    def dropped(*args: Tensor | None) -> Tensor:
        q, k, v, mask = args
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5 if case == "dropout" else 0.0)

    run, graphs = compiled(dropped, fuses=True)
    kernels = [torch.nn.attention.SDPBackend.MATH] if case == "math alone" else list(KERNELS)
    with torch.nn.attention.sdpa_kernel(kernels):
        run(*given, mask).sum().backward()
    assert "gyrator_attention" not in operators(graphs)


@pytest.mark.parametrize(
    ("kind", "width", "keys", "trained", "ours"),
    [
        ("none", 4, 128, False, True),
        ("none", 8, 17, False, False),
        ("causal", 4, 32, False, True),
        ("causal", 4, 33, False, False),
        ("keys", 8, 101, False, True),
        ("keys", 16, 32, True, True),
        ("keys", 16, 33, True, True),
        ("keys", 17, 40, True, False),
        ("pairs", 8, 72, False, True),
        ("pairs", 8, 73, False, False),
        ("pairs", 8, 520, True, True),
        ("pairs", 16, 72, False, True),
        ("pairs", 16, 64, False, True),
        ("pairs", 16, 64, True, True),
        ("bias", 4, 24, False, True),
        ("bias", 8, 24, False, True),
        ("bias", 8, 24, True, True),
        ("bias", 8, 16, False, True),
        ("one row", 8, 101, False, False),
        ("made", 8, 16, False, True),
        ("made", 16, 73, True, True),
        ("made", 17, 73, True, False),
        ("made of as many", 16, 73, True, False),
        ("made of a sum", 16, 73, True, False),
        ("made for one row", 8, 101, False, False),
    ],
)
def test_what_the_template_is_faster_for(kind: str, width: int, keys: int, trained: bool, ours: bool) -> None:
    rows = 1 if "one row" in kind else 16
    given = [x.requires_grad_(trained) for x in operands(rows=rows, keys=keys, width=width)]
    masks = {
        "keys": torch.ones(2, 1, 1, keys, dtype=torch.bool),
        "one row": torch.ones(2, 1, 1, keys, dtype=torch.bool),
        "pairs": torch.ones(2, 1, rows, keys, dtype=torch.bool),
        "bias": torch.zeros(rows, keys, dtype=torch.bfloat16),
    }
    hidden, pairs = torch.rand(2, keys) > 0.5, torch.rand(2, 1, rows, keys)

    def with_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        before = torch.arange(k.shape[2]) <= torch.arange(q.shape[2])[:, None] + 3
        made = {
            "made": lambda: hidden[:, None, None] | before,
            "made for one row": lambda: hidden[:, None, None] | before,
            "made of as many": lambda: (pairs > 0.5) & before,
            "made of a sum": lambda: pairs.cumsum(3) < 4,
        }
        return attention(q, k, v, made[kind]() if kind in made else mask, causal)

    run, graphs = compiled(with_a_mask, fuses=True)
    run(*given, masks.get(kind), kind == "causal")
    assert ("gyrator_attention" in operators(graphs)) == ours


KERNELS = (
    torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    torch.nn.attention.SDPBackend.MATH,
)
