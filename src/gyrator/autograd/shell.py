"""The shell: what runs per call around the compiled graphs, written out as straight-line Python for each program.

Which steps are needed is decided once. A program without mutation, aliased outputs or gradients gets

    def call(*args):
        if forward_ad._current_level >= 0: return fallback(*args)
        return run([*args])"""

import linecache
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from gyrator import torch_compat
from gyrator.autograd.aliasing import FromGraph, FromInput, Program
from gyrator.autograd.inputs import overlapping
from gyrator.autograd.interface import BoxedCallable
from gyrator.autograd.views import ViewCall
from gyrator.ir.evaluate import copy_into

_NUMBERS = count()


def make_shell(program: Program, run: BoxedCallable, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """The callable that the user calls. `run` takes the list of inputs and constants and returns the results;
    `fallback` is the uncompiled program, for inputs that share memory or begin in it as the trace did not assume."""
    return _Writer(program, run).compiled(fallback)


class _Writer:
    """Writes the shell's source text and the objects that it names."""

    def __init__(self, program: Program, run: BoxedCallable) -> None:
        self._program = program
        self._names: dict[str, Any] = {"run": run, "constants": torch_compat.freed_with_optimizer([*program.constants])}
        self._lines: list[str] = []

    def compiled(self, fallback: Callable[..., Any]) -> Callable[..., Any]:
        program = self._program
        given = "[*args, *constants]" if program.constants else "[*args]"
        call = f"run({given})"
        surprises, otherwise = self._surprises(given), self._name(fallback, "fallback")
        self._lines.append(f"    if {' or '.join(surprises)}: return {otherwise}(*args)")
        within = f"with {self._name(torch_compat.without_autocast, 'no_autocast')}(): " if program.autocast else ""
        self._lines.append(f"    {within}results = {call}")
        # views of what changes its shape are taken before it, and new values, which the trace left in it, come after it
        outputs = [self._value(source) for source in program.sources if program.changes]
        for position, view in program.changes:
            self._lines.append(f"    {self._call(view, self._input(position))}")
        for update in program.updates:
            target = self._input(update.input)
            if update.tracked:
                self._lines.append(f"    {self._name(copy_into, 'copy_into')}({target}, results[{update.output}])")
            elif update.counted:  # the compiled graph has written it
                self._lines.append(f"    {self._name(torch.autograd.graph.increment_version, 'increment')}({target})")
        outputs = outputs or [self._value(source) for source in program.sources]
        self._lines += [f"    {self._input(k)}.data = {self._value(source)}" for k, source in program.moves]
        flat = "(" + "".join(f"{output}, " for output in outputs) + ")"
        structure, leaves = program.structure, len(outputs)
        is_flat = structure.type in (tuple, list) and structure.num_children == leaves == structure.num_leaves
        if is_flat and len(self._lines) == 2 and outputs == [f"results[{k}]" for k in range(leaves)]:
            self._lines[1] = f"    {within}return {call}"  # nothing else happens
        else:
            if not is_flat:
                flat = f"{self._name(pytree.tree_unflatten, 'unflatten')}({flat}, {self._name(structure, 'structure')})"
            self._lines.append(f"    return {flat}")
        return self._built()

    def _surprises(self, given: str) -> list[str]:
        """Conditions under which a call's inputs lie in memory as the trace did not assume, or have tangents."""
        program = self._program
        found = [f"{self._name(torch.autograd.forward_ad, 'forward_ad')}.{torch_compat.DUAL_LEVEL} >= 0"]
        found += [f"args[{at}].storage_offset() != {offset}" for at, offset in program.offsets]
        written = (*[update.input for update in program.updates], *program.written)
        if written:
            found.append(f"{self._name(overlapping, 'overlapping')}({given}, {written})")
        return found

    def _viewed(self, base: str, views: Sequence[ViewCall]) -> str:
        if not views:
            return base
        name = f"view_{len(self._lines)}"
        self._lines.append(f"    {name} = {base}")
        for view in views:
            within = "" if view.tracks_grad else f"with {self._name(torch.no_grad, 'no_grad')}(): "
            if view.op is torch.ops.aten.copy_.default:  # of its own value: backward may have saved this memory
                within = f"with {self._name(torch_compat.preserved_version, 'preserved_version')}({name}): "
            self._lines.append(f"    {within}{name} = {self._call(view, name)}")
        return name

    def _call(self, view: ViewCall, viewed: str) -> str:
        args = "".join(f", {self._value(arg)}" for arg in view.args)
        args += "".join(f", {key}={self._value(arg)}" for key, arg in view.kwargs.items())
        index = "" if view.index is None else f"[{view.index}]"
        return f"{self._name(view.op, 'op')}({viewed}{args}){index}"

    def _input(self, position: int) -> str:
        at = position - self._program.inputs
        return f"args[{position}]" if at < 0 else f"constants[{at}]"

    def _value(self, value: Any) -> str:
        """What a source or an argument of a view is."""
        if isinstance(value, FromGraph):
            return self._viewed(f"results[{value.result}]", value.views)
        if isinstance(value, FromInput):
            return self._viewed(self._input(value.input), value.views)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self._value(item) for item in value) + "]"
        return repr(value) if type(value) in (int, bool, str, type(None)) else self._name(value, "value")

    def _name(self, value: Any, stem: str) -> str:
        new = stem if stem not in self._names else f"{stem}_{len(self._names)}"
        name = next((name for name, known in self._names.items() if known is value), new)
        self._names[name] = value
        return name

    def _built(self) -> Callable[..., Any]:
        """The function that was written, which tracebacks and debuggers can show."""
        source = "\n".join(["def call(*args):", *self._lines, ""])
        filename = f"<gyrator shell {next(_NUMBERS)}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), self._names)
        return self._names["call"]


