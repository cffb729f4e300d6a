"""Higher-order operators: operators that take graphs.

    inlined   tag_activation_checkpoint, invoke_subgraph, wrap: their body is traced in their place;
              flex_attention: the operators that define it are
    recorded  cond, while_loop, map_impl, scan, associative_scan: one node, whose bodies are graphs of their own
    passed    auto_functionalized and others without bodies: one node
    refused   the rest

How each body is called is said here; `recorder.py` traces it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from gyrator import torch_compat

Bodies = Mapping[int, Sequence[Any]]
"""For the position of each body among the operator's arguments, what it is called with."""


def _parts(tensors: Sequence[Any]) -> list[Any]:
    return [x.select(0, 0) if isinstance(x, Tensor) else x for x in tensors]


RECORDED: Mapping[str, Callable[[Sequence[Any]], Bodies]] = {
    "cond": lambda args: {1: args[3], 2: args[3]},
    "while_loop": lambda args: dict.fromkeys((0, 1), (*map(torch_compat.of_any_step, args[2]), *args[3])),
    "map_impl": lambda args: {0: (*_parts(args[1]), *args[2])},
    "scan": lambda args: {0: (*args[1], *_parts(args[2]), *args[3])},
    "associative_scan": lambda args: {0: (*_parts(args[1]), *_parts(args[1]), *args[2])},
}
"""Operators recorded as one node, with what their bodies are called with."""

PASSED = frozenset({"auto_functionalized", "out_dtype", "run_and_save_rng_state"})
"""Operators without bodies, recorded as they are."""
