"""What is compiled, in the cache: where it lies, whether it fits what is at hand, and keeping it. Graphs are found by
what they compute. A whole program, which is put together again without a trace, is found by what torch.compile
captured, and names its graphs."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.autograd.aot import Traced
from gyrator.autograd.inputs import Inputs
from gyrator.autograd.record import Unrecordable, to_json
from gyrator.cache.key import Key, all_hold, differing, graph_key, new_facts
from gyrator.cache.remote import Remote
from gyrator.cache.store import Content, Entry, Json, Store
from gyrator.errors import ToolchainMissing
from gyrator.origin import Origin, origin_of
from gyrator.runtime.targets import find_targets
from gyrator.session import Count, Session

OTHER_FACTS = "facts about sizes that the stored code relies on do not hold"
KINDS = ("programs", "graphs", "kernels", "times")  # the folders that the cache keeps


@dataclass(frozen=True, slots=True)
class Stores:
    """Where what is compiled, and times of candidates, lie in `root`; `uncached` takes the graphs that have no key."""

    root: Path
    programs: Store
    graphs: Store
    kernels: Store
    times: Store
    uncached: Store


def open_stores(session: Session, scratch: Path, remote: Remote | None) -> Stores:
    """The stores in the user's folder; in `scratch` if that is not wanted, not safe, read-only, or its disk is full."""

    def opened(root: Path) -> Stores:
        programs, graphs, kernels, times = (Store(root, kind, remote, partial(spare, kind)) for kind in KINDS)
        return Stores(root, programs, graphs, kernels, times, Store(scratch, "uncached"))

    def spare(kind: str, problem: OSError) -> Store:
        session.warn(f"compiled code is not kept: {problem.strerror}")
        return Store(scratch, kind, remote)

    if session.config.cache:
        try:
            return opened(session.config.cache_folder)
        except (OSError, RuntimeError) as problem:
            session.warn(f"compiled code is not kept: {problem}")
    return opened(scratch)


def find(key: Key | None, store: Store, example_inputs: Sequence[object], session: Session) -> Entry | None:
    """The stored entry of a key, if the facts about sizes that it relies on hold; counts hits and misses."""
    if key is None:
        return None
    entry = store.find(key.digest, session.warn)
    if entry is not None and all_hold(entry.notes["facts"], key.symbols, example_inputs):
        session.counters.add(Count.GRAPH_CACHE_HITS)
        return entry
    session.counters.add(Count.GRAPH_CACHE_MISSES)
    explain_miss(key, store, session, "" if entry is None else OTHER_FACTS)
    return None


def explain_miss(key: Key, store: Store, session: Session, unfit: str) -> None:
    """If asked for, say why an entry of that key is `unfit`, or in what the key differs from the nearest stored."""
    if not (session.why_missed or "cache" in session.config.logs):
        return
    others = [notes["key"] for notes in store.newest(20)]
    new = f"new compared with it: {', '.join(differing(key, others))}" if others else "the cache is empty"
    session.missed = unfit or new
    if "cache" in session.config.logs:
        print(f"gyrator: {session.name} is not in the cache; {session.missed}")


def facts_of(shape_env: ShapeEnv | None, before: int, key: Key | None) -> list[Json] | None:
    """What compiling found out about sizes and relies on; None if that cannot be written down."""
    if shape_env is None or key is None:
        return []
    try:
        return [*new_facts(shape_env, before, {old: new for new, old in key.symbols.items()})]
    except ValueError:
        return None


def keep(key: Key | None, files: Mapping[str, Content], notes: Mapping[str, Json], stores: Stores) -> Entry:
    """Store a compiled graph: its wrapper, kernels and constants, to be loaded from its folder alone, and its notes.

    Without a key, or facts about sizes that can be written down, nobody will find it again."""
    if key is None or notes["facts"] is None:
        return stores.uncached.put_anonymous(files, notes)
    return stores.graphs.put(key.digest, files, {"key": dict(key.fields), **notes})


def numbered_places(graph: fx.GraphModule, wanted: Collection[Origin]) -> list[Json]:
    """The places that index errors may name, each with the position of a node that comes from there."""
    if not wanted:
        return []
    positions = {origin_of(node): position for position, node in enumerate(graph.graph.nodes)}
    found = [(place, positions[place]) for place in wanted if place in positions]
    return [[*astuple(place), at] for place, at in sorted(found, key=str)]


def moved_places(entry: Entry, graph: fx.GraphModule) -> dict[Origin, Origin]:
    """Where the places that an entry names lie now: the user's lines may have moved since it was written."""
    nodes = list(graph.graph.nodes)
    return {Origin(*place): origin_of(nodes[at]) for *place, at in entry.notes["places"]}


def program_key(
    gm: fx.GraphModule, inputs: Inputs, given: Sequence[object], env: ShapeEnv | None, session: Session, *more: object
) -> Key | None:
    """The key of a captured graph, for which its code follows from `more` too; None if it must be compiled anyway."""
    config = session.config
    if config.validate or config.freezing:
        return None
    try:
        target = find_targets(config, session.device).key()
    except ToolchainMissing:
        return None
    kinds = [type(example).__name__ if not isinstance(example, torch.Tensor) else "" for example in given]
    about = repr((inputs.requires_grad, inputs.leaf, inputs.static, kinds, sharing(given), more))
    return graph_key(gm, config, about, captured=inputs.values, shape_env=env, target=target)


def sharing(values: Sequence[object]) -> list[int]:
    """For each tensor the number of its memory, counted as it first appears; -1 for what is no tensor."""
    numbers: dict[int, int] = {}
    tensors = [v.untyped_storage()._cdata if isinstance(v, torch.Tensor) else None for v in values]
    return [-1 if owner is None else numbers.setdefault(owner, len(numbers)) for owner in tensors]


def find_program(
    key: Key | None, stores: Stores, inputs: Sequence[object], session: Session
) -> tuple[Mapping[str, Any], list[Entry]] | None:
    """What `keep_program` noted of the program of a key, and its graphs, if all are there and the facts about sizes
    that they rely on hold; else the session is told why, if it asks. Damaged ones count as absent, with a warning."""
    if key is None:
        return None
    entry, unfit = stores.programs.find(key.digest, session.warn), ""
    if entry is not None:
        names, facts = entry.notes["graphs"], entry.notes["facts"]
        graphs = [graph for name in names if (graph := stores.graphs.find(name, session.warn)) is not None]
        if len(graphs) == len(names) and all_hold(facts, key.symbols, inputs):
            return entry.notes, graphs
        unfit = OTHER_FACTS if len(graphs) == len(names) else "a graph of the stored program is gone"
    explain_miss(key, stores.programs, session, unfit)
    return None


def keep_program(
    key: Key, traced: Traced, graphs: Sequence[str], env: ShapeEnv | None, guards: int, programs: Store, about: str
) -> None:
    """Store a program whose graphs (forward or inference, then backward) have the keys `graphs`, if it can be written.

    `guards` is how many facts about sizes were guarded before it was traced; `about` is kept with it."""
    if (facts := facts_of(env, guards, key)) is not None:
        with suppress(Unrecordable):
            notes: dict[str, Json] = {"program": to_json(traced), "graphs": [*graphs], "facts": facts, "about": about}
            programs.put(key.digest, {}, {**notes, "key": {**key.fields}})
