"""Matrix products by the C++ template: values as close as the library's, what follows in the same kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from gyrator.runtime.toolchain import ISA_FLAGS, cpu_isa
from tests import experts
from tests.acceptance import assert_matches, assert_none, check, expect

SIZES = [(1, 33, 7), (59, 9, 70), (16, 17, 64), (30, 70, 513), (300, 200, 40)]
"""Rows, columns and length of the sums: below and above a panel, a tile and a block, with every kind of tail; in the
second panels of rows are longer than a vector."""

FAMILY = {"max_autotune": True, "gemm_backends": ["cpp"]}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Take the template wherever it can be; its sources are found in a folder of the test's own."""
    return {**FAMILY, "cache_dir": tmp_path, "check": "every"}


def sources(options: dict[str, Any]) -> str:
    """All C++ that was built."""
    return "\n".join(path.read_text() for path in options["cache_dir"].rglob("kernels.cpp"))


def wrappers(options: dict[str, Any]) -> str:
    """All programs that call kernels and the library."""
    return "\n".join(path.read_text() for path in options["cache_dir"].rglob("*.py"))


def layers(*args: Tensor) -> list[Tensor]:
    """``relu(x w' + b)`` for each three arguments."""
    return [torch.relu(linear(x, w, b)) for x, w, b in zip(args[::3], args[1::3], args[2::3], strict=True)]


