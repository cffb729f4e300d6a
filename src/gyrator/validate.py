"""The option `validate`: a graph's first call runs every level on the same inputs, and names the first that differs.
The levels are the ATen graph (torch's operators), the program after lowering and after each pass (the reference
interpreter), and the built code. Slow, and twice the memory; for finding out who is to blame."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx

from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from gyrator.errors import WrongResult
from gyrator.ir.interp import Run, run_program
from gyrator.ir.program import Extern, Program, defines
from gyrator.lowering.graph import Lowered
from gyrator.origin import Origin

SEEDS = "gyrator.seeds.default"
SEED = 20
_ROUNDED = {torch.bfloat16, torch.float16}  # with numerics="fast" what a kernel keeps to itself is not


@dataclass(frozen=True, slots=True)
class Level:
    """What one level computed: tensors by the names "output 0", "update of input 2", ...; of programs also
    every intermediate value, in the order of its definition, with the user's line."""

    name: str
    results: Mapping[str, Tensor]
    values: Mapping[str, tuple[Tensor, Origin | None]]


def validated(
    compiled: Compiled, graph: fx.GraphModule, info: GraphInfo, stages: Sequence[tuple[str, Program]], lowered: Lowered
) -> Compiled:
    """`compiled`, which on its first call compares all levels before it computes the answer. `stages` are the program
    as lowered and after each pass, with the name of the pass; they refer to constants and regions of `lowered`.

    The call raises WrongResult, naming the first level that differs from the one before, and the first
    value (in program order) that has the same name in both and differs."""
    pending = [True]
    kinds = {value.dtype for node in lowered.program.nodes for value in defines(node)}
    regions = {name: graph.forward for name, graph in lowered.regions.items()}
    eps = max((torch.finfo(kind).eps for kind in kinds & _ROUNDED), default=0.0)

    def levels(args: Sequence[Any]) -> Iterator[Level]:
        """On copies of the arguments, with the same seed; but for graphs that draw: operators draw other numbers."""
        if not any(isinstance(node, Extern) and node.op == SEEDS for node in lowered.program.nodes):
            yield _call_level("the ATen graph", interpret(graph, args, info), args, info)
        for name, program in stages:
            torch.manual_seed(SEED)
            run = run_program(program, copies(args), lowered.constants, externs=regions)
            yield _program_level(name, program, run, info)
        yield _call_level("the built code", compiled, args, info)

    def call(args: list[Any]) -> Sequence[Any]:
        if pending:
            pending.clear()
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for before, level in pairwise(levels(args)):
                    _compare(level, before, eps)
        return compiled.call(args)

    return replace(compiled, call=call)


def copies(args: Sequence[Any]) -> list[Any]:
    """Copies of the arguments with the same strides and offsets; tensors that share memory still do."""
    made = deepcopy([arg.detach() if isinstance(arg, Tensor) else arg for arg in args])
    lazy = [isinstance(arg, Tensor) and arg.is_conj() for arg in args]  # which a deep copy is not, and graphs count on
    return [new.conj_physical().conj() if flag else new for new, flag in zip(made, lazy, strict=True)]


def difference(value: Tensor, expected: Tensor, scale: float, eps: float = 0.0) -> str | None:
    """How two tensors differ, or None. Floats may differ by the square root of their precision, or of `eps` if that is
    more, relative to the RMS of what is expected (far more than rounding, far less than a mistake), and by 16 units of
    rounding relative to `scale`, the RMS of what they are made from: a sum that cancels is nothing but rounding.
    Integers are equal."""
    if (value.shape, value.dtype) != (expected.shape, expected.dtype):
        return f"{value.dtype}{list(value.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if not (value.is_floating_point() or value.is_complex()):
        wrong = int((value != expected).sum())
        return f"{wrong} of {value.numel()} elements differ" if wrong else None
    a, b = value.to(torch.complex128), expected.to(torch.complex128)
    if strange := int(((a.isfinite() != b.isfinite()) | (a.isinf() & (a == -b))).sum()):
        return f"{strange} of {value.numel()} elements are finite in one alone, or opposite infinities"
    error, size, eps = rms(a - b), rms(b), max(eps, torch.finfo(value.dtype).eps)
    if error <= eps**0.5 * size + 16 * eps * scale:
        return None
    return f"RMS difference {error:.1e}, RMS of the value {size:.1e}"


def _compare(level: Level, before: Level, eps: float) -> None:
    """Raise WrongResult if the levels' results differ; blame the first common value that does."""
    scale = max((rms(x) for x in before.results.values() if x.is_floating_point()), default=0.0)
    for name, expected in before.results.items():
        if name not in level.results or not (wrong := difference(level.results[name], expected, scale, eps)):
            continue
        common = ((v, *level.values[v], before.values[v][0]) for v in level.values if v in before.values)
        different = ((v, origin) for v, new, origin, old in common if difference(new, old, scale, eps))
        value, origin = next(different, (None, None))
        first = f"{name} (first at {value})" if value else name
        raise WrongResult(level.name, first, f"{wrong}; before: {before.name}", where=origin)


def _call_level(name: str, compiled: Compiled, args: Sequence[Any], info: GraphInfo) -> Level:
    torch.manual_seed(SEED)
    given = copies(args)
    return Level(name, _named(compiled.call(list(given)), info, {u.input: given[u.input] for u in info.updates}), {})


def _program_level(name: str, program: Program, run: Run, info: GraphInfo) -> Level:
    position = {declared.value: i for i, declared in enumerate(program.inputs) if declared.value is not None}
    updated = {position[u.target]: new for u, new in zip(program.updates, run.updates, strict=True)}
    origins = {v.name: node.origins[0] if node.origins else None for node in program.nodes for v in defines(node)}
    values = {value: (run.values[value], origin) for value, origin in origins.items() if value in run.values}
    return Level(name, _named(run.outputs, info, updated), values)


def _named(outputs: Sequence[object], info: GraphInfo, updated: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Results by name. `updated` holds inputs' new contents."""
    written = {update.output for update in info.updates}
    shown = {f"output {i}": out for i, out in enumerate(outputs) if isinstance(out, Tensor) and i not in written}
    return shown | {f"update of input {k}": new for k, new in updated.items()}


def rms(x: Tensor) -> float:
    """The root mean square of the finite elements."""
    finite = x[x.isfinite()].abs().double()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
