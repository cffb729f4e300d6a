"""Complex numbers: arithmetic on pairs of reals by nests, everything else by the library on the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator.lowering.graph import lower
from tests.pure.lowering.harness import check, lowered, run, symbols_of, trace

C64, C128 = torch.complex64, torch.complex128


def numbers(*shape: int, dtype: torch.dtype = C64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


INDEX = torch.tensor([2, 0, 1])
BY_NESTS: dict[str, Callable[[Tensor], Any]] = {
    "sums": lambda x: (x + x[0], x - 1, 2 - x, torch.add(x, x, alpha=3), torch.sub(x, x[1], alpha=2j)),
    "products": lambda x: (x * x[0], x * 2.5, x * 2j, x * torch.arange(5), x * x.real),
    "quotients": lambda x: (x / (x[0] + 3), x / 2, 2 / x, x / (1 + 2j), x.reciprocal()),
    "parts": lambda x: (x.real * 2, x.imag + x.real, torch.view_as_real(x) * 3, x.conj().imag + 1),
    "conjugates": lambda x: (x.conj() * x, torch.conj_physical(x), -x, x.conj().clone()),
    "polar": lambda x: (x.abs(), x.angle(), torch.polar(x.abs(), x.angle()), x.exp()),
    "made": lambda x: (torch.complex(x.real, x.imag * 2), torch.view_as_complex(torch.stack([x.imag, x.real], -1))),
    "filled": lambda x: (torch.full((3,), 1 + 2j), torch.ones_like(x) * x, torch.zeros_like(x)),
    "copied": lambda x: [torch.ops.aten.copy(x, y) for y in (x.conj(), x.real, 3, 1 + 2j)],
    "types": lambda x: (x.to(C128) * 2, x.real.to(C64) * x, x.to(C128).to(C64)),
    "compared": lambda x: (x == x.conj(), x != x, x == 0, x.eq(1j), x.to(torch.bool)),
    "chosen": lambda x: (torch.where(x.real > 0, x, 0), torch.where(x.real > 0, x, -x)),
    "reduced": lambda x: (x.sum(), x.sum(0), x.mean(-1, keepdim=True), x.sum((0, 1))),
    "joined": lambda x: (torch.cat([x, x.conj()], -1), torch.stack([x, x]), x.flip(1), x.roll(1, 0)),
    "viewed": lambda x: (x.t() * 2, x[1:, ::2] * 1j, x.reshape(-1) + 1, x.expand(2, 4, 5) * 2),
    "indexed": lambda x: (x[INDEX], x[:, INDEX], x.index_select(-1, INDEX), x.index_put((INDEX,), x[:3] * 2)),
    "replaced": lambda x: (x.select_scatter(x[0], 0, 2), x.slice_scatter(x[:, :2], -1, 1, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("name", BY_NESTS)
def test_computed_by_nests(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(BY_NESTS[name], numbers(4, 5, dtype=dtype), dynamic=dynamic)


@pytest.mark.parametrize(
    "x",
    [numbers(5, 4).t(), numbers(4, 10)[:, ::2], numbers(25)[5:].view(4, 5), numbers(1, 5).expand(4, 5), numbers(0, 5)],
    ids=["transposed", "gaps", "offset", "expanded", "empty"],
)
def test_numbers_that_lie_otherwise(x: Tensor) -> None:
    check(lambda x: (x * 2j, x.sum(0), x[:, 1:], torch.view_as_real(x)), x)


def test_quotients_by_zero_infinity_and_what_has_no_square_are_eagers() -> None:
    y = torch.tensor([0, complex(math.inf, 1), complex(1, -math.inf), 2e38 + 1e38j, 1e-38 - 2e-38j, math.nan])

    def quotients(y: Tensor) -> tuple[Tensor, ...]:
        return y.reciprocal(), (3 + 4j) / y, y / y.flip(0), y[3:] / 0

    for made, wanted in zip(run(lowered(quotients, y), (y,)).outputs, quotients(y), strict=True):
        torch.testing.assert_close(torch.view_as_real(made), torch.view_as_real(wanted), equal_nan=True)


def test_the_exponential_of_a_real_number_is_one() -> None:
    x = torch.tensor([complex(100, 0.0), complex(100, -0.0), complex(math.inf, 0), complex(-math.inf, 0), math.nan, 3])
    for y in (x, torch.view_as_complex(torch.view_as_real(x).double() * 9)):
        made, wanted = (torch.view_as_real(z) for z in (run(lowered(torch.exp, y), (y,)).outputs[0], y.exp()))
        torch.testing.assert_close(made, wanted, equal_nan=True)
        assert made[:2].signbit().tolist() == wanted[:2].signbit().tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_what_joins_or_replaces_numbers_may_be_of_another_type(dtype: torch.dtype) -> None:
    x, row = numbers(4, 5), torch.tensor([0, 1, 7, 1, 0]).to(dtype)
    joined = ["aten.cat.default"]
    check(lambda x, y: (torch.cat([y, x[0]]), torch.stack([x[0], y]), torch.cat([x, y[None]])), x, row, externs=joined)
    replaced = ["aten.select_scatter.default", "aten.slice_scatter.default"]
    check(lambda x, y: (x.select_scatter(y, 0, 2), x.slice_scatter(y[None], 0, 1, 2)), x, row, externs=replaced)


def test_comparisons_are_in_the_type_that_both_promote_to() -> None:
    check(lambda n: (n == 1.5 + 0j, n == 1 + 0j, n != 1j), torch.tensor([1, -2, 0]))
    check(lambda x, y: (x == y, y != x), torch.tensor([0.1 + 0j, 0.25], dtype=C64), torch.tensor(0.1 + 0j, dtype=C128))


def test_exponentials_on_the_real_line_are_those_of_reals() -> None:
    x = torch.tensor([complex(math.inf, 0), complex(math.nan, 0), complex(1, -0.0), complex(-1, 2)])
    (made,) = run(lowered(torch.exp, x), (x,)).outputs
    torch.testing.assert_close(torch.view_as_real(made), torch.view_as_real(x.exp()), equal_nan=True)


def test_a_number_without_dimensions() -> None:
    check(lambda x: (x * 2j, x.conj() + 1, x.abs()), numbers())


def test_reals_that_are_no_pairs_in_memory_are_copied() -> None:
    rows = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    check(lambda x: torch.view_as_complex((x * 1).t().contiguous()) * 2, rows)
    check(lambda x: torch.view_as_complex(x.reshape(5, 2)[:, :1].expand(5, 2).contiguous()) * 2, rows)


def test_the_library_works_on_the_memory_of_pairs() -> None:
    low = check(lambda x: torch.fft.fft(x * 2).abs(), numbers(3, 8), externs=["aten._fft_c2c.default"])
    scaled, transformed, _ = low.program.nodes
    assert [str(n) for n in scaled.out[0].shape] == ["3", "8", "2"]
    (view,) = [a for a in transformed.args if hasattr(a, "value")]
    assert (view.value, view.dtype) == (scaled.out[0], C64)
    check(lambda x: x @ x.mH, numbers(3, 4), externs=["aten.mm.default"])
    check(lambda x: x.sqrt() * 2, numbers(3, 4), externs=["aten.sqrt.default"])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_sums_as_reals_are_the_librarys_which_drops_imaginary_parts() -> None:
    check(lambda x: x.sum(1, dtype=torch.float32), numbers(3, 4), externs=["aten.sum.dim_IntList"])
    check(lambda x: x.mean(0, dtype=torch.float64), numbers(3, 4), externs=["aten.mean.dim"])


def test_a_chain_is_one_value_after_fusion_of_index_maps() -> None:
    low = lowered(lambda x: torch.view_as_real(torch.view_as_complex(x)).flatten(), torch.randn(3, 2))
    assert not low.program.nodes


def test_new_contents_of_inputs_are_complex_to_the_interpreter() -> None:
    x = numbers(3, 4)
    graph = trace(lambda x: (x * 2j,), (x,))
    low = lower(graph, symbols=symbols_of(graph), updates=[(0, 0)])
    (new,) = run(low, (x,)).updates
    torch.testing.assert_close(new, x * 2j)
