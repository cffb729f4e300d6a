"""The one frozen configuration: every option with its type, default, environment variable and explanation.

A value comes from, first found first: the options given in code, the mode, the environment
(`GYRATOR_NAME`), the default. Equal settings give equal (and equally hashed) `Config`s. `docs/config.md` is
generated from this file: `python -m tests.config_page > docs/config.md`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import platformdirs
from msgspec import Meta

from gyrator.errors import InvalidOption, UnknownOption
from gyrator.inductor_names import hint_for

OptionValue = bool | int | float | str | Path | tuple[str, ...] | None
"""What an option can hold."""

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]

_COLUMNS = {
    "slow_fusion": "kernel1_path kernel1_latency kernel2_path kernel2_latency fused_kernel_path "
    "fused_kernel_latency slow_down_ratio",
    "graph_stats": "graph_id num_nodes_before_fusion num_nodes_after_fusion",
    "persistent_red_perf": "kernel0_path kernel1_path kernel2_path kernel3_path kernel0_latency kernel1_latency "
    "kernel2_latency kernel3_latency size_hints reduction_hint",
    "fusion_failure_due_to_indexing_mismatch": "pre_grad_graph_id post_grad_graph_id node1_name node2_name "
    "node1_debug_str node2_debug_str common_buffer_names failure_reason",
    "kernel_metadata": "kernel_name kernel_path kernel_category size_hints reduction_hint line_of_code num_load "
    "num_store num_for_loop num_atomic_add num_args xnumel ynumel rnumel kernel_args_num_gb",
    "kernel_autotune": "kernel_path kernel_name triton_config latency_ms",
}
TABLES: Mapping[str, tuple[str, ...]] = {name: tuple(columns.split()) for name, columns in _COLUMNS.items()}
"""The columns of all metric tables (`metrics/tables.py` writes them), by name, after the first one, `model_name`."""


def _option(default: OptionValue, doc: str, *, shapes_code: bool = True) -> Any:
    """Declares an option (typed like `dataclasses.field`); if it `shapes_code`, it is part of the cache's key."""
    return field(default=default, metadata={"doc": doc, "shapes_code": shapes_code})


