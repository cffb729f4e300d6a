"""Parts of a program as programs of their own, built into folders whose wrappers run on random inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.codegen.wrapper import print_wrapper
from gyrator.ir.build import COMPUTED, FLOAT8
from gyrator.ir.program import Program
from gyrator.ir.simplify import simplifier
from gyrator.ir.symbols import Symbols
from gyrator.lowering.graph import lower
from gyrator.runtime.entries import Stores
from gyrator.runtime.load import WRAPPER
from gyrator.runtime.targets import Targets, start_kernels
from gyrator.runtime.workers import Workers
from gyrator.schedule.memory import plan_memory
from gyrator.schedule.plan import Plan
from gyrator.schedule.products import Ask, Unit
from gyrator.schedule.stage import schedule
from gyrator.session import Session


@dataclass(frozen=True, slots=True)
class Builder:
    """What kernels are built for and with, and where they are kept. Folders of parts last as long as the process."""

    targets: Targets
    stores: Stores
    session: Session
    workers: Workers
    shape_env: ShapeEnv | None

    @property
    def computed(self) -> frozenset[torch.dtype]:
        """The dtypes that kernels compute in: GPUs convert to floats of 8 bits from a capability of 89 on."""
        gpu = self.targets.gpu
        return COMPUTED if gpu is None or gpu.capability >= 89 else COMPUTED.difference(FLOAT8)

    def start(self, plan: Plan) -> Callable[[], Path]:
        """Begin to build a plan; what waits for its folder. Raises: GyratorError, both times."""
        session = self.session.child("candidate", apart=True)
        kernels = start_kernels(plan, self.targets, self.stores.kernels, session, self.workers)
        text = print_wrapper(plan, kernels.built)
        return lambda: self.stores.uncached.put_anonymous({WRAPPER: text, **kernels.wait()}, {}).folder

    def start_units(self, part: Program, units: Sequence[Unit]) -> Callable[[], Path]:
        """Begin to build a program that units compute. Raises: GyratorError."""
        rule = simplifier(exact_rounding=self.session.config.numerics == "eager")
        return self.start(plan_memory(part, tuple(units), rule, in_place=False, gpu=self.targets.gpu))

    def start_graph(self, graph: fx.GraphModule, name: str, ask: Ask | None) -> Callable[[], Path]:
        """Begin to build an ATen graph, whose products are chosen by ``ask``. Raises: GyratorError."""
        symbols, session = Symbols(self.shape_env), self.session.child(name, apart=True)
        lowered = lower(graph, symbols=symbols, name=name, computed=self.computed)
        return self.start(schedule(lowered.program, session, self.targets.gpu, None, ask, self.targets.cpu).plan)
