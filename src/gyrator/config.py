"""The one frozen configuration: every option with its type, default, environment variable and explanation.

A value comes from, first found first: the options given in code, the mode, the environment
(`GYRATOR_NAME`), the default. Equal settings give equal (and equally hashed) `Config`s. `docs/config.md` is
generated from this file: `python -m tests.config_page > docs/config.md`.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache, partial
from math import inf
from pathlib import Path

import platformdirs

from gyrator.errors import InvalidOption, UnknownOption
from gyrator.inductor_names import hint_for
from gyrator.metric_tables import TABLES

OptionValue = bool | int | float | str | Path | tuple[str, ...] | None
"""What an option can hold."""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What the declaration of an option says beside its name, type and default.

    `shapes_code`: the generated code depends on it, so it is part of the cache's key.
    """

    doc: str
    choices: tuple[str, ...] = ()
    low: float = -inf
    high: float = inf
    shapes_code: bool = True


def _option(default: OptionValue, doc: str, **about: typing.Any) -> typing.Any:
    """Declares an option by its default and the fields of its `OptionInfo` (typed like `dataclasses.field`)."""
    return field(default=default, metadata={"option": OptionInfo(doc, **about)})


_setting = partial(_option, shapes_code=False)
"""Declares an option on which generated code does not depend."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All options of one compilation. Build it with `Config.from_options`, which validates."""

    # --- answers
    numerics: str = _option(
        "fast",
        "`fast`: low-precision intermediates inside a kernel stay in float32. `eager`: they are rounded as "
        "eager rounds them, and random operators draw eager's numbers.",
        choices=("fast", "eager"),
    )
    check: str = _setting(
        "borders",
        "Which representations are checked against their spec: `off`, `borders` (between "
        "stages), `every` (after each pass).",
        choices=("off", "borders", "every"),
    )
    validate: bool = _setting(
        False,
        "Run the graph, the nests before and after each pass, and the built code on the same "
        "inputs, and name the first that changed the answer. Slow.",
    )

    # --- fusion and memory
    fusion: bool = _option(True, "Fuse nests into common kernels.")
    inline: bool = _option(True, "Copy cheap producers into their readers.")
    max_fused_nodes: int = _option(48, "Most nests that one kernel may hold.", low=1)
    combo_kernels: bool = _option(True, "On a GPU, run small kernels that do not depend on each other in one launch.")
    inplace: bool = _option(True, "Let a result take the memory of a tensor that nobody reads later.")
    reuse_buffers: bool = _option(True, "Keep the memory of large dead buffers for new values and later calls.")
    memory_budget: float = _option(
        1.0,
        "Share of eager's saved activations that backward may keep; less recomputes more, 1.0 only what costs nothing.",
        low=0.0,
        high=1.0,
    )
    freezing: bool = _option(
        False,
        "Under no_grad, take parameters as constants: fold and pre-pack them. Later changes of "
        "a parameter are not seen, and the graph is compiled anew in each process.",
    )
    channels_last: str = _option(
        "auto",
        "Whether 2-D convolutions of large images get channels-last operands, and what norms read along rows "
        "lies in rows. `auto`: on a GPU, and on a CPU with many depthwise convolutions.",
        choices=("auto", "on", "off"),
    )
    pad_strides: bool = _option(
        False,
        "On a GPU, pad the strides of all large intermediates whose rows are badly aligned, not only those "
        "of what matrix products read or write.",
    )

    # --- choosing kernels
    max_autotune: bool = _option(False, "Time candidates for matrix products, keep the fastest: docs/autotuning.md.")
    gemm_backends: tuple[str, ...] = _option(
        ("aten", "triton", "cpp", "subgraph"),
        "Families of candidates that compete. `cpp` or `subgraph` alone is taken without timing where it can be.",
        choices=("aten", "triton", "cpp", "subgraph"),
    )
    triton_min_gemm_size: int = _option(1, "Smallest M·N·K for which Triton templates compete.", low=1)
    cpp_min_gemm_size: int = _option(1, "Smallest M·N·K for which C++ templates compete.", low=1)
    subgraph_min_gemm_size: int = _option(1, "Smallest M·N·K for which subgraphs compete.", low=1)
    max_epilogue_benchmarked_choices: int = _option(6, "Most templates that are timed with their epilogue.", low=1)
    autotune_timeout: float = _setting(3.0, "Seconds in which a candidate must answer.", low=0.0)
    autotune_grace: float = _setting(0.5, "Seconds after that, before SIGTERM.", low=0.0)
    autotune_kill_grace: float = _setting(0.5, "Seconds after SIGTERM, before SIGKILL.", low=0.0)
    autotune_silent: bool = _setting(False, "Print no table for a choice.")
    autotune_log: Path | None = _setting(None, "File for a line of JSON for each candidate timed.")
    benchmark_fusion: bool = _option(False, "Time a fusion against its parts and drop it when it is slower.")
    multi_kernel: bool = _option(
        False,
        "On a GPU, build reductions of long rows in two forms, rows in registers and rows in blocks, and attention "
        "with and without roles for warps; keep the faster. With max_autotune always.",
    )
    coordinate_descent: bool = _option(
        False,
        "From the best of a GPU kernel's configs, change one block, the warps or the stages at a time while it gets "
        "faster; each is built and timed at the first launch.",
    )

    # --- target
    cpu_isa: str = _option(
        "auto",
        "Instruction set of CPU kernels; `auto` asks the processor.",
        choices=("auto", "scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"),
    )
    cxx: str | None = _option(None, "The C++ compiler. None: $CXX, then g++, then clang++.")
    threads: int = _setting(0, "Most threads of a CPU kernel. 0: torch.get_num_threads(), read at each call.", low=0)
    cuda_capability: int = _option(
        0,
        "Compute capability of the GPU that kernels are built for, 90 for 9.0. 0: that of the tensors' device.",
        low=0,
    )
    assume_aligned_inputs: bool = _option(
        False,
        "Copy inputs on a GPU that do not start at a multiple of 16 bytes, so that kernels need not ask. "
        "Off: nothing is copied; a kernel asks at each launch and has a second form for such inputs.",
    )
    cuda_graphs: bool = _option(
        False,
        "Record the launches of a call as a CUDA graph and replay it, for graphs whose work is all on the GPU. "
        "Set by the modes reduce-overhead and max-autotune.",
    )

    # --- building and caching
    build_threads: int = _setting(
        0, "Compiler runs, or processes that compile GPU kernels, at the same time. 0: one for each core.", low=0
    )
    cache: bool = _setting(True, "Keep built kernels and compiled graphs on disk and take them from there.")
    cache_dir: Path | None = _setting(None, "Folder of the cache. None: the user's cache folder for gyrator.")
    remote_cache: str | None = _setting(None, "URL of a Redis server through which machines share their caches.")
    remote_cache_secret: Path | None = _setting(None, "File with the secret that signs what is in `remote_cache`.")

    # --- seeing what happens
    dump: Path | None = _setting(None, "Folder that receives every stage as a numbered file.")
    logs: tuple[str, ...] = _setting(
        (), "What to print.", choices=("output_code", "schedule", "fusion", "autotune", "cache", "recompiles")
    )
    metrics: tuple[str, ...] = _setting(
        (), "Metric tables to write, as `metric_table_NAME.csv` in the working directory.", choices=tuple(TABLES)
    )
    model_name: str = _setting("", "What the first column of metric tables says: the model that is compiled.")
    progress: str = _setting(
        "auto",
        "`bar`: a progress bar. `lines`: a line every 5 seconds. `off`: silence. `auto`: a bar "
        "on a terminal, lines elsewhere.",
        choices=("auto", "bar", "lines", "off"),
    )
    benchmark_kernel: bool = _option(False, "Write a program for each kernel that times it, beside the wrapper.")
    profile_bandwidth: bool = _setting(False, "Time each kernel of real runs and print its GB/s when the process ends.")

    @staticmethod
    def from_options(
        mode: str | None = None, options: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> Config:
        """The configuration that a mode, options and an environment (by default the process's) ask for.

        Raises:
            UnknownOption: a mode or option does not exist; the message lists those that do, with their types.
            InvalidOption: a value has the wrong type or lies outside its range.
        """
        known = option_fields()
        values: dict[str, OptionValue] = {}
        given = os.environ if env is None else env
        for name, option in known.items():
            if (text := given.get(env_name(option))) is not None:
                values[name] = _parse(option, text, source=env_name(option))
        if (mode or "default") not in MODES:
            raise UnknownOption(str(mode), {m: ", ".join(v) or "no option" for m, v in MODES.items()}, kind="mode")
        values |= MODES[mode or "default"]
        for name, value in (options or {}).items():
            if name not in known:
                valid = {n: type_text(option) for n, option in known.items()}
                raise UnknownOption(name, valid, hint=hint_for(name))
            values[name] = _convert(known[name], value, source="options")
        return Config(**values)  # type: ignore[arg-type]

    @property
    def cache_folder(self) -> Path:
        """Where built kernels and compiled graphs lie. May not exist yet; who creates it gives it mode 0700."""
        return self.cache_dir or Path(platformdirs.user_cache_dir("gyrator", appauthor=False))

    def key(self) -> str:
        """A canonical text of the options on which generated code depends, for cache keys."""
        return ";".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if info_of(f).shapes_code)


