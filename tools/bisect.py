"""`python -m gyrator bisect script.py`: which pass makes a program wrong, and the few operators that show it.

The script runs as it is, but each program that torch.compile captures is checked when it is first called:
compiled with every level compared, against eager. The first that fails is made smaller while it still fails
in the same way, and written as a program of its own."""

import runpy
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import interpret
from gyrator.autograd.partition.plan import save_all
from gyrator.backend import compile_program, gyrator
from gyrator.config import Config
from gyrator.errors import GyratorError, InternalCheckError, KernelBuildError, WrongResult
from gyrator.pipeline import Process
from gyrator.report.dump import graph_program
from gyrator.report.watch import Event, GraphCompiled, Watch, record_in
from gyrator.validate import SEED, difference, rms

SECONDS = 120.0
"""How long a failing program is made smaller."""

VARYING = "varying"
"""Under which a placeholder notes its dimensions that are symbols, where it has no fake value."""

SWITCHES = {"reuse_buffers": False, "inplace": False, "fusion": False, "inline": False, "cpu_isa": "scalar"}
"""Options that switch off what comes after the passes that `validate` compares."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a program fails: wrong, or by which exception; in which pass or stage; in words for the user."""

    kind: str
    stage: str
    text: str

    def like(self, other: "Failure | None") -> bool:
        """Whether another one is the same mistake, as far as one can tell."""
        return other is not None and (self.kind, self.stage) == (other.kind, other.stage)


@dataclass(frozen=True, slots=True)
class Case:
    """A captured program that fails, with real inputs and the options it was compiled with."""

    graph: fx.GraphModule
    inputs: Sequence[Any]
    config: Config
    failure: Failure


class _Caught(BaseException):
    """Ends the script at the first program that fails."""


def run_bisect(script: Path, arguments: Sequence[str], folder: Path, console: Console) -> int:
    """Run the script; 1 if a program failed, whose repro then lies in `folder`, else 0."""
    sys.path.insert(0, str(script.resolve().parent))  # as Python does for a script: it may import its neighbours
    case = failing_program(lambda: runpy.run_path(str(script), run_name="__main__"), [str(script), *arguments])
    if case is None:
        console.print("every program that was captured gives eager's answers")
        return 0
    count = len(_calls(case.graph))
    console.print(f"[bold]{case.failure.stage}[/] fails in a program of {count} operators", highlight=False)
    small = smaller(case)
    path = write_repro(small, folder)
    console.print(small.failure.text, markup=False, highlight=False)
    for line in hints(small):
        console.print(line, markup=False, highlight=False)
    console.print(f"{len(_calls(small.graph))} operators show it: {path}", markup=False)
    return 1


def failing_program(run: Callable[[], object], argv: Sequence[str]) -> Case | None:
    """The first captured program that fails while `run` runs; None if none does."""
    before, arguments = gyrator.process, sys.argv
    found: list[Case] = []

    def checked(gm: fx.GraphModule, _: Sequence[object], config: Config) -> Callable[..., object]:
        pending = [True]

        def call(*args: Any) -> object:
            if pending:
                pending.clear()
                failure = check(gm, args, config)
                if failure is not None:
                    found.append(Case(gm, _copies(args), config, failure))
                    raise _Caught
            return gm(*args)

        return call

    gyrator.process, sys.argv = replace(before, instead=checked), list(argv)
    try:
        with suppress(_Caught, SystemExit):
            run()
    finally:
        gyrator.process, sys.argv = before, arguments
    return found[0] if found else None


# -- does it fail? -------------------------------------------------------------------------------------------
def check(gm: fx.GraphModule, inputs: Sequence[Any], config: Config, watch: Watch | None = None) -> Failure | None:
    """How the compiled program fails on these inputs; None if all its levels agree with eager.

    Results, gradients and new contents of inputs are compared, with numerics="eager" where random numbers are drawn."""
    words = ("rand", "dropout", "bernoulli", "multinomial", "normal_")
    random = any(word in str(node.target) for node in gm.graph.nodes for word in words)
    numerics = "eager" if random else config.numerics
    strict = replace(config, cache=False, validate=True, check="every", progress="off", numerics=numerics)
    expected = _outcome(gm, inputs)
    try:
        compiled = compile_program(_fresh(gm, inputs), _copies(inputs), strict, "bisect", Process(watch=watch))
        found = _outcome(compiled, inputs)
    except Exception as error:
        return _failure(error)
    wrong = _differences(found, expected)
    return None if wrong is None else Failure("wrong", _guilty_half(gm, inputs, expected), wrong)


