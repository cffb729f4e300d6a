"""Compiles random programs, several in one graph, and compares each with eager.

Compiling costs far more than running, so programs are compiled in batches. A batch that fails is taken apart:
each program is compiled alone, and the failing ones are shrunk and saved as scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, has_free_unbacked_symbols
from torch.utils import _pytree as pytree

from tests.acceptance import Expected, expect, metadata_mismatch, mismatches
from tests.fuzz.programs import Program, define, generate, in_float64, prepared, runs
from tests.fuzz.shrink import shrink

BATCH = 10
NEAR_IN_FLOAT64 = 1e-7
"""What float64 may differ by, of the whole: far above rounding, and below what eager's kernels round to float32."""


@dataclass(frozen=True)
class Settings:
    """How programs are compiled, where the scripts of failing ones are written, and on which device they run.

    A seed is one program on any device: those that eager refuses there are left out. Scripts name the compiler
    "gyrator" where ``backend`` is a function.
    """

    backend: str | Callable[..., Any]
    folder: Path
    batch: int = BATCH
    shrink: bool = True
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.backend if isinstance(self.backend, str) else "gyrator"


@dataclass(frozen=True)
class Failure:
    """A program that does not do what eager does. ``message`` says how, ``script`` reproduces it."""

    program: Program
    message: str
    script: Path

    def __str__(self) -> str:
        return f"seed {self.program.seed}: {self.message}\n{self.program.source()}reproduce: {self.script}"


