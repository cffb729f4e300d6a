"""Triton kernels in the user's program. A launch becomes a call of an operator, made for the kernel, that writes into
the tensors to which the kernel's source stores:

    triton_kernel_wrapper_mutation(scale, [(4,)], {x, out, n})   →   gyrator_triton.scale_1f3a(x, out!, n, [4, 1, 1])"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from gyrator import torch_compat
from gyrator.errors import UnsupportedOperator

LIBRARY = "gyrator_triton"
_LIBRARY = torch.library.Library(LIBRARY, "DEF")
_TYPES = ((Tensor, "Tensor"), (bool, "bool"), ((int, torch.SymInt), "SymInt"), ((float, torch.SymFloat), "float"))


def launch(
    kernel_idx: int, constant_args_idx: int, grid: Sequence[Sequence[Any]],
    tma_descriptor_metadata: Mapping[str, Any], kwargs: Mapping[str, Any],
) -> tuple[OpOverload, tuple[Any, ...]]:  # fmt: skip
    """The operator for a launch that torch.compile captured, and its arguments. `grid` has one entry per config.

    Raises: UnsupportedOperator for tensor descriptors made by the host, and arguments of other types."""
    kernel, constants = torch_compat.triton_kernel(kernel_idx, constant_args_idx)
    function = _python_function(kernel)
    types = {name: next((t for kind, t in _TYPES if isinstance(v, kind)), "") for name, v in kwargs.items()}
    if tma_descriptor_metadata or "" in types.values():
        raise UnsupportedOperator(function.__name__, "a Triton kernel with descriptors or arguments of unusual types")
    written = [name for name in stored(function) if types.get(name) == "Tensor"]
    parameters = [f"{t}{f'(a{k}!)' * (name in written)} {name}_" for k, (name, t) in enumerate(types.items())]
    schema = f"({', '.join([*parameters, 'SymInt[] grid'])}) -> ()"
    about = repr((getattr(kernel, "cache_key", inspect.getsource(function)), constants, kernel_idx, schema))
    name = f"{function.__name__}_{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    if not hasattr(torch.ops.gyrator_triton, name):
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, partial(_run, kernel, tuple(kwargs), constants), "CompositeExplicitAutograd")
        _LIBRARY.impl(name, lambda *_: None, "Meta")
    sizes = [size for sides in grid for size in (*sides, 1, 1, 1)[:3]]
    return getattr(torch.ops.gyrator_triton, name).default, (*kwargs.values(), sizes)


def _run(kernel: Any, names: Sequence[str], constants: Mapping[str, Any], *arguments: Any) -> None:
    *given, sizes = arguments
    grids = [tuple(sizes[k : k + 3]) for k in range(0, len(sizes), 3)]

    def of_config(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return next(g for g, c in zip(grids, kernel.configs, strict=True) if c.kwargs.items() <= meta.items())

    with torch.cuda.device_of(next(argument for argument in given if isinstance(argument, Tensor))):
        kernel[grids[0] if len(grids) == 1 else of_config](**dict(zip(names, given, strict=True)), **constants)


def _python_function(kernel: Any) -> Any:
    """The Python function below what autotunes, chooses by heuristics and compiles it."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def stored(function: Any, callers: tuple[Any, ...] = ()) -> frozenset[str]:
    """The parameters of a Triton function to whose memory it, or a function that it calls, may store.

    What a name may point to is collected in any order; what `tl.load` gives points nowhere; recursion may store all."""
    parameters, variables = inspect.signature(function).parameters, inspect.getclosurevars(function)
    if function in callers:
        return frozenset(parameters)
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    source = _Source({**variables.globals, **variables.nonlocals}, {p: {p} for p in parameters})
    before = -1
    while before != (before := sum(map(len, source.points.values()))):
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)):
                    source.points.setdefault(name.id, set()).update(source.pointed(node.value))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return frozenset(name for call in calls for name in source.written(call, (*callers, function)))


@dataclass(frozen=True)
class _Source:
    """The outer names of a function, and to which parameters' memory each of its own may point."""

    outer: Mapping[str, Any]
    points: dict[str, set[str]]

    def pointed(self, node: ast.AST) -> set[str]:
        """The parameters that an expression may point to."""
        if isinstance(node, ast.Name):
            return self.points.get(node.id, set())
        if isinstance(node, ast.Call) and self.name(node).startswith(("load", "atomic_")):
            return set()
        return {name for child in ast.iter_child_nodes(node) for name in self.pointed(child)}

    def written(self, call: ast.Call, callers: tuple[Any, ...]) -> set[str]:
        """The parameters to whose memory a call may store."""
        named, called = {str(keyword.arg): keyword.value for keyword in call.keywords}, self.of_user(call)
        if called is not None:
            into, given = stored(called, callers), inspect.signature(called).bind_partial(*call.args, **named).arguments
            return {p for name, value in given.items() if name in into for p in self.pointed(value)}
        values = [*call.args, *named.values()]
        if self.name(call).startswith(("store", "atomic_")):
            return self.pointed(call.func) | self.pointed(values[0])
        return {p for v in values for p in self.pointed(v)} if self.name(call).startswith("inline_asm") else set()

    def of_user(self, call: ast.Call) -> Any:
        """The user's function that is called; None for Triton's own, and for methods."""
        called = _python_function(self._called(call))
        return called if inspect.isfunction(called) and not called.__module__.startswith("triton.") else None

    def name(self, call: ast.Call) -> str:
        """The name of a function of Triton, whatever the user imports it as, or of a method; "" for the user's own."""
        if self.of_user(call) is not None:
            return ""
        return getattr(self._called(call), "__name__", None) or ast.unparse(call.func).rpartition(".")[2]

    def _called(self, call: ast.Call) -> Any:
        first, *path = ast.unparse(call.func).split(".")
        return reduce(lambda found, part: getattr(found, part, None), path, self.outer.get(first))
