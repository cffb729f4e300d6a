"""The option `benchmark_fusion`: a fused kernel is timed against its parts, and refused if it is slower.

Parts and whole become programs of their own, built like any other and run on random inputs. Kernels that all
layers of a model share are built once; a fusion costs about half a second the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gyrator.cache.store import Store
from gyrator.codegen.wrapper import print_wrapper
from gyrator.errors import GyratorError
from gyrator.ir.index import Size
from gyrator.ir.program import Program
from gyrator.metrics.tables import Row, add_rows
from gyrator.runtime.load import WRAPPER
from gyrator.runtime.profile import step_times
from gyrator.runtime.targets import Targets, start_kernels
from gyrator.runtime.workers import Workers
from gyrator.schedule.fuse import Slower
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.group import Group, Refused
from gyrator.schedule.memory import plan_memory
from gyrator.schedule.products import part_of
from gyrator.schedule.simplify import simplifier
from gyrator.session import Session

SECONDS = 0.02
"""How long a kernel is timed."""

NOISE = 1.05
"""A fusion that takes up to so many times its parts is as good as they are."""


@final
@dataclass(frozen=True, slots=True)
class Timed:
    """A group's kernel: where it lies, and milliseconds of a launch."""

    folder: Path
    milliseconds: float


def slower_fusions(
    targets: Targets, store: Store, session: Session, workers: Workers, hints: Mapping[Size, int], gpu: Gpu | None
) -> Slower:
    """What `fuse` asks about two groups and what they would become: refused if that was measured to be slower.

    Kernels are built for `targets` and kept in `store`. A fusion with a part that random inputs make fail (an
    index into a table) is not refused.
    """
    known: dict[tuple[tuple[int, ...], bool], Timed | None] = {}

    def timed(program: Program, group: Group) -> Timed | None:
        key = (tuple(member.position for member in group.members), bool(group.serial))
        if key not in known:
            try:
                known[key] = build_and_time(part_of(program, key[0]), group)
            except (GyratorError, RuntimeError):  # whatever kernels think of random inputs
                known[key] = None
        return known[key]

    def build_and_time(part: Program, group: Group) -> Timed:
        rule = simplifier(exact_rounding=session.config.numerics == "eager")
        plan = plan_memory(part, (group,), rule, in_place=False, gpu=gpu)
        kernels = start_kernels(plan, targets, store, session.child("fusion"), workers, hints)
        text = print_wrapper(plan, kernels.built, hints)
        folder = store.put_anonymous({WRAPPER: text, **kernels.wait()}).folder
        return Timed(folder, 1e3 * sum(step_times(folder, SECONDS)))

    def slower(program: Program, first: Group, second: Group, joined: Group) -> Refused | None:
        one, two, both = (timed(program, group) for group in (first, second, joined))
        if one is None or two is None or both is None:
            return None
        ratio = both.milliseconds / (one.milliseconds + two.milliseconds)
        if ratio <= NOISE:
            return None
        add_rows(session.config, "slow_fusion", lambda: [_row(one, two, both, ratio)])
        return Refused(f"together they were measured to take {ratio:.2f} times as long as apart")

    return slower


def _row(one: Timed, two: Timed, both: Timed, ratio: float) -> Row:
    return {
        "kernel1_path": str(one.folder),
        "kernel1_latency": one.milliseconds,
        "kernel2_path": str(two.folder),
        "kernel2_latency": two.milliseconds,
        "fused_kernel_path": str(both.folder),
        "fused_kernel_latency": both.milliseconds,
        "slow_down_ratio": ratio,
    }
