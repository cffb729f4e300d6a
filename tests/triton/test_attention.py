"""flex_attention by templates: values and gradients in Triton's interpreter; kernels that fit into registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx
from torch._higher_order_ops.flex_attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from gyrator.autograd import fused_attention
from gyrator.autograd.aot import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo, interpret
from gyrator.codegen.triton_source import TritonKernel
from gyrator.codegen.wrapper import programs_text
from gyrator.config import Config
from gyrator.ir.masks import FAR
from gyrator.pipeline import Process, compile_graph
from gyrator.report.describe import why_extern
from gyrator.runtime.triton_build import request_for
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.plan import Allocate, Call
from gyrator.session import Count, Session
from tests.acceptance import assert_matches
from tests.triton.emulated import GPU, Emulator, Printed, on_gpu, print_for_gpu
from tests.triton.worker import Worker

Mod = Callable[..., Tensor]
Program = Callable[..., tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "DEVICES", ("cpu",))
    torch._dynamo.reset()


def unchanged(score: Tensor, *_: Tensor) -> Tensor:
    return score


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (j - i) * torch.exp2(-(h + 1.0))


def everything(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j >= 0


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The first 20 rows attend to nothing."""
    return (i >= j) & (i - j < 36) & (i >= 20)


def attention(
    score: Mod, keep: Mod | None, m: int, n: int, reads: tuple[Tensor, ...] = (), side: int = 16, scale: float = 0.3
) -> Program:
    """The operator itself, since torch's function refuses gradients on CPUs; capture finds the reads by itself."""
    mask = create_block_mask(keep or everything, None, None, m, n, device="cpu", BLOCK_SIZE=side).as_tuple()
    mask = mask if keep is not None else (*mask[:-3], 1 << 30, 1 << 30, mask[-1])  # as where there is none

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        given = () if torch.compiler.is_compiling() else (reads, ())
        return flex_attention(query, key, value, score, mask, scale, {}, *given)

    return run