_setting = partial(_option, shapes_code=False)
"""Declares an option on which generated code does not depend."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All options of one compilation. Build it with `Config.from_options`, which validates."""

    # --- answers
    numerics: Literal["fast", "eager"] = _option(
        "fast",
        "`fast`: low-precision intermediates inside a kernel stay in float32. `eager`: they are rounded as "
        "eager rounds them, and random operators draw eager's numbers.",
    )
    check: Literal["off", "borders", "every"] = _setting(
        "borders",
        "Which representations are checked against their spec: `off`, `borders` (between "
        "stages), `every` (after each pass).",
    )
    validate: bool = _setting(
        False,
        "Run the graph, the nests before and after each pass, and the built code on the same "
        "inputs, and name the first that changed the answer. Slow.",
    )

    # --- fusion and memory
    fusion: bool = _option(True, "Fuse nests into common kernels.")
    inline: bool = _option(True, "Copy cheap producers into their readers.")
    max_fused_nodes: Positive = _option(48, "Most nests that one kernel may hold.")
    combo_kernels: bool = _option(True, "On a GPU, run small kernels that do not depend on each other in one launch.")
    inplace: bool = _option(True, "Let a result take the memory of a tensor that nobody reads later.")
    reuse_buffers: bool = _option(True, "Keep the memory of large dead buffers for new values and later calls.")
    memory_budget: Annotated[float, Meta(ge=0, le=1)] = _option(
        1.0,
        "Share of eager's saved activations that backward may keep; less recomputes more, 1.0 only what costs nothing.",
    )
    freezing: bool = _option(
        False,
        "Under no_grad, take parameters as constants: fold, join and pre-pack them. Later changes of "
        "a parameter are not seen, and the graph is compiled anew in each process.",
    )
    channels_last: Literal["auto", "on", "off"] = _option(
        "auto",
        "Whether 2-D convolutions of large images get channels-last operands, and what norms read along rows "
        "lies in rows. `auto`: on a GPU, and on a CPU with many depthwise or transposed convolutions.",
    )
    pad_strides: bool = _option(
        False,
        "On a GPU, pad the strides of all large intermediates whose rows are badly aligned, not only those "
        "of what matrix products read or write.",
    )

    # --- choosing kernels
    max_autotune: bool = _option(False, "Time candidates for matrix products, keep the fastest: docs/autotuning.md.")
    gemm_backends: tuple[Literal["aten", "triton", "cpp", "subgraph"], ...] = _option(
        ("aten", "triton", "cpp", "subgraph"),
        "Families of candidates that compete. `cpp` or `subgraph` alone is taken without timing where it can be.",
    )
    triton_min_gemm_size: Positive = _option(1, "Smallest M·N·K for which Triton templates compete.")
    cpp_min_gemm_size: Positive = _option(1, "Smallest M·N·K for which C++ templates compete.")
    subgraph_min_gemm_size: Positive = _option(1, "Smallest M·N·K for which subgraphs compete.")
    max_epilogue_benchmarked_choices: Positive = _option(6, "Most templates that are timed with their epilogue.")
    autotune_timeout: Seconds = _setting(3.0, "Seconds in which a candidate must answer.")
    autotune_grace: Seconds = _setting(0.5, "Seconds after that, before SIGTERM.")
    autotune_kill_grace: Seconds = _setting(0.5, "Seconds after SIGTERM, before SIGKILL.")
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
    cpu_isa: Literal["auto", "scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"] = _option(
        "auto", "Instruction set of CPU kernels; `auto` asks the processor."
    )
    cxx: str | None = _option(None, "The C++ compiler. None: $CXX, then g++, then clang++.")
    threads: Natural = _setting(0, "Most threads of a CPU kernel. 0: torch.get_num_threads(), read at each call.")
    cuda_capability: Natural = _option(
        0, "Compute capability of the GPU that kernels are built for, 90 for 9.0. 0: that of the tensors' device."
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
    build_threads: Natural = _setting(
        0, "Compiler runs, or processes that compile GPU kernels, at the same time. 0: one for each core."
    )
    cache: bool = _setting(True, "Keep built kernels and compiled graphs on disk and take them from there.")
    cache_dir: Path | None = _setting(None, "Folder of the cache. None: the user's cache folder for gyrator.")
    remote_cache: str | None = _setting(None, "URL of a Redis server through which machines share their caches.")
    remote_cache_secret: Path | None = _setting(None, "File with the secret that signs what is in `remote_cache`.")

    # --- seeing what happens
    dump: Path | None = _setting(None, "Folder that receives every stage as a numbered file.")
    logs: tuple[Literal["output_code", "schedule", "fusion", "autotune", "cache", "recompiles"], ...] = _setting(
        (), "What to print."
    )
    metrics: tuple[Literal[*TABLES], ...] = _setting(  # type: ignore[valid-type]
        (), "Metric tables to write, as `metric_table_NAME.csv` in the working directory."
    )
    model_name: str = _setting("", "What the first column of metric tables says: the model that is compiled.")
    progress: Literal["auto", "bar", "lines", "off"] = _setting(
        "auto",
        "`bar`: a progress bar. `lines`: a line every 5 seconds. `off`: silence. `auto`: a bar "
        "on a terminal, lines elsewhere.",
    )
    benchmark_kernel: bool = _option(False, "Write a program for each kernel that times it, beside the wrapper.")
    profile_bandwidth: bool = _setting(False, "Time each kernel of real runs and print its GB/s when the process ends.")

    @staticmethod
    def from_options(
        mode: str | None = None, options: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> "Config":
        """The configuration that a mode, options and an environment (by default the process's) ask for.

        Raises:
            UnknownOption: a mode or option does not exist; the message lists those that do, with their types.
            InvalidOption: a value has the wrong type or lies outside its range."""
        types = option_types()
        given = os.environ if env is None else env
        texts = {name: text for name in types if (text := given.get(env_name(name))) is not None}
        values: dict[str, OptionValue] = {name: _parse(name, types[name], text) for name, text in texts.items()}
        if (mode or "default") not in MODES:
            raise UnknownOption(str(mode), {m: ", ".join(v) or "no option" for m, v in MODES.items()}, kind="mode")
        values |= MODES[mode or "default"]
        for name, value in (options or {}).items():
            if name not in types:
                raise UnknownOption(name, {n: type_text(kind) for n, kind in types.items()}, hint=hint_for(name))
            values[name] = _convert(value, types[name], InvalidOption(name, value, type_text(types[name])))
        return Config(**values)  # type: ignore[arg-type]

    @property
    def cache_folder(self) -> Path:
        """Where built kernels and compiled graphs lie. May not exist yet; who creates it gives it mode 0700.

        Raises: RuntimeError for a user without a home."""
        return self.cache_dir or Path(platformdirs.user_cache_dir("gyrator", appauthor=False)).expanduser()

    @property
    def builders(self) -> int:
        """How many kernels are built at once: as many as this process may use processors, if no option says."""
        return self.build_threads or len(os.sched_getaffinity(0))

    def key(self) -> str:
        """A canonical text of the options on which generated code depends, for cache keys."""
        return ";".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.metadata["shapes_code"])


PREFIX = "GYRATOR_"

MODES: Mapping[str, Mapping[str, OptionValue]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"max_autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def env_name(option: str) -> str:
    """The environment variable of an option."""
    return PREFIX + option.upper()


def type_text(kind: Any) -> str:
    """An option's type as a reader wants it: `"fast" | "eager"`, `int ≥ 1`, `list of ...`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(f'"{choice}"' for choice in parts)
    if origin is tuple:
        return "list of " + " | ".join(get_args(parts[0]))
    if origin is UnionType:
        return " or ".join(map(type_text, parts))
    if origin is Annotated:
        plain, limits = parts
        return f"{plain.__name__} " + (f"≥ {limits.ge}" if limits.le is None else f"in {limits.ge}…{limits.le}")
    return {Path: "path", NoneType: "None"}.get(kind, kind.__name__)


def unknown_environment(env: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each `GYRATOR_` variable that names no option, with the closest name that does."""
    known = [*map(env_name, option_types())]
    unknown = [name for name in sorted(env) if name.startswith(PREFIX) and name not in known]
    found = [(name, get_close_matches(name, known, n=1)) for name in unknown]
    return tuple(f"{name} names no option" + (f"; did you mean {close[0]}?" if close else "") for name, close in found)


@lru_cache(maxsize=1)
def option_types() -> Mapping[str, Any]:
    """Each option's type, its choices and range included, in the order of declaration."""
    return get_type_hints(Config, include_extras=True)


_FLAGS = {"on": "1", "yes": "1", "off": "0", "no": "0"}
"""What a flag may be in the environment beside 1, 0, true and false."""


def _parse(option: str, kind: Any, text: str) -> OptionValue:
    """The value that the text of an option's environment variable stands for."""
    plain = text.strip()
    if NoneType in get_args(kind) and plain.lower() in ("", "none"):
        return None
    bad = InvalidOption(option, text, "1 or 0" if kind is bool else type_text(kind), source=env_name(option))
    return _convert(_FLAGS.get(plain.lower(), plain) if kind is bool else plain, kind, bad, strict=False)


def _convert(value: object, kind: Any, bad: InvalidOption, *, strict: bool = True) -> OptionValue:
    """The value in an option's own type; not `strict`: a text may stand for it.

    Raises: `bad` for a value of another type, or outside of its choices or range."""
    try:
        if get_origin(kind) is tuple:
            return _names(value, kind)
        return msgspec.convert(value, kind, strict=strict, dec_hook=lambda _, path: Path(path).expanduser())
    except msgspec.ValidationError:
        raise bad from None


def _names(value: object, kind: Any) -> tuple[str, ...]:
    """Allowed names in their own order, from an iterable or a comma-separated text; case and repetition don't matter.

    Raises: msgspec.ValidationError."""
    listed = msgspec.convert(value.split(",") if isinstance(value, str) else value, list[str])
    names = msgspec.convert({name.strip().lower() for name in listed} - {""}, kind)
    return tuple(choice for choice in get_args(get_args(kind)[0]) if choice in names)
