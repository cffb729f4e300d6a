"""What goes wrong outside of the compiler gets a clear error or a right answer, never a crash.

Most of these run in a process of their own: they change the toolchain, the cache, or kill the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

import gyrator
from gyrator.backend import Backend
from gyrator.errors import GyratorError, InvalidOption, KernelBuildError, UnknownOption
from gyrator.pipeline import Process
from gyrator.session import Session

ROOT = Path(__file__).parents[2]
PROGRAM = """
    import torch, gyrator

    def fn(x, y):
        return torch.softmax(x * 2 + y, -1).cumsum(0), (x @ y.t()).relu()

    x, y = torch.randn(6, 8), torch.randn(6, 8)
"""
COMPARE = """
    for got, want in zip(torch.compile(fn, backend="gyrator")(x, y), fn(x, y), strict=True):
        torch.testing.assert_close(got, want)
    print("right")
"""


def environment(cache: Path, **changes: str) -> dict[str, str]:
    """This process's environment without options and with an empty cache; an empty value removes a name."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GYRATOR_", "PYTHONWARNINGS"))}
    merged = plain | {"GYRATOR_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    merged |= changes
    return {key: value for key, value in merged.items() if value}


def script(*parts: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(textwrap.dedent(part) for part in parts)]


def run(*parts: str, env: dict[str, str], timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(script(*parts), env=env, capture_output=True, text=True, timeout=timeout)


# --- the toolchain ---


def test_without_a_compiler_the_program_runs_and_says_so_once(tmp_path):
    env = environment(tmp_path, PATH="/nonexistent", CXX="")
    again = "torch._dynamo.reset()\n" + textwrap.dedent(COMPARE)
    done = run(PROGRAM, COMPARE, again, env=env)
    assert done.stdout.split() == ["right", "right"], done.stderr
    assert done.stderr.count("GyratorWarning") == 1, done.stderr
    assert "compiler not found" in done.stderr and "install g++" in done.stderr


def test_a_compiler_of_c_that_links_no_cxx_library_will_do(tmp_path):
    """CXX=gcc compiles C++, and some libraries leave it set (peft, where it could not build its kernels for BOFT)."""
    done = run(PROGRAM, COMPARE, env=environment(tmp_path, CXX="gcc"))
    assert done.stdout.split() == ["right"], done.stderr


def test_a_kernel_that_does_not_build_names_itself_and_the_users_line(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "g++ 12.2.0"; exit 0;; esac\necho "no such luck" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    done = run(PROGRAM, COMPARE, env=environment(tmp_path / "cache", CXX=str(broken)))
    assert done.returncode != 0
    for wanted in (KernelBuildError.__name__, "no such luck", "source:"):
        assert wanted in done.stderr, done.stderr


# --- options ---


def test_an_unknown_option_lists_the_valid_ones_with_their_types():
    with pytest.raises(UnknownOption) as caught:
        gyrator.compile(lambda x: x, options={"fuson": True})
    text = str(caught.value)
    assert "fuson" in text and "fusion" in text and "bool" in text


def test_an_unknown_option_through_torch_compile_is_refused_too():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="nonsense"):
        torch.compile(lambda x: x + 1, backend="gyrator", options={"nonsense": 1})(torch.ones(2))


def test_an_option_of_the_wrong_type_is_refused():
    with pytest.raises(InvalidOption, match="fusion"):
        gyrator.compile(lambda x: x, options={"fusion": "perhaps"})


def test_an_unknown_mode_lists_the_modes():
    with pytest.raises(UnknownOption, match="max-autotune"):
        gyrator.compile(lambda x: x, mode="fastest")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.filterwarnings("ignore")
def test_every_mode_computes_the_same(mode):
    torch._dynamo.reset()
    x = torch.randn(4, 5)
    out = gyrator.compile(lambda x: torch.softmax(x, -1) * 2, mode=mode)(x)
    torch.testing.assert_close(out, torch.softmax(x, -1) * 2)


# --- indices ---

OUT_OF_RANGE = {
    "gather": "torch.gather(x, 1, i[:, None])",
    "index": "x[i] + 1",
    "index_select": "torch.index_select(x, 0, i) * 2",
    "index_put": "x.clone().index_put_((i,), x[:3] + 1)",
    "scatter": "x.clone().scatter_(1, i[:, None], 1.0)",
    "embedding": "torch.nn.functional.embedding(i, x) + 1",
    "max_unpool": "torch.nn.functional.max_unpool1d(x[:3, :1], i[:, None], 5)",
    "one_hot": "torch.nn.functional.one_hot(i, 5) + 1",
    "cross_entropy": "torch.nn.functional.cross_entropy(x[:3], i)",
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_is_an_error_and_the_process_lives(name, tmp_path):
    body = f"""
        import torch, gyrator

        fn = torch.compile(lambda x, i: {OUT_OF_RANGE[name]}, backend="gyrator")
        x = torch.randn(5, 5)
        fn(x, torch.tensor([0, 1, 4]))
        for bad in ([0, 1, 1_000_000_000], [0, 7, 1], [-77, 0, 1]):
            try:
                fn(x, torch.tensor(bad))
            except (IndexError, RuntimeError) as error:
                print("refused", type(error).__name__)
        fn(x, torch.tensor([2, 2, 0]))
        print("alive")
    """
    done = run(body, env=environment(tmp_path))
    assert done.stdout.split().count("refused") == 3 and "alive" in done.stdout, done.stdout + done.stderr


OF_ONE = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[None]) + 1,
    "gather": lambda x, i: x[None].gather(0, i[None]) * 2,
    "a view": lambda x, i: x[None].T.index_select(1, i) * 2,
    "cross entropy of one class": lambda x, i: torch.nn.functional.cross_entropy(x[:, None], i),
    "what is computed": lambda x, i: (x[None] - 0.5)[i],
    "rows written": lambda x, i: x[None].index_put((i,), x),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_an_index_into_a_dimension_of_one_element_is_checked(name):
    torch._dynamo.reset()
    compiled, x = torch.compile(OF_ONE[name], backend="gyrator", dynamic=False), torch.randn(3)
    zeros = torch.zeros(3, dtype=torch.int64)
    torch.testing.assert_close(compiled(x, zeros), OF_ONE[name](x, zeros))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([0, 1, 0]))


REFUSED = {
    "the largest of none": lambda x: x[:0].max(),
    "the smallest of empty columns": lambda x: x[:0].min(0)[0] + 1,
    "the largest of what a mask chooses": lambda x: x[x > 9].max(0),
    "an integer to a negative power": lambda x: x.int() ** -1,
    "a byte filled with more than it holds": lambda x: x.to(torch.int8).fill_(300),
    "bytes up to more than they hold": lambda x: x.to(torch.uint8).clamp(max=300),
    "a sum with more bytes than one holds": lambda x: torch.add(x.to(torch.uint8), x.to(torch.uint8), alpha=300),
    "bytes padded with more than they hold": lambda x: torch.nn.functional.pad(x.to(torch.uint8), (1, 1), value=300),
    "a byte set to more than it holds": lambda x: x.to(torch.uint8).index_fill(0, torch.tensor([0]), 300),
    "a byte to a power that it does not hold": lambda x: x.to(torch.uint8) ** 300,
    "a byte chosen that holds less": lambda x: torch.where(x > 9, x.to(torch.int8), -129),
    "targets that are no probabilities": lambda x: torch.nn.functional.binary_cross_entropy(x / 6, x),
    "a bias of more rows than its product": lambda x: torch.addmm(x.view(6, 1), x[None, :1], x[:1, None]),
    "a bias of more columns than there are": lambda x: torch.nn.functional.linear(x.view(2, 3), x[None, :3], x),
    "a bias of more rows, in a product that is a call": lambda x: torch.addmm(
        x.view(2, 3), x[None], x[:, None].expand(6, 3)
    ),
    "a float of 16 bits filled with more than it holds": lambda x: x.half().fill_(1e6),
    "a float of 16 bits filled with a larger integer": lambda x: torch.full_like(x.half(), 100000),
    "reals filled with a complex number": lambda x: torch.full_like(x, 1 + 2j),
    "a complex share of a product added to reals": lambda x: torch.addcmul(x, x, x, value=1 + 2j),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_to_compute_is_an_error(name):
    torch._dynamo.reset()
    x, fn = torch.arange(6.0), REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)):
        fn(x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), pytest.raises((RuntimeError, IndexError)):
        torch.compile(fn, backend="gyrator")(x)


