"""Lower a function, run the program by the reference interpreter, compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from gyrator.autograd.decompositions import decomposition_table
from gyrator.ir.check import check_program
from gyrator.ir.interp import Run, run_program
from gyrator.ir.symbols import Symbols
from gyrator.lowering.graph import Lowered, lower
from tests.acceptance import SLACK, assert_none, metadata_mismatch, value_mismatch

Function = Callable[..., Any]
HALF = (torch.bfloat16, torch.float16)


def trace(fn: Function, args: Sequence[Any], *, dynamic: bool = False) -> torch.fx.GraphModule:
    """The ATen graph of ``fn`` after gyrator's decompositions."""
    mode = "symbolic" if dynamic else "fake"
    plain = lambda *given: fn(*given)  # noqa: E731  (make_fx counts the parameters of what it is given)
    tracer = make_fx(plain, decomposition_table=decomposition_table(), tracing_mode=mode, _allow_non_fake_inputs=True)
    graph = tracer(*args)
    output = graph.graph.output_node()
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    graph.graph.eliminate_dead_code()
    return graph


def lowered(fn: Function, *args: Any, dynamic: bool = False) -> Lowered:
    """``fn`` as a program that passed its checks."""
    graph = trace(fn, args, dynamic=dynamic)
    result = lower(graph, symbols=symbols_of(graph))
    check_program(result.program)
    return result


def symbols_of(graph: torch.fx.GraphModule) -> Symbols:
    """Symbols with the bounds of the shape environment that ``graph`` was traced in."""
    for node in graph.graph.nodes:
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.SymInt):
                return Symbols(leaf.node.shape_env)
            mode = getattr(leaf, "fake_mode", None)
            if mode is not None and mode.shape_env is not None:
                return Symbols(mode.shape_env)
    return Symbols()


def run(low: Lowered, args: Sequence[Any], **options: Any) -> Run:
    given = [a if isinstance(a, (Tensor, int)) else None for a in args]
    return run_program(low.program, given, low.constants, **options)


def check(
    fn: Function,
    *args: Any,
    dynamic: bool = False,
    externs: Sequence[str] | None = (),
    values: bool = True,
    slack: float | None = None,
) -> Lowered:
    """Asserts that the lowered ``fn`` computes what eager does, and calls only ``externs`` (None: any).

    Half precision is compared within one rounding of eager, which computes in float32 too.
    """
    low = lowered(fn, *args, dynamic=dynamic)
    if externs is not None:
        assert sorted(set(low.fallbacks)) == sorted(externs)
    actual = run(low, args).outputs
    with torch.no_grad():
        expected = pytree.tree_leaves(fn(*args))
    reference = _reference(fn, args, expected)
    assert len(actual) == len(expected)
    lines = []
    for k, (got, want, exact) in enumerate(zip(actual, expected, reference, strict=True)):
        if not isinstance(want, Tensor):
            lines += [] if got == want else [f"output {k} is {got}, not {want}"]
            continue
        line = metadata_mismatch(got, want)
        if line is None and values:
            limit = slack if slack is not None else SLACK.get(want.dtype, 1.0)
            line = value_mismatch(got, want, exact, slack=limit)
        lines += [f"output {k}: {line}"] if line else []
    assert_none(lines)
    return low


def _reference(fn: Function, args: Sequence[Any], expected: Sequence[Any]) -> Sequence[Any]:
    """``fn`` in float64; eager's own results where it has no such form."""
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    try:
        with torch.no_grad():
            found = pytree.tree_leaves(fn(*wide))
    except (RuntimeError, TypeError):
        return expected
    return [w if isinstance(w, Tensor) and w.shape == e.shape else e for w, e in zip(found, expected, strict=True)]


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, low: float | None = None) -> Tensor:
    """Random numbers: normal for floats (at least ``low`` if given), small integers, bools."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape, generator=generator).to(dtype)
    x = torch.randn(shape, generator=generator)
    return (x if low is None else x.abs() + low).to(dtype)
