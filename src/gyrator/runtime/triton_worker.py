"""A program that compiles Triton kernels: a line of JSON in, a line of JSON out, until its input ends.

    python triton_worker.py FOLDER

It runs beside the process that wants the kernels, as Triton holds the interpreter's lock while it compiles. It imports
neither torch nor the rest of gyrator: it is ready after half a second. Who started it removes FOLDER, its output."""

import importlib
import json
import os
import re
import select
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

IDLE_SECONDS = 120.0
"""A worker that nobody asks for anything ends, and gives its memory back."""

ROOT = Path(__file__).resolve().parents[1]

_PACKED_ADDITION = re.compile(r"add\.[su]16x2\s+(%r\d+), (%r\d+), (%r\d+);")
_REMAINDERS = re.compile(r"%([\w.]+) = ([us]rem <(\d+) x (i\d+)> %\S+), <([^>]*\bi\d+ 1\b[^>]*)>")
_TWO_ADDITIONS = r"""{ .reg .b16 a, b, c, d; mov.b32 {a, b}, \2; mov.b32 {c, d}, \3;
\tadd.s16 a, a, c; add.s16 b, b, d; mov.b32 \1, {a, b}; }"""


def main(folder: Path) -> None:
    """Serve requests until the input ends."""
    answers, messages = private_output(folder)
    _prepare(folder)
    for request in requests(sys.stdin):
        messages.seek(0)
        messages.truncate()
        try:
            answer = compile_kernel(request, folder)
        except Exception as error:  # whatever Triton raises is the answer
            messages.flush()
            said = (folder / "messages").read_text("utf-8", "replace")[-4000:]
            answer = {"error": f"{type(error).__name__}: {error}\n{said}".strip()}
        print(json.dumps(answer), file=answers, flush=True)


def compile_kernel(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compile one kernel for one choice of blocks; the answer says where its binary lies.

    A request has: ``source`` (a module's text), ``function`` in it, ``signature`` (argument → type),
    ``constants`` (argument → value), ``divisors`` (pairs of an argument's position and what divides it),
    ``options`` of the compiler and ``capability`` (80, 90, …) of the GPU."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    function = getattr(_module(request["source"], folder), request["function"])
    divisors = {(at,): [["tt.divisibility", by]] for at, by in request["divisors"]}
    gluon = "triton.experimental.gluon._runtime"
    kind = importlib.import_module(gluon).GluonASTSource if function.is_gluon() else compiler.ASTSource
    source = kind(function, request["signature"], request["constants"], divisors)
    built = compiler.compile(source, target=target("cuda", request["capability"], 32), options=request["options"])
    with tempfile.NamedTemporaryFile(suffix=".cubin", dir=folder, delete=False) as stream:
        stream.write(built.asm["cubin"])
    found = built.metadata
    if found.profile_scratch_size:
        raise ValueError("the kernel wants scratch memory for Triton's profiler")
    return {
        "binary": stream.name,
        "function": found.name,
        "shared": found.shared,
        "warps": found.num_warps,
        "cooperative": bool(found.launch_cooperative_grid),
        "scratch": found.global_scratch_size,
    }


def without_packed_additions(ptx: str) -> str:
    """Adds 16-bit integers one by one: where half of a sum of pairs is read, ptxas (12.8 to 13.0) takes a constant for
    0. LLVM makes such pairs of small indices on GPUs from 9.0 on, as of ``(tl.arange(0, 2048) + 2) % 3``."""
    return _PACKED_ADDITION.sub(_TWO_ADDITIONS, ptx)


def with_defined_remainders(ir: str) -> str:
    """Remainders of divisions by 1 that a vector has among others are 0 for themselves. LLVM fills vectors up with
    them, of undefined values, takes them for 0 to widen their neighbours, and computes x - x * 1 of what differs each
    time: addresses of ``row % 14`` had random upper halves."""

    def defined(found: re.Match[str]) -> str:
        name, remainder, count, kind, divisors = found.groups()
        kept = ", ".join("i1 false" if lane.endswith(" 1") else "i1 true" for lane in divisors.split(", "))
        values = f"<{count} x {kind}> %all{name}, <{count} x {kind}> zeroinitializer"
        others = re.sub(r" 1\b", " 3", divisors)
        return f"%all{name} = {remainder}, <{others}>\n  %{name} = select <{count} x i1> <{kept}>, {values}"

    return _REMAINDERS.sub(defined, ir)


def _mend(backend: object, stages: dict[str, Callable[..., Any]], *about: object) -> None:
    make = stages["ptx"]
    stages["ptx"] = lambda ir, *given: without_packed_additions(make(with_defined_remainders(ir), *given))


def _module(source: str, folder: Path) -> ModuleType:
    """A module from its text, in a file of its own, where Triton reads the kernel's lines."""
    with tempfile.NamedTemporaryFile(prefix="kernel_", suffix=".py", dir=folder, delete=False) as stream:
        stream.write(source.encode())
    module = ModuleType(Path(stream.name).stem)
    exec(compile(source, stream.name, "exec"), module.__dict__)
    return module


def private_output(folder: Path) -> tuple[TextIO, TextIO]:
    """The stream for answers, and the file that takes whatever else is printed from now on."""
    answers = os.fdopen(os.dup(1), "w")
    messages = (folder / "messages").open("w")
    os.dup2(messages.fileno(), 1)
    os.dup2(messages.fileno(), 2)
    return answers, messages


def _prepare(folder: Path) -> None:
    """Import Triton and what every first compilation needs."""
    os.environ |= {"TRITON_CACHE_DIR": str(folder / "triton"), "TRITON_STORE_BINARY_ONLY": "1"}
    os.environ.pop("TRITON_INTERPRET", None)
    package = ModuleType("gyrator")  # the package without what its own file imports: kernels need one module
    package.__path__ = [str(ROOT)]
    sys.modules["gyrator"] = package
    importlib.import_module("triton.compiler")
    importlib.import_module("triton.knobs").runtime.add_stages_inspection_hook = _mend
    cache: Any = importlib.import_module("triton.runtime.cache")
    cache.triton_key = lambda: ""  # Triton's own cache is not used: no need to digest its 300 MB for it


def requests(stream: TextIO) -> Iterator[dict[str, Any]]:
    """What the lines of a stream ask for, until it ends or nothing came in time."""
    while select.select([stream], [], [], IDLE_SECONDS)[0] and (line := stream.readline()):
        yield json.loads(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