def _failure(error: Exception) -> Failure:
    kind = type(error).__name__
    match error:
        case WrongResult():
            return Failure("wrong", error.stage, str(error))
        case InternalCheckError():
            return Failure(kind, error.pass_name, str(error))
        case KernelBuildError():
            return Failure(kind, "build", str(error))
    return Failure(kind, kind, str(error) if isinstance(error, GyratorError) else f"{kind}: {error}")


def _guilty_half(gm: fx.GraphModule, inputs: Sequence[Any], expected: Sequence[Tensor]) -> str:
    """Where autograd goes wrong, given that all levels below it agree with each other."""

    def right(**parts: Any) -> bool:
        try:
            compiled = aot_compile(_fresh(gm, inputs), _copies(inputs), fw_compiler=interpret, **parts)
            return _differences(_outcome(compiled, inputs), expected) is None
        except Exception:
            return False

    if right():
        return "memory between the graphs"
    if right(partition_fn=save_all):
        return "partition"
    return "decompose" if right(decompositions={}) else "trace"


def _outcome(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    """Results, gradients of inputs for fixed gradients of results, and inputs afterwards."""
    given = _copies(inputs)
    torch.manual_seed(SEED)
    results = function(*given)
    outputs = [r for r in torch.utils._pytree.tree_leaves(results) if isinstance(r, Tensor)]
    smooth = [r for r in outputs if r.requires_grad]
    wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad and x.is_leaf]
    gradients: Sequence[Tensor] = ()
    if smooth and wanted:
        torch.manual_seed(SEED)
        weights = [torch.randn_like(r, memory_format=torch.preserve_format) for r in smooth]
        gradients = torch.autograd.grad(smooth, wanted, weights, materialize_grads=True)
    after = [x for x in given if isinstance(x, Tensor)]
    return [x.detach() for x in (*outputs, *gradients, *after)]


def _differences(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str | None:
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    scale = max((rms(x) for x in expected if x.is_floating_point()), default=0.0)
    for number, (value, right) in enumerate(zip(found, expected, strict=True)):
        wrong = difference(value, right, scale)
        if wrong is not None:
            return f"result or gradient {number}: {wrong}"
    return None


# -- making it smaller ---------------------------------------------------------------------------------------
def smaller(case: Case) -> Case:
    """The case with as few operators as can be found in the time, failing in the same way.

    Pieces are left out one after the other: first halves, then quarters, at last single operators. Values that come
    from what is left out become inputs."""
    deadline = time.monotonic() + SECONDS
    values = _Values(case.graph)
    torch.manual_seed(SEED)
    values.run(*_copies(case.inputs))

    def failing(kept: Sequence[fx.Node]) -> Case | None:
        if not kept or time.monotonic() > deadline:
            return None
        try:
            graph, inputs = _part(case.graph, kept, values.seen)
            failure = check(graph, inputs, case.config)
        except Exception:  # the piece cannot run alone
            return None
        return None if failure is None or not failure.like(case.failure) else Case(graph, inputs, case.config, failure)

    best, kept = case, _calls(case.graph)
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if (found := failing(rest)) is not None:
                best, kept = found, rest
            else:
                at += size
        size //= 2
    return best


class _Values(fx.Interpreter):
    """Runs a program and keeps what every node computes, as it was at that moment."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, after a copy of it was kept."""
        result = super().run_node(n)
        self.seen[n] = _copies([result])[0]
        return result


def _part(
    gm: fx.GraphModule, kept: Sequence[fx.Node], values: Mapping[fx.Node, Any]
) -> tuple[fx.GraphModule, list[Any]]:
    """The program of some nodes of `gm`, and its inputs: the values of the nodes that are left out."""
    graph, copies, inputs = fx.Graph(), dict[fx.Node, fx.Node](), list[Any]()
    inside = set(kept)
    for node in kept:
        for source in node.all_input_nodes:
            if source in copies or source in inside:
                continue
            if source.op == "get_attr":
                copies[source] = graph.node_copy(source)
                continue
            with graph.inserting_before(next(iter(graph.nodes), None)):
                copies[source] = graph.placeholder(source.name)
                copies[source].meta = {VARYING: varying(source)}
            inputs.insert(0, values[source])
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    shown = [n for n in kept if isinstance(values[n], Tensor) and not set(n.users) <= inside - {n}]
    graph.output(tuple(copies[n] for n in shown or kept[-1:]))
    return fx.GraphModule(gm, graph), inputs


def _calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op.startswith("call_")]


