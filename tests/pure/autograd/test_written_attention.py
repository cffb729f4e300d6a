"""Attention that a program writes out is computed by the operator that makes no matrix of scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.pure.autograd.harness import compiled, same_as_eager

B, H, M, N, D = 2, 3, 7, 512, 8
FLASH = "_scaled_dot_product_flash_attention_for_cpu.default"
SCALE = 0.25

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * SCALE).softmax(-1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(torch.matmul(q, k.mT) / math.sqrt(D), dim=3)
    return torch.matmul(F.dropout(weights, 0.1, training=False), v)


def without_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout((q @ k.mT).softmax(-1), 0) @ v


def named(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(input=F.softmax(input=q @ k.mT, dim=-1), p=0.1, training=False) @ v


def in_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)


def in_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("b i h d, b j h d -> b h i j", q, k).mul(SCALE).softmax(dim=-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhjd,bhid->bhij", k, q).softmax(-1)
    return torch.einsum("bhjd,bhij->bhid", v, weights)


def hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * SCALE).masked_fill(k[:, :, None, :, 0] > 0.5, -math.inf).softmax(-1) @ v


def hidden_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= SCALE
    scores = scores.masked_fill_(k[:, :, None, :, 0] > 0.5, -math.inf)
    return scores.softmax(-1) @ v


def all_hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill((q[..., :1] > 0).expand(-1, -1, -1, k.shape[-2]), -math.inf).softmax(-1) @ v


def all_hidden_by_a_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(q[..., :1] > 0, torch.finfo(torch.float32).min).softmax(-1) @ v


def all_hidden_by_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.where(q[..., :1] > 0, torch.finfo(torch.float32).min, k[:, :, None, :, 0])
    return (q @ k.mT + bias).softmax(-1) @ v


def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(k[:, :, None, :, 0] > -0.5, q @ k.mT, -1e9).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.arange(N, device=q.device) * torch.tensor([0.5, 0.25, 0.125])[:, None, None]
    return ((bias + q @ k.mT).masked_fill(k[:, :, None, :, 0] > 0.5, -math.inf)).softmax(-1) @ v


def upcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.bfloat16() for x in (q, k, v))
    return F.softmax(q @ k.mT * SCALE, dim=-1, dtype=torch.float32).to(q.dtype) @ v


FUSED = (
    plain, without_dropout, divided, named, in_bmm, in_einsum, keys_first, hidden, hidden_in_place, all_hidden,
    all_hidden_by_a_number, all_hidden_by_a_bias, kept, biased, upcast,
)  # fmt: skip


def weights_returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def keys_change(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.clone()
    weights = (q @ k.mT).softmax(-1)
    k.mul_(2)
    return weights @ v + k.sum()


def keys_change_by_a_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.clone()
    weights = (q @ k.mT).softmax(-1)
    F.relu(k, inplace=True)
    return weights @ v + k.sum()


def keys_change_by_a_flag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.clone()
    weights = (q @ k.mT).softmax(-1)
    F.leaky_relu(k, 0.5, True)
    return weights @ v


def keys_change_in_a_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.clone()
    weights = (q @ k.mT).softmax(-1)
    F.embedding(torch.tensor([1, 2]), k[0, 0], max_norm=0.1)
    return weights @ v


def queries_change_by_a_method(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.clone()
    weights = (q @ k.mT).softmax(-1)
    q.__imul__(2.0)
    return weights @ v


def keys_change_in_a_checkpoint(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.clone()
    weights = (q @ k.mT).softmax(-1)
    total = checkpoint(lambda x: x.mul_(2).sum(), k, use_reentrant=False)
    return weights @ v + total


def queries_change_by_a_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.clone()
    bias, scores = q[..., :1], q @ k.mT
    return (bias.mul_(2) + scores).softmax(-1) @ v


def scores_of_another_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Which autocast would round."""
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            scores = q @ k.mT * 9
        return scores.softmax(-1) @ v


def weights_without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        weights = (q @ k.mT).softmax(-1)
    return weights @ v


def scaled_without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In place: the scores have their gradient still, of which autograd does not know the scale."""
    scores = q @ k.mT
    with torch.no_grad():
        scores = scores.mul_(SCALE)
    return scores.softmax(-1) @ v


def along_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def bias_with_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + k[:, :, None, :, 0]).softmax(-1) @ v


def small_numbers_hide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(k[:, :, None, :, 0] > -9, -100.0).softmax(-1) @ v


def scaled_after_the_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT + torch.arange(k.shape[-2])) / 8).softmax(-1) @ v


def divided_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (8 / (q @ k.mT).exp()).softmax(-1) @ v + (2 / (q @ k.mT + 99)).softmax(-1) @ v


def keys_of_fewer_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k[:, :1].mT).softmax(-1) @ v


def in_float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).double().softmax(-1).to(v.dtype) @ v


def factors_in_another_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Square ones, of which either could be the queries."""
    k, v = (x.reshape(B, H, 64, 64) for x in (k, v))
    return torch.matmul(other=k, input=v).softmax(-1) @ v


def products_that_repeat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Where a side has length 1."""
    wide = torch.einsum("bhid,bhjd->bhij", q, k[..., :1]).softmax(-1) @ v
    return wide + torch.einsum("bhij,bhjd->bhid", (q @ k.mT).softmax(-1), v[:, :, :1])


@torch.library.custom_op("written_attention::softmax", mutates_args=())
def other_softmax(x: Tensor, dim: int) -> Tensor:
    return (2 * x).softmax(dim)


@other_softmax.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


def softmax_of_another_library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights: Tensor = torch.ops.written_attention.softmax(q @ k.mT, -1)
    return weights @ v


def differentiated_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def slope(q: Tensor) -> Tensor:
        return torch.func.grad(lambda q: plain(q, k, v).square().sum())(q).square().sum()

    return torch.func.grad(slope)(q)


def differentiated_forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tangent: Tensor = torch.func.jvp(lambda q: plain(q, k, v), (q,), (torch.ones_like(q),))[1]
    return tangent


def with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Which kernels of a CPU do not know. Nothing is dropped at this rate."""
    return F.dropout((q @ k.mT).softmax(-1), 1e-30) @ v