BOOLS, INTEGERS = torch.tensor([[True, False]]), torch.arange(8).view(1, 2, 4)
MISTYPED = {
    "differences of bools": (lambda x: x - x, BOOLS),
    "a mask less 1": (lambda x: x - 1, BOOLS),
    "1 less a mask": (lambda x: 1 - x, BOOLS),
    "floats less a mask": (lambda x: x.float() - x, BOOLS),
    "relu of bools": (torch.relu, BOOLS),
    "softmax of integers": (lambda x: x.softmax(-1), INTEGERS),
    "losses of integers": (lambda x: torch.nn.functional.cross_entropy(x, x[:, 0]), INTEGERS),
    "gelu of integers": (torch.nn.functional.gelu, INTEGERS),
    "celu of integers": (torch.nn.functional.celu, INTEGERS),
    "running sums as bools, which numpy's functions ask for": (lambda x: x.cumsum(1, dtype=torch.bool), BOOLS),
    "running products as bools": (lambda x: x.cumprod(1, dtype=torch.bool), BOOLS),
    "running logarithms of sums of integers": (lambda x: x.logcumsumexp(1), INTEGERS),
    "running logarithms of one integer": (lambda x: x[0, 0, 0].logcumsumexp(0), INTEGERS),
    "variances of integers": (lambda x: x.var(1), INTEGERS),
    "lerp of integers": (lambda x: torch.lerp(x, x, 2), INTEGERS),
    "means of parts of integers": (lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2), INTEGERS),
    "windows of integers": (lambda x: torch.nn.functional.unfold(x, 2), INTEGERS),
    "bits of floats": (lambda x: x.float() & x.float(), INTEGERS),
    "masks shifted by masks": (lambda x: torch.bitwise_left_shift(x, x), BOOLS),
    "hypotenuses of integers": (lambda x: torch.hypot(x, x), INTEGERS),
    "the next integers": (lambda x: torch.nextafter(x, x), INTEGERS),
    "remainders of bools": (lambda x: torch.fmod(x, x), BOOLS),
    "quotients of bools added": (lambda x: torch.addcdiv(x, x, x), BOOLS),
    "means of windows of bools": (lambda x: torch.nn.functional.avg_pool1d(x[None], 2), BOOLS),
    "the largest of windows of bools": (lambda x: torch.nn.functional.max_pool2d(x[None], (1, 2)), BOOLS),
    "reflected bools": (lambda x: torch.nn.functional.pad(x, (1, 1), mode="reflect"), BOOLS),
    "the likelihood of integers": (lambda x: torch.nn.functional.nll_loss(x[0], x[0, :, 0] % 4), INTEGERS),
    "products of two types": (lambda x: x.float()[0].mT @ x.double()[0], INTEGERS),
    "products of a row and a vector of two types": (lambda x: x.float()[0].mv(x.double()[0, 0]), INTEGERS),
    "rows of another type written": (lambda x: x.float().index_put((x[0, 0, :1],), x.double()[0]), INTEGERS),
    "rows of another type added": (lambda x: x.float().index_add(0, x[0, 0, :1], x.double()), INTEGERS),
    "rows of another type copied": (lambda x: x.float().index_copy(0, x[0, 0, :1], x.double()), INTEGERS),
    "rows of another type among the largest": (
        lambda x: x.float().index_reduce(0, x[0, 0, :1], x.half(), "amax"),
        INTEGERS,
    ),
    "rows at short places": (lambda x: x.float().index_select(2, x[0, 0].short()), INTEGERS),
    "rows filled at places of 32 bits": (lambda x: x.float().index_fill(2, x[0, 0].int(), 1.0), INTEGERS),
    "cross products of two types": (lambda x: torch.linalg.cross(x[..., :3].float(), x[..., :3].double()), INTEGERS),
    "steps of another type": (lambda x: torch.heaviside(x.float(), x.double()), INTEGERS),
    "an image at places of another type": (
        lambda x: torch.nn.functional.grid_sample(x[None].float(), x.view(1, 1, 4, 2).double(), align_corners=False),
        INTEGERS,
    ),
    "likelihoods of targets of another type": (
        lambda x: torch.nn.functional.binary_cross_entropy(x.float() / 8, x.double() / 8),
        INTEGERS,
    ),
    "cross entropy of bools": (lambda x: torch.nn.functional.cross_entropy(x.float().expand(2, 2), x[0]), BOOLS),
    "cross entropy with weights of another type": (
        lambda x: torch.nn.functional.cross_entropy(x[0].float(), x[0, 0, :2], x[0, 1].double()),
        INTEGERS,
    ),
    "layer norm with weights of fewer bits": (
        lambda x: torch.nn.functional.layer_norm(x.float(), (4,), x[0, 0].half(), x[0, 0].half()),
        INTEGERS,
    ),
    "batch norm with statistics of another type": (
        lambda x: torch.nn.functional.batch_norm(x.double(), x[0, 0, :2].float(), x[0, 0, :2].float()),
        INTEGERS,
    ),
    "powers of bools": (lambda x: x**x, BOOLS),
    "a bias of another type": (lambda x: torch.addmm(x[0].double(), x[0, :, :2].float(), x[0].float()), INTEGERS),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MISTYPED)
