"""The backend behind torch.compile: what users meet when all is well, and when it is not."""

from __future__ import annotations

import copy
import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import gyrator
from gyrator.backend import gyrator as backend
from gyrator.errors import IndexOutOfRange, KernelBuildError
from gyrator.pipeline import frozen_garbage
from gyrator.session import Session
from tests.acceptance import check


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return gyrator.compile(function, options=options)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + 1, -1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_wrapper_runs_by_itself_after_its_folder_moved(folder: Path, tmp_path: Path) -> None:
    compiled(softmax, cache_dir=folder)(torch.randn(5, 9))
    (wrapper,) = folder.glob("graphs/??/*/wrapper.py")
    moved = tmp_path / "moved"
    wrapper.parent.rename(moved)
    command = [sys.executable, str(moved / "wrapper.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "us a call" in done.stdout


def fake_compiler(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


def test_kernel_that_does_not_build_is_named(folder: Path, tmp_path: Path) -> None:
    script = 'for last; do :; done; echo "kernels.cpp:9999: error: no such thing" >&2; exit 1'
    run = compiled(softmax, cxx=str(fake_compiler(tmp_path, script)), cache_dir=folder)
    with pytest.raises(Exception, match="no such thing") as caught:
        run(torch.randn(5, 9))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, KernelBuildError)
    assert Path(error.file).exists() and error.kernel in Path(error.file).read_text()
    assert "test_backend.py" in str(error)


def test_index_out_of_range_raises_with_the_users_line(folder: Path) -> None:
    def pick(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * 2

    run = compiled(pick, cache_dir=folder)
    x = torch.randn(10, 3)
    torch.testing.assert_close(run(x, torch.tensor([1, -1])), pick(x, torch.tensor([1, -1])))
    with pytest.raises(IndexError, match=r"test_backend\.py") as caught:
        run(x, torch.tensor([1, 10]))
    assert isinstance(caught.value, IndexOutOfRange)
    torch.testing.assert_close(run(x, torch.tensor([3, 4])), pick(x, torch.tensor([3, 4])))


def test_index_error_of_a_cached_graph_names_the_line_where_it_is_now(folder: Path, tmp_path: Path) -> None:
    lines = []
    for above in range(2):
        script = tmp_path / "user.py"
        script.write_text("\n" * above + "def pick(x, at):\n    return x[at] * 2\n")
        scope: dict[str, Any] = {}
        exec(compile(script.read_text(), str(script), "exec"), scope)
        with pytest.raises(IndexOutOfRange) as caught:
            compiled(scope["pick"], cache_dir=folder)(torch.randn(10, 3), torch.tensor([1, 10]))
        assert caught.value.where is not None
        lines.append(caught.value.where.line)
    assert len(list(folder.glob("graphs/??/*"))) == 1
    assert lines == [2, 3]


def test_threads_may_compile_and_call_at_once(folder: Path) -> None:
    torch._dynamo.reset()
    run = gyrator.compile(softmax, options={"cache_dir": folder})
    wrong: list[str] = []

    def work(number: int) -> None:
        for repeat in range(5):
            x = torch.randn(300, 1000 + number % 2) + repeat
            if not torch.allclose(run(x), softmax(x)):
                wrong.append(f"{number} {repeat}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_large_outputs_are_never_overwritten(folder: Path) -> None:
    run = compiled(softmax, cache_dir=folder)
    x = torch.randn(600, 1000)
    with torch.no_grad():
        first = run(x)
        kept = first.clone()
        second = run(x * 2)
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, kept)
        address = first.data_ptr()
        del first
        assert run(x).data_ptr() == address


def test_zeros_that_have_no_memory_are_zeros(folder: Path) -> None:
    run, zeros = compiled(lambda x: x * x + 1, cache_dir=folder), torch._efficientzerotensor((4, 3))
    assert torch.equal(run(zeros), torch.ones(4, 3))
    x = torch.randn(4, 3, requires_grad=True)
    assert not torch.autograd.grad(run(x), x, zeros)[0].any()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.uint8, torch.int64, torch.bool]
)
def test_memory_that_nobody_wrote_is_filled_in_torchs_deterministic_mode(dtype: torch.dtype, folder: Path) -> None:
    def memory(x: Tensor) -> tuple[Tensor, ...]:
        return torch.empty_like(x), x.new_empty(5), torch.empty_strided((2, 3), (1, 2), dtype=dtype)

    x = torch.zeros(4, 3, dtype=dtype)
    torch.use_deterministic_algorithms(True)
    try:
        for got, want in zip(compiled(memory, cache_dir=folder)(x), memory(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert not compiled(lambda x: torch._efficientzerotensor((4, 3)) + x, cache_dir=folder)(torch.zeros(4, 3)).any()
    finally:
        torch.use_deterministic_algorithms(False)


def test_under_a_fake_mode_shapes_alone_are_computed(folder: Path) -> None:
    run = compiled(softmax, cache_dir=folder)
    run(torch.randn(6, 10))
    with FakeTensorMode():
        result = run(torch.randn(6, 10))
    assert isinstance(result, FakeTensor) and result.shape == (6, 10)


def test_a_graph_is_compiled_for_fake_inputs_too() -> None:
    graph = torch.fx.symbolic_trace(softmax)
    with FakeTensorMode():
        example = torch.randn(6, 10)
    run, x = backend(graph, [example]), torch.randn(6, 10)
    assert run != graph.forward
    torch.testing.assert_close(run(x), softmax(x))


def test_reset_gives_memory_back(folder: Path) -> None:
    """Each time, though torch tells its backends only after a function was wrapped."""
    run = compiled(softmax, cache_dir=folder)
    for _ in range(2):
        with torch.no_grad():
            run(torch.randn(600, 1000))
        assert backend.process.pool.held()[0] > 0 and gyrator.counters().all()
        gyrator.reset()
        assert backend.process.pool.held() == (0, 0) and not gyrator.counters().all()


def test_profiler_shows_kernels_by_name(folder: Path) -> None:
    run = compiled(softmax, cache_dir=folder)
    x = torch.randn(5, 9)
    run(x)
    with torch.profiler.profile() as profile:
        run(x)
    names = [event.key for event in profile.key_averages()]
    assert any("softmax" in name or "amax" in name for name in names), names


def test_backend_is_copied_and_compared_as_one_object() -> None:
    assert copy.deepcopy(backend) is backend and copy.copy(backend) is backend


def test_garbage_collection_is_restored() -> None:
    with frozen_garbage():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with frozen_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_constants_of_one_shape_are_told_apart(backend: str) -> None:
    def program(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        last = a[torch.tensor([-3])]
        where = b.argmin(1)
        where.index_add_(0, torch.tensor([0]), where[:1] * 1)
        return last, where

    check(program, (torch.randn(5), torch.randn(1, 6)), backend=backend)


@pytest.mark.parametrize("columns", [257, 70_000])
def test_an_identity_may_have_more_columns_than_bytes_count(columns: int, backend: str) -> None:
    check(
        lambda x: (torch.eye(3, columns, dtype=x.dtype) + x, torch.eye(257)), (torch.randn(columns),), backend=backend
    )


def test_integers_wrap_around_as_in_eager() -> None:
    def hashes(x: Tensor) -> tuple[Tensor, ...]:
        i = torch.arange(1003)
        return x + i * 6364136223846793005 % 1000, i * 2**62 * 2 // 5, x + torch.full((1003,), 2**62) * 2

    check(hashes, [torch.arange(1003)], backend="gyrator")


def test_powers_of_bools_have_the_types_of_eagers() -> None:
    mask = torch.tensor([True, False, True])
    check(lambda x: (x**True, x**False, x**2, x**0, x**0.5, 2**x), [mask], backend="gyrator")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_are_turned_and_looked_for(dtype: torch.dtype) -> None:
    x, many = torch.arange(12).view(3, 4).to(dtype), torch.arange(4, 44).to(dtype)
    check(lambda x, many: (x.roll(1, 0), torch.isin(x, many), torch.angle(x)), [x, many], backend="gyrator")


class Turned(Tensor):
    """A subclass that changes functions of Python alone: a sine is a cosine."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.cos if func is Tensor.sin else func
        return super().__torch_function__(func, types, args, kwargs or {})


def test_what_subclasses_do_in_python_is_done_once_and_their_tensors_are_written_as_others() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return (x * w).sin() @ w, x[1]

    start, weight = torch.randn(4, 4), torch.randn(4, 4)
    found = []
    for call in (f, gyrator.compile(f)):
        x, w = (tensor.clone().as_subclass(Turned) for tensor in (start, weight))
        outputs = call(x, w.requires_grad_())
        outputs[0].sum().backward()
        assert [type(tensor) for tensor in outputs] == [Turned, Turned] and w.grad is not None
        found.append([tensor.detach().as_subclass(Tensor) for tensor in (*outputs, x, w.grad)])
    torch.testing.assert_close(*found)


def test_a_program_that_makes_tensors_on_a_gpu_is_looked_up_for_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.Graph()
    moved = graph.call_method("to", (graph.placeholder("x"), "cuda"))
    with FakeTensorMode():
        moved.meta["example_value"] = torch.ones(3, device="cuda")
    graph.output((moved,))

    def looked_up(gm: object, inputs: object, given: object, env: object, session: Session, *more: object) -> None:
        raise LookupError(session.device.type)

    monkeypatch.setattr("gyrator.backend.program_key", looked_up)
    with pytest.raises(LookupError, match="cuda"):
        backend(torch.fx.GraphModule({}, graph), [torch.ones(3)])


def test_numbers_that_the_module_random_draws_are_drawn_anew_in_each_call(backend: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * random.uniform(2, 3), x * random.randint(4, 90)

    run, x = torch.compile(fn, backend=backend), torch.ones(3)
    run(x)
    random.seed(5)
    found = [run(x) for _ in range(3)]
    random.seed(5)
    for result in found:
        torch.testing.assert_close(result, fn(x))
