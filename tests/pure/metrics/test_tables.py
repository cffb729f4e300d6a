"""Metric tables: which are on, what their files hold, and who writes the header."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gyrator.config import TABLES, Config
from gyrator.errors import InternalCheckError, InvalidOption
from gyrator.metrics.tables import add_rows, start_tables
from gyrator.report.watch import kernel_tuned
from gyrator.runtime.triton_tune import Variant

STATS = {"graph_id": "graph0", "num_nodes_before_fusion": 3, "num_nodes_after_fusion": 1}
FILE = Path("metric_table_graph_stats.csv")
HEADER = "model_name,graph_id,num_nodes_before_fusion,num_nodes_after_fusion\n"


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(text: str = "graph_stats", model: str = "bert") -> Config:
    return Config.from_options(env={"GYRATOR_METRICS": text, "GYRATOR_MODEL_NAME": model})


def test_a_table_that_is_off_builds_no_row() -> None:
    built: list[int] = []
    add_rows(config("kernel_metadata"), "graph_stats", lambda: [built.append(1) or STATS])
    assert built == [] and not FILE.exists()


def test_the_header_is_written_once_and_the_model_comes_first() -> None:
    add_rows(config(), "graph_stats", lambda: [STATS])
    add_rows(config(), "graph_stats", lambda: [STATS])
    assert FILE.read_text() == HEADER + 2 * "bert,graph0,3,1\n"


def test_floats_have_six_decimals_and_none_is_empty() -> None:
    row = dict.fromkeys(TABLES["kernel_autotune"]) | {"latency_ms": 1 / 3, "kernel_name": "a,b"}
    add_rows(config("kernel_autotune", ""), "kernel_autotune", lambda: [row])
    lines = Path("metric_table_kernel_autotune.csv").read_text().splitlines()
    assert lines == ["model_name,kernel_path,kernel_name,triton_config,latency_ms", ',,"a,b",,0.333333']


def test_a_kernel_that_was_timed_just_now_has_a_row_for_each_config(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = [
        Variant("XBLOCK: 256", "pointwise", "a.cubin", 0.5, True),
        Variant("XBLOCK: 512", "pointwise", "b.cubin", None, False),
    ]
    for new in (True, False):
        told = replace(config("kernel_autotune,persistent_red_perf"), logs=("autotune",))
        kernel_tuned(told, Path("graph"), "add_0", candidates, new)
    assert Path("metric_table_kernel_autotune.csv").read_text().splitlines()[1:] == [
        "bert,graph/a.cubin,add_0,XBLOCK: 256,0.500000",
        "bert,graph/b.cubin,add_0,XBLOCK: 512,",
    ]
    assert not Path("metric_table_persistent_red_perf.csv").exists()
    assert capsys.readouterr().out.splitlines() == [
        "gyrator: add_0: XBLOCK: 256: 0.5 ms chosen",
        "gyrator: add_0: XBLOCK: 512: None ms",
    ]


def test_a_row_with_other_columns_is_refused() -> None:
    with pytest.raises(InternalCheckError, match=r"graph_stats differs in columns \['graph_id', 'graphid'\]"):
        add_rows(
            config(), "graph_stats", lambda: [{"graphid": 1} | {k: v for k, v in STATS.items() if k != "graph_id"}]
        )


def test_names_are_trimmed_and_an_unknown_one_lists_those_known() -> None:
    assert config(" graph_stats , slow_fusion ").metrics == ("slow_fusion", "graph_stats")
    with pytest.raises(InvalidOption, match=r"slow_fusion \| graph_stats \| .*kernel_autotune, not 'graph_stat'"):
        config("graph_stat")


def test_the_parent_of_a_run_purges_old_rows_and_writes_headers() -> None:
    FILE.write_text("old\n")
    start_tables(config())
    assert FILE.read_text() == HEADER
    add_rows(config(), "graph_stats", lambda: [STATS])
    assert FILE.read_text() == HEADER + "bert,graph0,3,1\n"


def test_rows_of_several_threads_stay_whole() -> None:
    def write() -> None:
        for _ in range(50):
            add_rows(config(), "graph_stats", lambda: [STATS])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FILE.read_text() == HEADER + 200 * "bert,graph0,3,1\n"


def test_columns_stand_in_the_order_that_readers_of_the_files_expect() -> None:
    assert {name: ",".join(columns) for name, columns in TABLES.items()} == {
        "slow_fusion": "kernel1_path,kernel1_latency,kernel2_path,kernel2_latency,fused_kernel_path,"
        "fused_kernel_latency,slow_down_ratio",
        "graph_stats": "graph_id,num_nodes_before_fusion,num_nodes_after_fusion",
        "persistent_red_perf": "kernel0_path,kernel1_path,kernel2_path,kernel3_path,kernel0_latency,"
        "kernel1_latency,kernel2_latency,kernel3_latency,size_hints,reduction_hint",
        "fusion_failure_due_to_indexing_mismatch": "pre_grad_graph_id,post_grad_graph_id,node1_name,"
        "node2_name,node1_debug_str,node2_debug_str,common_buffer_names,failure_reason",
        "kernel_metadata": "kernel_name,kernel_path,kernel_category,size_hints,reduction_hint,line_of_code,"
        "num_load,num_store,num_for_loop,num_atomic_add,num_args,xnumel,ynumel,rnumel,kernel_args_num_gb",
        "kernel_autotune": "kernel_path,kernel_name,triton_config,latency_ms",
    }
