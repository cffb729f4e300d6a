"""The text of typical kernels: read `tests/golden/cpp` to see what users get."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from gyrator.codegen.cpp import print_kernel
from gyrator.errors import InternalCheckError, UnsupportedInput
from gyrator.ir.check import check_kernel
from gyrator.ir.expr import Checked
from gyrator.ir.index import Indirect, as_index
from gyrator.ir.tree import Carry, Kernel, Param
from gyrator.origin import Origin
from tests.cpu.codegen import kernels
from tests.cpu.codegen.harness import axis, cast, kernel, lanes, load, op, parallel, ref, serial, size, store, tensor

S0, S1 = size("s0"), size("s1")

TYPICAL: dict[str, Kernel] = {
    "softmax": kernels.softmax(4096, 1024),
    "softmax_dynamic": kernels.softmax(S0, S1),
    "layer_norm": kernels.layer_norm(4096, 768),
    "gelu_bias_bf16": kernels.gelu_bias(4096, 3072),
    "column_sum": kernels.column_sum(4096, S0),
    "full_sum": kernels.full_sum(S0),
    "cumsum": kernels.cumsum(512, 768),
    "argmax": kernels.argmax(512, 1000),
    "embedding": kernels.embedding(S0, 768, 50257),
    "scatter_add": kernels.scatter_add(S0, 768, 50257),
    "transpose_add": kernels.tiled_transpose_add(8192, 8192),
}


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_kernels(name: str, golden: Callable[[str, str], None]) -> None:
    check_kernel(TYPICAL[name])
    golden(f"cpp/{name}.cpp", print_kernel(TYPICAL[name]).text)


@pytest.mark.parametrize("name", TYPICAL)
def test_lines_fit_the_page(name: str) -> None:
    assert max(map(len, print_kernel(TYPICAL[name]).text.splitlines())) <= 110


def test_printing_twice_gives_the_same_text() -> None:
    assert print_kernel(kernels.softmax(S0, S1)) == print_kernel(kernels.softmax(S0, S1))


def test_arguments_are_tensors_then_sizes_then_threads() -> None:
    signature = re.search(r"softmax\w*\(([^)]*)\) \{", print_kernel(kernels.softmax(S0, S1)).text)
    assert signature is not None
    assert re.findall(r"(\w+)(?:,|$)", signature[1]) == ["x", "y", "s0", "s1", "threads"]


def test_checks_are_numbered_in_the_order_of_their_text() -> None:
    printed = print_kernel(kernels.embedding(S0, 768, 50257))
    (check,) = printed.checks
    assert "gy::check_index(idx_0, 50257, status, 1)" in printed.text
    assert repr(check) == "checked(idx[i], 50257)"


@pytest.mark.parametrize(("width", "bits"), [(1 << 28, 32), (0x1FFFC000, 32), (0x1FFFC001, 64)])
def test_offsets_have_32_bits_where_no_sum_of_places_needs_more(width: int, bits: int) -> None:
    """The last element of a table of 4 rows of 2**29 - 2**14 has position 2**31 - 2**16 - 1."""
    table, at, y = tensor("table", 4, width), tensor("at", 64, dtype=torch.int32), tensor("y", 64)
    i, j = axis("i", 4), axis("j", 16)
    place = load(at, i.index() * 16 + j.index())
    row, column = (Indirect(cast(Checked(place, as_index(n)), torch.int64), as_index(n)).index() for n in table.shape)
    body = store(y, (i.index() * 16 + j.index(),), load(table, row, column))
    text = print_kernel(kernel("far", [table, at], [y], serial(i, lanes(j, body)))).text
    assert f"int{bits}_t({width})" in text and text.count("gy::check_index(lanes, at_0, ") == 2


def test_parameters_that_share_memory_are_not_restricted() -> None:
    k = kernels.gelu_bias(8, 16)
    x, b, y = k.params
    shared = Kernel(k.name, (Param(x.value, True, False, "y"), b, Param(y.value, False, True, "x")), (), (), k.body)
    head = print_kernel(shared).text.split("{")[0]
    assert head.count("__restrict__") == 1


def test_what_lanes_share_is_computed_before_their_loop() -> None:
    x, s, y, i, j = tensor("x", 9, 20), tensor("s", 9), tensor("y", 9, 20), axis("i", 9), axis("j", 20)
    body = store(y, (i, j), op("mul", load(x, i, j), op("exp", load(s, i))))
    text = print_kernel(kernel("f", [x, s], [y], serial(i, lanes(j, body)))).text
    assert text.index("gy::exp") < text.index("gy::for_lanes")


def test_a_load_is_not_moved_over_a_store_to_its_value() -> None:
    x, y, i, j = tensor("x", 9), tensor("y", 9, 20), axis("i", 9), axis("j", 20)
    k = kernel(
        "f", [x], [x, y], serial(i, lanes(j, store(y, (i, j), load(x, i)), store(x, (i,), op("neg", load(x, i)))))
    )
    text = print_kernel(k).text
    assert text.index("gy::for_lanes") < text.index("gy::load<1>(x + i)")


def test_small_loops_start_no_threads() -> None:
    assert "omp" not in print_kernel(kernels.softmax(4, 16)).text
    assert "omp" in print_kernel(kernels.softmax(4096, 16)).text


def test_origins_are_comments_that_wrap() -> None:
    k = kernels.gelu_bias(8, 16)
    many = tuple(Origin("model.py", 3, "forward", f"aten.some_operator_{n}.default") for n in range(9))
    comments = [
        t for t in print_kernel(Kernel(k.name, k.params, (), (), k.body, many)).text.splitlines() if t[:2] == "//"
    ]
    assert len(comments) > 1
    assert all(len(line) <= 110 for line in comments)


def test_complex_elements_are_refused() -> None:
    x, y, j = tensor("x", 9, dtype=torch.complex64), tensor("y", 9, dtype=torch.complex64), axis("j", 9)
    with pytest.raises(UnsupportedInput, match="complex64"):
        print_kernel(kernel("f", [x], [y], lanes(j, store(y, (j,), load(x, j)))))


def test_a_carry_that_nothing_updates_is_refused() -> None:
    y, i, j = tensor("y", 9), axis("i", 9), axis("j", 20)
    total = ref("total", i)
    loop = lanes(j, store(y, (i,), op("neg", load(y, i))), carries=(Carry("t", "sum", (total,)),))
    with pytest.raises(InternalCheckError, match="nothing updates carry 't'"):
        print_kernel(kernel("f", [y], [y], parallel(i, loop, store(y, (i,), total))))


def test_unused_values_are_not_printed() -> None:
    """argmax gives the value as well, which nobody reads here."""
    assert ".value" not in print_kernel(kernels.argmax(9, 20)).text
