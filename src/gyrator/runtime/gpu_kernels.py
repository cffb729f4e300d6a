"""The GPU kernels of a compiled graph, from its folder: loaded, and tuned, at their first launch. `kernels.json` in the
folder describes them; a warm start needs neither Triton nor a compiler."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from gyrator.cache.store import Entry, Json, Store, digest
from gyrator.codegen.triton_source import SizeArgument
from gyrator.errors import CacheCorrupt, IndexOutOfRange, KernelBuildError, LaunchFailed
from gyrator.ir.tree import Config
from gyrator.origin import Origin
from gyrator.runtime.cuda_driver import CudaDriver, cuda_driver
from gyrator.runtime.triton_build import BINARY, Binary, Wanted, request_for
from gyrator.runtime.triton_launch import EARLY, RECORDS_EARLY, TOGETHER, Launch, Programs, bind, guarded
from gyrator.runtime.triton_tune import Tuned, Variant, descend, times

DESCRIPTION = "kernels.json"
TIMES = "times"
"""What the note of a choice calls the milliseconds of each binary."""

Timed = Callable[[Sequence[Launch]], "list[float | None] | None"]
"""Milliseconds of each launch; None where nothing can be timed."""

Tried = tuple[Mapping[str, Any], Launch, "float | None"]
"""A variant, its launch, and milliseconds."""

Sized = Callable[..., int]
"""A number that depends on a kernel's sizes, and its blocks where it is a number of programs."""


def binary_file(entry: Entry) -> str:
    """The file of a binary in a compiled graph's folder; entries' folders have their keys' names."""
    return f"{entry.folder.name[:32]}.cubin"


def describe(built: Sequence[tuple[Wanted, Mapping[int, Entry]]], capability: int) -> dict[str, str | Path]:
    """The files that a compiled graph's folder needs for its GPU kernels, which come with binaries by config."""
    files: dict[str, str | Path] = {}
    described: dict[str, Any] = {}
    for wanted, found in built:
        kernel, place, relied = wanted.kernel, wanted.place, wanted.relied
        sure, first = {at: by for at, by in relied.items() if at in wanted.sure}, next(iter(found))
        plain = kernel.variants[first][0].plain
        variants = []
        for k, b in found.items():
            written, config = kernel.variants[k]
            about = {"file": binary_file(b), "category": written.category, "early": written.early}
            variant: dict[str, Any] = {**b.notes, **about, "blocks": dict(config.blocks)}
            if written.room is not None:
                variant |= {"request": request_for(kernel, k, relied, capability), "room": dict(written.room)}
            variants.append(variant)
        files |= {binary_file(b): b.folder / BINARY for b in found.values()}
        described[kernel.name] = {
            "arguments": len(kernel.params),
            "sizes": [at for at, p in enumerate(kernel.params) if isinstance(p, SizeArgument)],
            "checked": sorted(relied.items() - sure.items()),
            "variants": variants,
            "unaligned": request_for(kernel, first, sure, capability) | ({"source": plain} if plain else {}),
            "choice": digest(" ".join(b.folder.name for b in found.values())),
            "place": astuple(place) if kernel.asserts and place else None,
        }
    files[DESCRIPTION] = json.dumps(described, indent=1)
    return files


