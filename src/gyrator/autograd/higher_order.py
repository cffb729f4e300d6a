"""Higher-order operators: operators that take graphs.

    inlined   tag_activation_checkpoint, invoke_subgraph, wrap: their body is traced in their place;
              flex_attention: the operators that define it are
    recorded  cond, while_loop, map_impl, scan, associative_scan: one node, whose bodies are graphs of their own
    passed    auto_functionalized, with_effects and others without bodies: one node
    refused   the rest

How each body is called is said here; `recorder.py` traces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

Bodies = Mapping[int, Sequence[Any]]
"""For the position of each body among the operator's arguments, what it is called with."""


def _cond(args: Sequence[Any]) -> Bodies:
    return {1: args[3], 2: args[3]}


def _while_loop(args: Sequence[Any]) -> Bodies:
    given = (*args[2], *args[3])
    return {0: given, 1: given}


def _map(args: Sequence[Any]) -> Bodies:
    return {0: (*[_slice(x, 0) for x in args[1]], *args[2])}


def _scan(args: Sequence[Any]) -> Bodies:
    return {0: (*args[1], *[_slice(x, 0) for x in args[2]], *args[3])}


def _associative_scan(args: Sequence[Any]) -> Bodies:
    part = [_slice(x, 0) for x in args[1]]
    return {0: (*part, *part, *args[2])}


def _slice(x: Any, dim: int) -> Any:
    return x.select(dim, 0) if isinstance(x, Tensor) else x


RECORDED: Mapping[str, Callable[[Sequence[Any]], Bodies]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan,
    "associative_scan": _associative_scan,
}
"""Operators recorded as one node, with what their bodies are called with."""

PASSED = frozenset({"auto_functionalized", "with_effects", "out_dtype", "run_and_save_rng_state"})
"""Operators without bodies, recorded as they are."""
