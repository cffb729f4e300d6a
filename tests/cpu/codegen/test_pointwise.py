"""Printed pointwise kernels against the interpreter: addresses, masks, element types, loops."""

from __future__ import annotations

import math

import pytest
import torch

from gyrator.codegen.cpp import print_kernel
from gyrator.ir.expr import Checked, Const, IndexValue, Op, Random
from gyrator.ir.index import Indirect, as_index, maximum, minimum
from gyrator.ir.tree import Kernel, Let
from tests.cpu.codegen.harness import (
    BF16,
    F32,
    I64,
    axis,
    cast,
    check,
    kernel,
    lanes,
    load,
    op,
    parallel,
    ref,
    run,
    serial,
    size,
    store,
    tensor,
)  # fmt: skip
from tests.cpu.codegen.kernels import embedding, gelu_bias, scatter_add, tiled_transpose_add, transpose_add

S0, S1 = size("s0"), size("s1")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def sample(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


def elementwise(out: torch.dtype, args: tuple[torch.dtype, ...], name: str) -> Kernel:
    """y[j] = name(a[j], b[j], …)"""
    j = axis("j", S0)
    inputs = [tensor(n, S0, dtype=d) for n, d in zip("abc", args, strict=False)]
    y = tensor("y", S0, dtype=out)
    return kernel("f", inputs, [y], lanes(j, store(y, (j,), Op(name, tuple(load(v, j) for v in inputs), out))))


# -- where elements lie ------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(3, 5), (4, 16), (2, 33), (7, 768)])
def test_rows_with_broadcast_bias(shape: tuple[int, int]) -> None:
    x, b = sample(*shape, dtype=BF16), sample(shape[1], dtype=BF16)
    check(gelu_bias(*shape), {"x": x, "b": b, "y": torch.empty(shape, dtype=BF16)})


def test_symbolic_sizes_use_one_kernel_for_all() -> None:
    k = gelu_bias(S0, S1, F32)
    for shape in [(2, 2), (3, 31), (17, 32), (5, 100)]:
        check(
            k, {"x": sample(*shape), "b": sample(shape[1]), "y": torch.empty(shape)}, {"s0": shape[0], "s1": shape[1]}
        )


def test_transposed_input_is_read_with_a_stride() -> None:
    check(transpose_add(33, 47), {"x": sample(47, 33), "z": sample(33, 47), "y": torch.empty(33, 47)})


@pytest.mark.parametrize("shape", [(64, 128), (70, 33), (5, 200), (130, 129)])
def test_a_transposed_input_in_squares(shape: tuple[int, int]) -> None:
    k = tiled_transpose_add(*shape)
    assert "gy::transpose_block(" in print_kernel(k).text
    x, z, y = sample(shape[1], shape[0]), sample(*shape), torch.empty(shape)
    assert run(k, {"x": x, "z": z, "y": y}, threads=2) == 0
    assert torch.equal(y, x.t() + z)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("outer", ["p", "q"])
def test_transposed_copies(dtype: torch.dtype, outer: str) -> None:
    x, y = tensor("x", 37, S0, dtype=dtype), tensor("y", S0, 37, dtype=dtype)
    p, q = axis("p", 37), axis("q", S0)
    copy = store(y, (q, p), load(x, p, q))
    k = kernel("copy", [x], [y], serial(p, lanes(q, copy)) if outer == "p" else serial(q, lanes(p, copy)))
    assert "gy::transpose_block(" in print_kernel(k).text
    check(k, {"x": sample(37, 50, dtype=dtype), "y": torch.empty(50, 37, dtype=dtype)}, {"s0": 50})


def test_flipped_input_has_a_negative_stride() -> None:
    x, y, j = tensor("x", S0), tensor("y", S0), axis("j", S0)
    k = kernel("flip", [x], [y], lanes(j, store(y, (j,), load(x, S0 - 1 - j.index()))))
    check(k, {"x": sample(37), "y": torch.empty(37)}, {"s0": 37})


def test_a_division_along_the_lanes_gathers() -> None:
    x, y, j = tensor("x", 10, 7), tensor("y", 210), axis("j", 210)
    at = (j.index() // 3 // 7, j.index() // 3 % 7)
    k = kernel("repeat", [x], [y], lanes(j, store(y, (j,), load(x, *at))))
    check(k, {"x": sample(10, 7), "y": torch.empty(210)})


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("heads", [4, 3])
def test_digits_of_the_lanes_are_contiguous_but_where_a_vector_crosses_a_block(width: int, heads: int) -> None:
    """Heads put together again: y[s, 32·h + d] = x[h, s, d]."""
    x, y = tensor("x", heads, 5, 32), tensor("y", 5, 32 * heads)
    i, j = axis("i", 5), axis("j", 32 * heads)
    e = op("add", load(x, j.index() // 32, i, j.index() % 32), 1.0)
    k = kernel("merge", [x], [y], parallel(i, lanes(j, store(y, (i, j), e), width=width)))
    text = print_kernel(k).text
    assert "gather" not in text and ("load_runs<32, 160>" in text) == (width == 64)
    check(k, {"x": sample(heads, 5, 32), "y": torch.empty(5, 32 * heads)})


def test_a_shifted_block_is_not_taken_for_an_aligned_one() -> None:
    x, y, j = tensor("x", 5, 32), tensor("y", 100), axis("j", 100)
    at = j.index() + 8
    k = kernel("f", [x], [y], lanes(j, store(y, (j,), load(x, at // 32, 31 - at % 32))))
    check(k, {"x": sample(5, 32), "y": torch.empty(100)})


def test_a_division_of_an_outer_axis_is_taken_once_per_row() -> None:
    x, y = tensor("x", 4, 6), tensor("y", 12, 6)
    i, j = axis("i", 12), axis("j", 6)
    k = kernel("rows", [x], [y], parallel(i, lanes(j, store(y, (i, j), load(x, i.index() // 3, j)), width=4)))
    check(k, {"x": sample(4, 6), "y": torch.empty(12, 6)})


def test_negative_numerators_round_down() -> None:
    y, j = tensor("y", 40, dtype=I64), axis("j", 40)
    shifted = j.index() - 20
    e = op("add", IndexValue(shifted // 7), op("mul", IndexValue(shifted % 7), Const(100, I64)))
    check(kernel("f", [], [y], lanes(j, store(y, (j,), e))), {"y": torch.empty(40, dtype=I64)})


def test_minimum_and_maximum_of_indices() -> None:
    x, y, j = tensor("x", 30), tensor("y", 50), axis("j", 50)
    clamped = minimum(maximum(j.index() - 10, as_index(0)), as_index(29))
    check(kernel("f", [x], [y], lanes(j, store(y, (j,), load(x, clamped)))), {"x": sample(30), "y": torch.empty(50)})


def test_a_value_of_no_lanes_is_computed_once_and_broadcast() -> None:
    x, s, y = tensor("x", 9, 20), tensor("s", 9), tensor("y", 9, 20)
    i, j = axis("i", 9), axis("j", 20)
    out = op("mul", load(x, i, j), op("exp", load(s, i)))
    k = kernel("f", [x, s], [y], parallel(i, lanes(j, store(y, (i, j), out))))
    check(k, {"x": sample(9, 20), "s": sample(9), "y": torch.empty(9, 20)})


def test_updating_in_place() -> None:
    x, j = tensor("x", 70), axis("j", 70)
    check(kernel("f", [x], [x], lanes(j, store(x, (j,), op("add", load(x, j), 1.0)))), {"x": sample(70)})


def test_a_load_after_a_store_sees_what_was_stored() -> None:
    x, y, z, j = tensor("x", 40), tensor("y", 40), tensor("z", 40), axis("j", 40)
    k = kernel(
        "f", [x, y], [y, z],
        lanes(
            j,
            store(z, (j,), op("exp", load(y, j))),
            store(y, (j,), op("add", load(x, j), 1.0)),
            store(z, (j,), op("add", op("exp", load(y, j)), load(z, j))),
        ),
    )  # fmt: skip
    k = kernel("f", [x, y, z], [y, z], *k.body)
    check(k, {"x": sample(40), "y": sample(40), "z": sample(40)})


# -- masks -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_padding_reads_only_where_the_mask_holds(dtype: torch.dtype) -> None:
    x, y, j = tensor("x", 20, dtype=dtype), tensor("y", 53, dtype=dtype), axis("j", 53)
    fill = True if dtype == torch.bool else 1.5 if dtype.is_floating_point else 1
    inside = op("logical_and", op("ge", IndexValue(j.index()), 16), op("lt", IndexValue(j.index()), 36))
    k = kernel("pad", [x], [y], lanes(j, store(y, (j,), load(x, j.index() - 16, mask=inside, other=fill))))
    check(k, {"x": sample(20, dtype=dtype), "y": torch.empty(53, dtype=dtype)})


def test_a_mask_of_no_lanes_guards_whole_vectors() -> None:
    x, y = tensor("x", 3, 20), tensor("y", 9, 20)
    i, j = axis("i", 9), axis("j", 20)
    inside = op("lt", IndexValue(i.index()), 3)
    k = kernel("pad", [x], [y], parallel(i, lanes(j, store(y, (i, j), load(x, i, j, mask=inside, other=-math.inf)))))
    check(k, {"x": sample(3, 20), "y": torch.empty(9, 20)})


def test_a_single_element_under_a_mask_of_lanes() -> None:
    x, y, j = tensor("x", 1), tensor("y", 33), axis("j", 33)
    first = op("eq", IndexValue(j.index()), 0)
    k = kernel("f", [x], [y], lanes(j, store(y, (j,), load(x, 0, mask=first, other=0.0))))
    check(k, {"x": sample(1), "y": torch.empty(33)})


def test_strided_and_gathered_loads_under_a_mask() -> None:
    x, y, j = tensor("x", 20, 3), tensor("y", 2, 53), axis("j", 53)
    inside = op("lt", IndexValue(j.index()), 20)
    k = kernel(
        "f", [x], [y],
        lanes(
            j,
            store(y, (0, j), load(x, j, 1, mask=inside, other=2.0)),
            store(y, (1, j), load(x, j.index() // 2, j.index() % 3, mask=inside, other=3.0)),
        ),
    )  # fmt: skip
    check(k, {"x": sample(20, 3), "y": torch.empty(2, 53)})


# -- element types -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    k = elementwise(target, (source,), "cast")
    check(k, {"a": sample(39, dtype=source), "y": torch.empty(39, dtype=target)}, {"s0": 39})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
def test_comparison_and_selection(dtype: torch.dtype) -> None:
    a, b, y, j = (
        tensor("a", S0, dtype=dtype),
        tensor("b", S0, dtype=dtype),
        tensor("y", S0, dtype=dtype),
        axis("j", S0),
    )
    larger = Op("where", (op("gt", load(a, j), load(b, j)), load(a, j), load(b, j)), dtype)
    k = kernel("f", [a, b], [y], lanes(j, store(y, (j,), larger)))
    check(
        k,
        {"a": sample(70, dtype=dtype), "b": sample(70, dtype=dtype).flip(0), "y": torch.empty(70, dtype=dtype)},
        {"s0": 70},
    )


@pytest.mark.parametrize(
    "value, dtype",
    [
        (0.1, torch.float32), (1e-45, torch.float32), (3.4e38, torch.float32), (-0.0, torch.float32),
        (math.inf, torch.float32), (-math.inf, torch.float64), (math.nan, torch.float32),
        (0.1, torch.float64), (7, torch.float32), (0.1, torch.bfloat16), (65504.0, torch.float16),
        (True, torch.bool), (True, torch.int64), (-(1 << 63), torch.int64),
        ((1 << 63) - 1, torch.int64), (255, torch.uint8), (-128, torch.int8), (2**31 - 1, torch.int32),
    ],
    ids=str,
)  # fmt: skip
def test_constants_are_exact(value: bool | int | float, dtype: torch.dtype) -> None:
    y, j = tensor("y", 20, dtype=dtype), axis("j", 20)
    out = torch.empty(20, dtype=dtype)
    assert run(kernel("f", [], [y], lanes(j, store(y, (j,), Const(value, dtype)))), {"y": out}) == 0
    expected = torch.full((20,), value, dtype=dtype)
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


# -- random numbers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind, dtype",
    [("rand", torch.float32), ("rand", torch.float64), ("rand", torch.bfloat16), ("randn", torch.float32),
     ("randint64", torch.int64)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("count", [20, 33])
def test_random_numbers_depend_on_seed_and_element_alone(kind: str, dtype: torch.dtype, count: int) -> None:
    seeds, y = tensor("seeds", 3, dtype=I64), tensor("y", 3, count, dtype=dtype)
    i, j = axis("i", 3), axis("j", count)
    bounds = (Const(-5, I64), Const(7, I64)) if kind == "randint64" else ()
    draw = Random(kind, load(seeds, i), i.index() * count + j.index(), dtype, bounds)
    k = kernel("draw", [seeds], [y], parallel(i, lanes(j, store(y, (i, j), draw))))
    check(k, {"seeds": torch.tensor([1, -7, 1 << 40]), "y": torch.empty(3, count, dtype=dtype)})


# -- indices read at run time ------------------------------------------------------------------------------
def test_embedding_reads_rows_and_wraps_negative_indices() -> None:
    idx = torch.tensor([3, -1, 0, -100, 99, 50])
    check(embedding(S0, 70, 100), {"table": sample(100, 70), "idx": idx, "y": torch.empty(6, 70)}, {"s0": 6})


@pytest.mark.parametrize("bad", [100, -101, 1 << 40])
def test_an_index_out_of_range_is_reported_and_nothing_is_read_there(bad: int) -> None:
    idx = torch.tensor([3, bad, 5])
    status = run(embedding(S0, 70, 100), {"table": sample(100, 70), "idx": idx, "y": torch.empty(3, 70)}, {"s0": 3})
    assert status == 1


@pytest.mark.parametrize("rows", [0, 3])
def test_any_index_into_nothing_is_out_of_range(rows: int) -> None:
    n, m = size("n", 0), size("m", 0)
    table, idx, y = tensor("table", n, 8), tensor("idx", m, dtype=I64), tensor("y", m, 8)
    i, j = axis("i", m), axis("j", 8)
    at = Indirect(Checked(load(idx, i), n), n).index()
    k = kernel("take", [table, idx], [y], parallel(i, lanes(j, store(y, (i, j), load(table, at, j)))))
    tensors = {"table": torch.empty(0, 8), "idx": torch.zeros(rows, dtype=I64), "y": torch.empty(rows, 8)}
    assert run(k, tensors, {"n": 0, "m": rows}) == (1 if rows else 0)


def test_indices_along_the_lanes_gather() -> None:
    x, idx, y, j = tensor("x", 50), tensor("idx", 40, dtype=I64), tensor("y", 40), axis("j", 40)
    at = Indirect(Checked(load(idx, j), as_index(50)), as_index(50)).index()
    k = kernel("take", [x, idx], [y], lanes(j, store(y, (j,), load(x, at))))
    check(k, {"x": sample(50), "idx": torch.arange(-20, 20), "y": torch.empty(40)})


def test_a_check_under_a_mask_passes_where_the_mask_is_false() -> None:
    x, idx, y, j = tensor("x", 5), tensor("idx", 40, dtype=I64), tensor("y", 40), axis("j", 40)
    valid = op("ge", load(idx, j), 0)
    at = Indirect(Checked(load(idx, j), as_index(5), valid), as_index(5)).index()
    k = kernel("take", [x, idx], [y], lanes(j, store(y, (j,), load(x, at, mask=valid, other=-1.0))))
    check(
        k, {"x": sample(5), "idx": torch.arange(40) % 5 * (torch.arange(40) % 3 - 1) * 50 // 50, "y": torch.empty(40)}
    )


@pytest.mark.parametrize("along", ["i", "j"])
def test_scatter_add_hits_elements_several_times(along: str) -> None:
    idx = torch.randint(-5, 5, (33,), generator=torch.Generator().manual_seed(1))
    check(scatter_add(33, 19, 5, along=along), {"table": sample(5, 19), "idx": idx, "src": sample(33, 19)})


@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("atomic", [False, True])
def test_combining_stores(combine: str, dtype: torch.dtype, atomic: bool) -> None:
    x, y, j = tensor("x", 37, dtype=dtype), tensor("y", 37, dtype=dtype), axis("j", 37)
    k = kernel("f", [x], [y], lanes(j, store(y, (j,), load(x, j), combine=combine, atomic=atomic)))
    check(k, {"x": sample(37, dtype=dtype), "y": sample(37, dtype=dtype).flip(0)})


# -- loops -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_nested_parallel_loops_share_one_range(threads: int) -> None:
    x, y = tensor("x", 5, 7, S0), tensor("y", 7, 5, S0)
    i, k, j = axis("i", 7), axis("k", 5), axis("j", S0)
    tree = parallel(i, parallel(k, lanes(j, store(y, (i, k, j), load(x, k, i, j))), grain=10_000), grain=50_000)
    check(kernel("permute", [x], [y], tree), {"x": sample(5, 7, 20), "y": torch.empty(7, 5, 20)}, {"s0": 20}, threads)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_loops_that_run_zero_times(shape: tuple[int, int]) -> None:
    n, m = size("n", 0), size("m", 0)
    x, s, y = tensor("x", 2, n, m), tensor("s", n), tensor("y", 2, n, m)
    k, i, j = axis("k", 2), axis("i", n), axis("j", m)
    out = op("mul", load(x, k, i, j), op("exp", load(s, i)))
    tree = parallel(k, parallel(i, lanes(j, store(y, (k, i, j), out)), grain=10**6), grain=10**6)
    tensors = {"x": torch.empty(2, *shape), "s": sample(shape[0]), "y": torch.empty(2, *shape)}
    check(kernel("f", [x, s], [y], tree), tensors, {"n": shape[0], "m": shape[1]}, threads=2)


def test_a_load_is_not_moved_out_of_a_loop_that_may_not_run() -> None:
    n = size("n", 0)
    x, y = tensor("x", 3, n), tensor("y", 3, n)
    i, j = axis("i", 3), axis("j", n)
    k = kernel("f", [x], [y], serial(i, lanes(j, store(y, (i, j), load(x, i, 0)))))
    assert run(k, {"x": torch.empty(3, 0), "y": torch.empty(3, 0)}, {"n": 0}) == 0


def test_named_values_are_computed_where_they_belong() -> None:
    x, y = tensor("x", 6, 40), tensor("y", 6, 40)
    i, j = axis("i", 6), axis("j", 40)
    scale, shifted = ref("scale", i), ref("shifted", i, j)
    k = kernel(
        "f", [x], [y],
        parallel(
            i,
            Let(scale, op("exp", load(x, i, 0))),
            lanes(
                j,
                Let(shifted, op("sub", load(x, i, j), scale)),
                store(y, (i, j), op("mul", shifted, shifted)),
            ),
        ),
    )  # fmt: skip
    check(k, {"x": sample(6, 40), "y": torch.empty(6, 40)})


def test_names_that_cpp_does_not_allow() -> None:
    x, y, j = tensor("x@1", 20), tensor("int", 20), axis("2", 20)
    check(
        kernel("for", [x], [y], lanes(j, store(y, (j,), cast(load(x, j), F32)))),
        {"x@1": sample(20), "int": torch.empty(20)},
    )
