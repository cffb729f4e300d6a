"""Attention on a processor by templates: values and gradients within twice eager's own error, and no library call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import gyrator
from tests.acceptance import assert_matches, check
from tests.scores import Mod, alibi, late, softcap
from tests.scores import causal as below

LIBRARY = "aten._scaled_dot_product_flash_attention_for_cpu.default"
Shape = tuple[int, int, int, int]
in_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)


def tensors(query: Shape, key: Shape, *, value_width: int = 0, seed: int = 0) -> list[Tensor]:
    """A query, and keys and values of as many positions, which lie as projections leave them: heads inside."""
    generator = torch.Generator().manual_seed(seed)

    def made(b: int, h: int, m: int, e: int) -> Tensor:
        return torch.randn((b, m, h, e), generator=generator).transpose(1, 2)

    return [made(*query), made(*key), made(*key[:3], value_width or key[3])]


def called() -> set[str]:
    """The library's attention among what was called."""
    return {name for name in gyrator.counters().externs() if "attention" in name}


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.7)


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last keys of each sequence are left out, and all of them for row 3."""
    ends = torch.tensor([k.shape[2] - 5, k.shape[2] // 2])[: q.shape[0], None, None, None]
    keep = torch.arange(k.shape[2]) < ends
    keep = keep & (torch.arange(q.shape[2]) != 3)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    ends = torch.tensor([k.shape[2] - 5, k.shape[2] // 2])[: q.shape[0], None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(j < ends) & (j <= i) & (j > i - 40))


def ahead(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last rows see no key."""
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(j >= i + 20) & (j != 30))


