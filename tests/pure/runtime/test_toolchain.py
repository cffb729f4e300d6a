"""Finding the compiler and the instruction set; nothing is run to find them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gyrator.config import Config
from gyrator.errors import ToolchainMissing
from gyrator.runtime.toolchain import ISA_FLAGS, Toolchain, cpu_isa, find_toolchain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


def test_no_compiler_says_what_to_install(folder: Path) -> None:
    with pytest.raises(ToolchainMissing, match=r"a C\+\+ compiler not found.*\n.*apt install g\+\+"):
        find_toolchain(Config())


def test_a_compiler_that_was_asked_for_is_named_when_missing(folder: Path) -> None:
    with pytest.raises(ToolchainMissing, match=r"my-g\+\+"):
        find_toolchain(Config(cxx="my-g++"))


def test_the_variable_goes_before_the_usual_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder / "g++")
    assert find_toolchain(Config()).compiler.name == "g++"
    other = program(folder / "other-g++")
    monkeypatch.setenv("CXX", "other-g++")
    assert find_toolchain(Config()).compiler == other


def test_a_replaced_compiler_is_another_toolchain(folder: Path) -> None:
    compiler = program(folder / "g++")
    before = find_toolchain(Config()).key()
    assert find_toolchain(Config()).key() == before
    compiler.write_text("#!/bin/sh\n# newer\nexit 1\n")
    fresh = Toolchain(compiler, cpu_isa(), f"g++ {compiler.stat().st_size} {compiler.stat().st_mtime_ns}")
    assert fresh.key() != before


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    order = tuple(ISA_FLAGS)
    assert cpu_isa() in order
    for isa in order[order.index(cpu_isa()) + 1 :]:
        with pytest.raises(ToolchainMissing, match=isa):
            find_toolchain(Config(cpu_isa=isa))


def test_instruction_sets_are_part_of_the_key() -> None:
    toolchain = Toolchain(Path("/usr/bin/g++"), "avx2", "g++ 1 2")
    assert "-mavx2" in toolchain.flags
    assert "-mavx512f" in replace(toolchain, isa="avx512").flags
    assert not any(flag.startswith("-m") for flag in replace(toolchain, isa="scalar").flags)
    assert len({replace(toolchain, isa=isa).key() for isa in ISA_FLAGS}) == len(ISA_FLAGS)


def test_clang_links_its_own_openmp() -> None:
    assert Toolchain(Path("/usr/bin/clang++"), "avx2", "clang-17 1 2").libraries == ()
    assert "-lgomp" in Toolchain(Path("/usr/bin/g++"), "avx2", "g++-12 1 2").libraries
