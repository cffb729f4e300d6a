"""Printed reductions and scans against the interpreter."""

from __future__ import annotations

import pytest
import torch

from gyrator.ir.expr import IndexValue
from gyrator.ir.index import as_index, minimum
from gyrator.ir.tree import Carry, Kernel, Update
from tests.cpu.codegen.harness import (
    F32,
    I64,
    axis,
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
)
from tests.cpu.codegen.kernels import argmax, column_sum, cumsum, full_sum, layer_norm, softmax
from tests.cpu.codegen.test_pointwise import sample

S0, S1 = size("s0"), size("s1")
SHAPES = [(1, 1), (3, 5), (4, 16), (2, 33), (5, 1000)]


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape: tuple[int, int]) -> None:
    check(softmax(*shape), {"x": sample(*shape) * 5, "y": torch.empty(shape)})


def test_softmax_of_any_size() -> None:
    k = softmax(S0, S1)
    for shape in [(2, 2), (3, 100), (2, 5000)]:
        check(k, {"x": sample(*shape), "y": torch.empty(shape)}, {"s0": shape[0], "s1": shape[1]}, threads=2)


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int]) -> None:
    w, b = sample(shape[1]), sample(shape[1]).flip(0)
    check(layer_norm(*shape), {"x": sample(*shape) + 10, "w": w, "b": b, "y": torch.empty(shape)})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_column_sum(shape: tuple[int, int], threads: int) -> None:
    check(column_sum(*shape), {"x": sample(*shape), "y": torch.empty(shape[1])}, threads=threads)


@pytest.mark.parametrize("count", [2, 15, 100, 100_003])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_full_sum_merges_the_parts_of_threads(count: int, threads: int) -> None:
    check(full_sum(S0), {"x": sample(count), "y": torch.empty(())}, {"s0": count}, threads)


def test_runs_repeat_bit_for_bit() -> None:
    x = sample(100_003)
    results = {run_sum(x).item() for _ in range(5)}
    assert len(results) == 1


def run_sum(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(())
    assert run(full_sum(S0), {"x": x, "y": y}, {"s0": len(x)}, threads=3) == 0
    return y


@pytest.mark.parametrize("shape", SHAPES)
def test_cumulative_sum(shape: tuple[int, int]) -> None:
    check(cumsum(*shape), {"x": sample(*shape), "y": torch.empty(shape)}, scale=10)


@pytest.mark.parametrize("shape", SHAPES)
def test_argmax(shape: tuple[int, int]) -> None:
    check(argmax(*shape), {"x": sample(*shape), "y": torch.empty(shape[0], dtype=I64)})


def test_argmax_takes_the_first_of_equals_and_nan_before_all() -> None:
    x = torch.zeros(3, 100)
    x[0, [40, 70]] = 1.0
    x[1, 77], x[1, 20] = torch.nan, torch.inf
    check(argmax(3, 100), {"x": x, "y": torch.empty(3, dtype=I64)})


# -- every kind, both ways ---------------------------------------------------------------------------------
INPUTS = {"any": torch.bool, "all": torch.bool, "prod": torch.float64}
SINGLE = ("sum", "prod", "max", "min", "any", "all")


def reduce_rows(kind: str, dtype: torch.dtype) -> Kernel:
    """y[i] = kind over j of x[i, j] with the lanes along j."""
    x, y, i, j = tensor("x", S0, S1, dtype=dtype), tensor("y", S0, dtype=dtype), axis("i", S0), axis("j", S1)
    r = ref("r", i, dtype=dtype)
    loop = lanes(j, Update("r", (load(x, i, j),)), carries=(Carry("r", kind, (r,)),), width=32)
    return kernel(kind, [x], [y], parallel(i, loop, store(y, (i,), r)))


def reduce_columns(kind: str, dtype: torch.dtype) -> Kernel:
    """y[j] = kind over i of x[i, j] with the lanes along j."""
    x, y, i, j = tensor("x", S0, S1, dtype=dtype), tensor("y", S1, dtype=dtype), axis("i", S0), axis("j", S1)
    r = ref("r", j, dtype=dtype)
    loop = serial(i, Update("r", (load(x, i, j),)), carries=(Carry("r", kind, (r,)),))
    return kernel(kind, [x], [y], lanes(j, loop, store(y, (j,), r)))


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (33, 32)])
def test_every_reduction_along_lanes_and_across_them(kind: str, shape: tuple[int, int]) -> None:
    dtype = INPUTS.get(kind, F32)
    x, sizes = sample(*shape, dtype=dtype), {"s0": shape[0], "s1": shape[1]}
    check(reduce_rows(kind, dtype), {"x": x, "y": torch.empty(shape[0], dtype=dtype)}, sizes)
    check(reduce_columns(kind, dtype), {"x": x, "y": torch.empty(shape[1], dtype=dtype)}, sizes)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reductions_of_other_types(kind: str, dtype: torch.dtype) -> None:
    x = sample(3, 70, dtype=dtype)
    check(reduce_rows(kind, dtype), {"x": x, "y": torch.empty(3, dtype=dtype)}, {"s0": 3, "s1": 70})


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_extremes_with_positions_across_lanes(kind: str) -> None:
    x, v, y = tensor("x", S0, S1), tensor("v", S1), tensor("y", S1, dtype=I64)
    i, j = axis("i", S0), axis("j", S1)
    value, index = ref("value", j), ref("index", j, dtype=I64)
    carry = Carry("best", kind, (value, index))
    loop = serial(i, Update("best", (load(x, i, j), IndexValue(i.index()))), carries=(carry,))
    k = kernel(kind, [x], [v, y], lanes(j, loop, store(v, (j,), value), store(y, (j,), index)))
    check(k, {"x": sample(9, 37), "v": torch.empty(37), "y": torch.empty(37, dtype=I64)}, {"s0": 9, "s1": 37})