def lowest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The lowest number hides some keys of all rows, and all keys of a few: these count alike."""
    hidden = (torch.arange(k.shape[2]) < 5) | (torch.arange(q.shape[2])[:, None] < 5)
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=distance.to(q.dtype).cos().expand(q.shape[1], -1, -1)[None]
    )


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, ::2], v[:, ::2], enable_gqa=True, is_causal=True)


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=-0.3)


@in_dtypes
@pytest.mark.parametrize("backward", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", [plain, causal, scaled, turned, padded, windowed, ahead, lowest, biased, grouped])
def test_a_template_computes_the_librarys_attention(
    fn: Callable[..., Tensor], backward: bool, dtype: torch.dtype
) -> None:
    for query, key in (((2, 4, 133, 32), (2, 4, 261, 32)), ((1, 2, 300, 39), (1, 2, 141, 39)), ((2, 2, 9, 8),) * 2):
        gyrator.reset()
        given = [x.to(dtype).requires_grad_(backward) for x in tensors(query, key)]
        check(fn, given, backend="gyrator", backward=backward, dynamic=False)
        assert not called()


@in_dtypes
@pytest.mark.parametrize("low", [-1e6, -1e9, -1e10, -1e30])
def test_an_added_number_may_hide_all_keys_of_a_row(low: float, dtype: torch.dtype) -> None:
    """Such keys count alike; of these scores the last digits are larger than what exponentials are taken of."""

    def hidden(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    gyrator.reset()
    given = [x.to(dtype).requires_grad_() for x in tensors((1, 2, 70, 32), (1, 2, 150, 32))]
    mask = torch.zeros(70, 150).index_fill(0, torch.arange(3, 9), low).to(dtype)
    check(hidden, [*given, mask.clamp(min=torch.finfo(dtype).min)], backend="gyrator", backward=True, dynamic=False)
    assert not called()


def test_scores_may_be_large() -> None:
    def far(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 1e5, k[:, :, :1].expand_as(k) * 1e5, v)

    gyrator.reset()
    check(far, [x.bfloat16() for x in tensors((1, 2, 70, 32), (1, 2, 150, 32))], backend="gyrator", dynamic=False)


@pytest.mark.parametrize(("fn", "bounds"), [(windowed, "-39, 0"), (ahead, "20, 1073741824")])
def test_a_mask_that_the_program_makes_is_computed_in_the_kernel(fn: Callable[..., Tensor], bounds: str) -> None:
    """It lies nowhere, and keys that it leaves out for all of some rows are not walked."""
    gyrator.reset()
    given = [x.requires_grad_() for x in tensors((2, 4, 133, 32), (2, 4, 261, 32))]
    graphs = [*gyrator.explain(fn, *given, timing=False).data.graphs()]
    kernels = [kernel for graph in graphs for kernel in graph.record.kernels]
    walks = [kernel.source for kernel in kernels if "gy::RowTiles" in kernel.source]
    assert len(walks) == 2 and all(f".walk_near({bounds}, " in source for source in walks)
    assert not any("where" in kernel.name for kernel in kernels)
    assert not any("where" in pair.producer for graph in graphs for pair in graph.record.unfused)


@pytest.mark.parametrize("isa", ["avx2", "avx512", "scalar"])
def test_each_instruction_set_has_the_same_answer(isa: str) -> None:
    for width in (16, 24, 64, 80):
        gyrator.reset()
        given = [x.requires_grad_() for x in tensors((2, 2, 70, width), (2, 2, 70, width))]
        check(causal, given, backend="gyrator", backward=True, options={"cpu_isa": isa})
        assert bool(called()) == (isa == "scalar")  # without vectors the library is faster


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_result_lies_as_the_kernel_lays_it_that_eager_calls(backend: str, backward: bool, dynamic: bool) -> None:
    """Eager computes scores where a mask has three dimensions; without the mask there is a kernel."""

    def open_to_all(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(1, q.shape[2], k.shape[2], dtype=torch.bool)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out, out.view(q.shape[0], -1, q.shape[3]) * 2

    args = [x.requires_grad_(backward) for x in tensors((2, 4, 16, 8), (2, 4, 20, 8))]
    check(open_to_all, args, backend=backend, backward=backward, dynamic=dynamic)


def test_a_reshape_that_is_a_view_shows_how_the_result_lies(backend: str) -> None:
    def viewed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def out() -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(1, 8, 8))

        turned = out().transpose(1, 2).reshape(2, 8, 4, 16)
        return (
            turned.transpose(1, 2).view(2, 4, -1),
            out().transpose(1, 2).flatten(1, 1),
            out().transpose(1, 3).flatten(2),
        )

    check(viewed, tensors((2, 4, 8, 16), (2, 4, 8, 16)), backend=backend)


def test_rows_may_change() -> None:
    def of_heads(x: Tensor) -> Tensor:
        heads = x.view(x.shape[0], x.shape[1], 2, 32).transpose(1, 2)
        return causal(heads, heads, heads)

    gyrator.reset()
    run = torch.compile(of_heads, backend="gyrator")
    for rows in (64, 131, 250):
        x = torch.randn(rows % 3 + 2, rows, 64, generator=torch.Generator().manual_seed(rows))
        for dim in (0, 1):
            torch._dynamo.mark_dynamic(x, dim)
        assert_matches(run(x), of_heads(x), of_heads(x.double()))
    assert not called()


def test_values_may_be_wider_and_lie_anyhow() -> None:
    gyrator.reset()
    q, k, v = tensors((2, 2, 70, 24), (2, 2, 90, 24))
    apart = torch.randn(2, 2, 90, 48)[..., ::2]
    check(plain, [q, k, apart], backend="gyrator")
    check(plain, [q.mT.contiguous().mT, k[:, :1].expand(-1, 2, -1, -1), v.flip(3)], backend="gyrator")


def test_the_library_has_doubles_gradients_of_few_rows_and_what_the_user_leaves_to_it() -> None:
    few, many = tensors((2, 2, 3, 32), (2, 2, 70, 32)), tensors((2, 2, 70, 32), (2, 2, 70, 32))
    for given, options in (
        ([x.double() for x in many], {}), (many, {"gemm_backends": ["aten"]}), (many, {"numerics": "eager"}),
    ):  # fmt: skip
        gyrator.reset()
        torch.compile(plain, backend="gyrator", options=options)(*given)
        assert called() == {LIBRARY}
    gyrator.reset()
    check(causal, [x.requires_grad_() for x in few], backend="gyrator", backward=True)
    assert called() == {f"{LIBRARY.removesuffix('.default')}_backward.default"}


@in_dtypes
@pytest.mark.parametrize("fn", [plain, causal, scaled, turned, padded, windowed, ahead, biased, grouped])
@pytest.mark.parametrize("rows", [1, 6])
def test_few_rows_read_keys_and_values_as_they_lie(fn: Callable[..., Tensor], rows: int, dtype: torch.dtype) -> None:
    gyrator.reset()
    check(fn, [x.to(dtype) for x in tensors((2, 4, rows, 64), (2, 4, 131, 64))], backend="gyrator", dynamic=False)
    q, *others = (x.to(dtype) for x in tensors((2, 4, rows, 150), (2, 4, 300, 150)))
    check(fn, [q, *(x.mT.contiguous().mT for x in others)], backend="gyrator", dynamic=False)
    assert not called()


def kernels(fn: Callable[..., Tensor], given: list[Tensor]) -> list[str]:
    gyrator.reset()
    (graph,) = gyrator.explain(fn, *given, timing=False).data.graphs()
    return [kernel.name for kernel in graph.record.kernels]


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_are_not_copied_for_the_heads_that_share_them(rows: int, masked: bool) -> None:
    def repeated(x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        return x[:, :, None].expand(b, h, 4, n, d).reshape(b, 4 * h, n, d)

    def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = bias if masked else None
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    bias = torch.randn(2, 8, rows, 70, generator=torch.Generator().manual_seed(1))
    given = tensors((2, 8, rows, 32), (2, 2, 70, 32))
    assert len(kernels(shared, given)) == 1
    check(shared, given, backend="gyrator")
    check(shared, [x.requires_grad_() for x in given], backend="gyrator", backward=True)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [((3, 1, 10, 8), (3, 2, 12, 8), (3, 2, 12, 8)), ((3, 6, 10, 8), (3, 2, 12, 1), (3, 2, 12, 8)),
     ((3, 6, 10, 8), (1, 2, 1, 8), (3, 2, 12, 8)), ((3, 6, 10, 8), (3, 1, 12, 8), (3, 2, 12, 8))],
    ids=["one head asks", "columns", "rows", "all heads"],
)  # fmt: skip
def test_keys_may_be_repeated_along_other_dimensions_too(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    def repeated(x: Tensor) -> Tensor:
        return x[:, :, None].expand(3, 2, 3, 12, 8).reshape(3, 6, 12, 8)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v))

    check(attention, [torch.randn(shape) for shape in (query, key, value)], backend="gyrator")


def test_keys_that_are_written_after_they_were_copied_are_those_of_before() -> None:
    def late_write(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x[:, :, None].expand(2, 2, 4, 70, 32).reshape(2, 8, 70, 32) for x in (k, v))
        k.mul_(2)
        return F.scaled_dot_product_attention(q, keys, values)

    check(late_write, tensors((2, 8, 20, 32), (2, 2, 70, 32)), backend="gyrator")


def test_a_gradient_of_keys_that_were_all_overwritten_is_freed(backend: str) -> None:
    def overwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k * 2
        k[0] = 0.5
        return F.scaled_dot_product_attention(q, k, v)

    given = [x.requires_grad_() for x in tensors((1, 2, 9, 8), (1, 2, 33, 8))]
    check(overwritten, given, backend=backend, backward=True)


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("keep", [None, late])
def test_few_rows_of_flex_attention(keep: Mod | None, isa: str) -> None:
    for rows in (1, 4, 6):
        mask = None if keep is None else create_block_mask(keep, None, None, rows, 300, device="cpu")
        given = tensors((2, 4, rows, 40), (2, 2, 300, 40), value_width=72)
        assert_flexible(flexible(alibi, mask), given, dynamic=False, options={"cpu_isa": isa})


def test_not_numbers_and_infinities_stay_what_they_are_in_eager() -> None:
    gyrator.reset()
    q, k, v = tensors((1, 2, 40, 16), (1, 2, 50, 16))
    q[0, 0, 3], v[0, 1, 7] = torch.nan, torch.inf
    got, wanted = torch.compile(plain, backend="gyrator")(q, k, v), plain(q, k, v)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    gyrator.reset()
    q = q[:, :, 2:5]
    torch.testing.assert_close(torch.compile(plain, backend="gyrator")(q, k, v), plain(q, k, v), equal_nan=True)


# -- flex_attention ------------------------------------------------------------------------------------------
def flexible(score: Mod | None, mask: BlockMask | None) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score, mask, enable_gqa=q.shape[1] != k.shape[1], return_lse=True)

    return run


def assert_flexible(fn: Callable[..., Any], given: list[Tensor], **options: Any) -> None:
    gyrator.reset()
    results = torch.compile(fn, backend="gyrator", **options)(*given)
    for ours, theirs, true in zip(results, fn(*given), fn(*(x.double() for x in given)), strict=True):
        assert_matches(ours, theirs, true)
    externs = gyrator.counters().externs()
    assert not {name for name in externs if "mm" in name or "region" in name}, externs


@in_dtypes
@pytest.mark.parametrize("keep", [None, below, late], ids=["all", "causal", "late"])
@pytest.mark.parametrize("score", [None, alibi, softcap], ids=["plain", "alibi", "softcap"])
def test_flex_attention_keeps_no_matrix_of_scores(dtype: torch.dtype, keep: Mod | None, score: Mod | None) -> None:
    m, n = (300, 300) if keep is not None else (131, 300)
    mask = None if keep is None else create_block_mask(keep, None, None, m, n, device="cpu")
    given = [x.to(dtype) for x in tensors((2, 4, m, 64), (2, 2, n, 64), value_width=48)]
    assert_flexible(flexible(score, mask), given, dynamic=False)


@pytest.mark.parametrize("isa", ["avx2", "scalar"])
def test_flex_attention_with_other_instructions_and_small_blocks(isa: str) -> None:
    mask = create_block_mask(below, None, None, 70, 70, device="cpu", BLOCK_SIZE=16)
    assert_flexible(flexible(alibi, mask), tensors((1, 2, 70, 24), (1, 2, 70, 24)), options={"cpu_isa": isa})


@pytest.mark.parametrize("rows", [2, 40])
def test_sums_may_be_wanted_without_the_values(rows: int) -> None:
    def sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return (flexible(None, None)(q, k, v)[1],)

    assert_flexible(sums, tensors((1, 2, rows, 16), (1, 2, 50, 16)))


def test_a_checkpoint_computes_sums_again() -> None:
    def again(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return checkpoint(causal, q, k, v, use_reentrant=False)

    check(
        again,
        tuple(x.requires_grad_() for x in tensors((1, 2, 40, 16), (1, 2, 50, 16))),
        backend="gyrator",
        backward=True,
    )


def test_what_functions_read_may_be_tables_of_any_layout() -> None:
    number, bias = torch.arange(200) // 77, torch.randn(4, 200, 200)

    def tabled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[h, i, j] + bias[0, j, i]

    mask = create_block_mask(lambda b, h, i, j: number[i] == number[j], None, None, 200, 200, device="cpu")
    given = tensors((2, 4, 200, 16), (2, 4, 200, 16))
    gyrator.reset()
    fn = flexible(tabled, mask)
    torch.testing.assert_close(torch.compile(fn, backend="gyrator")(*given), fn(*given))


def test_functions_may_read_parts_of_tables_and_one_of_several_results() -> None:
    bias = torch.randn(4, 8)

    def parts(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[1:, :3][h % 3, j % 3] + bias[..., 0][h] + torch.max(bias, 1)[0][h] + bias[None][0][h, 1]

    given, fn = tensors((2, 4, 40, 16), (2, 4, 40, 16)), flexible(parts, None)
    gyrator.reset()
    torch.testing.assert_close(torch.compile(fn, backend="gyrator", fullgraph=True)(*given), fn(*given))


def test_lists_of_long_integers_are_for_the_operators_that_define_it() -> None:
    made = create_block_mask(below, None, None, 80, 80, device="cpu", BLOCK_SIZE=16)
    lists = [x.long() for x in (made.kv_num_blocks, made.kv_indices)]
    mask = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=16, mask_mod=below)
    given = tensors((1, 2, 80, 24), (1, 2, 80, 24))
    fn = flexible(None, mask)
    torch.testing.assert_close(torch.compile(fn, backend="gyrator")(*given), fn(*given))
