"""Whole programs in the cache: one that was compiled before is put together again without a trace.

Graphs (`entries`) are found by what they compute; a program is found by what torch.compile captured, and
names its graphs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.autograd.aot import Traced
from gyrator.autograd.inputs import Inputs
from gyrator.autograd.interface import BoxedCallable
from gyrator.autograd.record import Unrecordable, from_json, to_json
from gyrator.cache.guards import all_hold
from gyrator.cache.key import Key, graph_key
from gyrator.cache.store import Entry, Json, Store
from gyrator.errors import ToolchainMissing
from gyrator.runtime.entries import Stores, explain_miss, facts_of
from gyrator.runtime.targets import find_targets
from gyrator.session import Session


@dataclass(frozen=True, slots=True)
class Found:
    """A program in the cache: its description, and its graphs (forward or inference first, then backward)."""

    description: Mapping[str, Any]
    graphs: tuple[Entry, ...]
    about: str

    def traced(self, calls: Sequence[BoxedCallable]) -> Traced:
        """The program with its loaded graphs. Raises: ValueError and others for a description that is not right."""
        return from_json(self.description, calls[0], calls[1] if len(calls) > 1 else None)


def program_key(
    gm: fx.GraphModule, inputs: Inputs, given: Sequence[object], env: ShapeEnv | None, session: Session, for_loss: bool
) -> Key | None:
    """The key of a captured graph; None if it has none, or if it must be compiled anyway."""
    config = session.config
    if config.validate or config.freezing:
        return None
    try:
        target = find_targets(config, session.device).key()
    except ToolchainMissing:
        return None
    kinds = [type(example).__name__ if not isinstance(example, torch.Tensor) else "" for example in given]
    about = repr((inputs.requires_grad, inputs.leaf, inputs.static, kinds, sharing(given), for_loss))
    return graph_key(gm, config, about, captured=inputs.values, shape_env=env, target=target)


def sharing(values: Sequence[object]) -> list[int]:
    """For each tensor the number of its memory, counted as it first appears; -1 for what is no tensor."""
    numbers: dict[int, int] = {}
    tensors = [v.untyped_storage()._cdata if isinstance(v, torch.Tensor) else None for v in values]
    return [-1 if owner is None else numbers.setdefault(owner, len(numbers)) for owner in tensors]


def find_program(key: Key | None, stores: Stores, inputs: Sequence[object], session: Session) -> Found | None:
    """The program of a key, if all its graphs are there and the facts about sizes that they rely on hold; otherwise the
    session is told why, if it asks. A damaged entry counts as absent, after a warning.
    """
    if key is None:
        return None
    entry = stores.programs.find(key.digest, session.warn)
    notes = {} if entry is None else entry.notes
    names, facts, description = (notes.get(name) for name in ("graphs", "facts", "program"))
    if isinstance(names, list) and isinstance(facts, list) and isinstance(description, dict):
        graphs = [graph for name in names if (graph := stores.graphs.find(str(name), session.warn)) is not None]
        if len(graphs) == len(names) and all_hold(facts, key.symbols, inputs):
            return Found(description, tuple(graphs), str(notes["about"]))
    explain_miss(key, stores.programs, session)
    return None


def keep_program(
    key: Key, traced: Traced, graphs: Sequence[str], env: ShapeEnv | None, guards: int, programs: Store, about: str
) -> None:
    """Store a program whose graphs are stored under the keys `graphs`; not one that cannot be written down.

    `guards` is how many facts about sizes were guarded before it was traced; `about` is kept with it.
    """
    facts = facts_of(env, guards, key)
    if facts is not None:
        with suppress(Unrecordable):
            notes: dict[str, Json] = {"program": to_json(traced), "graphs": [*graphs], "facts": facts, "about": about}
            programs.put(key.digest, {}, {**notes, "key": {**key.fields}})