@pytest.mark.parametrize("along", ["lanes", "columns"])
def test_welford_gives_mean_deviations_and_count(along: str) -> None:
    n, m = (3, 70) if along == "lanes" else (70, 3)
    x, y = tensor("x", n, m), tensor("y", 3, 3)
    i, j = axis("i", n), axis("j", m)
    kept = i if along == "lanes" else j
    refs = tuple(ref(name, kept) for name in ("mean", "m2", "count"))
    stores = tuple(store(y, (k, kept), r) for k, r in enumerate(refs))
    carry, update = Carry("w", "welford", refs), Update("w", (load(x, i, j),))
    tree = (
        parallel(i, lanes(j, update, carries=(carry,)), *stores)
        if along == "lanes"
        else lanes(j, serial(i, update, carries=(carry,)), *stores)
    )
    check(kernel("welford", [x], [y], tree), {"x": sample(n, m), "y": torch.empty(3, 3)})


def test_softmax_in_one_pass() -> None:
    x, y, z, i, j = tensor("x", 5, 333), tensor("y", 5), tensor("z", 5), axis("i", 5), axis("j", 333)
    top, total = ref("top", i), ref("total", i)
    loop = lanes(j, Update("s", (load(x, i, j),)), carries=(Carry("s", "softmax", (top, total)),))
    k = kernel("stats", [x], [y, z], parallel(i, loop, store(y, (i,), top), store(z, (i,), total)))
    check(k, {"x": sample(5, 333) * 10, "y": torch.empty(5), "z": torch.empty(5)})


# -- scans -------------------------------------------------------------------------------------------------
def test_a_scan_across_lanes_is_a_vector_per_step() -> None:
    x, y, i, j = tensor("x", 20, 37), tensor("y", 20, 37), axis("i", 20), axis("j", 37)
    running = ref("running", i, j)
    loop = serial(
        i, Update("s", (load(x, i, j),), (running,)), store(y, (i, j), running), carries=(Carry("s", "sum", (None,)),)
    )
    check(kernel("cumsum", [x], [y], lanes(j, loop)), {"x": sample(20, 37), "y": torch.empty(20, 37)})


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans_along_lanes(kind: str) -> None:
    x, y, i, j = tensor("x", 3, 50), tensor("y", 3, 50), axis("i", 3), axis("j", 50)
    running = ref("running", i, j)
    body = (Update("s", (load(x, i, j),), (running,)), store(y, (i, j), running))
    loop = lanes(j, *body, carries=(Carry("s", kind, (None,)),))
    check(kernel("scan", [x], [y], parallel(i, loop)), {"x": sample(3, 50), "y": torch.empty(3, 50)})


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_cumulative_extremes_with_positions(kind: str) -> None:
    x, v, p = tensor("x", 4, 50), tensor("v", 4, 50), tensor("p", 4, 50, dtype=I64)
    i, j = axis("i", 4), axis("j", 50)
    value, index = ref("value", i, j), ref("index", i, j, dtype=I64)
    body = (
        Update("s", (load(x, i, j), IndexValue(j.index())), (value, index)),
        store(v, (i, j), value),
        store(p, (i, j), index),
    )
    loop = lanes(j, *body, carries=(Carry("s", kind, (None, None)),))
    data = torch.randint(0, 5, (4, 50), generator=torch.Generator().manual_seed(3)).float()
    data[2, 20] = torch.nan
    check(
        kernel("cummax", [x], [v, p], parallel(i, loop)),
        {"x": data, "v": torch.empty(4, 50), "p": torch.empty(4, 50, dtype=I64)},
    )


