"""The source tree keeps its promises: import order, sizes, abstract or final classes, no private torch."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests import structure
from tests.structure import PACKAGE, ROOT, Class

SOURCES = structure.sources()


def test_each_stage_imports_only_earlier_ones() -> None:
    assert structure.order_report() == []


def test_no_modules_import_each_other() -> None:
    assert structure.import_cycles() == []


def test_what_benchmarks_and_tools_import_of_the_compiler_is_there() -> None:
    """They need GPUs and models, so that no other test imports all of them."""
    given: dict[str, set[str]] = {structure.module_name(p): defined_in(p) for p in PACKAGE.rglob("*.py")}
    missing = [
        f"{structure.place(path, node)}: {node.module}.{alias.name}"
        for folder in ("benchmarks", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(structure.tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in given
        for alias in node.names
        if alias.name not in given[node.module] and f"{node.module}.{alias.name}" not in given
    ]
    assert missing == []


def defined_in(path: Path) -> set[str]:
    """The names that a module gives others."""
    nodes = list(ast.walk(structure.tree_of(path)))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return names | {alias.asname or alias.name for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}


def test_no_import_hides_in_a_function() -> None:
    hidden = [i for p in SOURCES for i in structure.imports_of(p) if i.in_function]
    assert hidden == []


def test_optional_packages_are_imported_in_one_file() -> None:
    found = [
        i.place
        for p in SOURCES
        if p.name not in ("optional.py", "triton_ops.py", "gemm.py")  # the library that generated kernels import
        for i in structure.imports_of(p)
        if i.module.split(".")[0] in structure.OPTIONAL
    ]
    assert found == []


def test_inductor_is_imported_nowhere() -> None:
    found = [i.place for p in SOURCES for i in structure.imports_of(p) if i.module.startswith("torch._inductor")] + [
        f"{where} {name}" for p in SOURCES for where, name in structure.torch_privates(p) if "_inductor" in name
    ]
    assert found == []


def test_private_torch_is_touched_in_one_file() -> None:
    found = [
        f"{where}: {name}"
        for p in SOURCES
        if p.name != "torch_compat.py"
        for where, name in structure.torch_privates(p)
    ]
    assert found == []


def test_no_file_is_too_long_to_read() -> None:
    sizes = {str(p.relative_to(ROOT)): structure.lines_of(p) for p in SOURCES}
    assert {name: n for name, n in sizes.items() if n > structure.MAX_FILE} == {}


@pytest.mark.parametrize("folder", sorted({structure.folder_of(p) for p in SOURCES}))
def test_no_folder_passes_its_ceiling(folder: str) -> None:
    assert folder in structure.CEILINGS, "give the new folder a ceiling in tests/structure.py"
    lines = sum(structure.lines_of(p) for p in SOURCES if structure.folder_of(p) == folder)
    assert lines <= structure.CEILINGS[folder]


def test_the_compiler_stays_small() -> None:
    assert sum(structure.lines_of(p) for p in SOURCES) <= structure.MAX_TOTAL


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p) for p in SOURCES if p.stat().st_size and not ast.get_docstring(structure.tree_of(p))]
    assert silent == []


def test_a_class_is_abstract_or_final() -> None:
    classes = [c for p in SOURCES for c in structure.classes_of(p)]
    assert [f"{c.place}: {c.name} subclasses the concrete {b}" for c, b in concrete_bases(classes)] == []


def concrete_bases(classes: list[Class]) -> list[tuple[Class, str]]:
    """Each class with each of its bases that is a project class and not abstract."""
    concrete = {c.name for c in classes if not c.abstract} - {c.name for c in classes if c.abstract}
    return [(c, base) for c in classes for base in c.bases if base in concrete]


def test_the_rule_for_classes_sees_a_concrete_base() -> None:
    base = Class("a.py:1", "Base", (), abstract=False)
    child = Class("a.py:2", "Child", ("Base",), abstract=False)
    assert concrete_bases([base, child]) == [(child, "Base")]


def test_imports_that_break_the_rules_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "__init__.py").write_text("")
    (tmp_path / "ir" / "a.py").write_text("def f():\n    from gyrator.ir import b\n    import gyrator.backend\n")
    (tmp_path / "ir" / "b.py").write_text("from .a import f\nimport torch._inductor\ntorch._C._jit_init()\n")
    (tmp_path / "backend.py").write_text("import gyrator.ir.a\n")
    monkeypatch.setattr(structure, "PACKAGE", tmp_path)
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    structure._is_module.cache_clear()
    assert structure.order_report() == ["ir/a.py:3: ir may not import backend, which comes later"]
    assert structure.import_cycles() == [["gyrator.backend", "gyrator.ir.a", "gyrator.ir.b"]]
    assert [i.in_function for i in structure.imports_of(tmp_path / "ir" / "a.py")] == [True, True]
    privates = {name for _, name in structure.torch_privates(tmp_path / "ir" / "b.py")}
    assert {"torch._inductor", "torch._C._jit_init"} <= privates
    structure._is_module.cache_clear()


def test_no_function_writes_a_module_level_name() -> None:
    found = [
        structure.place(p, node)
        for p in SOURCES
        for node in ast.walk(structure.tree_of(p))
        if isinstance(node, ast.Global)
    ]
    assert found == []


def test_types_and_style_are_checked_strictly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["mypy"]["strict"] is True
    assert project["tool"]["ruff"]["line-length"] == 120
    assert (PACKAGE / "py.typed").exists()


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["torch_dynamo_backends"] == {"gyrator": "gyrator.backend:gyrator"}
