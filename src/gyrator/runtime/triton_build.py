"""Building Triton kernels: each for every choice of its blocks, in worker processes, each only once. A binary is known
by a digest of all that it depends on: the text without comments, the choice, what is known of its arguments, the GPU's
capability, Triton's version, the device library. For stored ones Triton is not imported."""

import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache, partial
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from gyrator.cache.store import Entry, Store, digest, files_digest
from gyrator.codegen.triton_source import OPTIONS, SizeArgument, TritonKernel, Workspace
from gyrator.config import Config
from gyrator.errors import DeviceUnsupported, KernelBuildError
from gyrator.optional import available
from gyrator.origin import Origin
from gyrator.runtime.build import Jobs, finished, without_comments
from gyrator.runtime.workers import MOST, PROGRAM, WorkerEnded, Workers
from gyrator.schedule.gpu import Gpu
from gyrator.session import Count, Session

OLDEST_TRITON = "3.6"
LOWEST_CAPABILITY = 80

_TEMPLATES = sorted(Path(__file__).parents[1].glob("templates/*.py"))
_LIBRARY = (Path(__file__).with_name("triton_ops.py"), *_TEMPLATES, PROGRAM)
"""What a binary depends on beside its request: the device library, templates, the program that compiles."""
BINARY, _SOURCE = "kernel.cubin", "kernel.py"
"""The files of a built kernel in the store."""

Binary = Entry | str
"""A built kernel in the store, or what Triton said if it refused to build it."""


@cache
def builder_key() -> str:
    """For keys of the cache: what builds kernels, Triton and what a binary depends on beside its request."""
    return f"Triton {importlib.metadata.version('triton')} {files_digest(*_LIBRARY)}"


def find_gpu(config: Config, device: torch.device) -> Gpu:
    """What kernels for `device` are built for: it, or a GPU of the capability that an option names.

    Raises: DeviceUnsupported without Triton or a GPU, or if one is too old."""
    triton = importlib.metadata.version("triton") if available("triton") else ""
    if not triton or TorchVersion(triton) < OLDEST_TRITON:
        found, hint = f"Triton {triton}" if triton else "no Triton was found", "install the Triton that torch pins"
        raise DeviceUnsupported(found, f"{OLDEST_TRITON} or later", hint)
    asked, needed = config.cuda_capability, "one of compute capability 8.0 or later"
    if not asked and not torch.cuda.is_available():
        hint = "options={'cuda_capability': 90} builds kernels for a GPU that is not here"
        raise DeviceUnsupported("no GPU was found", needed, hint)
    major, minor = divmod(asked, 10) if asked else torch.cuda.get_device_capability(device)
    gpu = Gpu(10 * major + minor)
    if gpu.capability < LOWEST_CAPABILITY:
        name = "the GPU of the option cuda_capability" if asked else torch.cuda.get_device_name(device)
        hint = "move the model to the CPU, or leave it uncompiled"
        raise DeviceUnsupported(f"{name} has compute capability {gpu.capability / 10}", needed, hint)
    if not torch.cuda.is_available():
        return gpu
    return replace(gpu, processors=torch.cuda.get_device_properties(device).multi_processor_count)


def request_for(kernel: TritonKernel, config: int, divisors: Mapping[int, int], capability: int) -> dict[str, Any]:
    """What a worker is asked for: a kernel for one of its variants. `divisors` are what is known to divide arguments,
    by their positions. But for templates, products within sums are rounded too, so that x*y - x*y is 0."""
    written, chosen = kernel.variants[config]
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages, "maxnreg": chosen.registers or None}
    options["enable_fp_fusion"] = kernel.category == "template"
    waits = any(isinstance(p, Workspace) and p.zeroed for p in kernel.params)  # its programs do, for each other
    together = waits and kernel.category != "split scan" and "PROGRAMS" not in dict(chosen.blocks)
    return {
        "source": written.source,
        "function": kernel.name,
        "signature": kernel.signature(chosen),
        "constants": dict(chosen.blocks),
        "divisors": sorted(divisors.items()),
        "options": {**OPTIONS, **options, "debug": kernel.asserts, "launch_cooperative_grid": together},
        "capability": capability,
    }


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel to be built. The arguments at the positions ``sure`` are always multiples of 16; ``place`` is the
    user's, to be named when an index is out of range."""

    kernel: TritonKernel
    sure: frozenset[int]
    place: Origin | None

    @property
    def relied(self) -> Mapping[int, int]:
        """What divides arguments, as launches make sure: addresses by 16; if it matters, sizes by 16 or 8 as hints."""
        sizes = [gcd(p.size.hint or 1, 16) * p.even if isinstance(p, SizeArgument) else 16 for p in self.kernel.params]
        return {at: by for at, by in enumerate(sizes) if by >= 8}


