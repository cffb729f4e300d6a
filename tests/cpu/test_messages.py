"""What goes wrong is told in the user's terms: no compiler, a kernel that does not build, a wrong index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal import torchbind_impls

from gyrator.backend import Backend
from gyrator.errors import GyratorWarning, IndexOutOfRange, KernelBuildError, OutputMismatch, UnsupportedInput
from gyrator.pipeline import Process


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins without compiled code, in memory and on disk."""
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def scaled_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3, dim=-1)


def compiler(folder: Path, program: str) -> str:
    """A stand-in for a C++ compiler."""
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return str(path)


def cause(error: BaseException) -> BaseException:
    """The error that torch.compile wrapped."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def test_without_a_compiler_one_line_says_so_and_the_graph_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    x = torch.randn(4, 5, requires_grad=True)
    with pytest.warns(GyratorWarning, match=r"C\+\+ compiler not found\n  try: install g\+\+") as caught:
        out = torch.compile(scaled_softmax, backend=Backend(Process()))(x)  # which has not said it before
    assert len(caught) == 1
    torch.testing.assert_close(out, scaled_softmax(x))
    (out * out).sum().backward()
    expected = torch.autograd.grad((scaled_softmax(x) ** 2).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_a_kernel_that_does_not_build_names_itself_its_file_the_line_and_the_message(tmp_path: Path) -> None:
    program = (
        'for a in "$@"; do case $a in *.cpp) source=$a;; esac; done\n'
        "if grep -q softmax $source; then echo 'kernels.cpp:12:5: error: no luck today' >&2; exit 1; fi\n"
        'exec /usr/bin/env g++ "$@"'
    )
    options = {"cxx": compiler(tmp_path, program)}
    with pytest.raises((BackendCompilerFailed, KernelBuildError)) as caught:
        torch.compile(scaled_softmax, backend="gyrator", options=options)(torch.randn(4, 5))
    text = str(caught.value)
    assert "error: no luck today" in text
    assert "does not build" in text
    source = next(line.split("source: ")[1] for line in text.splitlines() if "source: " in line)
    assert "softmax" in Path(source).read_text()
    assert f"{__file__}:" in text


def test_a_compiler_that_cannot_run_is_an_error_not_a_crash(tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_bytes(b"\x7fELF not a program")
    broken.chmod(0o755)
    with pytest.raises((BackendCompilerFailed, KernelBuildError), match="does not build") as caught:
        torch.compile(scaled_softmax, backend="gyrator", options={"cxx": str(broken)})(torch.randn(4, 5))
    assert "Exec format error" in str(caught.value)


@pytest.mark.parametrize(("program", "said"), [("exit 0", "status 0"), (r"printf '\377 wrong' >&2; exit 1", "wrong")])
def test_whatever_a_broken_compiler_says_the_kernel_is_named(tmp_path: Path, program: str, said: str) -> None:
    options = {"cxx": compiler(tmp_path, program)}
    with pytest.raises((BackendCompilerFailed, KernelBuildError), match="does not build") as caught:
        torch.compile(scaled_softmax, backend="gyrator", options=options)(torch.randn(4, 5))
    assert said in str(caught.value)


@pytest.mark.parametrize("index", [7, -8])
def test_an_index_out_of_range_is_an_error_as_in_eager(index: int) -> None:
    def pick(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at].sin() + 1

    compiled = torch.compile(pick, backend="gyrator")
    x = torch.randn(7, 3)
    torch.testing.assert_close(compiled(x, torch.tensor([6, -7])), pick(x, torch.tensor([6, -7])))
    with pytest.raises(IndexError):
        pick(x, torch.tensor([0, index]))
    with pytest.raises(IndexOutOfRange) as caught:
        compiled(x, torch.tensor([0, index]))
    assert f"{__file__}:" in str(caught.value)


def test_a_fake_kernel_that_promises_the_wrong_shape_is_found_out() -> None:
    @torch.library.custom_op("gyrator_tests::halves", mutates_args=())
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2].clone()

    @halves.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    compiled = torch.compile(lambda x: halves(x) + 1, backend="gyrator")
    with pytest.raises(OutputMismatch, match=r"gyrator_tests(::|\.)halves"):
        compiled(torch.randn(8, 3))


def test_a_sparse_tensor_is_refused_or_computed_never_misread() -> None:
    dense = torch.eye(3)
    try:
        out = torch.compile(lambda x: torch.sparse.sum(x) * 2, backend="gyrator")(dense.to_sparse())
    except BackendCompilerFailed as error:
        assert isinstance(cause(error), UnsupportedInput)
    else:
        assert out == 6


def test_a_program_whose_gradients_are_sparse_runs_uncompiled_with_a_way_out() -> None:
    tables = [torch.nn.Embedding(10, 4, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    rows = torch.tensor([1, 2, 2])
    compiled = torch.compile(lambda i: (tables[0](i) ** 2).sum(), backend="gyrator")
    with pytest.warns(GyratorWarning, match=r"runs uncompiled[\s\S]*layout torch.sparse_coo[\s\S]*try: .*sparse=False"):
        compiled(rows).backward()
    (tables[1](rows) ** 2).sum().backward()
    found, wanted = (table.weight.grad for table in tables)
    assert found.is_sparse
    assert torch.equal(found.to_dense(), wanted.to_dense())
    gathered = torch.compile(lambda x: torch.gather(x, 0, rows, sparse_grad=True), backend="gyrator")
    with pytest.warns(GyratorWarning, match="runs uncompiled"):
        assert torch.equal(gathered(torch.arange(4.0, requires_grad=True)), torch.tensor([1.0, 2.0, 2.0]))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_program_with_quantised_values_runs_uncompiled() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x * 2, 0.25, 3, torch.quint8).dequantize() + 1

    x = torch.linspace(0, 3, 7)
    with pytest.warns(GyratorWarning, match="runs uncompiled[\\s\\S]*result is quantised"):
        found = torch.compile(rounded, backend="gyrator")(x)
    assert torch.equal(found, rounded(x))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
def test_a_program_that_is_given_a_tensor_in_a_layout_of_onednn_runs_uncompiled() -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    with pytest.warns(GyratorWarning, match="runs uncompiled[\\s\\S]*layout torch._mkldnn"):
        found = torch.compile(lambda x: x.relu().to_dense() * 2, backend="gyrator")(x.to_mkldnn())
    assert torch.equal(found, x.relu() * 2)


def test_a_program_with_an_object_of_torchscript_runs_uncompiled() -> None:
    torchbind_impls.init_torchbind_implementations()
    held = torch.nn.Module()
    held.pair = torch.classes._TorchScriptTesting._Foo(2, 3)
    compiled = torch.compile(lambda x: torch.ops._TorchScriptTesting.takes_foo(held.pair, x * 2) + 1, backend="gyrator")
    x = torch.ones(3)
    with pytest.warns(GyratorWarning, match="runs uncompiled[\\s\\S]*it takes a ScriptObject"):
        found = compiled(x)
    assert torch.equal(found, torch.ops._TorchScriptTesting.takes_foo(held.pair, x * 2) + 1)