PREFIX = "GYRATOR_"

MODES: Mapping[str, Mapping[str, OptionValue]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"max_autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def option_fields() -> Mapping[str, Field[OptionValue]]:
    """Every option's dataclass field, by name, in the order of declaration."""
    return {f.name: f for f in fields(Config)}


def info_of(option: Field[OptionValue]) -> OptionInfo:
    """What an option's declaration says beside its name, type and default."""
    return option.metadata["option"]


def env_name(option: Field[OptionValue]) -> str:
    """The environment variable of an option."""
    return PREFIX + option.name.upper()


def type_text(option: Field[OptionValue]) -> str:
    """The type of an option as a reader wants it: `"fast" | "eager"`, `int ≥ 1`, `list of ...`."""
    info, kind, optional = info_of(option), *_kinds()[option.name]
    if kind is tuple:
        text = "list of " + " | ".join(info.choices)
    elif info.choices:
        text = " | ".join(f'"{choice}"' for choice in info.choices)
    else:
        text = "path" if kind is Path else kind.__name__
    if info.low > -inf:
        text += f" ≥ {info.low:g}" if info.high == inf else f" in {info.low:g}…{info.high:g}"
    return text + (" or None" if optional else "")


def unknown_environment(env: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each `GYRATOR_` variable that names no option, with the closest name that does."""
    known = [env_name(option) for option in option_fields().values()]
    lines = []
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1)
            lines.append(f"{name} names no option" + (f"; did you mean {close[0]}?" if close else ""))
    return tuple(lines)


@lru_cache(maxsize=1)
def _kinds() -> Mapping[str, tuple[type, bool]]:
    """Each option's plain type, and whether None is allowed too."""
    kinds: dict[str, tuple[type, bool]] = {}
    for name, hint in typing.get_type_hints(Config).items():
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = next(m for m in members if m is not type(None))
        kinds[name] = (typing.get_origin(plain) or plain, type(None) in members)
    return kinds


_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def _parse(option: Field[OptionValue], text: str, source: str) -> OptionValue:
    """The value that an environment variable's text stands for."""
    kind, optional = _kinds()[option.name]
    plain = text.strip()
    if optional and plain.lower() in ("", "none"):
        return None
    try:
        value = _WORDS[plain.lower()] if kind is bool else kind(plain) if kind in (int, float) else plain
    except (KeyError, ValueError):
        expected = "1 or 0" if kind is bool else type_text(option)
        raise InvalidOption(option.name, text, expected, source=source) from None
    return _convert(option, value, source)


def _convert(option: Field[OptionValue], value: object, source: str) -> OptionValue:
    """The value in the option's own type, checked against its choices and range."""
    kind, optional = _kinds()[option.name]
    info = info_of(option)
    bad = InvalidOption(option.name, value, type_text(option), source=source)
    if value is None and optional:
        return None
    if kind is tuple:
        return _convert_names(value, info, bad)
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value).expanduser()
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise bad
    if isinstance(value, str) and info.choices and value not in info.choices:
        raise bad
    if isinstance(value, int | float) and not info.low <= value <= info.high:
        raise bad
    assert isinstance(value, bool | int | float | str)
    return value


def _convert_names(value: object, info: OptionInfo, bad: InvalidOption) -> tuple[str, ...]:
    """A tuple of the allowed names, from an iterable or a comma-separated text; case and repetition don't matter."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(v, str) for v in value):
        raise bad
    names = [name for v in value if (name := v.strip().lower())]
    if any(name not in info.choices for name in names):
        raise bad
    return tuple(choice for choice in info.choices if choice in names)
