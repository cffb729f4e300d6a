"""Masks of attention that mean nothing, or that a row sees what is before it: no kernel reads them."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.attention import Kind, Kinds, Masks, handed_on, in_rows
from gyrator.autograd.fused_attention import as_captured
from gyrator.autograd.interface import Compiled, GraphInfo
from tests.pure.autograd.harness import leaf, same_as_eager

L = 16
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def all_pass(q: Tensor) -> Tensor:
    return (torch.arange(L) >= 0)[None, None, :, None].expand(q.shape[0], 1, L, L)


def causal(q: Tensor) -> Tensor:
    return torch.arange(L)[None, :] <= torch.arange(L)[:, None]


def causal_numbers(q: Tensor) -> Tensor:
    return torch.zeros(L, L).masked_fill(~causal(q), torch.finfo(torch.float32).min)[None, None]


def packed(q: Tensor) -> Tensor:
    """As models find out whether sequences are packed: jumps among positions, counted."""
    positions = torch.arange(L)[None].expand(q.shape[0], -1)
    parts = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return (parts[:, None, :, None] == parts[:, None, None, :]) & causal(q)


def window(q: Tensor) -> Tensor:
    return causal(q) & (torch.arange(L)[None, :] > torch.arange(L)[:, None] - 4)


def of_data(q: Tensor) -> Tensor:
    return (q[:, :, :, 0] < 5)[:, :, None, :]


def drawn(q: Tensor) -> Tensor:
    return torch.rand(L, L) < 2


def changed_later(q: Tensor) -> Tensor:
    mask = torch.ones(L, L, dtype=torch.bool)
    mask[0, 1:].fill_(False)
    return mask


def changed_by_a_method(q: Tensor) -> Tensor:
    mask = torch.zeros(L, L)
    mask.__iadd__(torch.arange(L))
    return mask


def changed_in_the_shape_of_data(q: Tensor) -> Tensor:
    mask = torch.ones(L, L, dtype=torch.bool)
    mask.view_as(q[0, 0] @ q[0, 0].mT)[:, 1:].fill_(False)
    return mask


@torch.library.custom_op("mask_tests::shut", mutates_args=("mask",))
def shut(mask: Tensor) -> None:
    mask[..., L // 2 :] = False


shut.register_fake(lambda mask: None)


def changed_by_an_operator(q: Tensor) -> Tensor:
    mask = torch.ones(L, L, dtype=torch.bool)
    shut(mask)
    return mask


@torch.library.custom_op("mask_tests::made", mutates_args=())
def made(size: int) -> Tensor:
    """Which may be another one in each call."""
    return torch.ones(size, size, dtype=torch.bool)


made.register_fake(lambda size: torch.empty(size, size, dtype=torch.bool))


def of_an_operator(q: Tensor) -> Tensor:
    return made(L)


def attention(mask: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask(q))


def captured(fn: Callable[[Tensor], Tensor], q: Tensor, *, dynamic: bool = False) -> list[str]:
    """The operators of the graph that is compiled for ``fn``, which gives what eager gives."""
    ops: list[str] = []

    def keep(graph: fx.GraphModule, examples: Sequence[Any], info: GraphInfo) -> Compiled:
        for node in graph.graph.nodes:
            if node.op == "call_function":
                causal = "attention" in str(node.target) and True in node.args
                ops.append(f"{node.target}{' causal' if causal else ''}")
        return Compiled(lambda args: graph(*args))

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=lambda gm, x: aot_compile(gm, x, fw_compiler=keep), dynamic=dynamic)
    for given in (q, q[:, :, :7].contiguous()) if dynamic else (q,):
        torch.testing.assert_close(compiled(given), fn(given))
    return ops


def shaped() -> Tensor:
    return torch.randn(2, 3, L, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", [all_pass, causal, causal_numbers, packed])
def test_a_mask_made_of_constants_is_left_away(mask: Callable[[Tensor], Tensor]) -> None:
    ops = captured(attention(mask), shaped())
    assert [op for op in ops if "aten" in op] == [FLASH if mask is all_pass else f"{FLASH} causal"]


CHANGED = [changed_later, changed_by_a_method, changed_in_the_shape_of_data, changed_by_an_operator]


@pytest.mark.parametrize("mask", [window, of_data, of_an_operator, *CHANGED])
def test_a_mask_that_says_something_stays(mask: Callable[[Tensor], Tensor]) -> None:
    assert len(captured(attention(mask), shaped())) > 2


def test_a_drawn_mask_is_drawn_at_each_call() -> None:
    assert any("rand" in op for op in captured(attention(drawn), shaped()))


def test_a_region_that_is_computed_again_gets_its_mask_from_outside() -> None:
    def fn(q: Tensor) -> Tensor:
        mask = causal(q)
        again = checkpoint(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask), q, use_reentrant=False)
        assert isinstance(again, Tensor)
        return again

    ops = captured(fn, shaped().requires_grad_())
    assert sum("causal" in op for op in ops) == 3 and not any("arange" in op for op in ops)


def test_a_mask_that_a_region_changes_stays() -> None:
    def shut_half(q: Tensor, mask: Tensor) -> Tensor:
        mask[..., L // 2 :].fill_(False)
        return q + 1

    def fn(q: Tensor) -> Tensor:
        mask = torch.ones(L, L, dtype=torch.bool)
        changed = checkpoint(shut_half, q, mask, use_reentrant=False)
        assert isinstance(changed, Tensor)
        return F.scaled_dot_product_attention(changed, q, q, attn_mask=mask)

    assert len(captured(fn, shaped())) > 3


def positions(q: Tensor) -> Tensor:
    return torch.arange(q.shape[2])


def triangle(at: Tensor) -> Tensor:
    return at[None, :] <= at[:, None]


def of_many(x: Tensor) -> Tensor:
    thrice = x + x + x
    return thrice + thrice + thrice + thrice


OF_ANY_SIZE: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "all pass": ("", lambda q: (positions(q) >= 0)[None, :].expand(q.shape[2], -1)),
    "causal": (" causal", lambda q: triangle(positions(q) + 3)),
    "named as a method": (" causal", lambda q: positions(q)[None].__le__(positions(q)[:, None])),  # as torch 2.11 does
    "numbers": (
        " causal",
        lambda q: torch.where(triangle(positions(q)), torch.zeros(()), torch.full((), float("-inf"))),
    ),
    "packed": (
        " causal",
        lambda q: triangle(positions(q)) & triangle((torch.diff(positions(q), prepend=positions(q)[:1]) > 1).cumsum(0)),
    ),
    "window": ("?", lambda q: triangle(positions(q)) & (positions(q)[None, :] > positions(q)[:, None] - 40)),
    "of few": ("?", lambda q: triangle(positions(q)) | (positions(q)[-1:] < 20)),
    "small numbers": ("?", lambda q: triangle(positions(q).to(torch.int8))),
    "rounded": ("?", lambda q: triangle(positions(q).to(torch.float16))),
    "rounded before": ("?", lambda q: triangle(positions(q).to(torch.float16).to(torch.int64))),
    "small before": ("?", lambda q: triangle(torch.arange(q.shape[2]).to(torch.int8).to(torch.int64))),
    "made small": ("?", lambda q: triangle(torch.arange(q.shape[2], dtype=torch.float16).to(torch.int32))),
    "of a number": ("?", lambda q: triangle(positions(q)) | (positions(q) < q.shape[0])),
    "sums of sums": ("?", lambda q: triangle(positions(q)) | (positions(q)[-1:] < of_many(torch.full((), 8)))),
    "steps that grow": ("?", lambda q: triangle(positions(q)) | (positions(q).cumsum(0) <= of_many(positions(q)))),
    "one but for a few": ("?", lambda q: (positions(q) != 7 - q.shape[2])[None, :].expand(q.shape[2], q.shape[2])),
    "in turns": ("?", lambda q: triangle(positions(q)) & (positions(q)[None, :] // 64 == positions(q)[:, None] // 64)),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_a_mask_is_left_away_if_it_is_the_same_for_all_sizes(name: str) -> None:
    """Not where larger ones show something else: windows, positions that wrap or are rounded."""
    kind, mask = OF_ANY_SIZE[name]
    ops = captured(attention(mask), shaped(), dynamic=True)
    calls = [op for op in ops if "aten" in op]
    assert calls == [f"{FLASH}{kind}"] if kind != "?" else len(calls) > 2


def test_a_size_may_be_read_from_what_was_computed() -> None:
    graph, real = fx.Graph(), shaped()
    masks = Masks(graph, {})
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False) as mode:
        q = mode.from_tensor(real, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 4))

        def call(target: Callable[..., Any], *args: Any) -> fx.Node:
            node = graph.call_function(target, args)
            values = fx.node.map_arg(args, lambda n: n.meta["example_value"])
            node.meta["example_value"] = target(*values)
            return node

        given = graph.placeholder("q")
        given.meta["example_value"] = q
        at = call(torch.arange, call(torch.Tensor.size, call(torch.sin, given), 2))
        mask = call(operator.le, call(operator.getitem, at, (None,)), call(operator.getitem, at, (slice(None), None)))
        masks.note(mask, mask.meta["example_value"])
        attend = {"attn_mask": mask.meta["example_value"]}
        _, simpler = masks.simplified(F.scaled_dot_product_attention, (q, q, q), attend)
    assert simpler["is_causal"] and simpler["attn_mask"] is None


def test_a_value_that_is_known_keeps_its_place_in_memory() -> None:
    """Values of a region die with it: a later mask in the same place would be taken for an earlier one."""
    graph, value = fx.Graph(), torch.ones(2, 2)
    masks = Masks(graph, {})
    masks.note(graph.placeholder("x"), value)
    alive = weakref.ref(value)
    del value
    assert alive() is not None


@pytest.mark.parametrize("written", [False, True], ids=["as it is", "written"])
def test_parts_of_a_graph_know_masks_that_others_hand_on(written: bool) -> None:
    """Not what they write into, by a view of it too."""
    kinds: list[Kinds] = []
    found: list[Kind | None] = []

    def in_two(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        first = next(k for k, node in enumerate(gm.graph.nodes) if node.target is F.scaled_dot_product_attention)
        order = {node: k for k, node in enumerate(gm.graph.nodes)}
        told = WeakIdKeyDictionary()
        parts = split_module(gm, gm, lambda node: int(order[node] > first))
        for part in parts.children():
            kinds.append(handed_on(part.graph, told))
            inputs = part.graph.find_nodes(op="placeholder")
            masks = Masks(part.graph, kinds[-1])
            found.extend(masks.kind_of(inputs[at], torch.device("cpu")) for at in kinds[-1])
        return gm.forward

    def twice(q: Tensor) -> Tensor:
        mask = triangle(torch.arange(q.shape[2]))
        once = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        if written:
            mask.T.zero_()
        return F.scaled_dot_product_attention(once, q, q, attn_mask=mask)

    torch._dynamo.reset()
    torch.compile(twice, backend=in_two)(shaped())
    assert [list(each.values()) for each in kinds] == [[], ["causal"]]
    assert found == [None if written else "causal"]


@pytest.mark.parametrize("strides", [(0, L, 1, 0), (L * L, 0, L, 1), (L * L, L * L, 1, L), (0, 0, 1, 0)], ids=str)
def test_a_mask_gets_contiguous_rows(strides: tuple[int, ...]) -> None:
    mask = (torch.arange(2 * L * L) % 7 < 4).as_strided((2, 1, L, L), strides)
    made = in_rows(mask)
    assert torch.equal(made, mask) and made.stride(-1) == 1
    assert strides[0] or not made.stride(0)


def test_copies_of_keys_without_a_gradient_have_none() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1) for x in (k, v))
        with torch.no_grad():
            k = k.reshape(q.shape)
        return F.scaled_dot_product_attention(q, k, v.reshape(q.shape))

    same_as_eager(attention, *(leaf(2, heads, L, 8) for heads in (4, 2, 2)))


def test_what_a_graph_writes_is_asked_once_however_many_masks_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[fx.Node] = []
    monkeypatch.setattr("gyrator.autograd.attention.mutates", lambda node: asked.append(node) or False)

    def layers(x: Tensor, mask: Tensor) -> Tensor:
        for _ in range(9):
            x = F.scaled_dot_product_attention(x, x, x, mask[:, :, :, : x.shape[-2]])
        return x

    same_as_eager(layers, torch.randn(1, 2, L, 8), torch.zeros(1, 1, L, L), backward=False)
    assert asked and len(asked) == len({*asked})


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        (["transpose", "contiguous"], True),
        (["reshape", "transpose", "contiguous"], True),
        (["reshape", "transpose", "reshape"], False),
        (["transpose", "mul"], False),
        ([], False),
    ],
)
def test_attention_lies_as_its_kernel_likes_where_only_a_contiguous_copy_follows(after: list[str], kept: bool) -> None:
    graph = fx.Graph()
    last = node = graph.call_function(F.scaled_dot_product_attention, (graph.placeholder("q"),) * 3)
    for method in after:
        last = graph.call_method(method, (last,))
    graph.output((last, node) if not after else last)
    node.meta["example_value"] = shaped()
    out = shaped().transpose(1, 2).contiguous().transpose(1, 2)
    assert (as_captured(out, node) is out) == kept
    assert as_captured(out, node).stride() == (out if kept else shaped()).stride()
