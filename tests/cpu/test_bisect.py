"""Bisecting: bugs are put into the compiler, and each must be found and shown by few operators.

Some are tried here; `pytest tests/cpu/test_bisect.py --all-bugs` tries all.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gyrator import backend as backends
from gyrator.autograd import aot
from gyrator.codegen.cpp import CppKernel
from gyrator.config import Config
from gyrator.ir.expr import Expr, Op, rewrite
from gyrator.ir.program import Nest, Node, Pointwise, Program, Reduce, defines
from gyrator.ir.tree import Kernel
from gyrator.runtime import targets
from gyrator.schedule import stage
from tools.bisect import Failure, check, failing_program, smaller, write_repro

MOST_OPERATORS = 5
MOST_SECONDS = 120.0

Patch = pytest.MonkeyPatch


def model(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """22 operators, each scalar op somewhere in the middle."""
    y = x @ w
    for _ in range(3):
        y = torch.relu(y) * 1.5 + x
    z = torch.tanh(y) + torch.softmax(y, -1) - torch.exp(x - 2).cumsum(0)
    u = torch.sin(z) * torch.sigmoid(z.mean(0)) / (1 + z.abs().amax(1, keepdim=True))
    return torch.layer_norm(u, (12,)).sum(0), torch.where(z > 0, u, z.square())


def run_model(dynamic: bool = False) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, w = torch.randn(10, 12, requires_grad=True), torch.randn(12, 12)
    torch.compile(model, backend="gyrator", dynamic=dynamic)(x, w)


# -- bugs ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bug:
    """A mistake of the compiler: how to make it, and the stage that must be blamed."""

    name: str
    make: Callable[[Patch], None]
    blamed: str


def swapped(function: str, blamed: str, old: str, new: str, *, if_symbolic: bool = False) -> Bug:
    """A pass that replaces a scalar op or the kind of a reduction by another; all, or where sizes are symbols."""

    def op(expr: Expr) -> Expr | None:
        return replace(expr, name=new) if isinstance(expr, Op) and expr.name == old else None

    def nest(node: Node) -> Node:
        if if_symbolic and not any(size.sizes() for value in defines(node) for size in value.shape):
            return node
        match node:
            case Nest(root=Pointwise(body)):
                return replace(node, root=Pointwise(rewrite(body, op)))
            case Nest(root=Reduce(kind, reduced, body)):
                changed = tuple(rewrite(b, op) for b in body)
                return replace(node, root=Reduce(new if kind == old else kind, reduced, changed))
        return node

    def make(patch: Patch) -> None:
        right = getattr(stage, function)

        def wrong(program: Program, *rest: Any, **named: Any) -> Program:
            done = right(program, *rest, **named)
            return replace(done, nodes=tuple(nest(node) for node in done.nodes))

        patch.setattr(stage, function, wrong)

    return Bug(f"{blamed}: {old} becomes {new}", make, blamed)


def raising(function: str, blamed: str, word: str) -> Bug:
    """A pass that fails on some programs."""

    def make(patch: Patch) -> None:
        right = getattr(stage, function)

        def wrong(program: Program, *rest: Any, **named: Any) -> object:
            if any(word in value.name for node in program.nodes for value in node.out if value is not None):
                raise ZeroDivisionError(word)
            return right(program, *rest, **named)

        patch.setattr(stage, function, wrong)

    return Bug(f"{function} raises at {word}", make, blamed)


def misprinted(old: str, new: str, blamed: str = "the built code") -> Bug:
    """Kernels with a wrong piece of text."""

    def make(patch: Patch) -> None:
        right = targets.print_kernel

        def wrong(kernel: Kernel) -> CppKernel:
            printed = right(kernel)
            return replace(printed, text=printed.text.replace(old, new))

        patch.setattr(targets, "print_kernel", wrong)

    return Bug(f"kernels say {new} for {old}", make, blamed)


def decomposed(op: Any, wrong: Callable[..., object]) -> Bug:
    """A wrong decomposition of an operator."""

    def make(patch: Patch) -> None:
        right = aot.decomposition_table
        for module in (aot, backends):
            patch.setattr(module, "decomposition_table", lambda **named: {**right(**named), op: wrong})

    return Bug(f"{op} decomposes wrongly", make, "decompose")


aten = torch.ops.aten
BUGS = (
    swapped("simplify", "simplify", "tanh", "sin"),
    misprinted("gy::sin(", "gy::cos("),
    raising("inline", "inline", "sigmoid"),
    decomposed(aten.sigmoid.default, lambda x: 1 / (1 + torch.exp(x))),
    misprinted("gy::tanh(", "gy::no_such(", "build"),
    swapped("remove_dead", "dce", "sin", "cos"),
    swapped("fill_empty", "fill empty", "exp", "sin"),
    swapped("inline", "inline", "sub", "add"),
    swapped("predicate", "predicate", "add", "sub"),
    swapped("split_reductions", "split reductions", "sigmoid", "tanh"),
    swapped("scatters_to_selects", "scatters to selects", "rsqrt", "sqrt"),
    swapped("simplify", "simplify", "max", "min"),
    swapped("predicate", "predicate", "sum", "max"),
    swapped("inline", "inline", "abs", "neg"),
    raising("simplify", "simplify", "tanh"),
    raising("fuse", "ZeroDivisionError", "cumsum"),
    raising("plan_memory", "ZeroDivisionError", "sin"),
    misprinted("gy::exp(", "gy::sin("),
    misprinted("gy::tanh(", "gy::sin("),
    decomposed(aten.tanh.default, lambda x: x.sin()),
    decomposed(aten.sin.default, lambda x: x.cos()),
    decomposed(aten.relu.default, lambda x: x.abs()),
)
IN_CI = 4


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_blamed_on_its_stage_and_shown_by_few_operators(
    bug: Bug, request: pytest.FixtureRequest, monkeypatch: Patch, tmp_path: Path
) -> None:
    if bug not in BUGS[:IN_CI] and not request.config.getoption("--all-bugs"):
        pytest.skip("only with --all-bugs")
    bug.make(monkeypatch)
    start = time.monotonic()
    case = failing_program(run_model, [])
    assert case is not None and case.failure.stage == bug.blamed
    small = smaller(case)
    assert time.monotonic() - start < MOST_SECONDS or os.getloadavg()[0] > 2
    assert sum(node.op.startswith("call_") for node in small.graph.graph.nodes) <= MOST_OPERATORS
    repro = write_repro(small, tmp_path)
    assert (tmp_path / "repro.pt").exists()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(repro), run_name="__main__")
    assert ended.value.code == 1


def test_a_bug_that_only_symbolic_sizes_show(monkeypatch: Patch, tmp_path: Path) -> None:
    bug = swapped("simplify", "simplify", "tanh", "sin", if_symbolic=True)
    bug.make(monkeypatch)

    def run(dynamic: bool) -> None:
        torch._dynamo.reset()
        torch.compile(lambda x: torch.tanh(x * 2).sum(0) + 1, backend="gyrator", dynamic=dynamic)(torch.randn(5, 6))

    assert failing_program(lambda: run(dynamic=False), []) is None
    case = failing_program(lambda: run(dynamic=True), [])
    assert case is not None and case.failure.stage == bug.blamed
    small = smaller(case)
    assert sum(node.op.startswith("call_") for node in small.graph.graph.nodes) <= MOST_OPERATORS
    repro = write_repro(small, tmp_path)
    assert "varying=[(0, 1)]" in repro.read_text()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(repro), run_name="__main__")
    assert ended.value.code == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_that_is_right_is_not_blamed(dynamic: bool) -> None:
    assert failing_program(lambda: run_model(dynamic), []) is None


def test_random_programs_are_compared_with_eagers_numbers() -> None:
    def dropout(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 2

    gm = torch.fx.symbolic_trace(dropout)
    assert check(gm, [torch.ones(4, 5, requires_grad=True)], Config(progress="off")) is None


def test_infinite_results_hide_no_mistake(monkeypatch: Patch) -> None:
    decomposed(aten.tanh.default, lambda x: x.sin()).make(monkeypatch)
    gm = torch.fx.symbolic_trace(lambda x: (x.tanh(), torch.where(x > 0, x, -torch.inf)))
    failure = check(gm, [torch.randn(4, 5)], Config(progress="off"))
    assert failure is not None and failure.stage == "decompose"


def test_failures_are_alike_by_kind_and_stage() -> None:
    one = Failure("wrong", "inline", "output 0")
    assert one.like(Failure("wrong", "inline", "output 1"))
    assert not one.like(Failure("wrong", "simplify", "output 0")) and not one.like(None)


def test_the_command_runs_a_script_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nassert sys.argv[1:] == ['--size', '3']\n"
        "torch.compile(lambda x: x + 1, backend='gyrator')(torch.ones(3))\n"
    )
    command = [sys.executable, "-m", "gyrator", "bisect", str(script), "--size", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gives eager's answers" in done.stdout