@dataclass(frozen=True)
class GpuKernels:
    """The kernels in a compiled graph's folder.

    Attributes:
        choices: where the choices among configs are kept; None: nowhere.
        rebuild: builds what a worker is asked for, or finds it in the store; None: it cannot.
        moved: where the user's places lie now.
        tuned: told of every kernel whose configs were timed."""

    folder: Path
    choices: Store | None = None
    rebuild: Callable[[Mapping[str, Any]], Binary] | None = None
    moved: Mapping[Origin, Origin] = field(default_factory=dict)
    driver: Callable[[], CudaDriver] = cuda_driver
    tuned: Tuned | None = None

    @cached_property
    def _described(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / DESCRIPTION).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CacheCorrupt(str(self.folder / DESCRIPTION), repr(error)) from error

    def kernel(
        self, name: str, programs: Sized, updated: Mapping[int, Sized] | None = None, fits: Sized | None = None
    ) -> Launch:
        """The launch function of a kernel.

        Args:
            programs: how many programs run, of the kernel's sizes and the blocks of a config by name.
            updated: for each argument whose memory a launch changes from what it finds there, its bytes, of
                the kernel's sizes.
            fits: whether positions fit in 32 bits, of the kernel's sizes; None: always, or they have 64.

        Raises: CacheCorrupt if the folder does not have the kernel."""
        if name not in self._described:
            raise CacheCorrupt(str(self.folder / DESCRIPTION), f"it lacks {name}")
        about = {**self._described[name], "name": name}
        current: list[Launch] = []

        def first(stream: int, *args: int) -> None:
            current[0] = self._chosen(about, programs, updated or {}, stream, args)
            current[0](stream, *args)

        current.append(first)
        small = None if fits is None else _of_sizes(fits, about["sizes"])
        return guarded(current, about["checked"], about["sizes"], partial(self._unaligned, about, programs), small)

    def _chosen(
        self, about: Mapping[str, Any], programs: Sized, updated: Mapping[int, Sized], stream: int, args: Sequence[int]
    ) -> Launch:
        """The launch of the best config for these arguments: the recorded one, else the fastest."""
        variants = about["variants"]
        descends = self.rebuild is not None and "room" in variants[0]
        if len(variants) == 1 and not descends:
            return self._loaded(about, variants[0], programs)
        sizes = [args[at] for at in about["sizes"]]
        key = digest(f"{about['choice']}-{torch.cuda.get_device_name()}-{sizes}{' descent' * descends}")
        entry = None if self.choices is None else self.choices.find(key, warn=lambda _: None)
        if entry is not None:
            recorded: Mapping[str, Any] = entry.notes
            self._tell(about["name"], variants, recorded, new=False)
            variant = next((v for v in variants if v["file"] == recorded["file"]), None)
            if variant is None:
                config = Config(tuple(recorded["blocks"].items()), recorded["warps"], recorded["stages"])
                variant = self._rebuilt(variants[0], config) or variants[0]
            return self._loaded(about, variant, programs)
        launches = [self._loaded(about, variant, programs) for variant in variants]
        saved = [(args[at], nbytes(*sizes)) for at, nbytes in updated.items()]
        timed = partial(times, stream=stream, args=args, updated=saved, driver=self.driver())
        if (took := timed(launches)) is None:
            return launches[0]
        tried = list(zip(variants, launches, took, strict=True))
        if descends:
            tried += self._descended(about, programs, min(tried, key=_slowness), timed)
        best, launch, _ = min(tried, key=_slowness)
        found: dict[str, Json] = {k: best[k] for k in ("blocks", "warps", "file", "stages") if k in best}
        found[TIMES] = {variant["file"]: ms for variant, _, ms in tried}
        if self.choices is not None:
            self.choices.put(key, {}, found)
        self._tell(about["name"], [variant for variant, _, _ in tried], found, new=True)
        return launch

    def _descended(self, about: Mapping[str, Any], programs: Sized, best: Tried, timed: Timed) -> list[Tried]:
        """What coordinate descent from the fastest variant tries."""
        start, first, took = best
        found: list[Tried] = []

        def measure(config: Config) -> float | None:
            if (variant := self._rebuilt(start, config)) is None:
                return None
            try:
                launch = self._loaded(about, variant, programs)
            except LaunchFailed:
                return None
            both = timed([first, launch])
            found.append((variant, launch, None if both is None else both[1]))
            return found[-1][2]

        if "room" in start:
            config = Config(tuple(start["blocks"].items()), start["warps"], start["request"]["options"]["num_stages"])
            descend(config, took or 0.0, start["room"], measure)
        return found

    def _rebuilt(self, first: Mapping[str, Any], config: Config) -> Mapping[str, Any] | None:
        """A variant of the text of `first` with another config; None if it cannot be built."""
        assert self.rebuild is not None
        request, stages = first["request"], config.num_stages
        options = {**request["options"], "num_warps": config.num_warps, "num_stages": stages}
        built = self.rebuild({**request, "constants": dict(config.blocks), "options": options})
        if isinstance(built, str):
            return None
        file = str(built.folder / BINARY)
        return {**first, **built.notes, "file": file, "blocks": dict(config.blocks), "stages": stages}

    def _tell(self, name: str, variants: Sequence[Mapping[str, Any]], found: Mapping[str, Any], *, new: bool) -> None:
        measured = found.get(TIMES)
        if self.tuned is not None and measured:
            told = []
            for variant in variants:
                options, file = {**variant["blocks"], "num_warps": variant["warps"]}, variant["file"]
                config = ", ".join(f"{option}: {n}" for option, n in options.items())
                told.append(Variant(config, variant["category"], file, measured.get(file), file == found["file"]))
            self.tuned(name, told, new)

    def _unaligned(self, about: Mapping[str, Any], programs: Sized, known: Sequence[tuple[int, int]]) -> Launch:
        """The launch for arguments of which only these divisors are ``known``, and of sizes that may be large."""
        if self.rebuild is None:
            raise LaunchFailed(about["name"], "an argument is not aligned, or too large, and there is no builder")
        request = {**about["unaligned"], "divisors": sorted([*about["unaligned"]["divisors"], *map(list, known)])}
        built = self.rebuild(request)
        if isinstance(built, str):
            raise KernelBuildError(about["name"], str(self.folder / DESCRIPTION), built)
        variant = {**built.notes, "file": str(built.folder / BINARY), "blocks": request["constants"]}
        return self._loaded(about, variant, programs)

    def _loaded(self, about: Mapping[str, Any], variant: Mapping[str, Any], programs: Sized) -> Launch:
        driver, path = self.driver(), self.folder / variant["file"]
        try:
            binary = path.read_bytes()
        except OSError as error:
            raise CacheCorrupt(str(path), str(error)) from error
        handle = driver.load(binary, variant["function"], variant["shared"])
        count, scratch = _programs(programs, about["sizes"], variant["blocks"]), variant.get("scratch", 0)
        block = about["arguments"] + bool(scratch), count, variant["warps"], variant["shared"]
        early = variant.get("early") and driver.version() >= RECORDS_EARLY
        attribute = TOGETHER if variant["cooperative"] else EARLY if early else b""
        launch = bind(driver, handle, about["name"], *block, attribute, self._on_assert)
        return partial(_with_scratch, launch, count, scratch) if scratch else launch

    def _on_assert(self) -> NoReturn:
        """Raises: IndexOutOfRange for a check on the GPU that failed; it names the place if only one can be meant."""
        places = [Origin(*about["place"]) for about in self._described.values() if about["place"]]
        where = self.moved.get(places[0], places[0]) if len(places) == 1 else None
        raise IndexOutOfRange(None, None, where=where)


def _programs(programs: Sized, sizes: Sequence[int], blocks: Mapping[str, int]) -> Programs:
    return _of_sizes(partial(programs, **blocks), sizes) if sizes else programs(**blocks)


def _of_sizes(number: Sized, sizes: Sequence[int]) -> Callable[..., int]:
    """A function of all arguments of a kernel, of which sizes follow each other."""
    first, end = sizes[0], sizes[-1] + 1
    return lambda *args: number(*args[first:end])


def _with_scratch(launch: Launch, programs: Programs, each: int, stream: int, *args: int) -> None:
    """Launch a kernel that takes, after its own arguments, `each` bytes per program for Triton's descriptors."""
    count = programs if isinstance(programs, int) else programs(*args)
    memory = torch.empty(count * each, dtype=torch.int8, device="cuda")
    launch(stream, *args, memory.data_ptr())


def _slowness(tried: Tried) -> tuple[bool, float | None]:
    return tried[2] is None, tried[2]
