"""The one file that touches torch's private interfaces. Works on torch 2.11 to 2.13.

Everything else in gyrator uses torch's public or stable parts (torch.fx, torch.library, FakeTensorMode,
make_fx, ShapeEnv, decomposition tables, pytree).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

ENTRY_POINT_GROUP = "torch_dynamo_backends"
_ANY = DistributionFinder.Context()
_REGISTRY = "torch._dynamo.backends.registry"


def register_backend(name: str, target: str, version: str) -> None:
    """Let `torch.compile(backend=name)` find `target` ("module:function") though the package is not
    installed.

    torch asks the installed distributions for entry points when it first looks up a backend. Before that, a
    distribution that exists only in memory answers, which costs nothing at import. After it, the entry is
    put into torch's table. An installed distribution of the same name wins in both cases. The target is
    imported on first use.
    """
    if not any(isinstance(finder, _SourceTreeFinder) for finder in sys.meta_path):
        sys.meta_path.append(_SourceTreeFinder(name, target, version))
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        registry._BACKENDS.setdefault(name, EntryPoint(name, target, ENTRY_POINT_GROUP))


class _SourceTreeDistribution(Distribution):
    """The metadata of a source tree: a name, a version and one entry point."""

    def __init__(self, name: str, target: str, version: str) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "entry_points.txt": f"[{ENTRY_POINT_GROUP}]\n{name} = {target}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """The text of a metadata file, or None."""
        return self._files.get(filename)

    def locate_file(self, path: object) -> Path:
        """Where a file of the distribution lies; nothing asks, since it lists no files."""
        return Path(__file__).parent.parent / str(path)


class _SourceTreeFinder(DistributionFinder):
    """Finds the source tree's distribution, after all installed ones."""

    def __init__(self, name: str, target: str, version: str) -> None:
        self._name = name
        self._distribution = _SourceTreeDistribution(name, target, version)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """No module is found here; Python's own finders import the package."""
        return None

    def find_distributions(self, context: DistributionFinder.Context = _ANY) -> Iterable[Distribution]:
        """The distribution, where its name or any name is asked for."""
        return [self._distribution] if context.name in (None, self._name) else []


# --- autograd ---------------------------------------------------------------------------------------------


def mark_boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Tell torch's runtime that `call` takes one list of arguments and empties it."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def aot_autograd(
    gm: object,
    example_inputs: Sequence[object],
    *,
    fw_compiler: Callable[..., Any],
    bw_compiler: Callable[..., Any],
    inference_compiler: Callable[..., Any],
    decompositions: Mapping[Any, Any],
) -> Callable[..., Any]:
    """torch's own AOTAutograd with its min-cut partitioner; copies into inputs stay at the end of the graphs.

    Its modules are slow to import and needed by nobody else, so they are looked up here.
    """
    aot = importlib.import_module("torch._functorch.aot_autograd")
    partitioners = importlib.import_module("torch._functorch.partitioners")
    compiled: Callable[..., Any] = aot.aot_module_simplified(
        gm,
        list(example_inputs),
        fw_compiler=fw_compiler,
        bw_compiler=bw_compiler,
        inference_compiler=inference_compiler,
        partition_fn=partitioners.min_cut_rematerialization_partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=True,
    )
    return compiled


# --- symbolic shapes --------------------------------------------------------------------------------------


def symbol_hint(shape_env: Any, symbol: Any) -> int | None:
    """The value that a shape symbol has in the call being compiled; None for an unbacked one.

    torch 2.13 renamed the table from `var_to_val` to `backed_var_to_val`.
    """
    table = getattr(shape_env, "backed_var_to_val", None)
    value = (shape_env.var_to_val if table is None else table).get(symbol)
    try:
        return None if value is None else int(value)
    except TypeError:  # a nested tensor's size
        return None
