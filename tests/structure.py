"""What the source tree promises about itself, measured from its syntax trees.

`tests/pure/test_structure.py` asserts it; `python -m tests.structure` prints sizes and import order for
people.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gyrator"

ORDER = """
    version origin errors inductor_names config optional torch_compat api
    progress session passes ir metrics cache
    autograd lowering schedule codegen templates runtime
    autotune validate benchmark_fusion report pipeline backend insight cli __main__
""".split()
"""The modules and packages of gyrator; each imports only what stands to its left."""

FRONT, BACK = {"autograd", "lowering"}, {"schedule", "codegen", "templates"}
"""What makes a program of a graph, and kernels of a program: they meet in the IR, and know nothing of each other."""

MAX_FILE = 900
MAX_TOTAL = 30_000
CEILINGS = {
    "": 3_000,
    "cli": 1_200,
    "ir": 6_000,
    "metrics": 800,
    "cache": 1_200,
    "autograd": 5_500,
    "lowering": 5_800,
    "schedule": 6_700,
    "codegen": 4_900,
    "templates": 3_500,
    "autotune": 2_000,
    "runtime": 3_000,
    "report": 2_000,
}
"""Most lines of Python in each folder of src/gyrator ("" is the folder itself)."""

OPTIONAL = {"triton", "redis", "transformers", "plotly"}
"""Third-party packages that only optional.py may import."""

STABLE_TORCH = """
    _ops _decomp _refs _prims _prims_common _subclasses _higher_order_ops _pytree _python_dispatch
""".split()
"""Parts of torch with an underscore that count as stable: operator overloads, decomposition tables, prims and
references, FakeTensorMode, higher-order operators, pytree, dispatch modes. Everything else private is touched
in torch_compat.py alone."""


@dataclass(frozen=True, slots=True)
class Import:
    """An import: where it stands, what it imports, whether inside a function or for type checkers only."""

    place: str
    module: str
    in_function: bool
    for_types: bool


@dataclass(frozen=True, slots=True)
class Class:
    """A class: where it stands, its name, the names of its bases, and whether it says that it is abstract."""

    place: str
    name: str
    bases: tuple[str, ...]
    abstract: bool


KERNEL_TEXTS = (
    PACKAGE / "runtime/triton_ops.py",
    *(PACKAGE / f"templates/{n}.py" for n in ("attention", "gemm", "hopper")),
)
"""What generated kernels include, as C++ kernels do with headers: no part of the compiler."""


def sources() -> tuple[Path, ...]:
    """Every Python file of the compiler."""
    return tuple(sorted(set(PACKAGE.rglob("*.py")) - set(KERNEL_TEXTS)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = ("gyrator", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str | None:
    """The entry of ORDER that a module belongs to; None for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "gyrator" and len(parts) > 1 else None


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import of a file; `from package import module` counts as an import of the module."""
    return tuple(_imports(path, tree_of(path), in_function=False, for_types=False))


def _imports(path: Path, parent: ast.AST, *, in_function: bool, for_types: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(place(path, node), alias.name, in_function, for_types)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                module = full if _is_module(full) else base
                yield Import(place(path, node), module, in_function, for_types)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and _dotted(node.test).endswith("TYPE_CHECKING")
            yield from _imports(path, node, in_function=in_function or inside, for_types=for_types or typing)


def torch_privates(path: Path) -> Iterator[tuple[str, str]]:
    """Where a file touches a private part of torch that does not count as stable, and which."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [_dotted(node)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            private = [p for p in parts[1:] if p.startswith("_") and not p.startswith("__")]
            if parts[0] == "torch" and private and private[0] not in STABLE_TORCH:
                yield place(path, node), name


