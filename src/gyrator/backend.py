"""The backend that `torch.compile(backend="gyrator")` calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, final

import torch
from torch import fx

from gyrator.autograd import aot_compile
from gyrator.autograd.interface import Compiled, GraphInfo
from gyrator.autograd.partition import min_cut_with_budget
from gyrator.config import Config, notices
from gyrator.pipeline import Process, compile_graph, frozen_garbage
from gyrator.session import Session


@final
class Backend:
    """Compiles what torch.compile captured. `process` is the state that all its compilations share."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = count()

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Callable[..., Any]:
        """Compile a captured graph of torch operators, its backward included.

        Raises:
            UnknownOption, InvalidOption: wrong options. UnsupportedInput, UnsupportedOperator: what cannot be
            compiled.
        """
        config = Config.from_options(mode, options)
        name = f"graph{next(self._numbers)}"
        process = self._process

        def compiler(graph: fx.GraphModule, inputs: Sequence[object], info: GraphInfo) -> Compiled:
            with Session(config, _device(inputs), f"{name}_{info.kind}", told=process.told) as session:
                for text in notices(config):
                    session.warn(text)
                return compile_graph(graph, inputs, info, session, process)

        with process.lock, frozen_garbage():
            return aot_compile(
                gm,
                example_inputs,
                fw_compiler=compiler,
                partition_fn=min_cut_with_budget(config.memory_budget),
                numerics="eager" if config.numerics == "eager" else "fast",
            )

    def __reduce__(self) -> str:
        """Copies and pickles of compiled modules refer to this object by its name."""
        return "gyrator"

    def reset(self) -> None:
        """Give back the memory that compiled code keeps; torch.compiler.reset calls it."""
        self._process.pool.clear()


gyrator = Backend(Process())
"""What the entry point of the package names."""


def _device(inputs: Sequence[object]) -> torch.device:
    """The first device that is not the CPU, else the CPU."""
    devices = [given.device for given in inputs if isinstance(given, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