def flattened(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """`gm` with a placeholder per item of the lists that compiled autograd passes:  f([a, b])  →  f(a, b)."""
    graph, new = Graph(), dict[Node, Any]()
    examples, numbers = iter(example_inputs), count()
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            new[node] = graph.node_copy(node, new.__getitem__)
            continue
        new[node] = pytree.tree_map(lambda _: graph.placeholder(f"input_{next(numbers)}"), next(examples))
        values = pytree.tree_leaves(node.meta.get("example_value"))
        for placeholder, value in zip(pytree.tree_leaves(new[node]), values, strict=False):
            placeholder.meta["example_value"] = value
    return GraphModule(gm, graph)


def lifted(gm: GraphModule) -> tuple[GraphModule, tuple[Tensor, ...]]:
    """`gm` with a placeholder, after its own, for each tensor that it holds and that may get a gradient; and those."""
    tracked, held = torch.is_grad_enabled(), dict[str, Tensor]()
    for node in gm.graph.nodes:
        tracked = node.args[0] if node.target is torch_compat.SET_GRAD_ENABLED else tracked
        names = [str(read.target) for read in node.all_input_nodes if tracked and read.op == "get_attr"]
        held |= {name: x for name in names if isinstance(x := attrgetter(name)(gm), Tensor) and x.requires_grad}
    if not held:
        return gm, ()
    graph = Graph()
    new = {node: graph.node_copy(node) for node in gm.graph.find_nodes(op="placeholder")}
    given = {name: graph.placeholder(f"held_{k}") for k, name in enumerate(held)}
    new |= {node: given[node.target] for node in gm.graph.find_nodes(op="get_attr") if node.target in held}
    graph.output(graph.graph_copy(gm.graph, new))
    return GraphModule(gm, graph), tuple(held.values())


def taking_lists(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, called with lists of its arguments, which are emptied first so that it can free them early."""

    def call(*args: Any) -> Any:
        leaves = pytree.tree_leaves(args)
        for arg in args:
            if isinstance(arg, list):
                arg.clear()
        return run(*leaves)

    return call


def taking_list(program: Program, run: BoxedCallable, call: Callable[..., Any]) -> BoxedCallable:
    """`call`, the shell of a program that returns a flat tuple, as a function of a list. Where it returns results of
    `run` and does nothing else, `run` gets the list itself, and frees inputs early."""
    plain = all(s is None or (isinstance(s, FromGraph) and not s.views) for s in program.sources)
    if not plain or program.updates or program.constants or program.offsets:
        return lambda args: call(*args)

    def picked(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        return [results[source.result] if isinstance(source, FromGraph) else None for source in program.sources]

    return picked
