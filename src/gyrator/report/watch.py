"""What a compilation tells about itself: counters, metric tables, and events for whoever explains it. `pipeline.py` and
`backend.py` call these functions; with nothing switched on they cost next to nothing."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import fx

from gyrator.autograd.partition.plan import Partition
from gyrator.autograd.partition.recompute import tensor_bytes
from gyrator.cache.store import Entry
from gyrator.config import Config
from gyrator.metrics.kernels import KernelFacts
from gyrator.metrics.tables import Row, add_rows
from gyrator.origin import Origin, origin_of, place_of
from gyrator.report.data import GraphRecord, Kept, ProgramRecord, ProgramReport
from gyrator.runtime.load import WRAPPER
from gyrator.runtime.triton_tune import Variant
from gyrator.session import Session
from gyrator.torch_compat import capture_end, recompile_reason

RECORD = "record.json"
"""The file of a compiled graph's record in its folder."""

COUNTERS = "counters"
"""The note in which an entry of the cache keeps its counters."""


@dataclass(frozen=True, slots=True)
class GraphCompiled:
    """A graph is ready: its entry with code and record, whether the cache had it, its session, and what of it is
    only in this process: graphs within it, tensors that it holds, and where the user's places moved since."""

    entry: Entry
    cached: bool
    session: Session
    regions: Mapping[str, fx.GraphModule] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    moved: Mapping[Origin, Origin] = field(default_factory=dict)


Event = GraphCompiled | ProgramReport
"""A graph or a captured program is ready; the report on a program lacks those on its graphs."""
Watch = Callable[[Event], None]


def record_in(folder: Path) -> GraphRecord:
    """The record in a compiled graph's folder."""
    return msgspec.json.decode((folder / RECORD).read_bytes(), type=GraphRecord)


def graph_compiled(ready: GraphCompiled, watch: Watch | None) -> None:
    """A graph is ready, new or cached: count again what the cache saved counting, write tables and logs."""
    session, entry = ready.session, ready.entry
    if ready.cached:
        session.counters.replay(entry.notes[COUNTERS])
    if session.config.metrics or session.config.logs:
        record = record_in(entry.folder)
        add_rows(session.config, "graph_stats", lambda: _graph_stats(session.name, record))
        add_rows(session.config, "kernel_metadata", lambda: _kernel_metadata(record, entry.folder))
        add_rows(session.config, "fusion_failure_due_to_indexing_mismatch", lambda: _mismatches(session.name, record))
        _log(session.config.logs, record, entry)
    if watch is not None:
        watch(ready)


def _log(logs: Collection[str], record: GraphRecord, entry: Entry) -> None:
    if "schedule" in logs:
        for step in record.steps:
            print(f"gyrator: {record.name}: {step.kind} {step.name}: {', '.join(step.nests or step.writes)}")
    if "fusion" in logs:
        for pair in record.unfused:
            print(f"gyrator: {record.name}: {pair.producer} and {pair.reader} are not fused: {pair.reason}")
    if "output_code" in logs:
        sources = [kernel.source for kernel in record.kernels]
        print("\n".join([*sources, f"# {entry.folder / WRAPPER}", entry.text(WRAPPER)]))


def program_compiled(
    session: Session, gm: fx.GraphModule, record: ProgramRecord, start: float, watch: Watch | None, *, cached: bool
) -> None:
    """A captured program that `start` (of time.perf_counter) saw begin is ready, all its graphs included."""
    if watch is not None:
        reason, place = capture_end(gm)
        report = ProgramReport(
            name=session.name.removesuffix("_program"),
            ended=reason,
            place=place,
            recompiled=recompile_reason() or "",
            cached=cached,
            missed=session.missed,
            seconds=time.perf_counter() - start,
            stages=session.timings,
            record=record,
        )
        watch(report)


def program_record(partition: Partition) -> ProgramRecord:
    """What a partition saves and recomputes, and why, the largest first."""
    saved = set(partition.saved)
    kept = [
        Kept(
            value=node.name,
            saved=node in saved,
            reason=reason.partition(": ")[2],
            bytes=tensor_bytes(node.meta.get("val")),
            place="an input" if node.op == "placeholder" else place_of((origin_of(node),)),
        )
        for node, reason in partition.reasons.items()
    ]
    kept.sort(key=lambda value: (not value.saved, -value.bytes, value.value))
    return ProgramRecord(tuple(kept), partition.saved_bytes, partition.default_bytes)


