"""TorchInductor's well-known option names and what they are called here."""

from collections.abc import Mapping

OTHER_NAMES: Mapping[str, tuple[str | None, str]] = {
    "max_autotune_gemm_backends": ("gemm_backends", "lower case, a list"),
    "trace.log_autotuning_results": ("logs", '`logs="autotune"`; the table is `metrics="kernel_autotune"`'),
    "enabled_metric_tables": ("metrics", ""),
    "cutlass_backend_min_gemm_size": (None, "there are no CUTLASS candidates"),
    "max_autotune_subproc_result_timeout_seconds": ("autotune_timeout", ""),
    "autotune_num_choices_displayed": ("autotune_silent", "`autotune_silent=True` for 0"),
    "aot_inductor.force_mmap_weights": (None, "there is no ahead-of-time package yet"),
    "triton.cudagraphs": ("cuda_graphs", ""),
    "coordinate_descent_tuning": ("coordinate_descent", ""),
    "triton.multi_kernel": ("multi_kernel", ""),
    "comprehensive_padding": ("pad_strides", ""),
    "layout_optimization": ("channels_last", '"on" or "off"'),
    "fallback_random": ("numerics", '`numerics="eager"`'),
    "emulate_precision_casts": ("numerics", '`numerics="eager"`'),
    "trace.enabled": ("dump", "a folder instead of a flag"),
    "cpp.simdlen": ("cpu_isa", "a name instead of a number of bits"),
    "cpp.threads": ("threads", ""),
    "max_fusion_size": ("max_fused_nodes", ""),
    "inplace_buffers": ("inplace", ""),
    "allow_buffer_reuse": ("reuse_buffers", ""),
    "compile_threads": ("build_threads", ""),
    "force_disable_caches": ("cache", "`cache=False`"),
    "fx_graph_remote_cache": ("remote_cache", ""),
}
"""Our option for one of Inductor's names, and a note; without an option it says why."""


def hint_for(inductor: str) -> str | None:
    """What to write here instead of one of Inductor's names; None where the name is unknown or the same."""
    ours, note = OTHER_NAMES.get(inductor, (None, ""))
    told = (f" is {ours} here" if ours else "") + (f": {note}" if note else "")
    return f"Inductor's {inductor}{told}" if told else None
