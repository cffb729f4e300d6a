"""The option `validate`: a level that computes something else is named, with the user's line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gyrator
from gyrator.codegen.cpp import CppKernel, print_kernel
from gyrator.errors import WrongResult
from gyrator.ir.expr import Op
from gyrator.ir.program import Nest, Node, Pointwise, Program
from gyrator.ir.tree import Kernel
from gyrator.passes import Pass
from gyrator.runtime import targets
from gyrator.schedule import stage
from gyrator.session import Count
from gyrator.validate import copies, difference


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def validating(f: object) -> object:
    return torch.compile(f, backend="gyrator", options={"validate": True})


def scaled_sum(x: Tensor) -> Tensor:
    return (x * 3).sum(-1) + 1


def test_a_right_compile_passes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()).train()
    validating(model)(torch.randn(2, 3, 8, 8)).square().mean().backward()
    x = torch.randn(4, 5)
    torch.testing.assert_close(validating(scaled_sum)(x), scaled_sum(x))


def test_layers_that_draw_numbers_pass_with_one_kernel() -> None:
    """The built kernels, of which each takes the seeds of all layers, against the interpreter."""
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.GELU()) for _ in range(3)]
    validating(nn.Sequential(*layers))(torch.randn(9, 16)).square().mean().backward()
    counts = gyrator.counters()
    assert counts[Count.LAUNCHES] >= counts[Count.KERNELS] + 2

    def drawn(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.softmax(x + torch.rand_like(x) * torch.randn_like(x), -1)
        return x

    validating(drawn)(torch.randn(40, 50))


def test_rounding_that_a_kernel_leaves_out_is_no_mistake() -> None:
    """numerics="fast" keeps bfloat16 between two float32 values in float32."""

    def rounded(x: Tensor) -> Tensor:
        return (x.bfloat16() * 1.1).float() * 3

    x = torch.randn(1000)
    torch.testing.assert_close(validating(rounded)(x), rounded(x), rtol=1e-2, atol=1e-2)


def negated(node: Node) -> Node:
    if not (isinstance(node, Nest) and isinstance(node.root, Pointwise)):
        return node
    body = node.root.body
    return dataclasses.replace(node, root=Pointwise(Op("neg", (body,), body.dtype)))


def break_program(program: Program) -> Program:
    """A pass with a bug: the first nest of one value per element changes its sign."""
    first = next(n for n in program.nodes if isinstance(n, Nest) and isinstance(n.root, Pointwise))
    nodes = tuple(negated(node) if node is first else node for node in program.nodes)
    return dataclasses.replace(program, nodes=nodes)


def test_the_pass_that_changed_the_answer_is_named_with_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stage.program_passes

    def wrong(*given: Any) -> tuple[Pass[Program], ...]:
        before, *after = right(*given)
        return (before, Pass("a pass with a bug", break_program), *after)

    monkeypatch.setattr(stage, "program_passes", wrong)
    with pytest.raises(WrongResult, match=r"stage 'a pass with a bug' changed output 0 \(first at \w+\)") as caught:
        validating(scaled_sum)(torch.randn(4, 5))
    assert f"{__file__}:" in str(caught.value)


def test_built_code_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(kernel: Kernel) -> CppKernel:
        printed = print_kernel(kernel)
        return dataclasses.replace(printed, text=printed.text.replace("3.0", "4.0").replace("3.f", "4.f"))

    monkeypatch.setattr(targets, "print_kernel", wrong)
    with pytest.raises(WrongResult, match="stage 'the built code' changed output 0: RMS difference"):
        validating(scaled_sum)(torch.randn(4, 5))


def test_copies_share_memory_as_the_originals_do() -> None:
    base = torch.arange(12.0)
    one, two, number = copies([base[2:8:2], base.expand(2, 12), 7])
    assert (one.tolist(), one.stride(), two.stride(), number) == ([2.0, 4.0, 6.0], (2,), (0, 1), 7)
    one += 1
    assert two[0, 2] == 3.0
    assert base[2] == 2.0


@pytest.mark.parametrize(
    ("value", "expected", "differs"),
    [
        (torch.ones(4), torch.ones(4) * (1 + 1e-6), False),
        (torch.ones(4), torch.ones(4) * 1.01, True),
        (torch.ones(4).bfloat16(), torch.ones(4).bfloat16() * 1.01, False),
        (torch.full((4,), 1e-7), torch.zeros(4), False),
        (torch.full((4,), 1e-3), torch.zeros(4), True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), True),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), False),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0]), True),
        (torch.ones(4), torch.ones(2, 2), True),
        (torch.ones(4), torch.ones(4).double(), True),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), True),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.inf]), False),
    ],
)
def test_rounding_is_no_difference_and_a_mistake_is(value: Tensor, expected: Tensor, differs: bool) -> None:
    assert (difference(value, expected, scale=1.0) is not None) == differs