def results(fn: Program, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Values, sums and greatest scores; then gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    found = fn(*leaves)
    generator = torch.Generator().manual_seed(7)
    finite = [x.masked_fill(x == -torch.inf, 0) for x in found[:2]]
    loss = sum((x * torch.randn(x.shape, generator=generator).to(x.dtype)).sum() for x in finite)
    assert isinstance(loss, Tensor)
    return [*(x.detach() for x in found), *torch.autograd.grad(loss, leaves)]


def assert_right(fn: Program, tensors: Sequence[Tensor], worker: Worker, folder: Path) -> list[str]:
    """Within twice eager's own error; the names of the kernels."""
    emulator = Emulator(folder, worker)
    got = results(torch.compile(fn, backend=emulator.backend), tensors)
    eager, exact = results(fn, tensors), results(fn, [x.double() for x in tensors])
    for ours, theirs, true in zip(got, eager, exact, strict=True):
        assert_matches(ours, theirs, true, slack=4)
    return [kernel.name.rpartition("_")[0] for printed in emulator.printed for kernel in printed.kernels]


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize(("score", "keep"), [(alibi, window), (unchanged, None)])
def test_values_and_gradients(score: Mod, keep: Mod | None, interpreter: Worker, tmp_path: Path) -> None:
    m, n = (59, 59) if keep is not None else (33, 59)
    fn = attention(score, keep, m, n)
    kernels = assert_right(fn, [made(2, 2, m, 16), made(2, 1, n, 16), made(1, 1, n, 24)], interpreter, tmp_path)
    assert {"attention_forward", "attention_rows", "attention_columns"} <= {*kernels}


@pytest.mark.parametrize("rows", [5, 33])
def test_keys_that_the_lowest_number_hides_count_alike(rows: int, interpreter: Worker, tmp_path: Path) -> None:
    """That times log2(e) would be minus infinity, and rows that see no key give zeros."""

    def lowest(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where((i < 2) | (j < 7), torch.finfo(torch.float32).min, score)

    def gradients(fn: Program) -> list[Tensor]:
        out, *_ = fn(*tensors)
        return [out.detach(), *torch.autograd.grad(out.sum(), tensors)]

    fn = attention(lowest, None, rows, 59)
    tensors = [made(1, 2, n, 16).requires_grad_() for n in (rows, 59, 59)]
    got = gradients(torch.compile(fn, backend=Emulator(tmp_path, interpreter).backend))
    wanted = gradients(fn)  # of keys and values eager's are wrong: it loses the sum beside so large a number
    for ours, theirs in zip(got[:2], wanted[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert all(bool(x.isfinite().all()) for x in got)


def late(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Rows that come after many keys, of which each sees some; the second none."""
    return (j <= i + 640) & (j > i + 100) & (i != 1)


@pytest.mark.parametrize(("score", "keep"), [(alibi, late), (unchanged, None)])
@pytest.mark.parametrize(("rows", "keys"), [(1, 700), (3, 640), (8, 100)])
def test_programs_share_the_keys_of_few_rows(
    score: Mod, keep: Mod | None, rows: int, keys: int, interpreter: Worker, tmp_path: Path
) -> None:
    fn = attention(score, keep, rows, keys)
    tensors = [made(2, 4, rows, 16), made(2, 2, keys, 16), made(1, 2, keys, 24)]
    kernels = assert_right(fn, tensors, interpreter, tmp_path)
    assert {"attention_decode", "attention_rows", "attention_columns"} <= {*kernels}


def test_a_share_of_keys_behind_the_last_one_adds_nothing(interpreter: Worker, tmp_path: Path) -> None:
    """Blocks of a mask that keeps all may be so large that programs find no key in their part of the last one."""
    fn, tensors = attention(unchanged, everything, 5, 1100, side=1024), [made(1, 1, n, 16) for n in (5, 1100, 1100)]
    out, *_ = torch.compile(fn, backend=Emulator(tmp_path, interpreter).backend)(*tensors)
    torch.testing.assert_close(out, fn(*tensors)[0])


@pytest.mark.parametrize(("m", "n", "keep"), [(33, 9, None), (33, 59, None), (59, 59, window)])
def test_a_function_without_a_slope_at_zero(
    m: int, n: int, keep: Mod | None, interpreter: Worker, tmp_path: Path
) -> None:
    """Which products are where rows and columns have ended."""
    fn = attention(lambda score, *_: torch.log(score.abs()), keep, m, n)
    assert_right(fn, [made(1, 2, m, 16), made(1, 1, n, 16), made(1, 1, n, 16)], interpreter, tmp_path)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales_that_are_not_positive(scale: float, interpreter: Worker, tmp_path: Path) -> None:
    """What is masked is left out however scores are scaled, and the greatest score is that of the least product."""
    fn = attention(unchanged, window, 40, 40, scale=scale)
    assert_right(fn, [made(1, 2, 40, 16) * 9, made(1, 1, 40, 16) * 9, made(1, 1, 40, 16)], interpreter, tmp_path)


def test_functions_that_read_tensors(interpreter: Worker, tmp_path: Path) -> None:
    bias = made(2, 40)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, bias: Tensor = bias) -> Tensor:
        return torch.tanh(s) * bias[h, i] + bias[0, j]

    tensors = [made(1, 2, 40, 16, dtype=torch.bfloat16) for _ in range(3)]
    assert_right(attention(score, window, 40, 40, (bias,)), tensors, interpreter, tmp_path)


def of_any_size(score: Mod) -> Program:
    empty = torch.zeros((1, 1, 1, 1), dtype=torch.int32)
    lists = (empty[0] + 1, empty, None, None, empty[0] + 1, empty, None, None)

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        lengths = query.shape[2], key.shape[2]
        mask = (*lengths, *lists, None, None, None, None, 1 << 30, 1 << 30, everything)
        return flex_attention(query, key, value, score, mask, query.shape[-1] ** -0.5, {})

    return run


def test_sizes_that_change(interpreter: Worker, tmp_path: Path) -> None:
    fn = of_any_size(alibi)
    emulator = Emulator(tmp_path, interpreter)
    compiled = torch.compile(fn, backend=emulator.backend, dynamic=True)
    for batch, m, n in ((3, 20, 33), (4, 33, 18)):
        tensors = [made(s, 2, length, 16) for s, length in ((batch, m), (batch, n), (batch, n))]
        for ours, eager in zip(compiled(*tensors), fn(*tensors), strict=True):
            torch.testing.assert_close(ours, eager)
    (printed,) = emulator.printed
    assert any("attention_forward" in kernel.name for kernel in printed.kernels)


def test_numbers_of_the_program_scale_scores_and_size_blocks(interpreter: Worker, tmp_path: Path) -> None:
    """Both are symbolic; blocks become plain numbers, as all scores would be computed without them."""
    *lists, _, _, mask_mod = create_block_mask(window, None, None, 59, 59, device="cpu", BLOCK_SIZE=16).as_tuple()

    def run(query: Tensor, key: Tensor, value: Tensor, heads: int, side: int) -> tuple[Tensor, ...]:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + (j - i) * torch.exp2(-(h + 1) * 8.0 / heads)

        return flex_attention(query, key, value, score, (*lists, side, side, mask_mod), 0.3, {})

    emulator, tensors = Emulator(tmp_path, interpreter), [made(2, 2, 59, 16) for _ in range(3)]
    compiled = torch.compile(run, backend=emulator.backend, dynamic=True)
    for dtype in (torch.float32, torch.float64):  # the second has no template: its scores are mapped
        given = [x.to(dtype) for x in tensors]
        for ours, eager in zip(*(results(partial(f, heads=2, side=16), given) for f in (compiled, run)), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert {"attention_rows"} <= {kernel.name.rpartition("_")[0] for kernel in emulator.printed[1].kernels}


def test_a_function_that_is_no_expression_is_run_by_torch(interpreter: Worker, tmp_path: Path) -> None:
    bias = made(4, 64)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, bias: Tensor = bias) -> Tensor:
        return s + bias[h].cumsum(0)[j]

    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, values: Sequence[object], info: GraphInfo) -> Compiled:
        graphs.append(graph)
        made_for_gpu = print_for_gpu(graph, on_gpu(graph, values), Config(check="every"))
        assert not any("attention" in kernel.name for kernel in made_for_gpu.kernels)
        (call,) = (step.extern for step in made_for_gpu.plan.steps if isinstance(step, Call))
        assert call.op == "gyrator.region_0.default" and "more than expressions" in why_extern(call)
        return interpret(graph, values, info)

    fn = attention(score, window, 64, 64, (bias,))
    compiled = torch.compile(fn, backend=lambda gm, values: aot_compile(gm, values, fw_compiler=keep))
    compiled(*(made(1, 4, 64, 16) for _ in range(3)))
    assert graphs


def printed(
    fn: Program, *tensors: Tensor, config: Config | None = None, dynamic: bool | None = None
) -> list[TritonKernel]:
    """The kernels of forward and backward."""
    config = config or Config(check="every")
    found: list[Printed] = []

    def keep(graph: fx.GraphModule, values: Sequence[object], info: GraphInfo) -> Compiled:
        run = interpret(graph, values, info)
        found.append(print_for_gpu(graph, on_gpu(graph, values), config))
        return run

    backend = partial(aot_compile, fw_compiler=keep)
    torch.compile(fn, backend=backend, dynamic=dynamic)(*tensors)
    return [kernel for made_for_gpu in found for kernel in made_for_gpu.kernels if "attention" in kernel.name]


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_keep_their_tiles_in_registers(arch: int, compiler: Worker) -> None:
    tensors = [made(1, 1, 128, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    kernels = printed(attention(unchanged, window, 128, 128), *tensors)
    assert len(kernels) == 3
    for kernel in kernels:
        text, config = next((t, c) for t, c in kernel.variants if not c.registers)
        assert compiler.compile(text, config, arch).spills == 0


@pytest.mark.parametrize("keys", [1000, 1024])
def test_a_mask_in_memory_is_read_by_several_keys_at_once(keys: int, compiler: Worker) -> None:
    """The last tile begins earlier where keys end within it, so that there is all of it."""
    mask = torch.ones(keys, keys, dtype=torch.bool)

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[i, j]

    program, tensors = attention(unchanged, keep, keys, keys, side=128), [made(1, 1, keys, 64).bfloat16()] * 3
    kernels = printed(program, *(x.requires_grad_() for x in tensors))
    assert len(kernels) == 3
    for kernel in kernels:
        built = compiler.compile(kernel, kernel.configs[0], 90)
        assert "ld.global.b8" not in built.ptx and "b8" in built.ptx


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 20 * torch.tanh(s / 20)


@pytest.mark.parametrize(("width", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
@pytest.mark.parametrize(("score", "keep"), [(unchanged, window), (alibi, None), (capped, window)])
def test_warps_have_roles_on_hopper(
    score: Mod, keep: Mod | None, width: int, dtype: torch.dtype, compiler: Worker
) -> None:
    tensors = [made(1, 2, n, width, dtype=dtype) for n in (200, 333, 333)]
    tried = Config(check="every", max_autotune=True)
    (kernel,) = printed(attention(score, keep, 200, 333, side=128), *tensors, config=tried)
    (text, config), *others = kernel.variants
    assert config.registers and others and not any(c.registers for _, c in others)
    assert "hopper.forward(" in kernel.source and "attention.forward(" in kernel.plain
    built = compiler.compile(text, config, 90)
    assert built.spills <= 128  # bytes of a thread, where a mask of many conditions is computed
    assert built.shared <= Gpu().shared_bytes
    assert "setmaxnreg" in built.ptx and "wgmma.wait_group.sync.aligned 1" in built.ptx


@pytest.mark.parametrize("wide", [False, True])
def test_warps_have_roles_where_lengths_change(wide: bool, compiler: Worker) -> None:
    """Places in what the score reads may need 64 bits, those of tiles never do."""
    bias = made(1, 2, 200, 333)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias[b, h, i, j] if wide else s + j

    torch._dynamo.mark_dynamic(bias, (2, 3))
    tensors = [made(1, n, 2, 128, dtype=torch.bfloat16).transpose(1, 2) for n in (200, 333, 333)]
    tried = Config(check="every", max_autotune=True)
    (kernel,) = printed(of_any_size(score), *tensors, config=tried, dynamic=True)
    (text, config), *_ = kernel.variants
    assert "hopper.forward(" in text.source and (".to(tl.int64)" in text.source) is wide
    assert "setmaxnreg" in compiler.compile(text, config, 90).ptx


def test_texts_with_and_without_roles_are_started_by_one_rule() -> None:
    """With roles as many programs as run at once, which need not begin together; else one for each tile of rows."""
    tensors = [made(100, 2, n, 128, dtype=torch.bfloat16) for n in (200, 333, 333)]
    tried = Config(check="every", max_autotune=True)
    (kernel,) = printed(attention(unchanged, window, 200, 333, side=128), *tensors, config=tried)
    programs = eval(programs_text(kernel))
    assert [programs(**dict(config.blocks)) for _, config in kernel.variants] == [132, 400, 400, 800, 800]
    assert all(text.params == kernel.params for text, _ in kernel.variants)
    requests = [request_for(kernel, k, {}, 90) for k in range(len(kernel.variants))]
    assert not any(request["options"]["launch_cooperative_grid"] for request in requests)


def test_texts_without_roles_compute_the_same(interpreter: Worker) -> None:
    """The one for arguments that begin anywhere, whose programs take every so many tiles, and those that are tried."""
    fn, tensors = attention(unchanged, None, 200, 200), [made(1, 4, 200, 64, dtype=torch.float16) for _ in range(3)]
    (kernel,) = printed(fn, *tensors, config=Config(check="every", max_autotune=True))
    roles, (other, config), *_ = kernel.variants
    shared = replace(roles[1], blocks=(*roles[1].blocks[:-1], ("PROGRAMS", 3)))
    for text, chosen in ((replace(kernel, source=kernel.plain), shared), (other, config)):
        memory = dict(zip(("query", "key", "value"), (x.flatten() for x in tensors), strict=True))
        memory |= {"out": torch.full((4 * 200 * 64,), torch.nan, dtype=torch.float16)}
        memory |= {name: torch.full((4 * 200,), torch.nan) for name in ("sums", "maxima")}
        interpreter.run(text, memory, {}, chosen)
        torch.testing.assert_close(memory["out"].view(1, 4, 200, 64), fn(*tensors)[0], rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(memory["sums"].view(1, 4, 200), fn(*tensors)[1], rtol=1e-3, atol=1e-3)


NUMBERS, PAIRS = torch.arange(128) // 50, torch.ones(128, 128, dtype=torch.bool)


def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return NUMBERS[i] == NUMBERS[j]


def pairs(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return PAIRS[i, j]


@pytest.mark.parametrize(
    ("score", "keep", "width", "dtype", "roles"),
    [
        (unchanged, window, 128, torch.bfloat16, True),
        (alibi, None, 128, torch.float16, True),  # what it does for each score is little
        (capped, window, 128, torch.bfloat16, False),
        (unchanged, documents, 128, torch.bfloat16, True),
        (unchanged, pairs, 128, torch.bfloat16, False),
        (unchanged, window, 64, torch.bfloat16, False),
        (unchanged, window, 128, torch.float32, False),
        (unchanged, window, 96, torch.bfloat16, False),
    ],
)
def test_without_a_trial_warps_have_roles_where_that_is_surely_faster(
    score: Mod, keep: Mod | None, width: int, dtype: torch.dtype, roles: bool
) -> None:
    tensors = [made(1, 1, 128, width, dtype=dtype) for _ in range(3)]
    (kernel,) = printed(attention(score, keep, 128, 128, side=128), *tensors)
    assert ("hopper.forward(" in kernel.source) is roles


def test_a_graph_whose_attention_a_template_computes_is_found_again(tmp_path: Path) -> None:
    config, process, sessions = Config(cuda_capability=90, cache_dir=tmp_path), Process(), []

    def keep(graph: fx.GraphModule, values: Sequence[object], info: GraphInfo) -> Compiled:
        run = interpret(graph, values, info)
        moved = on_gpu(graph, values)
        for _ in range(2):
            with Session(config, GPU, info.kind) as session:
                compile_graph(graph, moved, info, session, process)()
            sessions.append(session)
        return run

    fn = attention(unchanged, window, 64, 64)
    compiled = torch.compile(fn, backend=lambda gm, values: aot_compile(gm, values, fw_compiler=keep))
    compiled(*(made(1, 1, 64, 16, dtype=torch.bfloat16) for _ in range(3)))
    process.workers.stop()
    assert [session.counters[Count.GRAPH_CACHE_HITS] for session in sessions] == [0, 1]


def causal(seen: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return seen[:, None, None] & (j <= i)


def near(seen: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The last rows see nothing where few keys are left."""
    return seen[:, None, None] & ((j < i + 5) & (j > i - 20))


def ahead(seen: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(j >= i + 30, seen[:, None, None], False)


def alike(seen: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Those of one document, whose numbers a program counts."""
    documents = seen.logical_not().cumsum(1)
    return (documents[:, :, None] == documents[:, None])[:, None] & (i >= j)


@pytest.mark.parametrize(
    ("mask", "low", "high"), [(causal, None, 0), (near, -19, 4), (ahead, None, None), (alike, None, 0)]
)
@pytest.mark.parametrize(("size", "dynamic"), [(64, False), (131, False), (75, True)])
def test_masks_that_a_program_makes_are_computed_for_each_score(
    mask: Mod, low: int | None, high: int | None, size: int, dynamic: bool,
    interpreter: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They are not stored, also not for backward; of several tiles those in which they keep nothing are left out."""
    monkeypatch.setattr(fused_attention, "FASTER_ON", "cpu")

    def run(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        i, j = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        return scaled_dot_product_attention(query, key, value, mask(seen, i, j), enable_gqa=True)

    tensors = [made(3, heads, size, 16, dtype=torch.bfloat16) for heads in (4, 2, 2)]
    seen = torch.arange(size) < torch.tensor([[size], [40], [1]])
    emulator, found = Emulator(tmp_path, interpreter), list[list[Tensor]]()
    compiled = torch.compile(run, backend=emulator.backend)
    for call, dtype in ((compiled, torch.bfloat16), (run, torch.bfloat16), (run, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        for x in (*leaves, seen) if dynamic else ():
            torch._dynamo.mark_dynamic(x, max(x.ndim - 2, 1))
        out = call(*leaves, seen)
        found.append([out.detach(), *torch.autograd.grad(out, leaves, made(*out.shape, dtype=dtype))])
    for tensors_alike in zip(*found, strict=True):
        assert_matches(*(x.contiguous() for x in tensors_alike), slack=4)
    kernels = [kernel for made_for_gpu in emulator.printed for kernel in made_for_gpu.kernels]
    templates = [kernel.source for kernel in kernels if kernel.name.startswith("attention_")]
    assert len(templates) == 3
    low, high = (None, None) if size == 64 else (low, high)
    bounds = f"{-FAR if low is None else low}, {FAR if high is None else high},"
    assert all(bounds in re.sub(r"\s+", " ", text) for text in templates)
    values = [step.value for p in emulator.printed for step in p.plan.steps if isinstance(step, Allocate)]
    values += [given.value for p in emulator.printed for given in p.plan.inputs if given.value is not None]
    assert not any(value.dtype == torch.bool and len(value.shape) == 4 for value in values)