def start_triton_build(
    kernels: Sequence[Wanted], gpu: Gpu, workers: Workers, store: Store, session: Session
) -> Callable[[], list[tuple[Wanted, dict[int, Entry]]]]:
    """Begin to build every config of `kernels`; returns at once what waits for them, and gives for each kernel the
    binaries of the configs that the GPU can run.

    That raises: KernelBuildError if there is none. KeyboardInterrupt; the workers at work are ended first."""
    requests: dict[str, dict[str, Any]] = {}
    keys: list[list[str]] = []
    for wanted in kernels:
        configs = range(len(wanted.kernel.variants))
        own = [request_for(wanted.kernel, config, wanted.relied, gpu.capability) for config in configs]
        keys.append([binary_key(request) for request in own])
        requests |= zip(keys[-1], own, strict=True)
    known = {key: entry for key in requests if (entry := store.find(key, session.warn)) is not None}
    found: dict[str, Future[Binary]] = {key: finished(entry) for key, entry in known.items()}
    missing = sorted(requests.keys() - found.keys(), key=lambda key: (-_effort(requests[key]), key))
    session.counters.add(Count.KERNELS_CACHED, len(found))
    session.counters.add(Count.KERNELS_BUILT, len(missing))
    jobs = Jobs(workers.stop, session)
    if missing:
        count = min(len(missing), MOST, session.config.builders)
        workers.prepare(count)
        calls = {key: partial(build_binary, requests[key], key, workers, store, session) for key in missing}
        found |= jobs.start(calls, count)

    def wait() -> list[tuple[Wanted, dict[int, Entry]]]:
        jobs.finish(found.values())
        built = [[found[key].result() for key in own] for own in keys]
        return [(wanted, _usable(wanted, own, gpu)) for wanted, own in zip(kernels, built, strict=True)]

    return wait


def _effort(request: Mapping[str, Any]) -> int:
    """About how long a build takes, in lines, of which a template's loop stands for 60: the longest begin first."""
    return request["source"].count("\n") + 60 * ("gyrator.templates" in request["source"])


def _usable(wanted: Wanted, built: Sequence[Binary], gpu: Gpu) -> dict[int, Entry]:
    """Those that the GPU can run, by config."""
    limit, kernel = gpu.shared_bytes, wanted.kernel
    good = {k: b for k, b in enumerate(built) if isinstance(b, Entry) and b.notes["shared"] <= limit}
    if not good:
        failures = [b if isinstance(b, str) else f"it needs more than {limit} bytes of shared memory" for b in built]
        folder = Path(tempfile.mkdtemp(prefix="gyrator-refused-"))
        (folder / _SOURCE).write_text(kernel.source, "utf-8")
        raise KernelBuildError(kernel.name, str(folder / _SOURCE), failures[0][-4000:], where=wanted.place)
    return good


def build_binary(request: Mapping[str, Any], key: str, workers: Workers, store: Store, session: Session) -> Binary:
    """Have a worker build one binary, and store it."""
    try:
        with session.building((request["function"],)):
            answer = workers.ask(request)
    except WorkerEnded as error:
        return f"the process that compiles it ended: {error}"
    if "error" in answer:
        return str(answer["error"])
    binary = Path(answer.pop("binary"))
    entry = store.put(key, {BINARY: binary, _SOURCE: request["source"]}, answer)
    binary.unlink(missing_ok=True)
    return entry


def rebuild(request: Mapping[str, Any], workers: Workers, store: Store, session: Session) -> Binary:
    """A binary from the store, or built now."""
    key = binary_key(request)
    return store.find(key, session.warn) or build_binary(request, key, workers, store, session)


def binary_key(request: Mapping[str, Any]) -> str:
    """The key in the store of what a worker is asked for."""
    plain = {**request, "source": without_comments(request["source"], "#")}
    return digest(f"{builder_key()}\n{json.dumps(plain, sort_keys=True)}")