def operands(dtype: torch.dtype, sizes: list[tuple[int, int, int]]) -> list[Tensor]:
    """Random arguments of `layers`, one layer for each size."""
    return [torch.randn(s, dtype=dtype) for m, n, k in sizes for s in ((m, k), (n, k), (n,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_layers_of_all_sizes_run_without_the_library(dtype: torch.dtype, options: dict[str, Any], backend: str) -> None:
    check(layers, operands(dtype, SIZES), backend=backend, options=options)
    assert "runtime.operator" not in wrappers(options)


@pytest.mark.parametrize(("isa", "dtype"), [("scalar", torch.float32), ("avx2", torch.bfloat16)], ids=str)
def test_older_instruction_sets(isa: str, dtype: torch.dtype, options: dict[str, Any], backend: str) -> None:
    check(layers, operands(dtype, SIZES[-2:]), backend=backend, options={**options, "cpu_isa": isa})


def test_bias_and_activation_read_the_sums_in_the_tile(options: dict[str, Any], backend: str) -> None:
    check(layers, operands(torch.float32, [(40, 48, 32)]), backend=backend, options=options)
    (kernel,) = [k for k in sources(options).split("extern") if "gy::Product" in k]
    body = kernel[kernel.index("gy::Tile ") :]
    assert body.index(".sum(") < body.index(".row(") < body.index("gy::add") < body.index("gy::maximum")


def views(x: Tensor, w: Tensor, y: Tensor) -> list[Tensor]:
    """Operands that lie transposed, with gaps, and as a broadcast row."""
    return [
        x.t() @ x,
        x[:, ::2] @ w[::2],
        x[3:9] @ w,
        x @ w.t().contiguous().t(),
        x[:1].expand(9, -1) @ w,
        y @ y.mT,
        x.t() @ x[:, :7],
    ]


def test_operands_of_any_strides(options: dict[str, Any], backend: str) -> None:
    check(views, (torch.randn(37, 50), torch.randn(50, 35), torch.randn(3, 17, 20)), backend=backend, options=options)


def after(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Epilogues: a residual and two results; heads split off and moved; a cast; scales of both parts."""
    y = x @ w
    heads = (x @ w).view(4, 8, 3, 20).transpose(1, 2).contiguous()
    return torch.tanh(y) + r, y * 2, heads, (x @ w).to(torch.bfloat16), torch.addmm(b, x, w, beta=0.5, alpha=2)


def test_epilogues(options: dict[str, Any], backend: str) -> None:
    args = (torch.randn(32, 40), torch.randn(40, 60), torch.randn(32, 60), torch.randn(32, 60))
    check(after, args, backend=backend, options=options)
    assert "runtime.operator" not in wrappers(options)


def test_a_number_of_rows_known_at_run_time(options: dict[str, Any], backend: str) -> None:
    compiled = torch.compile(layers, backend=backend, options=options, dynamic=True)
    w, b = torch.randn(50, 30), torch.randn(50)
    for rows in (9, 1, 2, 13, 14, 300, 523):
        x = torch.randn(rows, 30)
        torch.testing.assert_close(compiled(x, w, b), layers(x, w, b), rtol=1e-4, atol=1e-4)
    assert sources(options).count("gy::Product<") == 1, "one kernel for 9 and 300 rows alike; a single row is summed"


@pytest.mark.parametrize("isa", ["scalar", "auto"])
def test_sums_over_no_elements_are_zero(isa: str, options: dict[str, Any], backend: str) -> None:
    """As many as a run finds: none, in the second call."""

    def fn(x: Tensor, w: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        at = x[:, 0].gt(0).nonzero().squeeze(1)
        y, wide = x[at], q.mT[at]
        return y.t() @ w[at], y.bfloat16().t() @ y.bfloat16(), torch._int_mm(wide.t(), wide), y.t() @ wide.float()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(fn, backend=backend, options={**options, "cpu_isa": isa})
        for sign in (1, -1):
            args = torch.rand(40, 24) * sign, torch.randn(40, 35), torch.randint(-128, 128, (24, 40)).to(torch.int8)
            assert_none(expect(fn, args).mismatches(compiled))
    assert sources(options).count("gy::Product<") >= 3


def test_gradients(options: dict[str, Any], backend: str) -> None:
    args = [a.requires_grad_() for a in operands(torch.float32, [(24, 50, 30)])]
    check(layers, args, backend=backend, backward=True, options=options)


def test_two_threads_give_the_bits_of_one(options: dict[str, Any], backend: str) -> None:
    args = operands(torch.float32, [(200, 300, 100)])
    results = []
    for threads in (1, 2):
        torch._dynamo.reset()
        results.append(torch.compile(layers, backend=backend, options={**options, "threads": threads})(*args)[0])
    assert torch.equal(*results)


def integers(*args: Tensor) -> list[Tensor]:
    """Exact sums, and what they stand for, for each two operands and their scales."""
    found = []
    for x, w, s, b in zip(args[::4], args[1::4], args[2::4], args[3::4], strict=True):
        found += [torch._int_mm(x, w), torch.relu(torch._int_mm(x, w) * s * 0.01 + b).to(torch.bfloat16)]
    return found


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "auto"])
def test_integers_are_exact_and_scaled_in_the_tile(isa: str, options: dict[str, Any], backend: str) -> None:
    if isa != "auto" and [*ISA_FLAGS].index(isa) > [*ISA_FLAGS].index(cpu_isa()):
        pytest.skip(f"the processor has {cpu_isa()}")
    args: list[Tensor] = []
    for (m, n, k), turned in zip(SIZES, (False, True, True, False, True), strict=True):
        x, w = (torch.randint(-128, 128, size).to(torch.int8) for size in ((m, k), (k, n)))
        args += [x, w.t().contiguous().t() if turned else w, torch.rand(n), torch.randn(n)]
    check(integers, args, backend=backend, options={**options, "cpu_isa": isa})
    assert "runtime.operator" not in wrappers(options) and sources(options).count("gy::Product<int8_t") >= len(SIZES)


def by_bytes(*args: Tensor) -> list[Tensor]:
    """Products with weights of 8 bits on both sides, scaled before or after, and of 4 bits in groups of 8."""
    found = []
    for x, y, w, s in zip(args[::4], args[1::4], args[2::4], args[3::4], strict=True):
        wide = [part.to(x.dtype) for part in w[:4]]
        found += [torch.relu(x @ (wide[0] * s[:, None]).t()), (x @ wide[1].t()) * s, wide[2] @ x.t()]
        found.append(y.to(x.dtype) @ wide[3].t())
        k = w.shape[2] // 8 * 8
        both = torch.cat([x[:, :k], x[:, :k]], 1)
        for joined, part in ((torch.stack, w[4, :, :k]), (torch.cat, w[5, :, :k])):
            four = joined([part & 15, (part >> 4) & 15], -1).view(len(part), -1)
            scaled = ((four - 8).to(x.dtype).view(len(part), -1, 8) * s[:, None, None]).view(len(part), -1)
            found.append(both @ scaled.t())
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "auto"])
def test_operands_are_computed_from_bytes_where_they_are_read(
    isa: str, dtype: torch.dtype, options: dict[str, Any], backend: str
) -> None:
    if isa != "auto" and [*ISA_FLAGS].index(isa) > [*ISA_FLAGS].index(cpu_isa()):
        pytest.skip(f"the processor has {cpu_isa()}")
    args: list[Tensor] = []
    sizes = (2, 33, 17), (40, 70, 300), (300, 40, 90), (1, 33, 17)
    for (m, n, k), turned in zip(sizes, (False, True, False, True), strict=True):
        y, w = (torch.randint(-128, 128, size).to(torch.int8) for size in ((m, k), (6, n, k)))
        args += [torch.randn(m, k).to(dtype), y, w.mT.contiguous().mT if turned else w, torch.rand(n).to(dtype)]
    check(by_bytes, args, backend=backend, options={**options, "cpu_isa": isa})
    assert sources(options).count("gy::Computed<") >= 10 and "runtime.operator" not in wrappers(options)


def test_computed_operands_of_batches(options: dict[str, Any], backend: str) -> None:
    x, w = torch.randn(3, 9, 130).bfloat16(), torch.randint(-128, 128, (3, 50, 130)).to(torch.int8)
    check(lambda x, w: torch.bmm(x, w.to(x.dtype).mT), (x, w), backend=backend, options=options)
    assert "gy::Computed<" in sources(options)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "auto"])
@pytest.mark.parametrize("case", experts.ENDS)
def test_rows_meet_the_matrix_of_their_group(case: str, isa: str, options: dict[str, Any], backend: str) -> None:
    args = experts.operands(experts.ENDS[case])
    shares = torch.randn(args[0].shape[0], dtype=torch.bfloat16)
    check(experts.down, [*experts.transposed(*args), shares], backend=backend, options={**options, "cpu_isa": isa})
    check(experts.up, args, backend=backend, options={**options, "cpu_isa": isa})
    assert "runtime.operator" not in wrappers(options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", experts.ENDS)
def test_experts_that_transformers_calls_in_a_loop(
    case: str, dtype: torch.dtype, options: dict[str, Any], backend: str
) -> None:
    """Rows behind the last group are 0 to what follows."""
    _, w, ends = experts.transposed(*experts.operands(experts.ENDS[case]))
    x, shares = torch.randn(int(ends[-1]) + 9, w.shape[1], dtype=dtype), torch.randn(int(ends[-1]) + 9, dtype=dtype)
    check(experts.looped, (x, w.to(dtype), ends, shares), backend=backend, options=options)
    assert "runtime.operator" not in wrappers(options)


def test_gradients_of_the_matrices_of_groups_keep_the_library(options: dict[str, Any], backend: str) -> None:
    x, w, ends = experts.operands(experts.ENDS["some are empty"])
    check(experts.of_matrices, (x, torch.randn(28, w.shape[2]).bfloat16(), ends), backend=backend, options=options)
    assert "runtime.operator" in wrappers(options)


def test_a_number_of_rows_in_groups_known_at_run_time(options: dict[str, Any], backend: str) -> None:
    for ends in experts.ENDS.values():
        x, w, at = experts.operands(ends)
        torch._dynamo.mark_dynamic(x, 0)
        assert_matches(
            torch.compile(experts.up, backend=backend, options=options)(x, w, at),
            experts.up(x, w, at),
            experts.up(x.double(), w.double(), at),
        )
    assert "runtime.operator" not in wrappers(options)


def test_element_types_without_a_template_keep_the_library(options: dict[str, Any], backend: str) -> None:
    check(
        lambda x, w: x @ w,
        (torch.randn(32, 40).double(), torch.randn(40, 16).double()),
        backend=backend,
        options=options,
    )
    assert "runtime.operator" in wrappers(options)