def classes_of(path: Path) -> Iterator[Class]:
    """Every class of a file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(_dotted(b.value if isinstance(b, ast.Subscript) else b).split(".")[-1] for b in node.bases)
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
            marks = {_dotted(d).split(".")[-1] for m in methods for d in m.decorator_list}
            said = (ast.get_docstring(node) or "").startswith("Abstract")
            abstract = said or "abstractmethod" in marks or bool({"ABC", "Protocol"} & set(bases))
            yield Class(place(path, node), node.name, bases, abstract)


def import_cycles() -> list[list[str]]:
    """Groups of modules that import each other. Data types that refer to each other may do so in
    annotations.
    """
    graph = {module_name(p): {i.module for i in imports_of(p) if not i.for_types} for p in sources()}
    return [group for group in _strong_components(graph) if len(group) > 1 or group[0] in graph[group[0]]]


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def folder_of(path: Path) -> str:
    """The folder of src/gyrator that a file counts for."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def size_report() -> str:
    """Lines of Python per folder against its ceiling, and the total; lines of kernel headers and tests
    apart.
    """
    sizes: dict[str, int] = {}
    for path in sources():
        sizes[folder_of(path)] = sizes.get(folder_of(path), 0) + lines_of(path)
    rows = [f"{lines:7,d} of {CEILINGS.get(name, 0):6,d}  src/gyrator/{name}" for name, lines in sorted(sizes.items())]
    rows.append(f"{sum(sizes.values()):7,d} of {MAX_TOTAL:6,d}  in all")
    largest = max(sources(), key=lines_of)
    rows.append(f"{lines_of(largest):7,d} of {MAX_FILE:6,d}  the largest file, {largest.relative_to(ROOT)}")
    headers = sum(lines_of(p) for suffix in ("*.h", "*.cuh") for p in PACKAGE.rglob(suffix))
    headers += sum(lines_of(p) for p in KERNEL_TEXTS)
    tests = sum(lines_of(p) for p in (ROOT / "tests").rglob("*.py"))
    return "\n".join([*rows, f"{headers:7,d}            kernel headers", f"{tests:7,d}            tests"])


def order_report() -> list[str]:
    """Each import that breaks the order, as a line of text."""
    problems = []
    for path in sources():
        unit = unit_of(module_name(path))
        for found in imports_of(path):
            problem = _order_problem(unit, found)
            if problem:
                problems.append(f"{found.place}: {problem}")
    return problems


def _order_problem(unit: str | None, found: Import) -> str | None:
    other = unit_of(found.module)
    if unit is None:
        return None
    if found.module == "gyrator":
        return "imports the package itself, which imports everything"
    if other is None or other == unit:
        return None
    if unit not in ORDER or other not in ORDER:
        return f"{unit if unit not in ORDER else other} has no place in ORDER (tests/structure.py)"
    if ORDER.index(other) > ORDER.index(unit):
        return f"{unit} may not import {other}, which comes later"
    if unit in BACK and other in FRONT:
        return f"{unit} may not import {other}: they meet in ir"
    return None


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module_name(path).split(".")
    is_package = path.name == "__init__.py"
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


@cache
def _is_module(name: str) -> bool:
    parts = name.split(".")
    if parts[0] != "gyrator":
        return False
    path = PACKAGE.joinpath(*parts[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _strong_components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components: nodes that reach each other."""
    reach = {node: _reachable(graph, node) for node in graph}
    groups: dict[str, list[str]] = {}
    for node in sorted(graph):
        mates = [m for m in sorted(reach[node]) if m in graph and node in reach[m]] or [node]
        groups.setdefault(mates[0], mates)
    return list(groups.values())


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(graph.get(node, ()))
    return seen


def main() -> int:
    """Print the reports; 1 if an import breaks the order or a ceiling is passed."""
    print(size_report())
    problems = order_report() + [f"import cycle: {' → '.join(group)}" for group in import_cycles()]
    sizes: dict[str, int] = {}
    for path in sources():
        sizes[folder_of(path)] = sizes.get(folder_of(path), 0) + lines_of(path)
    problems += [f"src/gyrator/{name} passes its ceiling" for name, n in sizes.items() if n > CEILINGS.get(name, 0)]
    if sum(sizes.values()) > MAX_TOTAL:
        problems.append("src/gyrator passes its ceiling")
    print("\n".join(problems) or "import order holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