LEFT = (
    weights_returned, keys_change, keys_change_by_a_function, keys_change_by_a_flag, keys_change_in_a_table,
    keys_change_in_a_checkpoint, queries_change_by_a_method, queries_change_by_a_view, scores_of_another_type,
    weights_without_gradient, scaled_without_gradient, along_queries, bias_with_gradient, small_numbers_hide,
    scaled_after_the_bias, divided_by_scores, keys_of_fewer_heads, in_float64, factors_in_another_order,
    products_that_repeat, softmax_of_another_library, differentiated_twice, differentiated_forward, with_dropout,
)  # fmt: skip


def operands(keys: int = N, *, gradients: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, size, D, generator=generator).requires_grad_(gradients) for size in (M, keys, keys)]


@pytest.mark.parametrize("attention", FUSED, ids=lambda f: f.__name__)
def test_attention_in_its_many_forms_is_one_operator(attention: Attention) -> None:
    run, graphs = compiled(attention)
    run(*operands())
    assert FLASH in graphs.ops("inference")
    assert not {"bmm.default", "_softmax.default", "exp.default"} & {*graphs.ops("inference")}
    same_as_eager(attention, *operands())


@pytest.mark.parametrize("attention", [plain, divided, in_einsum, hidden, all_hidden_by_a_number, upcast])
def test_its_gradients_are_those_of_what_was_written(attention: Attention) -> None:
    run, graphs = compiled(attention)
    given = operands(2048, gradients=True)
    run(*given)
    assert FLASH in graphs.ops("forward")
    same_as_eager(attention, *given)


@pytest.mark.parametrize("attention", LEFT, ids=lambda f: f.__name__)
def test_what_would_mean_something_else_stays(attention: Attention) -> None:
    run, graphs = compiled(attention)
    trained = attention in (bias_with_gradient, weights_without_gradient, scaled_without_gradient)
    given = operands(2048 if trained else N, gradients=trained)
    run(*given)
    assert not any(FLASH in graphs.ops(kind) for kind in graphs.modules)
    same_as_eager(attention, *given)


def with_residual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = plain(q, k, v)
    out += q
    return out


def in_a_region_with_residual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = checkpoint(plain, q, k, v, use_reentrant=False)
    return out.add_(q)


def with_half_of_it_doubled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = plain(q, k, v)
    out.detach().chunk(2, -1)[0].mul_(2)
    return out * 1


def with_many_views(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = plain(q, k, v)
    for _ in range(30):  # each reads the one before twice
        out = out.view_as(out.transpose(0, 0))
    return out + 1


WRITTEN = [plain, with_residual, in_a_region_with_residual, with_half_of_it_doubled, with_many_views]


@pytest.mark.parametrize("attention", WRITTEN, ids=lambda f: f.__name__)
def test_what_it_gives_may_be_written_though_backward_of_the_operator_reads_it(attention: Attention) -> None:
    run, graphs = compiled(attention)
    given = operands(gradients=True)
    run(*given).mul_(2).sum().backward()
    assert FLASH in graphs.ops("forward")
    again = operands(gradients=True)
    attention(*again).mul_(2).sum().backward()
    for x, y in zip(given, again, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("last", [Tensor.contiguous, lambda x: x.to(torch.float32), lambda x: F.dropout(x, 0.0)])
def test_a_region_may_call_its_inputs_as_what_made_them(last: Callable[[Tensor], Tensor]) -> None:
    def region(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = checkpoint(lambda x, y: x @ y, last((q @ k.mT).softmax(-1)), v, use_reentrant=False)
        return out

    same_as_eager(region, *operands(gradients=True))


def test_sizes_may_vary_and_types_be_those_of_autocast() -> None:
    run, graphs = compiled(divided, dynamic=True)
    for keys in (N, N + 9):
        torch.testing.assert_close(run(*operands(keys)), divided(*operands(keys)))
    assert FLASH in graphs.ops("inference")

    def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(q, k, v)

    run, graphs = compiled(under_autocast)
    assert run(*operands()).dtype == torch.bfloat16
    assert FLASH in graphs.ops("inference")
    same_as_eager(under_autocast, *operands())


def test_a_mask_that_the_text_tells_is_not_read() -> None:
    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.tril(torch.ones(k.shape[-2], k.shape[-2]))
        return (q @ k.mT * SCALE).masked_fill(mask == 0, -math.inf).softmax(-1) @ v

    run, graphs = compiled(causal)
    _, k, v = operands()
    torch.testing.assert_close(run(k, k, v), causal(k, k, v))
    (attention,) = (n for n in graphs.modules["inference"].graph.nodes if FLASH in str(n.target))
    assert attention.args[4] is True and "attn_mask" not in attention.kwargs
    assert not {"masked_fill.Scalar", "where.self", "any.dim"} & {*graphs.ops("inference")}


def test_few_keys_are_faster_as_written_and_eager_numbers_need_it() -> None:
    run, graphs = compiled(plain)
    run(*operands(32))
    assert FLASH not in graphs.ops("inference")
    run, graphs = compiled(plain, fuses=False)
    run(*operands())
    assert FLASH not in graphs.ops("inference")