def kernel_tuned(config: Config, folder: Path, name: str, candidates: Sequence[Variant], new: bool) -> None:
    """A kernel of the graph in `folder` was tuned: write tables and logs, unless an earlier process took the times."""
    if new:
        if "autotune" in config.logs:
            for candidate in candidates:
                mark = "chosen" if candidate.chosen else ""
                print(f"gyrator: {name}: {candidate.config}: {candidate.milliseconds} ms {mark}".rstrip())
        add_rows(config, "kernel_autotune", lambda: _kernel_autotune(folder, name, candidates))
        add_rows(config, "persistent_red_perf", lambda: _persistent_red_perf(folder, name, candidates))


def _kernel_autotune(folder: Path, name: str, candidates: Sequence[Variant]) -> Iterable[Row]:
    for candidate in candidates:
        yield {
            "kernel_path": str(folder / candidate.file),
            "kernel_name": name,
            "triton_config": candidate.config,
            "latency_ms": candidate.milliseconds,
        }


def _persistent_red_perf(folder: Path, name: str, candidates: Sequence[Variant]) -> Iterable[Row]:
    """The best of each form: kernel 0 has its rows in registers, kernel 1 in blocks."""
    fastest = sorted(candidates, key=lambda c: (c.milliseconds is None, c.milliseconds))
    best = {candidate.category: candidate for candidate in reversed(fastest)}
    if {"persistent", "looped"} <= best.keys():
        facts = next(kernel.facts for kernel in record_in(folder).kernels if kernel.symbol == name)
        found: list[Variant | None] = [best["persistent"], best["looped"], None, None]
        paths = {f"kernel{k}_path": None if c is None else str(folder / c.file) for k, c in enumerate(found)}
        times = {f"kernel{k}_latency": None if c is None else c.milliseconds for k, c in enumerate(found)}
        yield {**paths, **times, **_hints(facts)}


def _hints(facts: KernelFacts) -> Row:
    sizes = None if facts.kind == "foreach" else f"[{', '.join(map(str, facts.numels))}]"
    reduction = facts.kind.partition(" ")[0].upper() if "reduction" in facts.kind else None
    return {"size_hints": sizes, "reduction_hint": reduction}


def _graph_stats(name: str, record: GraphRecord) -> Iterable[Row]:
    calls = sum(step.kind == "extern" for step in record.steps)
    products = sum(kernel.launches for kernel in record.kernels if kernel.facts.kind == "template")
    before, after = (record.counters.get(f"NESTS_{when}_FUSION", 0) + calls for when in ("BEFORE", "AFTER"))
    yield {"graph_id": name, "num_nodes_before_fusion": before + products, "num_nodes_after_fusion": after}


def _kernel_metadata(record: GraphRecord, folder: Path) -> Iterable[Row]:
    for kernel in record.kernels:
        facts = kernel.facts
        yield {
            "kernel_name": kernel.name,
            "kernel_path": str(folder),
            "kernel_category": facts.kind.replace(" ", "_").replace("-", "_"),
            **_hints(facts),
            "line_of_code": sum(not line.startswith(("//", "#", "@")) for line in kernel.source.splitlines()),
            "num_load": facts.loads,
            "num_store": facts.stores,
            "num_for_loop": facts.loops,
            "num_atomic_add": facts.atomics,
            "num_args": kernel.arguments,
            **dict(zip(("xnumel", "ynumel", "rnumel"), facts.numels, strict=True)),
            "kernel_args_num_gb": kernel.facts.bytes / 1e9,
        }


def _mismatches(name: str, record: GraphRecord) -> Iterable[Row]:
    for pair in record.unfused:
        if pair.mismatch:
            yield {
                "pre_grad_graph_id": name.partition("_")[0],
                "post_grad_graph_id": name,
                "node1_name": pair.producer,
                "node2_name": pair.reader,
                "node1_debug_str": f"{pair.producer} at {pair.producer_place}",
                "node2_debug_str": f"{pair.reader} at {pair.reader_place}",
                "common_buffer_names": pair.value,
                "failure_reason": pair.reason,
            }
