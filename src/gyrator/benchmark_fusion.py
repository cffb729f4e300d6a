"""The option `benchmark_fusion`: a fused kernel is timed against its parts, and refused if it is slower. Parts and
whole become programs of their own, built like any other and run on random inputs. Kernels that all layers of a model
share are built once; a fusion costs about half a second the first time."""

from pathlib import Path

from gyrator.autotune.parts import Builder
from gyrator.errors import GyratorError
from gyrator.ir.program import Program
from gyrator.metrics.tables import Cell, add_rows
from gyrator.runtime.load import Runtime
from gyrator.runtime.pool import Pool
from gyrator.runtime.profile import step_times
from gyrator.schedule.fuse import Slower
from gyrator.schedule.group import Group, Refused
from gyrator.schedule.products import part_of

SECONDS = 0.02
"""How long a kernel is timed."""

NOISE = 1.05
"""A fusion that takes up to so many times its parts is as good as they are."""


def slower_fusions(builder: Builder) -> Slower:
    """What `fuse` asks about two groups and what they would become: refused if that was measured to be slower.

    A fusion with a part that random inputs make fail (an index into a table) is not refused."""
    known: dict[tuple[tuple[int, ...], bool], tuple[Path, float] | None] = {}

    def timed(program: Program, group: Group) -> tuple[Path, float] | None:
        """Where a group's kernel lies, and milliseconds of a launch."""
        key = (tuple(member.position for member in group.members), bool(group.serial))
        if key not in known:
            try:
                folder = builder.start_units(part_of(program, (group,)), (group,))()
                known[key] = folder, 1e3 * sum(step_times(Runtime(folder, Pool()), SECONDS))
            except (GyratorError, RuntimeError):  # whatever kernels think of random inputs
                known[key] = None
        return known[key]

    def slower(program: Program, first: Group, second: Group, joined: Group) -> Refused | None:
        one, two, both = (timed(program, group) for group in (first, second, joined))
        if one is None or two is None or both is None:
            return None
        ratio = both[1] / (one[1] + two[1])
        if ratio <= NOISE:
            return None
        row: dict[str, Cell] = {"slow_down_ratio": ratio}
        for name, (folder, took) in (("kernel1", one), ("kernel2", two), ("fused_kernel", both)):
            row |= {f"{name}_path": str(folder), f"{name}_latency": took}
        add_rows(builder.session.config, "slow_fusion", lambda: [row])
        return Refused(f"together they were measured to take {ratio:.2f} times as long as apart")

    return slower