def test_dtypes_that_eager_refuses_are_refused(name, dynamic):
    """Loops would compute something of them: a softmax of integers was 0 and 1."""
    function, x = MISTYPED[name]
    with pytest.raises((RuntimeError, IndexError)):
        function(x)
    torch._dynamo.reset()
    with pytest.raises(
        (RuntimeError, IndexError), match=r"dtype|scalar type|bool|Bool|not implemented|not supported|only support"
    ) as caught:
        torch.compile(function, backend="gyrator", dynamic=dynamic)(x)
    assert "internal check" not in str(caught.value)


def test_softmax_of_integers_as_floats_and_resized_bytes_are_computed():
    pixels = torch.randint(0, 256, (1, 3, 5, 7), dtype=torch.uint8)
    resize = torch.compile(
        lambda x: torch.nn.functional.interpolate(x, size=(9, 8), mode="bilinear"), backend="gyrator"
    )
    assert torch.equal(resize(pixels), torch.nn.functional.interpolate(pixels, size=(9, 8), mode="bilinear"))
    soft = torch.compile(lambda x: x.softmax(-1, dtype=torch.float32), backend="gyrator")
    torch.testing.assert_close(soft(INTEGERS), INTEGERS.softmax(-1, dtype=torch.float32))


def test_sizes_that_do_not_fit_are_refused_as_in_eager():
    torch._dynamo.reset()
    with pytest.raises(RuntimeError):
        torch.compile(lambda x, y: x @ y, backend="gyrator")(torch.ones(2, 3), torch.ones(2, 3))


