"""A process with Triton of its own, which runs kernels in Triton's interpreter or compiles them for a GPU.

Triton decides when it is imported whether it interprets, so that one process cannot do both.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from gyrator.codegen.triton_source import Config, SizeArgument, TritonKernel, Workspace
from gyrator.ir.index import Atom, Size, evaluate
from gyrator.ir.ops import OPS
from gyrator.optional import require
from gyrator.runtime.triton_build import request_for

ROOT = Path(__file__).parents[2]
_WAITS = re.compile(r"\brt\.(?:wait|meet)\(")


def programs(kernel: TritonKernel, config: Config, sizes: Mapping[Atom, int]) -> int:
    """How many programs a launch runs."""
    blocks = dict(config.blocks)
    counts = [(evaluate(axis.extent, sizes), axis) for axis in kernel.grid]
    all_tiles = prod(-(-n // (1 if axis.block is None else blocks[axis.block])) + axis.more for n, axis in counts)
    return min(all_tiles, blocks.get("PROGRAMS") or all_tiles)


@dataclass(frozen=True)
class Built:
    """What the compiler says of a kernel: registers and spilled registers of a thread, bytes of shared
    memory, and the text of the assembly."""

    registers: int
    spills: int
    shared: int
    ptx: str


class Worker:
    """The process. ``interpret`` chooses what it can do: ``run`` or ``compile``."""

    def __init__(self, *, interpret: bool) -> None:
        env = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0", "CUDA_VISIBLE_DEVICES": ""}
        paths = [str(ROOT / "src"), str(ROOT), *sys.path]
        env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.triton.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=ROOT,
        )

    def run(
        self, kernel: TritonKernel, tensors: Mapping[str, Tensor], sizes: Mapping[Size, int], config: Config
    ) -> None:
        """Launch ``kernel`` on CPU tensors, one for each pointer's name, in Triton's interpreter."""
        spaces = {
            p.name: torch.full((evaluate(p.nbytes, sizes),), 0 if p.zeroed else 0x7B, dtype=torch.uint8)
            for p in kernel.params
            if isinstance(p, Workspace)
        }
        memory = {**tensors, **spaces}
        arguments = [sizes[p.size] if isinstance(p, SizeArgument) else memory[p.name] for p in kernel.params]
        grid = programs(kernel, config, sizes)
        written = self._ask("run", (kernel.source, kernel.name, arguments, config, grid))
        for _ in range(len(_WAITS.findall(kernel.source))):
            # its programs wait for each other, but run one after the other: once more for each time that they wait,
            # and all find what the others left
            given = zip(kernel.params, arguments, written, strict=True)
            again = [new if isinstance(p, Workspace) else old for p, old, new in given]
            written = self._ask("run", (kernel.source, kernel.name, again, config, grid))
        for old, new in zip(arguments, written, strict=True):
            if isinstance(old, Tensor):
                old.untyped_storage().copy_(new.untyped_storage())
        counters = [memory[p.name].view(torch.int32) for p in kernel.params if isinstance(p, Workspace) and p.zeroed]
        assert not any((counter << 1).any() for counter in counters)

    def compile(self, kernel: TritonKernel, config: Config, arch: int) -> Built:
        """Compile for a compute capability such as 90."""
        built: Built = self._ask("compile", (kernel, config, arch))
        return built

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, what: str, request: object) -> Any:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        _Pickler(process.stdin).dump((what, request))
        process.stdin.flush()
        failure, answer = pickle.load(process.stdout)
        if failure is not None:
            raise AssertionError(failure)
        return answer


class _Pickler(pickle.Pickler):
    """Tensors of 8-bit floats as bytes: their storages cannot be pickled."""

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Tensor) and thing.is_floating_point() and thing.itemsize == 1:
            return Tensor.view, (thing.view(torch.uint8), thing.dtype)
        return NotImplemented


# -- in the process ------------------------------------------------------------------------------------------
def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        if os.environ["TRITON_INTERPRET"] == "1":
            _mend_interpreter()
        count = 0
        while True:
            try:
                what, request = pickle.load(requests)
            except EOFError:
                return
            count += 1
            path = Path(folder) / f"kernel_{count}.py"
            try:
                answer = (None, _run(path, *request) if what == "run" else _compile(path, *request))
            except Exception:
                source = request[0] if what == "run" else request[0].source
                answer = (f"{traceback.format_exc()}\n{source}", None)
            _Pickler(answers).dump(answer)
            answers.flush()


def _mend_interpreter() -> None:
    """With the latest NumPy, a scalar of the interpreter (an array of one element) is no loop bound. The
    interpreter rounds to bfloat16 towards zero, multiplies its bits, and lacks the device library."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())
        tensor.__int__ = tensor.__index__

    interpreter._patch_lang_tensor = patched
    convert = interpreter._convert_float

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        small, numbers = _SMALL.get(str(target)), np.ascontiguousarray(data)
        if str(source) == "fp32" and small is not None:
            near = torch.from_numpy(numbers).to(small)
            return near.view(_BITS[small.itemsize]).numpy().view(f"u{small.itemsize}")
        small = _SMALL.get(str(source))
        if str(target) == "fp32" and small is not None:
            bits = torch.from_numpy(numbers.view(f"i{small.itemsize}"))
            return bits.view(small).float().numpy()
        return convert(data, source, target, mode)

    interpreter._convert_float = rounded
    interpreter.InterpreterBuilder.create_splat = lambda _, kind, x: interpreter.TensorHandle(
        np.full(kind.shape, np.ravel(x.data)[0]),  # a comparison's data are no numbers of its operands' type
        x.dtype.scalar,
    )
    for name, op in (("create_maxnumf", np.fmax), ("create_minnumf", np.fmin)):  # it propagates NaN
        setattr(interpreter.InterpreterBuilder, name, lambda self, a, b, op=op: self.binary_op(a, b, op))
    interpreter.InterpreterBuilder.get_bf16 = lambda _, x: interpreter.TensorHandle(  # it lacks it
        torch.tensor([x], dtype=torch.bfloat16).view(torch.int16).numpy().view(np.uint16),
        importlib.import_module("triton.language.core").bfloat16,
    )
    ones = interpreter.InterpreterBuilder.get_all_ones_value

    def all_ones(self: Any, kind: Any) -> Any:
        """Unsigned, too: numpy takes no -1 for them."""
        if not kind.is_int_unsigned():
            return ones(self, kind)
        signed = ones(self, importlib.import_module("triton.language.core").int8)
        return interpreter.TensorHandle(signed.data.astype(interpreter._get_np_dtype(kind)), kind.scalar)

    interpreter.InterpreterBuilder.get_all_ones_value = all_ones
    dot = interpreter.InterpreterBuilder.create_dot

    def wide_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(interpreter, a), _widened(interpreter, b), *rest)

    interpreter.InterpreterBuilder.create_dot = wide_dot
    libdevice = importlib.import_module("triton.language.extra.libdevice")
    ops = importlib.import_module("gyrator.runtime.triton_ops")
    ops.wait = lambda *_: None
    ops.to_float8e4 = lambda x: x.to(ops.tl.float32).to(ops.tl.float8e4nv)
    ops.seen = lambda word: ops.tl.load(word)
    for name in _LIBRARY:
        setattr(libdevice, name, _elementwise(interpreter, getattr(torch, _LIBRARY[name])))


