"""The metric tables: CSV files about one run of the compiler, each switched on by its name.

A table is declared by one entry of `_COLUMNS`; `metrics/tables.py` writes the files.
"""

from collections.abc import Mapping

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
"""The columns of all tables, by name, after the first one, `model_name`."""