UNFIT = {
    "select_scatter": lambda x: x.select_scatter(x[0, :1], 0, 1),
    "slice_scatter": lambda x: x.slice_scatter(x[:1], 0, 1, 3),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0, :2]),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 1]), x[:2, :3]),
    "index_reduce": lambda x: x.index_reduce(0, torch.tensor([0, 1]), x[:2, :1], "mean"),
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]),), x[:3]),
    "nll_loss2d": lambda x: torch.nn.functional.nll_loss(x.expand(1, 3, 4, 5), x[None, :3].long()),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", UNFIT)
def test_an_operand_that_is_too_small_for_its_place_is_an_error(name, dynamic):
    torch._dynamo.reset()
    x, fn = torch.zeros(4, 5), UNFIT[name]
    for run in (fn, torch.compile(fn, backend="gyrator", dynamic=dynamic)):
        with pytest.raises(RuntimeError, match=r"shape|size"):
            run(x)


def test_errors_are_of_one_family():
    assert issubclass(KernelBuildError, GyratorError) and issubclass(UnknownOption, GyratorError)


# --- processes that end at a bad moment ---


def test_two_processes_compile_the_same_at_once(tmp_path):
    env = environment(tmp_path)
    both = [subprocess.Popen(script(PROGRAM, COMPARE), env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=240)[0].strip() for process in both] == ["right", "right"]


def test_the_cache_survives_kill_9_at_any_moment(tmp_path):
    env = environment(tmp_path)
    for delay in (0.1, 0.5, 1.0):
        process = subprocess.Popen(
            script(PROGRAM, "print('compiling', flush=True)", COMPARE), env=env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline().strip() == "compiling"
        time.sleep(delay)
        process.kill()
        process.communicate()
    done = run(PROGRAM, COMPARE, env=env)
    assert done.stdout.strip() == "right", done.stderr
    assert "Error" not in done.stderr, done.stderr


def test_a_damaged_cache_is_a_miss(tmp_path):
    env = environment(tmp_path)
    run(PROGRAM, COMPARE, env=env)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 0]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = run(PROGRAM, COMPARE, env=env)
    assert done.stdout.strip() == "right", done.stderr


@pytest.mark.parametrize(
    "stage", ["look up", "lower", "schedule", "print kernels", "print wrapper", "build", "store", "load"]
)
def test_ctrl_c_in_any_stage_leaves_a_process_that_can_compile(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(session: Session, name: str) -> AbstractContextManager[None]:
        if name == stage:
            raise KeyboardInterrupt
        return entered(session, name)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1).cumsum(0)

    x, entered = torch.randn(6, 8), Session.stage
    backend = Backend(Process())
    with monkeypatch.context() as patched:
        patched.setattr(Session, "stage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.compile(fn, backend=backend, options={"cache_dir": tmp_path})(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(fn, backend=backend, options={"cache_dir": tmp_path})(x), fn(x))


def test_ctrl_c_ends_the_compilers_that_run(tmp_path):
    pid = tmp_path / "pid"
    slow = tmp_path / "g++"
    slow.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600\n")
    slow.chmod(0o755)
    env = environment(tmp_path / "cache", CXX=str(slow), PATH=os.environ["PATH"])
    process = subprocess.Popen(script(PROGRAM, COMPARE), env=env, stderr=subprocess.PIPE, text=True)
    wait_for(pid.exists)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=120)[1]
    wait_for(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())


def wait_for(condition: Callable[[], bool], seconds: float = 500.0) -> None:
    """Return when the condition holds; fail if it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