_LIBRARY = {name: name for name in OPS} | {"nearbyint": "round"}
_LIBRARY = {name: op for name, op in _LIBRARY.items() if hasattr(torch, op)}
"""What kernels may call in the device library, which the interpreter lacks, and the same in torch."""


_SMALL = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
_BITS = {1: torch.int8, 2: torch.int16}


def _widened(interpreter: Any, handle: Any) -> Any:
    """A tile of a type whose data are its bits as float32; any other as it is."""
    if str(handle.dtype.scalar) not in _SMALL:
        return handle
    float32 = importlib.import_module("triton.language.core").float32
    data = interpreter._convert_float(handle.data, handle.dtype.scalar, float32, None)
    return interpreter.TensorHandle(data, float32)


def _elementwise(interpreter: Any, op: Callable[..., Tensor]) -> Callable[..., Any]:
    language = importlib.import_module("triton.language.core")

    def call(*args: Any) -> Any:
        first = next(a for a in args if hasattr(a, "handle"))
        given = [a.handle.data if hasattr(a, "handle") else np.float64(a) for a in args]  # else a literal
        found = op(*(torch.from_numpy(np.ascontiguousarray(a).reshape(np.shape(a))) for a in given)).numpy()
        kind = first.dtype if found.dtype != np.bool_ else language.int32
        handle = interpreter.TensorHandle(found.astype(np.int32) if found.dtype == np.bool_ else found, kind)
        shape = list(found.shape)
        block = any(hasattr(a, "handle") and a.type.is_block() for a in args)
        return language.tensor(handle, language.block_type(kind, shape) if block else kind)

    return call


def _function(path: Path, source: str, name: str) -> Any:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _run(path: Path, source: str, name: str, arguments: list[Any], config: Config, grid: int) -> list[Any]:
    function = _function(path, source, name)
    if grid:
        function[(grid,)](*arguments, **dict(config.blocks))
    return arguments


def _compile(path: Path, kernel: TritonKernel, config: Config, arch: int) -> Built:
    triton = require("triton")
    function = _function(path, kernel.source, kernel.name)
    names = [p.name for p in kernel.params]
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(names))}
    kind = triton.experimental.gluon._runtime.GluonASTSource if function.is_gluon() else triton.compiler.ASTSource
    source = kind(function, kernel.signature(config), constexprs=dict(config.blocks), attrs=aligned)
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    options = request_for(replace(kernel, configs=(config,)), 0, {}, arch)["options"]
    compiled = triton.compile(source, target=target, options=options)
    cubin = path.with_suffix(".cubin")
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said.stdout + said.stderr))
    spills = int(found["LOCAL"]) + int(found["STACK"])
    return Built(int(found["REG"]), spills, compiled.metadata.shared, compiled.asm["ptx"])


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print must not get between the answers
    serve(sys.stdin.buffer, answers)