def _fresh(gm: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """A copy with new symbols for the sizes that are symbols: the captured ones belong to a trace that is over."""
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv())
    graph.output(graph.graph_copy(gm.graph, {}))
    for node, given in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        dims = varying(node)
        node.meta = {"example_value": _symbolic(mode, given, dims), VARYING: dims} if dims else {}
    return fx.GraphModule(gm, graph)


def varying(node: fx.Node) -> tuple[int, ...]:
    """The dimensions of a value that are symbols; ``(0,)`` for a number that is one."""
    value = node.meta.get("example_value")
    if isinstance(value, Tensor):
        return tuple(dim for dim, size in enumerate(value.shape) if type(size) is not int)
    return (0,) if isinstance(value, torch.SymInt) else node.meta.get(VARYING, ())


def _symbolic(mode: FakeTensorMode, given: Any, dims: Collection[int]) -> Tensor | int:
    """A fake tensor whose sizes at `dims` are symbols, or a number that is one; equal sizes are one symbol."""
    like = given if isinstance(given, Tensor) else torch.empty(given, device="meta")
    kinds = [DimDynamic.DUCK if dim in dims else DimDynamic.STATIC for dim in range(like.dim())]
    fake: Tensor = mode.from_tensor(like, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
    return fake if isinstance(given, Tensor) else fake.shape[0]


def _copies(values: Sequence[Any]) -> list[Any]:
    """Copies of tensors as leaves that require gradients as before; anything else as it is."""
    return [v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in values]


# -- telling -------------------------------------------------------------------------------------------------
def hints(case: Case) -> Iterator[str]:
    """The kernels of the program, and which option makes a failure in what comes after the passes go away."""
    events: list[Event] = []
    check(case.graph, case.inputs, case.config, events.append)
    for event in events:
        if isinstance(event, GraphCompiled):
            record = record_in(event.entry.folder)
            yield from (f"kernel of {record.name}: {kernel.name}" for kernel in record.kernels)
    if case.failure.stage in ("the built code", "build", "memory between the graphs"):
        for name, value in SWITCHES.items():
            if not case.failure.like(check(case.graph, case.inputs, replace(case.config, **{name: value}))):  # type: ignore[arg-type]
                yield f"it does not fail with options={{{name!r}: {value!r}}}"
                return


def write_repro(case: Case, folder: Path) -> Path:
    """Write the case as `repro.py` with its inputs beside it: it ends with status 1 while it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(list(case.inputs), folder / "repro.pt")
    runner = "tools.bisect.reproduce"
    dims = [varying(node) for node in case.graph.graph.find_nodes(op="placeholder")]
    text = graph_program("repro", case.graph, case.inputs, given="repro.pt", runner=runner, more=f", varying={dims}")
    (folder / "repro.py").write_text(text, "utf-8")
    return folder / "repro.py"


def reproduce(module: torch.nn.Module, inputs: Callable[[], Sequence[Any]], varying: Sequence[tuple[int, ...]]) -> None:
    """What a repro does: check the program, print how it fails, and end with status 1 if it does. `varying` has for
    each input the dimensions whose sizes are symbols."""
    gm = fx.symbolic_trace(module)
    for node, dims in zip(gm.graph.find_nodes(op="placeholder"), varying, strict=True):
        node.meta = {VARYING: dims}
    failure = check(gm, inputs(), Config.from_options())
    print("it does not fail" if failure is None else f"{failure.kind} in {failure.stage}\n{failure.text}")
    sys.exit(0 if failure is None else 1)


app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A program that uses gyrator.")],
    out: Annotated[Path, typer.Option(help="Folder for the repro.")] = Path("gyrator_repro"),
) -> None:
    """Find the pass that makes a script's program fail, and a few operators that show it."""
    raise typer.Exit(run_bisect(script, context.args, out, Console()))


if __name__ == "__main__":
    app()
