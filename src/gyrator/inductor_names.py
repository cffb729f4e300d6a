"""TorchInductor's well-known option names and what they are called here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counterpart:
    """Our option for one of Inductor's names; `ours` is None where there is none, and `note` says why."""

    inductor: str
    ours: str | None
    note: str = ""


INDUCTOR_NAMES = (
    Counterpart("max_autotune", "max_autotune"),
    Counterpart("max_autotune_gemm_backends", "gemm_backends", "lower case, a list"),
    Counterpart("freezing", "freezing"),
    Counterpart("trace.log_autotuning_results", "logs", '`logs="autotune"`; the table is `metrics="kernel_autotune"`'),
    Counterpart("enabled_metric_tables", "metrics"),
    Counterpart("benchmark_kernel", "benchmark_kernel"),
    Counterpart("profile_bandwidth", "profile_bandwidth"),
    Counterpart("max_epilogue_benchmarked_choices", "max_epilogue_benchmarked_choices"),
    Counterpart("assume_aligned_inputs", "assume_aligned_inputs"),
    Counterpart("cutlass_backend_min_gemm_size", None, "there are no CUTLASS candidates"),
    Counterpart("max_autotune_subproc_result_timeout_seconds", "autotune_timeout"),
    Counterpart("autotune_num_choices_displayed", "autotune_silent", "`autotune_silent=True` for 0"),
    Counterpart("aot_inductor.force_mmap_weights", None, "there is no ahead-of-time package yet"),
    Counterpart("triton.cudagraphs", "cuda_graphs"),
    Counterpart("coordinate_descent_tuning", "coordinate_descent"),
    Counterpart("benchmark_fusion", "benchmark_fusion"),
    Counterpart("triton.multi_kernel", "multi_kernel"),
    Counterpart("comprehensive_padding", "pad_strides"),
    Counterpart("layout_optimization", "channels_last", '"on" or "off"'),
    Counterpart("fallback_random", "numerics", '`numerics="eager"`'),
    Counterpart("emulate_precision_casts", "numerics", '`numerics="eager"`'),
    Counterpart("trace.enabled", "dump", "a folder instead of a flag"),
    Counterpart("cpp.simdlen", "cpu_isa", "a name instead of a number of bits"),
    Counterpart("cpp.threads", "threads"),
    Counterpart("max_fusion_size", "max_fused_nodes"),
    Counterpart("combo_kernels", "combo_kernels"),
    Counterpart("inplace_buffers", "inplace"),
    Counterpart("allow_buffer_reuse", "reuse_buffers"),
    Counterpart("compile_threads", "build_threads"),
    Counterpart("force_disable_caches", "cache", "`cache=False`"),
    Counterpart("fx_graph_remote_cache", "remote_cache"),
)


def hint_for(inductor: str) -> str | None:
    """What to write here instead of one of Inductor's names; None where the name is unknown or the same."""
    for c in INDUCTOR_NAMES:
        if c.inductor == inductor and c.ours != inductor:
            return f"Inductor's {inductor} is {c.ours} here" if c.ours else f"Inductor's {inductor}: {c.note}"
    return None
