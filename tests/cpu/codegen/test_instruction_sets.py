"""The same texts are right on every instruction set, with whole and with partial vectors."""

from __future__ import annotations

import pytest
import torch

from gyrator.codegen.cpp import print_kernel
from gyrator.runtime.toolchain import ISA_FLAGS, cpu_isa
from tests.cpu.codegen.harness import BF16, I64, check
from tests.cpu.codegen.kernels import (
    argmax,
    column_sum,
    embedding,
    full_sum,
    gelu_bias,
    layer_norm,
    repeated,
    runs,
    scatter_add,
    softmax,
    strided,
    turned,
)
from tests.cpu.codegen.test_pointwise import S0, sample

_ORDER = list(ISA_FLAGS)
_HERE = _ORDER[: _ORDER.index(cpu_isa()) + 1]


@pytest.mark.parametrize("isa", _HERE)
@pytest.mark.parametrize("shape", [(3, 64), (5, 37)])
def test_typical_kernels(isa: str, shape: tuple[int, int]) -> None:
    x, y = sample(*shape), torch.empty(shape)
    row, column = sample(shape[1]), torch.empty(shape[0])
    half, idx = x.to(BF16), torch.tensor([1, -2, 3, 0, 2])[: shape[0]]
    check(softmax(*shape), {"x": x, "y": y}, isa=isa)
    check(layer_norm(*shape), {"x": x, "w": row, "b": row.flip(0), "y": y}, isa=isa)
    check(gelu_bias(*shape), {"x": half, "b": row.to(BF16), "y": y.to(BF16)}, isa=isa)
    check(column_sum(*shape), {"x": x, "y": row}, isa=isa)
    check(full_sum(S0), {"x": x.flatten(), "y": torch.empty(())}, {"s0": x.numel()}, isa=isa)
    check(argmax(*shape), {"x": x, "y": column.to(I64)}, isa=isa)
    check(embedding(S0, shape[1], 5), {"table": sample(5, shape[1]), "idx": idx, "y": y}, {"s0": shape[0]}, isa=isa)
    for along in "ij":
        table = sample(5, shape[1])
        check(scatter_add(*shape, 5, along=along), {"table": table, "idx": idx, "src": x}, isa=isa)


@pytest.mark.parametrize("isa", _HERE)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_neighbours_that_read_the_same_element(isa: str, dtype: torch.dtype) -> None:
    for times, columns in ((2, 64), (2, 37), (4, 48), (8, 23), (16, 40), (3, 21), (32, 70)):
        for step in (1, times, times + 1):
            x = (torch.arange(3 * (-(-columns // times) - 1) * step + 3).view(3, -1) % 11).to(dtype)
            y, z = torch.empty(3, columns, dtype=dtype), torch.zeros(columns, dtype=dtype)
            check(repeated(3, columns, times, step, dtype), {"x": x, "y": y, "z": z}, isa=isa)


@pytest.mark.parametrize("isa", [isa for isa in _HERE if "_" not in isa])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
def test_runs_of_a_few_elements_some_of_them_masked(isa: str, dtype: torch.dtype) -> None:
    for columns, length, apart, start, end in (
        (64, 8, 32, 3, 50),
        (56, 8, 9, 0, 16),
        (41, 4, 6, 17, 99),
        (48, 16, 20, 9, 9),
    ):
        x = (torch.arange(-(-columns // length) * apart + length) % 29).to(dtype)
        y = torch.zeros(columns, dtype=dtype)
        check(runs(columns, length, apart, start, end, dtype), {"x": x, "y": y, "z": y.clone()}, isa=isa)


@pytest.mark.parametrize("isa", [isa for isa in _HERE if "_" not in isa])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_lanes_that_are_a_few_elements_apart(isa: str, dtype: torch.dtype) -> None:
    for columns in (48, 37):
        steps = range(2, 10)
        x = (torch.arange(columns * 9 + 2) % 23).to(dtype)
        y = {f"y{step}": torch.zeros(columns, dtype=dtype) for step in steps}
        z = {f"z{step}": torch.zeros((columns - 1) * step + 1, dtype=dtype) for step in steps}
        check(strided(columns, steps, dtype), {"x": x, **y, **z}, isa=isa)


@pytest.mark.parametrize("isa", [isa for isa in _HERE if "_" not in isa])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float64])
def test_lanes_that_lie_beside_each_other_in_most_places(isa: str, dtype: torch.dtype) -> None:
    for columns, shift in ((64, 5), (37, 20), (30, 15), (17, 16), (9, 4)):
        x = (torch.arange(columns) * 7 % 31).to(dtype)
        check(turned(columns, shift, dtype), {"x": x, "y": torch.zeros(columns, dtype=dtype)}, isa=isa)


def test_neighbours_that_read_the_same_element_load_it_once() -> None:
    text = print_kernel(repeated(3, 64, 2, 1, torch.uint8)).text
    assert text.count("load_repeated<2, 1>") == 2
    assert "gather" not in text and "div_index" not in text and "mod_index" not in text


def test_runs_are_loads_and_positions_are_counted() -> None:
    text = print_kernel(runs(64, 8, 32, 3, 50, torch.float32)).text
    assert text.count("load_runs<8, 32>") == 2
    assert "gather" not in text and "first_lanes<16>(50 - j)" in text
