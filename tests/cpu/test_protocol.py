"""What a user may expect of any torch.compile backend.

A compiled function may be called again and again, from several threads, copied, profiled and reset; inputs of
other kinds work or are refused clearly. Mutation and aliasing have their own file.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.config import Config
from gyrator.pipeline import Process, compile_graph
from gyrator.session import Session
from tests.acceptance import assert_none, check, expect


def compiles() -> int:
    """Graphs that dynamo has captured since its last reset."""
    return counters["stats"]["unique_graphs"]


# --- called again and again ---


def test_result_of_one_call_is_not_overwritten_by_the_next(backend):
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=backend)
    first = compiled(torch.ones(1000))
    kept, view = first.clone(), first[10:20]
    second = compiled(torch.full((1000,), 7.0))
    assert torch.equal(first, kept) and torch.equal(view, kept[10:20])
    assert first.data_ptr() != second.data_ptr()


def test_a_result_does_not_keep_a_larger_block(backend):
    x, wide, narrow = torch.randn(512, 8), torch.randn(8, 2000), torch.randn(8, 1200)
    fn = torch.compile(lambda x: (x * (x @ wide).sum()) @ narrow, backend=backend)
    for _ in range(2):
        result = fn(x)
        assert result.untyped_storage().nbytes() == result.nbytes


def test_gradients_take_larger_blocks_which_other_values_left(backend):
    x, w, wide = (torch.randn(512, n, requires_grad=True) for n in (1200, 1200, 2000))
    torch.compile(lambda x: x.exp().sort()[0].sin(), backend=backend)(wide.detach())
    fn = torch.compile(lambda x, w: (torch.softmax(x, -1) * w.exp()).tanh(), backend=backend)
    fn(x, w).sum().backward()
    assert any(leaf.grad.untyped_storage().nbytes() > leaf.grad.nbytes for leaf in (x, w))


def test_a_view_alone_keeps_the_result_alive(backend):
    compiled = torch.compile(lambda x: x * 2, backend=backend)
    view = compiled(torch.ones(64, 64))[3]
    for value in range(5):
        compiled(torch.full((64, 64), float(value)))
    assert torch.equal(view, torch.full((64,), 2.0))


def test_equal_options_do_not_compile_again(backend):
    def fn(x):
        return x.sin() + 1

    options = {"check": "borders"} if backend == "gyrator" else None
    counters.clear()
    for _ in range(3):
        torch.compile(fn, backend=backend, options=options and dict(options))(torch.ones(3))
    assert compiles() == 1


def test_changing_learning_rate_does_not_compile_again(backend):
    """A float that changes becomes an input after its second value, a 0-d tensor is one from the start."""

    def step(parameter, gradient, rate):
        parameter.sub_(gradient * rate)

    def count(rates):
        torch._dynamo.reset()
        counters.clear()
        compiled, parameter = torch.compile(step, backend=backend), torch.ones(8)
        for rate in rates:
            compiled(parameter, torch.ones(8), rate)
        torch.testing.assert_close(parameter, torch.full((8,), 1 - float(sum(rates))))
        return compiles()

    assert count([torch.tensor(0.1 * k) for k in range(1, 6)]) == 1
    assert count([0.1, 0.2, 0.3, 0.4, 0.5]) <= 2


def test_example_inputs_are_not_kept_alive(backend):
    compiled = torch.compile(lambda x: (x * 2).sum(), backend=backend)
    example = torch.randn(100, requires_grad=True)
    compiled(example).backward()
    reference = weakref.ref(example)
    del example
    gc.collect()
    assert reference() is None


def test_reset_forgets_and_compiles_again(backend):
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    counters.clear()
    compiled(torch.ones(3))
    torch._dynamo.reset()
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert compiles() == 2


def test_global_state_that_matters_is_not_mixed_up(backend):
    compiled = torch.compile(lambda x: torch.ones(3) + x.sum(), backend=backend)
    assert compiled(torch.ones(2)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(torch.ones(2)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_deepcopy_of_a_compiled_module(backend):
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)
    x = torch.randn(2, 4)
    before = model(x)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        next(twin.parameters()).zero_()
    torch.testing.assert_close(model(x), before)
    assert not torch.allclose(twin(x), before)
    twin(x).sum().backward()


def test_state_dict_round_trip_of_a_compiled_module(backend):
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), backend=backend)
    x = torch.randn(6, 4)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    first = model(x)
    model.load_state_dict(state)
    torch.testing.assert_close(model(x), first)


@pytest.mark.parametrize("threads", [1, 2])
def test_number_of_threads_is_read_at_each_call(threads, backend):
    compiled = torch.compile(lambda x: (x.sin() * 2).sum(1), backend=backend)
    x = torch.randn(512, 512)
    expected = (x.double().sin() * 2).sum(1).float()
    before = torch.get_num_threads()
    try:
        for count in (threads, 3 - threads):
            torch.set_num_threads(count)
            torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-4)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_other_threads_run_while_a_kernel_does(backend):
    compiled = torch.compile(lambda x: x.sin().exp().cos().tanh().atan(), backend=backend)
    x = torch.randn(4_000_000)
    compiled(x)
    worker = threading.Thread(target=compiled, args=(x,))
    worker.start()
    longest, last = 0.0, time.perf_counter()
    started = last
    while worker.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    worker.join()
    assert longest < max(0.5 * (last - started), 0.05)


def test_two_threads_compile_at_once(backend):
    def work(size: int, answers: dict[int, Tensor]) -> None:
        answers[size] = torch.compile(lambda x: F.softmax(x * 2, -1).cumsum(0), backend=backend)(torch.ones(size, 4))

    answers: dict[int, Tensor] = {}
    threads = [threading.Thread(target=work, args=(size, answers)) for size in (3, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in (3, 5, 7):
        torch.testing.assert_close(answers[size], F.softmax(torch.ones(size, 4) * 2, -1).cumsum(0))


def test_two_threads_run_one_compiled_function_at_once(backend):
    compiled = torch.compile(lambda x: (x * 2 + 1).relu().sum(1), backend=backend)
    compiled(torch.ones(64, 64))
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(50):
            out = compiled(torch.full((64, 64), value))
            if not torch.equal(out, torch.full((64,), 64 * (2 * value + 1))):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiled_graphs_empty_the_list_of_their_inputs():
    """So that an input which nobody else holds, such as a saved activation, is freed once it was read."""
    left: list[int] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[object], info: GraphInfo) -> Compiled:
        with Session(Config(), torch.device("cpu"), info.kind) as session:
            compiled = compile_graph(graph, inputs, info, session, Process())()

        def call(arguments: list[Any]) -> Sequence[Any]:
            outputs = compiled.call(arguments)
            left.append(len(arguments))
            return outputs

        return dataclasses.replace(compiled, call=call)

    backend = functools.partial(aot_compile, fw_compiler=compiler)
    x = torch.randn(4, 4, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(lambda x: ((x * 2).relu() @ x).tanh().sum(), backend=backend)(x).backward()
    assert left == [0, 0]


def test_a_compiled_function_that_runs_backward(backend):
    """torch.compile breaks the graph at `backward` and does not capture what runs in it."""

    def step(x: Tensor) -> Tensor:
        loss = x.sin().square().sum()
        loss.backward()
        return loss

    x, other = (torch.arange(6.0).requires_grad_() for _ in range(2))
    torch._dynamo.reset()
    counters.clear()
    torch.compile(step, backend=backend)(x)
    step(other)
    assert torch.allclose(x.grad, other.grad)
    assert len(counters["graph_break"]) == 1


# --- asserts, profiling ---


def test_a_false_assertion_raises(backend):
    def fn(x):
        torch._assert_async((x > 0).all(), "all of x must be positive")
        return x.sqrt()

    compiled = torch.compile(fn, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3))
    with pytest.raises(RuntimeError, match="must be positive"):
        compiled(-torch.ones(3))


@pytest.mark.parametrize("factor", [torch.linalg.cholesky, torch.linalg.inv], ids=["cholesky", "inv"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_matrix_without_the_wanted_factor_raises(factor, training, backend):
    compiled = torch.compile(lambda x: factor(x) * 2, backend=backend)
    torch.testing.assert_close(compiled(torch.eye(3).requires_grad_(training)), torch.eye(3) * 2, check_stride=False)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros(3, 3).requires_grad_(training))


def test_an_operator_without_results_runs_at_each_call():
    seen = []

    @torch.library.custom_op("gyrator_tests::note", mutates_args=())
    def note(x: Tensor) -> None:
        seen.append(x.sum().item())

    note.register_fake(lambda x: None)

    def fn(x):
        note(x * 2)
        return x + 1

    compiled = torch.compile(fn, backend="gyrator")
    for k in (1, 2):
        compiled(torch.full((3,), k))
    assert seen == [6, 12]


def test_a_false_check_of_an_unbacked_size_raises(backend):
    def fn(x):
        size = x.item()
        torch._check(size >= 2)
        torch._check(size < 10)
        return torch.zeros(size) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(fn, backend=backend, fullgraph=True)
        assert compiled(torch.tensor(4)).shape == (4,)
        with pytest.raises(RuntimeError):
            compiled(torch.tensor(11))


def test_profiler_shows_named_kernels(backend):
    compiled = torch.compile(lambda x: (x * 2).tanh().sum(1), backend=backend)
    x = torch.randn(32, 32)
    compiled(x)
    with torch.profiler.profile() as profile, torch.profiler.record_function("step of the user"):
        compiled(x)
    names = {event.key for event in profile.key_averages()}
    assert "step of the user" in names
    if backend == "gyrator":
        assert any("sum" in name and not name.startswith("aten::") for name in names), sorted(names)


# --- inputs of other kinds ---


def _same_or_clear(fn: Callable[..., Any], arguments: tuple[Any, ...], backend: str, words: str) -> None:
    """The call does what eager does, or its error says which kind of input is refused."""
    eager = fn(*arguments)
    try:
        actual = torch.compile(fn, backend=backend)(*arguments)
    except Exception as error:
        assert any(word in str(error).lower() for word in words.split("|")), error
        return
    torch.testing.assert_close(actual, eager)


def test_sparse_input(backend):
    sparse = torch.eye(4).to_sparse()
    _same_or_clear(lambda s, x: torch.sparse.mm(s, x) + 1, (sparse, torch.randn(4, 2)), backend, "sparse")


@pytest.mark.filterwarnings("ignore")
def test_quantised_input(backend):
    quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    _same_or_clear(lambda q: q.dequantize() + 1, (quantised,), backend, "quant|qint8|qscheme")


def test_meta_input(backend):
    out = torch.compile(lambda x: (x + 1).sum(0), backend=backend)(torch.empty(3, 4, device="meta"))
    assert out.device.type == "meta" and out.shape == (4,)


def test_complex_input(backend):
    check(
        lambda z: (z * 2j, z.abs(), z.conj() + 1, torch.view_as_real(z) * 2), (torch.randn(3, 4) + 1j,), backend=backend
    )


@pytest.mark.parametrize("step", [lambda z: z * 2, lambda z: z.add_(1), lambda z: (z.mul_(2), z.sin())])
def test_inputs_whose_memory_holds_another_value(step, backend):
    """A conjugate and its imaginary part are views with a flag."""
    check(step, (torch.randn(4, dtype=torch.complex64).conj(),), backend=backend)
    check(step, (torch.randn(4, dtype=torch.complex64).conj().imag,), backend=backend)


def test_levels_agree_on_a_conjugated_input():
    def parts(z):
        return z.real + z.imag, z * 2

    z = torch.randn(4, dtype=torch.complex64).conj()
    torch.testing.assert_close(torch.compile(parts, backend="gyrator", options={"validate": True})(z), parts(z))


def test_complex_inputs_are_written_to(backend):
    def rotated(z, w):
        z.mul_(1j)
        torch.view_as_real(w).add_(1)
        return z[1:], w.real, z * w

    check(
        rotated, (torch.randn(3, 4, dtype=torch.complex64), torch.randn(8, dtype=torch.complex64)[::2]), backend=backend
    )


def test_rotary_embedding_by_complex_numbers(backend):
    def rotated(q, turns):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(q)

    turns = torch.polar(torch.ones(7, 8), torch.randn(7, 8))[None, :, None]
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.randn(2, 7, 3, 16, dtype=dtype, requires_grad=True)
        fn = torch.compile(rotated, backend=backend)
        assert_none(expect(rotated, (q, turns.requires_grad_()), backward=True).mismatches(fn))


@pytest.mark.filterwarnings("ignore:stft")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_numbers_seen_in_a_complex_result_have_its_strides(dynamic, backend):
    """Such a view is a copy here, which would lie in rows."""
    spectrum = lambda x: torch.stft(x, 10, window=torch.ones(10), return_complex=False)  # noqa: E731
    fn = torch.compile(spectrum, backend=backend, dynamic=dynamic)
    assert_none(expect(spectrum, (torch.randn(100, requires_grad=True),), backward=True).mismatches(fn))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_spectrum_becomes_a_signal_again_in_one_graph(dynamic, backend):
    """Eager reads whether the windows cover the signal; a graph cannot."""
    window = torch.hann_window(16)
    signal = lambda x: torch.istft(torch.stft(x, 16, window=window, return_complex=True) * 2, 16, window=window)  # noqa: E731
    fn = torch.compile(signal, backend=backend, dynamic=dynamic, fullgraph=True)
    assert_none(expect(signal, (torch.randn(2, 100, requires_grad=True),), backward=True).mismatches(fn))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_conjugate_of_a_part_has_its_gaps(dynamic, backend):
    conjugate = lambda z: (z * 2)[:, ::2].conj()  # noqa: E731
    fn = torch.compile(conjugate, backend=backend, dynamic=dynamic)
    assert_none(expect(conjugate, (torch.randn(4, 6) + 1j,)).mismatches(fn))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_resized_in_integers(mode, backend):
    image = torch.randint(0, 256, (2, 3, 20, 31), dtype=torch.uint8)
    check(lambda x: F.interpolate(x, (13, 47), mode=mode), (image,), backend=backend)


def test_tensor_subclass(backend):
    two = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    x = two(torch.randn(3), torch.randn(3))
    _same_or_clear(lambda x: (x * 2 + 1).a, (x,), backend, "subclass")


def test_parameters_and_buffers(backend):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.count += 1
            return x * self.weight + self.count

    expected = expect(lambda m, x: (m(x), m(x)), (Scaled(), torch.randn(3, 4)), backward=True)
    lines = expected.mismatches(lambda m, x: (torch.compile(m, backend=backend)(x), m(x)))
    assert_none(lines)