def run(seeds: Sequence[int], settings: Settings) -> Iterator[Failure]:
    """Yields each failure among the programs of these seeds."""
    programs = [generate(seed) for seed in seeds]
    if settings.device != "cpu":
        programs = [p for p in (replace(p, device=settings.device) for p in programs) if runs(p)]
        torch.cuda.synchronize()  # raises after an eager kernel's fault, which makes each program seem refused
    for backward in (False, True):
        chosen = [program for program in programs if program.backward == backward]
        for start in range(0, len(chosen), settings.batch):
            batch = chosen[start : start + settings.batch]
            dynamic = (batch[0].seed // settings.batch) % 4 == 3
            yield from _run_batch(batch, dynamic, settings)


def _run_batch(batch: Sequence[Program], dynamic: bool, settings: Settings) -> Iterator[Failure]:
    _write(settings.folder / "running.py", "\n\n".join(program.script(settings.name, dynamic) for program in batch))
    if complaint(batch, settings.backend, dynamic) is None:
        return
    found = False
    for program in batch:
        message = complaint([program], settings.backend, dynamic)
        if message is not None:
            found = True
            if not _is_of_fake_strides(program, message) and _is_captured(program, message, dynamic):
                yield _failure(program, message, dynamic, settings)
    if not found:
        message = complaint(batch, settings.backend, dynamic)
        if message is not None:
            path = settings.folder / f"batch_{batch[0].seed}.py"
            _write(path, f"# {message}\n# seeds: {[program.seed for program in batch]}\n")
            yield Failure(batch[0], f"fails only beside others: {message}", path)


def _failure(program: Program, message: str, dynamic: bool, settings: Settings) -> Failure:
    kind = signature(message)

    def fails_alike(candidate: Program) -> bool:
        found = complaint([candidate], settings.backend, dynamic)
        return found is not None and signature(found) == kind

    if settings.shrink:
        program = shrink(program, fails_alike)
        message = complaint([program], settings.backend, dynamic) or message
    path = settings.folder / f"program_{program.seed}.py"
    _write(path, program.script(settings.name, dynamic))
    return Failure(program, message, path)


def complaint(batch: Sequence[Program], backend: str | Callable[..., Any], dynamic: bool) -> str | None:
    """What is wrong with the programs compiled together, or None.

    What is right only because other runs of eager differ as much has to be right in float64 too, program by program.
    """
    tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # else a layout may decide whether it rounds so
    with tf32, torch._dynamo.config.patch(trace_autograd_ops=True):
        expected, together = _expected(batch)
        torch._dynamo.reset()
        try:
            actual = expected.observe(torch.compile(together, backend=backend, dynamic=dynamic))
            strict = mismatches(actual, expected.eager, expected.reference)
            lines = mismatches(actual, expected.eager, expected.reference, expected.perturbed()) if strict else []
            doubtful = {int(k) for line in strict for k in re.findall(r"^\w+\[(\d+)\]", line)} if not lines else ()
            for index in sorted(doubtful):
                lines += _mismatches_in_float64(batch[index], backend, dynamic)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "mismatch: " + "; ".join(lines) if lines else None


def _mismatches_in_float64(program: Program, backend: str | Callable[..., Any], dynamic: bool) -> list[str]:
    """How the program differs where rounding is small. Runs whose intermediate values are moved excuse nothing here:
    they go through a dispatch mode, as the compiler's recording does, and both may miss the same."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        if not runs(wide := in_float64(program)):
            return []
        expected, together = _expected([wide])
        torch._dynamo.reset()
        actual = expected.observe(torch.compile(together, backend=backend, dynamic=dynamic))
        moved, slack = expected.perturbed(inside=False), NEAR_IN_FLOAT64 / torch.finfo(torch.float64).eps
        lines = mismatches(actual, expected.eager, expected.eager, moved, slack=slack)
        return [f"{line} (in float64)" for line in lines]
    finally:
        torch.set_default_dtype(default)


_PEERS = {
    "modified by an inplace operation": "aot_eager_decomp_partition",
    "invalid gradient at index": "aot_eager",
    "expand": "aot_eager",
}


def _is_captured(program: Program, message: str, dynamic: bool) -> bool:
    """Whether torch itself captures and runs the program: 2.11's fake tensors have wrong strides for some views, what
    backward computes again from an input fails if that is written after a graph break, as by torch's partition,
    `x.shape` is an old one after `x.unsqueeze_`, and a view that was taken before `x.t_()` is derived anew as one of
    the transposed, where tensors are fakes."""
    peer = next((peer for text, peer in _PEERS.items() if text in message), "eager")
    found = complaint([program], peer, dynamic)
    return found is None or (found.startswith("mismatch: ") and found != message)


def _is_of_fake_strides(program: Program, message: str) -> bool:
    """Whether strides alone are wrong, and fake tensors have other ones than real ones: those of fft on a GPU have, and
    some of 2.11's views."""
    if not message.startswith("mismatch: ") or not all(": strides are " in line for line in message.split("; ")):
        return False
    function = define(program.source("program"), "program")
    with torch.no_grad():
        real = fake = function(*prepared(program.make_arguments()))
        for environment in (None, ShapeEnv()):  # with symbols some of 2.11's fake kernels do not run: pads by -1
            given = prepared(program.make_arguments())
            with suppress(RuntimeError), FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment) as mode:
                fake = function(*pytree.tree_map_only(torch.Tensor, mode.from_tensor, given))
    leaves = zip(pytree.tree_leaves(fake), pytree.tree_leaves(real), strict=True)
    pairs = [(f, r) for f, r in leaves if isinstance(r, torch.Tensor)]
    found = [metadata_mismatch(f, r) for f, r in pairs if not has_free_unbacked_symbols(f)]
    return any(wrong is not None and wrong.startswith("strides are ") for wrong in found)


def _expected(batch: Sequence[Program]) -> tuple[Expected, Callable[..., Any]]:
    """Eager's runs of the programs as one function, and the function."""
    functions = [define(program.source(f"program{i}"), f"program{i}") for i, program in enumerate(batch)]

    def together(*arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(fn(*args) for fn, args in zip(functions, arguments, strict=True))

    arguments = tuple(program.make_arguments() for program in batch)
    backward = batch[0].backward
    return expect(together, arguments, backward=backward, prepare=lambda args: tuple(map(prepared, args))), together


def signature(message: str) -> str:
    """What two failures of one cause have in common: the error's type, and its text without numbers."""
    if message.startswith("mismatch: "):
        return " ".join(re.sub(r"\[.*?\]|\S+:", "", message.removeprefix("mismatch: ")).split()[:2])
    return re.sub(r"[0-9]+|'[^']*'", "", message.splitlines()[0])[:80]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