# -- nests -------------------------------------------------------------------------------------------------
def test_a_carry_of_an_outer_loop_fed_by_lanes_inside() -> None:
    x, y, i, k, j = tensor("x", 4, 5, 37), tensor("y", 4), axis("i", 4), axis("k", 5), axis("j", 37)
    total = ref("total", i)
    loop = serial(k, lanes(j, Update("t", (load(x, i, k, j),))), carries=(Carry("t", "sum", (total,)),))
    tree = parallel(i, loop, store(y, (i,), total))
    check(kernel("f", [x], [y], tree), {"x": sample(4, 5, 37), "y": torch.empty(4)})


@pytest.mark.parametrize("threads", [1, 3])
def test_a_carry_of_a_parallel_loop(threads: int) -> None:
    x, y, i, j = tensor("x", S0, S1), tensor("y"), axis("i", S0), axis("j", S1)
    total = ref("total")
    loop = parallel(i, lanes(j, Update("t", (load(x, i, j),))), carries=(Carry("t", "sum", (total,)),), grain=20_000)
    check(
        kernel("f", [x], [y], loop, store(y, (), op("div", total, 2.0))),
        {"x": sample(30, 37), "y": torch.empty(())}, {"s0": 30, "s1": 37}, threads,
    )  # fmt: skip


def test_scalar_arguments_count_once_per_lane() -> None:
    x, y, i, j = tensor("x", 3), tensor("y", 3), axis("i", 3), axis("j", 21)
    total = ref("total", i)
    loop = lanes(j, Update("t", (load(x, i),)), carries=(Carry("t", "sum", (total,)),))
    check(kernel("f", [x], [y], parallel(i, loop, store(y, (i,), total))), {"x": sample(3), "y": torch.empty(3)})


def test_partial_sums_of_columns_in_a_scratch_row() -> None:
    """Rows outside, so that memory is read in order; the row of sums stays in the cache."""
    x, y, acc = tensor("x", 50, 37), tensor("y", 37), tensor("acc", 37)
    r, j = axis("r", 50), axis("j", 37)
    one = axis("p", 1)
    k = kernel(
        "f", [x], [y],
        parallel(
            one,
            lanes(j, store(acc, (j,), op("mul", load(x, 0, j), 0.0))),
            serial(r, lanes(j, store(acc, (j,), load(x, r, j), combine="add"))),
            lanes(j, store(y, (j,), load(acc, j))),
        ),
        scratch=[acc],
    )  # fmt: skip
    check(k, {"x": sample(50, 37), "y": torch.empty(37)})


def test_extent_that_depends_on_an_outer_loop() -> None:
    """Blocks of 16 of a row of any length: the last one is shorter."""
    x, y = tensor("x", S0), tensor("y", S0)
    b = axis("b", (S0 + 15) // 16)
    start = b.index() * 16
    t = axis("t", minimum(as_index(16), S0 - start))
    k = kernel(
        "f", [x], [y], parallel(b, lanes(t, store(y, (start + t.index(),), op("neg", load(x, start + t.index())))))
    )
    for n in (2, 16, 33):
        out = torch.empty(n)
        assert run(k, {"x": sample(n), "y": out}, {"s0": n}) == 0
        assert torch.equal(out, -sample(n))
